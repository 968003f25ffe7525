/* SPDX-License-Identifier: Apache-2.0
 *
 * The scripted daemon. See fake_daemon.h.
 */
#include "fake_daemon.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/message.h"
#include "zipccl.pb-c.h"

#define MAX_CONNS   4
#define MAX_BUFFERS 256
#define MAX_HELD    1024 /* as the daemon */

struct fake_conn {
    struct frame_conn *conn;
    unsigned nranks[16];
    unsigned ncomms;
    struct {
        uint8_t *base;
        size_t bytes;
    } buffers[MAX_BUFFERS];
    unsigned nbuffers;
    struct wire_request held[MAX_HELD];
    unsigned nheld;
};

static void must(bool ok) {
    if (!ok)
        abort();
}

static void reply(struct fake_conn *c, uint16_t type, uint32_t id, const ProtobufCMessage *m) {
    zipcclResult_t r = message_send(c->conn, type, id, m, NULL, 0);
    (void)r;
}

static uint8_t *at(struct fake_conn *c, uint64_t buffer, uint64_t offset, size_t bytes) {
    must(buffer && buffer <= c->nbuffers && offset + bytes <= c->buffers[buffer - 1].bytes);
    return c->buffers[buffer - 1].base + offset;
}

/* bfloat16 or bytes: enough for the tests. */
static void run(struct fake_conn *c, const struct wire_request *q, zipcclResult_t result, const char *text) {
    uint8_t bytes[sizeof(struct wire_completion) + 64];
    size_t n = q->count * (q->dtype == zipcclBfloat16 ? 2 : 1), ranks = c->nranks[q->comm - 1];
    if (result == zipcclSuccess && n) {
        if (q->op == zipcclOpAllGather) {
            const uint8_t *send = at(c, q->send_buffer, q->send_offset, n);
            uint8_t *recv = at(c, q->recv_buffer, q->recv_offset, n * ranks);
            for (size_t i = 0; i < ranks; i++)
                if (recv + i * n != send)
                    memcpy(recv + i * n, send, n);
        } else if (q->op == zipcclOpBroadcast) {
            uint8_t *recv = at(c, q->recv_buffer, q->recv_offset, n);
            if (!q->send_buffer)
                memset(recv, 0x5a, n);
            else if (recv != at(c, q->send_buffer, q->send_offset, n))
                memcpy(recv, at(c, q->send_buffer, q->send_offset, n), n);
        }
    }
    struct wire_completion w = {.comm = q->comm, .seq = q->seq, .result = result, .text_bytes = (uint32_t)strlen(text)};
    memcpy(bytes, &w, sizeof w);
    memcpy(bytes + sizeof w, text, w.text_bytes);
    zipcclResult_t r = frame_conn_send(c->conn, WIRE_COMPLETION, 0, bytes, sizeof w + w.text_bytes, NULL, 0);
    (void)r;
}

static bool request(struct fake *f, struct fake_conn *c, const struct frame *in) {
    Zipccl__CommEvent event = ZIPCCL__COMM_EVENT__INIT;
    struct wire_request q;
    char text[] = "rank 3 on node-b died";
    must(in->length == sizeof q);
    memcpy(&q, in->payload, sizeof q);
    f->last = q;
    atomic_fetch_add(&f->ops, 1);
    switch (atomic_load(&f->mode)) {
    case FAKE_CLOSE_ON_OP:
        return false;
    case FAKE_FAIL_OP:
        run(c, &q, zipcclInvalidArgument, "ranks differ in count");
        return true;
    case FAKE_EVENT_ON_OP:
        event.comm = q.comm;
        event.result = zipcclRemoteError;
        event.text = text;
        reply(c, WIRE_COMM_EVENT, 0, &event.base);
        return true;
    case FAKE_SILENT:
        return true;
    case FAKE_HOLD:
        must(c->nheld < MAX_HELD);
        c->held[c->nheld++] = q;
        return true;
    default:
        run(c, &q, zipcclSuccess, "");
        return true;
    }
}

static bool hello(const struct fake *f, struct fake_conn *c, uint32_t id) {
    Zipccl__Error error = ZIPCCL__ERROR__INIT;
    Zipccl__HelloReply ok = ZIPCCL__HELLO_REPLY__INIT;
    char text[] = "job is of another user", node[] = "node-a";
    if (atomic_load(&f->mode) == FAKE_REFUSE) {
        error.result = zipcclPermissionDenied;
        error.text = text;
        reply(c, WIRE_ERROR, id, &error.base);
        return false;
    }
    ok.version = atomic_load(&f->mode) == FAKE_VERSION ? 99 : 1;
    ok.node = node;
    ok.max_buffer_bytes = 1u << 30;
    reply(c, WIRE_HELLO_REPLY, id, &ok.base);
    return true;
}

