/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile bytes: frames, messages, descriptors and ranges that libzipccl would never send, and peers that are none. The
 * daemon answers or hangs up, and goes on to serve others.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "impostor.h"
#include "peer.pb-c.h"
#include "raw.h"

static struct frame_header header(uint16_t type, uint32_t length, uint16_t nfds) {
    return (struct frame_header){.length = length, .type = type, .nfds = nfds, .id = 9, .magic = FRAME_MAGIC};
}

static void case_truncated_frame(struct e2e *e) {
    e2e_daemons(e, 1);
    const char *socket = e->daemons[0].socket;
    for (size_t cut = 0; cut < sizeof(struct frame_header) + 8; cut += 3) {
        uint8_t bytes[64] = {0};
        struct frame_header h = header(WIRE_HELLO, 40, 0);
        memcpy(bytes, &h, sizeof(h));
        int fd = raw_connect(socket);
        E2E_CHECK(raw_bytes(fd, bytes, cut, NULL, 0), "cut %zu", cut);
        if (cut % 2)
            shutdown(fd, SHUT_WR);
        if (cut % 2)
            raw_expect_closed(fd);
        close(fd);
    }
    /* A session that stops in the middle of a request, with a descriptor on it. */
    int fd = raw_session(socket, "cut"), null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct frame_header h = header(WIRE_BUFFER_REGISTER, 100, 1);
    E2E_CHECK(raw_bytes(fd, &h, sizeof(h), &null, 1), "send");
    close(fd);
    close(null);
    e2e_alive(e);
}
E2E_CASE(truncated_frame, 20)

static void bad_header(const char *socket, struct frame_header h, const char *what) {
    static uint8_t bytes[64];
    int fd = raw_session(socket, "bad");
    memset(bytes, 0, sizeof(bytes));
    memcpy(bytes, &h, sizeof(h));
    raw_bytes(fd, bytes, sizeof(bytes), NULL, 0);
    raw_expect_error(fd, -1, what);
    raw_expect_closed(fd);
    close(fd);
}

static void case_bad_headers(struct e2e *e) {
    e2e_daemons(e, 1);
    const char *socket = e->daemons[0].socket;
    struct frame_header h = header(WIRE_STATUS, 0, 0);
    bad_header(socket, header(WIRE_STATUS, FRAME_MAX_PAYLOAD + 1, 0), "long|large|length|limit");
    bad_header(socket, header(WIRE_STATUS, UINT32_MAX, 0), "long|large|length|limit");
    bad_header(socket, header(WIRE_STATUS, 0, FRAME_MAX_FDS + 1), "descriptor");
    bad_header(socket, header(WIRE_STATUS, 0, UINT16_MAX), "descriptor");
    h.magic = 0x1234;
    bad_header(socket, h, "magic|frame");
    h = header(WIRE_STATUS, 0, 0);
    h.reserved = 1;
    bad_header(socket, h, "reserved|frame");
    /* It announces a descriptor that does not come. */
    bad_header(socket, header(WIRE_BUFFER_REGISTER, 2, 1), "descriptor");
    e2e_alive(e);
}
E2E_CASE(bad_headers, 30)

