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
#define MAX_HELD    8192
#define MAX_COMMS   16

struct fake_conn {
    struct frame_conn *conn;
    struct {
        unsigned nranks, rank;
    } comms[MAX_COMMS];
    unsigned ncomms;
    struct {
        uint8_t *base;
        size_t bytes;
    } buffers[MAX_BUFFERS];
    unsigned nbuffers;
    struct wire_request *held[MAX_HELD]; /* whole frames */
    unsigned nheld;
    struct wire_request *group[MAX_HELD];
    unsigned ngroup;
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

static size_t width_of(unsigned dtype) {
    static const uint8_t widths[zipcclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    must(dtype < zipcclNumTypes);
    return widths[dtype];
}

/* The reduction of n equal ranks. */
static double reduce(const struct wire_request *q, double x, unsigned n) {
    double result = x;
    float f;
    int32_t i;
    switch (q->redop) {
    case zipcclSum:
        return n * x;
    case zipcclProd:
        for (unsigned k = 1; k < n; k++)
            result *= x;
        return result;
    case zipcclPreMulSum:
        memcpy(&f, &q->scalar, sizeof f);
        memcpy(&i, &q->scalar, sizeof i);
        return n * x * (q->dtype == zipcclFloat32 ? (double)f : (double)i);
    default:
        return x;
    }
}

static void reduce_all(const struct wire_request *q, void *values, size_t bytes, unsigned n) {
    for (size_t i = 0; q->dtype == zipcclUint8 && i < bytes; i++)
        ((uint8_t *)values)[i] = (uint8_t)reduce(q, ((uint8_t *)values)[i], n);
    for (size_t i = 0; q->dtype == zipcclInt32 && i < bytes / 4; i++)
        ((int32_t *)values)[i] = (int32_t)reduce(q, ((int32_t *)values)[i], n);
    for (size_t i = 0; q->dtype == zipcclFloat32 && i < bytes / 4; i++)
        ((float *)values)[i] = (float)reduce(q, ((float *)values)[i], n);
}

/* `bytes` of what there is, again and again. */
static void repeat(uint8_t *to, size_t bytes, const uint8_t *from, size_t there) {
    for (size_t i = 0; i < bytes; i++)
        to[i] = there ? from[i % there] : 0x5a;
}

/* What one request reads and writes, in bytes. */
struct work {
    size_t send, recv;
};

static struct work work_of(const struct wire_request *q, const uint64_t *counts, size_t n, size_t rank, size_t w) {
    struct work k = {0};
    size_t all = 0, one = q->count * w;
    bool root = rank == q->root;
    for (size_t i = 0; (q->op == zipcclOpAllGatherv || q->op == zipcclOpReduceScatterv) && i < n; i++)
        all += counts[i] * w;
    switch (q->op) {
    case zipcclOpAllGather:
        return (struct work){one, one * n};
    case zipcclOpBroadcast:
        return (struct work){root ? one : 0, one};
    case zipcclOpReduceScatter:
        return (struct work){one * n, one};
    case zipcclOpAllReduce:
        return (struct work){one, one};
    case zipcclOpReduce:
        return (struct work){one, root ? one : 0};
    case zipcclOpAllToAll:
        return (struct work){one * n, one * n};
    case zipcclOpAllToAllCapped:
        return (struct work){q->max_count * w * n, q->max_count * w * n};
    case zipcclOpAllToAllv:
        for (size_t i = 0; i < n; i++) {
            size_t s = counts[i] ? (counts[i] + counts[n + i]) * w : 0;
            size_t r = counts[2 * n + i] ? (counts[2 * n + i] + counts[3 * n + i]) * w : 0;
            k.send = s > k.send ? s : k.send;
            k.recv = r > k.recv ? r : k.recv;
        }
        return k;
    case zipcclOpGather:
        return (struct work){one, root ? one * n : 0};
    case zipcclOpScatter:
        return (struct work){root ? one * n : 0, one};
    case zipcclOpSend:
        return (struct work){one, 0};
    case zipcclOpRecv:
        return (struct work){0, one};
    case zipcclOpAllGatherv:
        return (struct work){counts[rank] * w, all};
    case zipcclOpReduceScatterv:
        return (struct work){all, counts[rank] * w};
    default:
        return k;
    }
}

/* send is a copy, so that in place is nothing special. */
static void play(const struct wire_request *q, const uint64_t *counts, size_t n, size_t rank, size_t w,
                 const uint8_t *send, size_t send_bytes, uint8_t *recv, size_t recv_bytes) {
    size_t one = q->count * w, before = 0;
    switch (q->op) {
    case zipcclOpAllGather:
    case zipcclOpBroadcast:
    case zipcclOpGather:
    case zipcclOpAllReduce:
    case zipcclOpReduce:
    case zipcclOpRecv:
        repeat(recv, recv_bytes, send, send_bytes);
        break;
    case zipcclOpReduceScatter:
        memcpy(recv, send + rank * one, one);
        break;
    case zipcclOpScatter:
        repeat(recv, one, send ? send + rank * one : NULL, send ? one : 0);
        break;
    case zipcclOpAllToAll:
        repeat(recv, recv_bytes, send + rank * one, one);
        break;
    case zipcclOpAllToAllv:
        for (size_t i = 0; i < n; i++)
            if (counts[2 * n + i])
                repeat(recv + counts[3 * n + i] * w, counts[2 * n + i] * w, send ? send + counts[n + rank] * w : NULL,
                       counts[rank] * w);
        break;
    case zipcclOpAllGatherv:
        for (size_t i = 0; i < n; before += counts[i++] * w)
            repeat(recv + before, counts[i] * w, send, send_bytes);
        break;
    case zipcclOpReduceScatterv:
        for (size_t i = 0; i < rank; i++)
            before += counts[i] * w;
        memcpy(recv, send + before, recv_bytes);
        break;
    default:
        break;
    }
    if (q->op == zipcclOpReduceScatter || q->op == zipcclOpReduceScatterv || q->op == zipcclOpAllReduce ||
        q->op == zipcclOpReduce)
        reduce_all(q, recv, recv_bytes, (unsigned)n);
}

/* The counts of an all-to-all-capped, and of its values no more than they say. */
static void play_capped(struct fake_conn *c, const struct wire_request *q, size_t n, size_t rank, size_t w,
                        const uint8_t *send, uint8_t *recv) {
    const struct wire_counts *where = (const struct wire_counts *)(q + 1);
    uint64_t count;
    must(!q->count && where->send_offset % 8 == 0 && where->recv_offset % 8 == 0);
    memcpy(&count, at(c, where->send_buffer, where->send_offset, n * 8) + rank * 8, 8);
    must(count <= q->max_count);
    for (size_t i = 0; i < n; i++) {
        memcpy(at(c, where->recv_buffer, where->recv_offset, n * 8) + i * 8, &count, 8);
        if (count)
            memcpy(recv + i * q->max_count * w, send + rank * q->max_count * w, count * w);
    }
}

static void run(struct fake_conn *c, struct wire_request *q, zipcclResult_t result, const char *text) {
    uint8_t bytes[sizeof(struct wire_completion) + 64];
    size_t w = width_of(q->dtype), n = c->comms[q->comm - 1].nranks, rank = c->comms[q->comm - 1].rank;
    const uint64_t *counts = (const uint64_t *)(q + 1);
    if (result == zipcclSuccess) {
        struct work k = work_of(q, counts, n, rank, w);
        uint8_t *send = NULL;
        if (k.send) {
            send = malloc(k.send);
            must(send);
            memcpy(send, at(c, q->send_buffer, q->send_offset, k.send), k.send);
        } else {
            must(!q->send_buffer);
        }
        must(k.recv || !q->recv_buffer);
        uint8_t *recv = k.recv ? at(c, q->recv_buffer, q->recv_offset, k.recv) : NULL;
        if (q->op == zipcclOpAllToAllCapped)
            play_capped(c, q, n, rank, w, send, recv);
        else if (recv)
            play(q, counts, n, rank, w, send, k.send, recv, k.recv);
        free(send);
    }
    struct wire_completion done = {
        .comm = q->comm, .seq = q->seq, .result = result, .text_bytes = (uint32_t)strlen(text)};
    memcpy(bytes, &done, sizeof done);
    memcpy(bytes + sizeof done, text, done.text_bytes);
    zipcclResult_t r = frame_conn_send(c->conn, WIRE_COMPLETION, 0, bytes, sizeof done + done.text_bytes, NULL, 0);
    (void)r;
    free(q);
}

static size_t counts_of(const struct wire_request *q, size_t n) {
    if (q->op == zipcclOpAllToAllCapped)
        return sizeof(struct wire_counts) / sizeof(uint64_t);
    return q->op == zipcclOpAllToAllv ? 4 * n : q->op == zipcclOpAllGatherv || q->op == zipcclOpReduceScatterv ? n : 0;
}

/* The frame, remembered and copied. */
static struct wire_request *take(struct fake *f, const struct fake_conn *c, const struct frame *in) {
    struct wire_request *q = malloc(in->length);
    must(q && in->length >= sizeof *q);
    memcpy(q, in->payload, in->length);
    must(q->comm && q->comm <= c->ncomms);
    f->ncounts = (unsigned)counts_of(q, c->comms[q->comm - 1].nranks);
    must(in->length == sizeof *q + f->ncounts * sizeof(uint64_t));
    memcpy(f->counts, q + 1, (f->ncounts < FAKE_COUNTS ? f->ncounts : FAKE_COUNTS) * sizeof(uint64_t));
    f->last = *q;
    if (!atomic_load(&f->ops)) {
        f->first = *q;
        f->more = 0;
    }
    f->more += q->flags & WIRE_GROUP_MORE;
    atomic_fetch_add(&f->ops, 1);
    return q;
}

/* Runs a request, or, where it is the last of a group, the whole. */
static void run_whole(struct fake_conn *c, struct wire_request *q) {
    must(c->ngroup < MAX_HELD && (!c->ngroup || c->group[0]->comm == q->comm));
    c->group[c->ngroup++] = q;
    if (q->flags & WIRE_GROUP_MORE)
        return;
    for (unsigned i = 0; i < c->ngroup; i++)
        run(c, c->group[i], zipcclSuccess, "");
    c->ngroup = 0;
}

static bool request(struct fake *f, struct fake_conn *c, const struct frame *in) {
    Zipccl__CommEvent event = ZIPCCL__COMM_EVENT__INIT;
    char text[] = "rank 3 on node-b died";
    struct wire_request *q = take(f, c, in);
    switch (atomic_load(&f->mode)) {
    case FAKE_CLOSE_ON_OP:
        free(q);
        return false;
    case FAKE_FAIL_OP:
        run(c, q, zipcclInvalidArgument, "ranks differ in count");
        return true;
    case FAKE_EVENT_ON_OP:
        event.comm = q->comm;
        event.result = zipcclRemoteError;
        event.text = text;
        reply(c, WIRE_COMM_EVENT, 0, &event.base);
        free(q);
        return true;
    case FAKE_SILENT:
        free(q);
        return true;
    case FAKE_HOLD:
        must(c->nheld < MAX_HELD);
        c->held[c->nheld++] = q;
        return true;
    default:
        run_whole(c, q);
        return true;
    }
}

static void give_id(const struct fake *f, struct fake_conn *c, uint32_t request_id) {
    struct wire_unique_id id = {.magic = WIRE_UNIQUE_ID_MAGIC, .key = 7};
    Zipccl__Error error = ZIPCCL__ERROR__INIT;
    char text[] = "too many ids";
    if (atomic_load(&f->mode) == FAKE_NO_ID) {
        error.result = zipcclLimitExceeded;
        error.text = text;
        reply(c, WIRE_ERROR, request_id, &error.base);
        return;
    }
    must(frame_conn_send(c->conn, WIRE_UNIQUE_ID_REPLY, request_id, &id, sizeof id, NULL, 0) == zipcclSuccess);
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
    ok.version = atomic_load(&f->mode) == FAKE_VERSION ? 99 : WIRE_VERSION_MAX;
    ok.features = WIRE_FEATURE_SPLIT;
    ok.node = node;
    ok.max_buffer_bytes = 1u << 30;
    reply(c, WIRE_HELLO_REPLY, id, &ok.base);
    return true;
}

static bool handle(struct fake *f, struct fake_conn *c, const struct frame *in) {
    Zipccl__CommInitReply init = ZIPCCL__COMM_INIT_REPLY__INIT;
    Zipccl__BufferRef buffer = ZIPCCL__BUFFER_REF__INIT;
    Zipccl__Status status = ZIPCCL__STATUS__INIT;
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
        give_id(f, c, in->id);
        break;
    case WIRE_COMM_INIT:
        must(c->ncomms < MAX_COMMS);
        c->comms[c->ncomms].nranks = ((Zipccl__CommInit *)m)->nranks;
        c->comms[c->ncomms++].rank = ((Zipccl__CommInit *)m)->rank;
        init.comm = c->ncomms;
        if (((Zipccl__CommInit *)m)->parent) {
            atomic_store(&f->split, ((Zipccl__CommInit *)m)->split);
            atomic_store(&f->split_joins, true);
        }
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
    case WIRE_COMM_SPLIT:
        atomic_store(&f->split, ((Zipccl__CommSplit *)m)->split);
        atomic_store(&f->split_joins, false);
        must(frame_conn_send(c->conn, WIRE_OK, in->id, NULL, 0, NULL, 0) == zipcclSuccess);
        break;
    case WIRE_COMM_ABORT:
        for (unsigned i = 0; i < c->nheld; i++)
            run(c, c->held[i], zipcclAborted, "aborted");
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
    for (unsigned i = 0; i < c->nheld; i++)
        free(c->held[i]);
    for (unsigned i = 0; i < c->ngroup; i++)
        free(c->group[i]);
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
                run(&conns[i], conns[i].held[h], zipcclSuccess, "");
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