static bool handle(struct fake *f, struct fake_conn *c, const struct frame *in) {
    Zipccl__CommInitReply init = ZIPCCL__COMM_INIT_REPLY__INIT;
    Zipccl__BufferRef buffer = ZIPCCL__BUFFER_REF__INIT;
    Zipccl__Status status = ZIPCCL__STATUS__INIT;
    struct wire_unique_id id = {.magic = WIRE_UNIQUE_ID_MAGIC, .key = 7};
    char node[] = "node-a";
    ProtobufCMessage *m = NULL;
    const char *why;
    bool go_on = true;
    if (message_descriptor(in->type))
        must(message_unpack(in, &m, &why) == zipcclSuccess);
    switch (in->type) {
    case WIRE_HELLO:
        go_on = hello(f, c, in->id);
        break;
    case WIRE_UNIQUE_ID:
        must(frame_conn_send(c->conn, WIRE_UNIQUE_ID_REPLY, in->id, &id, sizeof id, NULL, 0) == zipcclSuccess);
        break;
    case WIRE_COMM_INIT:
        c->nranks[c->ncomms++] = ((Zipccl__CommInit *)m)->nranks;
        init.comm = c->ncomms;
        reply(c, WIRE_COMM_INIT_REPLY, in->id, &init.base);
        break;
    case WIRE_BUFFER_REGISTER:
        must(in->nfds == 1 && c->nbuffers < MAX_BUFFERS);
        c->buffers[c->nbuffers].bytes = ((Zipccl__BufferRegister *)m)->bytes;
        c->buffers[c->nbuffers].base =
            mmap(NULL, c->buffers[c->nbuffers].bytes, PROT_READ | PROT_WRITE, MAP_SHARED, in->fds[0], 0);
        must(c->buffers[c->nbuffers].base != MAP_FAILED);
        buffer.buffer = ++c->nbuffers;
        atomic_fetch_add(&f->registered, 1);
        reply(c, WIRE_BUFFER_REGISTER_REPLY, in->id, &buffer.base);
        break;
    case WIRE_BUFFER_RELEASE:
        atomic_fetch_add(&f->released, 1);
        must(frame_conn_send(c->conn, WIRE_OK, in->id, NULL, 0, NULL, 0) == zipcclSuccess);
        break;
    case WIRE_COMM_ABORT:
        for (unsigned i = 0; i < c->nheld; i++)
            run(c, &c->held[i], zipcclAborted, "aborted");
        c->nheld = 0;
        __attribute__((fallthrough));
    case WIRE_COMM_DESTROY:
        atomic_fetch_add(&f->left, 1);
        if (atomic_load(&f->mode) == FAKE_SILENT)
            break;
        must(frame_conn_send(c->conn, WIRE_OK, in->id, NULL, 0, NULL, 0) == zipcclSuccess);
        break;
    case WIRE_STATUS:
        status.node = node;
        reply(c, WIRE_STATUS_REPLY, in->id, &status.base);
        break;
    case WIRE_REQUEST:
        go_on = request(f, c, in);
        break;
    default:
        must(false);
    }
    message_free(m);
    return go_on;
}

static void drop(struct fake_conn *c) {
    frame_conn_free(c->conn);
    for (unsigned i = 0; i < c->nbuffers; i++)
        (void)munmap(c->buffers[i].base, c->buffers[i].bytes);
    memset(c, 0, sizeof *c);
}

static void serve(struct fake *f, struct fake_conn *c) {
    struct frame in;
    zipcclResult_t r = frame_conn_read(c->conn);
    while (c->conn && frame_conn_next(c->conn, &in) == zipcclSuccess)
        if (!handle(f, c, &in))
            drop(c);
    if (c->conn && r != zipcclSuccess && r != zipcclInProgress)
        drop(c);
}

static void *run_thread(void *arg) {
    struct fake *f = arg;
    struct fake_conn *conns = calloc(MAX_CONNS, sizeof *conns);
    while (!atomic_load(&f->stop)) {
        struct pollfd p[1 + MAX_CONNS] = {{.fd = f->listener, .events = POLLIN}};
        for (int i = 0; i < MAX_CONNS; i++)
            p[1 + i] = (struct pollfd){.fd = conns[i].conn ? frame_conn_fd(conns[i].conn) : -1, .events = POLLIN};
        (void)poll(p, 1 + MAX_CONNS, 2);
        for (int i = 0; i < MAX_CONNS; i++) {
            if (!conns[i].conn && (p[0].revents & POLLIN)) {
                int fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
                if (fd >= 0)
                    conns[i].conn = frame_conn_new(fd, true);
                p[0].revents = 0;
            } else if (conns[i].conn && p[1 + i].revents) {
                serve(f, &conns[i]);
            }
            for (unsigned h = 0; atomic_load(&f->release) && h < conns[i].nheld; h++)
                run(&conns[i], &conns[i].held[h], zipcclSuccess, "");
            if (atomic_load(&f->release))
                conns[i].nheld = 0;
            if (conns[i].conn && frame_conn_wants_write(conns[i].conn)) {
                zipcclResult_t r = frame_conn_flush(conns[i].conn);
                (void)r;
            }
        }
    }
    for (int i = 0; i < MAX_CONNS; i++)
        if (conns[i].conn)
            drop(&conns[i]);
    free(conns);
    return NULL;
}

void fake_start(struct fake *f, enum fake_mode mode) {
    static int counter;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    pthread_t t;
    memset(f, 0, sizeof *f);
    atomic_store(&f->mode, mode);
    (void)snprintf(f->path, sizeof f->path, "/tmp/zipccl-fake-%d-%d.sock", (int)getpid(), counter++);
    memcpy(a.sun_path, f->path, strlen(f->path) + 1);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    must(!bind(f->listener, (struct sockaddr *)&a, sizeof a) && !listen(f->listener, 8));
    must(!setenv("ZIPCCL_SOCKET", f->path, 1));
    must(!pthread_create(&t, NULL, run_thread, f));
    f->thread = t;
}

void fake_stop(struct fake *f) {
    atomic_store(&f->stop, true);
    (void)pthread_join((pthread_t)f->thread, NULL);
    (void)close(f->listener);
    (void)unlink(f->path);
}