/* More descriptors than allowed, or than announced, must neither stay open nor harm. */
static void case_too_many_descriptors(struct e2e *e) {
    e2e_daemons(e, 1);
    const char *socket = e->daemons[0].socket;
    int fds[40];
    for (unsigned i = 0; i < 40; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(raw_session(socket, "warm"));
    e2e_sleep(0.2);
    unsigned before = e2e_proc_fds(e->daemons[0].pid);
    for (unsigned n = 1; n <= 40; n += 13) {
        int fd = raw_session(socket, "many");
        struct frame_header h = header(WIRE_STATUS, 0, (uint16_t)(n > FRAME_MAX_FDS ? FRAME_MAX_FDS : 0));
        raw_bytes(fd, &h, sizeof(h), fds, n);
        raw_expect_error(fd, -1, "descriptor");
        raw_expect_closed(fd);
        close(fd);
    }
    for (unsigned i = 0; i < 40; i++)
        close(fds[i]);
    unsigned after = 0;
    for (int i = 0; i < 50; i++, e2e_sleep(0.02))
        if ((after = e2e_proc_fds(e->daemons[0].pid)) <= before)
            break;
    E2E_CHECK(after <= before, "%u descriptors before, %u after", before, after);
    e2e_alive(e);
}
E2E_CASE(too_many_descriptors, 30)

static void case_garbage_messages(struct e2e *e) {
    static const uint16_t types[] = {WIRE_HELLO,          WIRE_COMM_INIT, WIRE_COMM_DESTROY,    WIRE_COMM_ABORT,
                                     WIRE_BUFFER_RELEASE, WIRE_STATS,     WIRE_BUFFER_REGISTER, WIRE_REQUEST,
                                     WIRE_COMM_EVENT,     WIRE_PEER_JOIN, WIRE_COMM_SPLIT,      999};
    uint8_t garbage[300];
    e2e_daemons(e, 1);
    const char *socket = e->daemons[0].socket;
    memset(garbage, 0xff, sizeof(garbage));
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        int fd = raw_session(socket, "garbage");
        raw_send(fd, types[i], 7, garbage, sizeof(garbage), NULL, 0);
        raw_expect_error(fd, -1, "");
        close(fd);
        fd = raw_connect(socket); /* and before any hello */
        raw_send(fd, types[i], 7, garbage, sizeof(garbage), NULL, 0);
        raw_expect_error(fd, -1, "");
        close(fd);
    }
    /* Random bytes. */
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < 50; i++) {
        int fd = raw_connect(socket);
        E2E_CHECK(read(random, garbage, sizeof(garbage)) == (ssize_t)sizeof(garbage), "urandom");
        raw_bytes(fd, garbage, sizeof(garbage), NULL, 0);
        shutdown(fd, SHUT_WR);
        raw_expect_closed(fd);
        close(fd);
    }
    close(random);
    e2e_alive(e);
}
E2E_CASE(garbage_messages, 30)

static void case_versions(struct e2e *e) {
    e2e_daemons(e, 1);
    int fd = raw_connect(e->daemons[0].socket);
    Zipccl__Hello hello = ZIPCCL__HELLO__INIT;
    hello.version_min = WIRE_VERSION_MAX + 1;
    hello.version_max = WIRE_VERSION_MAX + 7;
    hello.job = "future";
    raw_message(fd, WIRE_HELLO, 1, &hello.base, NULL, 0);
    raw_expect_error(fd, zipcclVersionMismatch, "version");
    close(fd);
    e2e_alive(e);
}
E2E_CASE(versions, 20)

/* ---- requests ---- */

static void expect_refused(int fd, const char *what) {
    struct raw_frame f;
    char text[1024];
    uint32_t result;
    int rc = raw_next(fd, &f, 10);
    E2E_CHECK(rc == 1, "%s: %s", what, rc ? "no answer" : "closed without a word");
    if (f.header.type == WIRE_COMM_EVENT) /* the communicator's failure may be told before the request's */
        E2E_CHECK(raw_next(fd, &f, 10) == 1, "%s: no answer after the event", what);
    if (f.header.type == WIRE_ERROR) {
        Zipccl__Error *error = zipccl__error__unpack(NULL, f.header.length, f.payload);
        E2E_CHECK(error, "%s", what);
        result = error->result;
        snprintf(text, sizeof(text), "%s", error->text);
        zipccl__error__free_unpacked(error, NULL);
    } else {
        struct wire_completion c;
        E2E_CHECK(f.header.type == WIRE_COMPLETION && f.header.length >= sizeof(c), "%s: type %u", what, f.header.type);
        memcpy(&c, f.payload, sizeof(c));
        result = c.result;
        snprintf(text, sizeof(text), "%.*s", (int)(f.header.length - sizeof(c)), (const char *)f.payload + sizeof(c));
    }
    E2E_CHECK(result == zipcclInvalidArgument || result == zipcclInvalidUsage || result == zipcclLimitExceeded,
              "%s: %s: %s", what, e2e_result_name((int)result), text);
    E2E_CHECK(strlen(text) > 8, "%s: \"%s\" explains nothing", what, text);
}

/* Each request in a session of its own, since a communicator that failed stays failed. */
static void bad_request(const char *socket, const char *what, void (*spoil)(struct wire_request *r)) {
    int fd = raw_session(socket, "requests");
    zipcclUniqueId id = raw_unique_id(fd);
    struct wire_request r = {.comm = raw_comm(fd, &id, 1, 0),
                             .seq = 1,
                             .count = 1024,
                             .send_buffer = raw_buffer(fd, 8192),
                             .op = zipcclOpAllGather,
                             .dtype = zipcclBfloat16,
                             .codec = zipcclCodecAuto};
    r.recv_buffer = raw_buffer(fd, 8192);
    spoil(&r);
    E2E_CHECK(raw_send(fd, WIRE_REQUEST, 5, &r, sizeof(r), NULL, 0), "%s", what);
    expect_refused(fd, what);
    close(fd);
}

#define SPOIL(name, statement)                                                                                         \
    static void spoil_##name(struct wire_request *r) {                                                                 \
        statement;                                                                                                     \
    }
SPOIL(comm, r->comm ^= 0x1000001)
SPOIL(seq, r->seq = 9)
SPOIL(end, r->recv_offset = 8192 - 2046)
SPOIL(send_end, r->send_offset = 8192 - 2046)
SPOIL(offset, r->recv_offset = UINT64_MAX - 100)
SPOIL(count, r->count = 5000)
SPOIL(huge, r->count = UINT64_MAX / 2 + 1)
SPOIL(wrap, r->count = UINT64_MAX / 2 + 1024)
SPOIL(buffer, r->recv_buffer = 12345678)
SPOIL(none, r->recv_buffer = 0)
SPOIL(send_none, r->send_buffer = 0)
SPOIL(op, r->op = 77)
SPOIL(dtype, r->dtype = 77)
SPOIL(codec, r->codec = 77)
SPOIL(flags, r->flags = 2)
SPOIL(group_barrier, r->op = zipcclOpBarrier; r->flags = WIRE_GROUP_MORE)
SPOIL(redop, r->op = zipcclOpAllReduce; r->arm = zipcclArmAuto; r->redop = 77)
SPOIL(redop_unused, r->redop = 1)
SPOIL(arm, r->op = zipcclOpAllReduce; r->arm = 77)
SPOIL(arm_unused, r->arm = zipcclArmAuto)
SPOIL(scalar, r->op = zipcclOpAllReduce; r->arm = zipcclArmAuto; r->scalar = 3)
SPOIL(peer, r->op = zipcclOpSend; r->root = 1)
SPOIL(peer_far, r->op = zipcclOpRecv; r->root = 1u << 30)
SPOIL(no_counts, r->op = zipcclOpAllToAllv; r->count = 0)
SPOIL(reserved, r->reserved = 1)
SPOIL(capped, r->max_count = 1)
SPOIL(root, r->op = zipcclOpBroadcast; r->root = 1)

/* All-to-all-capped of two ranks, of which one is here: its buffers hold 2 * 256 values each, its counts lie in the
 * last 16 bytes of each. buffers: of send counts, receive counts; 1 and 2 stand for the registered ones. */
static const struct {
    uint64_t count, max_count, buffers[2], offsets[2];
    uint32_t bytes;
} bad_capped[] = {
    {0, 256, {1, 2}, {1024, 1032}, 128},           /* past the end */
    {0, 256, {1, 2}, {1032, 1024}, 128},           /* */
    {0, 256, {1, 2}, {1040, 1024}, 128},           /* behind it */
    {0, 256, {1, 2}, {1024, UINT64_MAX - 7}, 128}, /* wraps */
    {0, 256, {1, 2}, {1020, 1024}, 128},           /* misaligned */
    {0, 256, {1, 2}, {1024, 1017}, 128},           /* */
    {0, 256, {0, 2}, {1024, 1024}, 128},           /* missing */
    {0, 256, {1, 0}, {1024, 1024}, 128},           /* */
    {0, 256, {99, 2}, {1024, 1024}, 128},          /* unknown */
    {0, 256, {1, UINT64_MAX}, {1024, 1024}, 128},  /* */
    {0, 261, {1, 2}, {1024, 1024}, 128},           /* values past the end */
    {0, UINT64_MAX / 2 + 1, {1, 2}, {1024, 1024}, 128},
    {256, 0, {1, 2}, {1024, 1024}, 128},
    {256, 256, {1, 2}, {1024, 1024}, 128},
    {0, 256, {1, 2}, {1024, 1024}, 96}, /* of another length */
    {0, 256, {1, 2}, {1024, 1024}, 120},
    {0, 256, {1, 2}, {1024, 1024}, 136},
};

static void bad_capped_request(const char *socket, unsigned i) {
    int fd = raw_session(socket, "requests"), other = raw_session(socket, "requests");
    struct {
        struct wire_request request;
        struct wire_counts counts;
        uint64_t more;
    } r = {.request = {.seq = 1, .op = zipcclOpAllToAllCapped, .dtype = zipcclBfloat16, .codec = zipcclCodecAuto}};
    char what[32];
    snprintf(what, sizeof(what), "capped request %u", i);
    r.request.comm = raw_comm_of_two(fd, other);
    uint64_t buffers[3] = {0, raw_buffer(fd, 1040), raw_buffer(fd, 1040)};
    r.request.send_buffer = buffers[1];
    r.request.recv_buffer = buffers[2];
    r.request.count = bad_capped[i].count;
    r.request.max_count = bad_capped[i].max_count;
    const uint64_t *wanted = bad_capped[i].buffers;
    r.counts = (struct wire_counts){.send_buffer = wanted[0] < 3 ? buffers[wanted[0]] : wanted[0],
                                    .send_offset = bad_capped[i].offsets[0],
                                    .recv_buffer = wanted[1] < 3 ? buffers[wanted[1]] : wanted[1],
                                    .recv_offset = bad_capped[i].offsets[1]};
    E2E_CHECK(raw_send(fd, WIRE_REQUEST, 5, &r, bad_capped[i].bytes, NULL, 0), "%s", what);
    expect_refused(fd, what);
    close(fd);
    close(other);
}

static void case_bad_requests(struct e2e *e) {
    e2e_daemons(e, 1);
    const char *socket = e->daemons[0].socket;
    for (unsigned i = 0; i < sizeof(bad_capped) / sizeof(bad_capped[0]); i++)
        bad_capped_request(socket, i);
#define TRY(name) bad_request(socket, #name, spoil_##name)
    TRY(comm);
    TRY(seq);
    TRY(end);
    TRY(send_end);
    TRY(offset);
    TRY(count);
    TRY(huge);
    TRY(wrap);
    TRY(buffer);
    TRY(none);
    TRY(send_none);
    TRY(op);
    TRY(dtype);
    TRY(codec);
    TRY(flags);
    TRY(group_barrier);
    TRY(redop);
    TRY(redop_unused);
    TRY(arm);
    TRY(arm_unused);
    TRY(scalar);
    TRY(peer);
    TRY(peer_far);
    TRY(no_counts);
    TRY(reserved);
    TRY(capped);
    TRY(root);
#undef TRY
    e2e_alive(e);
}
E2E_CASE(bad_requests, 40)

/* ---- memory ---- */

static void refused_memory(const char *socket, int memfd, uint64_t bytes, const char *what) {
    int fd = raw_session(socket, "memory");
    E2E_CHECK(raw_register(fd, 4, memfd, bytes), "send");
    raw_expect_error(fd, -1, what);
    close(fd);
    if (memfd >= 0)
        close(memfd);
}

static void case_bad_memory(struct e2e *e) {
    int pipes[2];
    char path[96];
    e2e_daemons(e, 1);
    const char *socket = e->daemons[0].socket;
    refused_memory(socket, raw_memfd(8192, false), 8192, "seal");
    refused_memory(socket, raw_memfd(8192, true), 8193, "8192|8193|size|short|small|less");
    refused_memory(socket, raw_memfd(8192, true), UINT64_MAX, "");
    refused_memory(socket, raw_memfd(8192, true), (uint64_t)1 << 60, "");
    refused_memory(socket, raw_memfd(8192, true), 0, "");
    refused_memory(socket, -1, 8192, "descriptor");
    refused_memory(socket, open("/dev/null", O_RDWR | O_CLOEXEC), 8192, "");
    refused_memory(socket, open("/dev/zero", O_RDWR | O_CLOEXEC), 8192, "");
    E2E_CHECK(pipe2(pipes, O_CLOEXEC) == 0, "pipe");
    refused_memory(socket, pipes[0], 8192, "");
    close(pipes[1]);
    snprintf(path, sizeof(path), "%s/file", e->dir);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    E2E_CHECK(file >= 0 && ftruncate(file, 8192) == 0, "%s", path);
    refused_memory(socket, file, 8192, "seal|memfd");
    int memfd = raw_memfd(8192, true);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", memfd);
    refused_memory(socket, open(path, O_RDONLY | O_CLOEXEC), 8192, "");
    close(memfd);
    /* A session that names no job has nothing to register for. */
    int fd = raw_session(socket, "");
    memfd = raw_memfd(8192, true);
    E2E_CHECK(raw_register(fd, 4, memfd, 8192), "send");
    raw_expect_error(fd, -1, "job");
    close(fd);
    close(memfd);
    e2e_alive(e);
}
E2E_CASE(bad_memory, 30)

/* Memory that is punched or unmapped while it is used: zeros, not a fault of the daemon. */
static void case_punched_memory(struct e2e *e) {
    e2e_daemons(e, 1);
    const char *socket = e->daemons[0].socket;
    enum { BYTES = 4 << 20 };
    int fd = raw_session(socket, "punch"), memfd = raw_memfd(BYTES, true);
    struct raw_frame f;
    E2E_CHECK(raw_register(fd, 4, memfd, BYTES), "send");
    raw_expect(fd, &f, WIRE_BUFFER_REGISTER_REPLY);
    Zipccl__BufferRef *reply = zipccl__buffer_ref__unpack(NULL, f.header.length, f.payload);
    zipcclUniqueId id = raw_unique_id(fd);
    uint64_t comm = raw_comm(fd, &id, 1, 0);
    for (uint64_t seq = 1; seq <= 20; seq++) {
        struct wire_request r = {.comm = comm,
                                 .seq = seq,
                                 .count = BYTES / 4,
                                 .send_buffer = reply->buffer,
                                 .recv_buffer = reply->buffer,
                                 .recv_offset = BYTES / 2,
                                 .op = zipcclOpAllGather,
                                 .dtype = zipcclBfloat16,
                                 .codec = zipcclCodecAuto};
        E2E_CHECK(raw_send(fd, WIRE_REQUEST, (uint32_t)seq, &r, sizeof(r), NULL, 0), "send");
        E2E_CHECK(ftruncate(memfd, 4096) < 0, "a sealed memfd was truncated");
        (void)fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES);
        raw_expect(fd, &f, WIRE_COMPLETION);
    }
    zipccl__buffer_ref__free_unpacked(reply, NULL);
    close(fd);
    close(memfd);
    e2e_alive(e);
}
E2E_CASE(punched_memory, 30)

/* ---- peers ---- */

static void case_garbage_peers(struct e2e *e) {
    static const uint16_t types[] = {WIRE_PEER_JOIN,  WIRE_PEER_TABLE, WIRE_PEER_READY, WIRE_PEER_GO, WIRE_PEER_ABORT,
                                     WIRE_PEER_LEAVE, WIRE_PEER_PING,  WIRE_HELLO,      WIRE_REQUEST, 999};
    static struct impostor p;
    static struct raw_frame reply;
    uint8_t garbage[500];
    e2e_set(e, "peer_timeout=1s");
    e2e_daemons(e, 2);
    Zipccl__Status *status = raw_status(e->daemons[0].socket);
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    int silent[30];
    for (unsigned i = 0; i < 30; i++)
        silent[i] = raw_connect_tcp(status->listen);
    for (unsigned i = 0; i < 40; i++) {
        int fd = raw_connect_tcp(status->listen);
        E2E_CHECK(read(random, garbage, sizeof(garbage)) == (ssize_t)sizeof(garbage), "urandom");
        raw_bytes(fd, garbage, sizeof(garbage), NULL, 0);
        shutdown(fd, SHUT_WR);
        raw_expect_closed(fd);
        close(fd);
    }
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        for (int greets = 0; greets < 2; greets++) {
            E2E_CHECK(impostor_connect(&p, status->listen, NULL) == PEER_AUTH_DONE, "%s", p.auth.why);
            if (greets)
                impostor_hello(&p);
            memset(garbage, 0xff, sizeof(garbage));
            impostor_send(&p, types[i], garbage, 300);
            shutdown(p.fd, SHUT_WR);
            raw_expect_closed(p.fd);
            close(p.fd);
        }
    /* A join for a communicator that does not exist. */
    Zipccl__Peer__PeerJoin join = ZIPCCL__PEER__PEER_JOIN__INIT;
    join.key = join.nonce = 1234567;
    join.nranks = 2;
    join.job = "none";
    E2E_CHECK(impostor_connect(&p, status->listen, NULL) == PEER_AUTH_DONE, "%s", p.auth.why);
    impostor_hello(&p);
    impostor_message(&p, WIRE_PEER_JOIN, &join.base);
    E2E_CHECK(impostor_next(&p, &reply, 5) == 1 && reply.header.type == WIRE_PEER_HELLO, "no hello");
    E2E_CHECK(impostor_next(&p, &reply, 5) == 1 && reply.header.type == WIRE_PEER_ABORT, "type %u", reply.header.type);
    close(p.fd);
    /* Who never greets is put out after a while, and until then stands in nobody's way. */
    e2e_alive(e);
    for (unsigned i = 0; i < 30; i++) {
        raw_expect_closed(silent[i]);
        close(silent[i]);
    }
    zipccl__status__free_unpacked(status, NULL);
    close(random);
    e2e_alive(e);
}
E2E_CASE(garbage_peers, 40)

/* A client that asks and never reads. */
static void case_flood(struct e2e *e) {
    e2e_daemons(e, 1);
    int fd = raw_session(e->daemons[0].socket, "flood");
    uint64_t before = e2e_proc_kb(e->daemons[0].pid, "VmRSS"), sent = 0;
    double end = e2e_now() + 15 * E2E_SLOW;
    bool closed = false;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (!closed && e2e_now() < end) {
        uint8_t many[16 * 256];
        for (unsigned i = 0; i < 256; i++) {
            struct frame_header h = header(WIRE_STATUS, 0, 0);
            memcpy(many + 16 * i, &h, sizeof(h));
        }
        ssize_t n = send(fd, many + sent % 16, sizeof(many) - sent % 16, MSG_NOSIGNAL);
        if (n > 0)
            sent += (uint64_t)n;
        else if (errno == EAGAIN)
            e2e_sleep(0.002);
        else
            closed = true;
    }
    uint64_t after = e2e_proc_kb(e->daemons[0].pid, "VmRSS");
    E2E_CHECK(closed, "the daemon listens on, after %llu bytes", (unsigned long long)sent);
    E2E_CHECK(E2E_SANITIZED || after < before + 65536, "%llu KiB before, %llu KiB after", (unsigned long long)before,
              (unsigned long long)after);
    close(fd);
    e2e_alive(e);
}
E2E_CASE(flood, 40)

/* Connections that never say hello do not keep others out. */
static void case_silent_clients(struct e2e *e) {
    int fds[100];
    e2e_daemons(e, 1);
    for (unsigned i = 0; i < 100; i++)
        fds[i] = raw_connect(e->daemons[0].socket);
    e2e_alive(e);
    for (unsigned i = 0; i < 100; i++)
        close(fds[i]);
    e2e_alive(e);
}
E2E_CASE(silent_clients, 30)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated_frame),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_too_many_descriptors),
        cmocka_unit_test(test_garbage_messages),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_bad_memory),
        cmocka_unit_test(test_punched_memory),
        cmocka_unit_test(test_garbage_peers),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_silent_clients),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
