/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges, reductions and groups that end in their middle: ranks and daemons that die, aborts, destroys, and frames
 * of groups and counts that libzipccl would never send.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collect.h"
#include "raw.h"

#define SOON  4.0
#define COUNT 60000u /* values of a part */

enum kind { ALL_TO_ALL, GROUP, ALL_REDUCE, KINDS };
enum end { RANK_KILLED, DAEMON_KILLED, ABORTED };

struct scene {
    enum kind kind;
    enum end how;
    int victim;
    const char *layout;
};

struct buffers {
    uint16_t *send, *recv;
    size_t values;
};

static void buffers_of(struct buffers *b, int nranks) {
    void *send = NULL, *recv = NULL;
    b->values = (size_t)nranks * COUNT;
    E2E_OK(NULL, zipcclMemAlloc(&send, 2 * b->values));
    E2E_OK(NULL, zipcclMemAlloc(&recv, 2 * b->values));
    b->send = send;
    b->recv = recv;
}

/* An all-to-all-v, a reduction and a message round the ring. */
static zipcclResult_t group(const struct e2e_rank *r, zipcclComm_t comm, const struct buffers *b, zipcclStream_t s) {
    size_t counts[E2E_MAX_RANKS], third = b->values / 3;
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    zipcclResult_t rc[5];
    for (int i = 0; i < r->nranks; i++)
        counts[i] = third / (size_t)r->nranks;
    E2E_OK(NULL, zipcclGroupStart());
    rc[0] = zipcclAllToAllv(b->send, counts, NULL, b->recv, counts, NULL, zipcclBfloat16, comm, s);
    rc[1] = zipcclAllReduce(b->send + third, b->recv + third, third, zipcclBfloat16, zipcclSum, comm, s);
    rc[2] = zipcclSend(b->send + 2 * third, third, zipcclBfloat16, next, comm, s);
    rc[3] = zipcclRecv(b->recv + 2 * third, third, zipcclBfloat16, last, comm, s);
    rc[4] = zipcclGroupEnd();
    for (int i = 0; i < 5; i++)
        if (rc[i] != zipcclSuccess)
            return rc[i];
    return zipcclSuccess;
}

static zipcclResult_t once(const struct e2e_rank *r, enum kind kind, zipcclComm_t comm, const struct buffers *b,
                           zipcclStream_t s) {
    if (kind == ALL_TO_ALL)
        return zipcclAllToAll(b->send, b->recv, COUNT, zipcclBfloat16, comm, s);
    if (kind == ALL_REDUCE)
        return zipcclAllReduce(b->send, b->recv, b->values, zipcclBfloat16, zipcclSum, comm, s);
    return group(r, comm, b, s);
}

static void scene_rank(struct e2e_rank *r) {
    const struct scene *s = r->args;
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    struct buffers b;
    zipcclResult_t rc = zipcclSuccess;
    double start = e2e_now(), end = start + 30 * E2E_SLOW;
    buffers_of(&b, r->nranks);
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    bool queues = r->rank % 2; /* several under way */
    for (int i = 0; rc == zipcclSuccess && e2e_now() < end; i++) {
        start = e2e_now();
        rc = once(r, s->kind, comm, &b, queues ? stream : NULL);
        if (queues && i % 4 == 3 && rc == zipcclSuccess)
            rc = zipcclStreamSynchronize(stream);
        if (i == 6 && r->rank == s->victim) {
            e2e_raise(r->shared, 0);
            if (s->how == ABORTED)
                break;
        }
    }
    if (s->how == ABORTED && r->rank == s->victim)
        E2E_OK(NULL, zipcclCommAbort(comm));
    else
        e2e_report(r, rc, queues ? NULL : comm, start);
    if (s->how != ABORTED || r->rank != s->victim)
        zipcclCommDestroy(comm);
    zipcclStreamDestroy(stream);
    E2E_OK(NULL, zipcclMemFree(b.send));
    E2E_OK(NULL, zipcclMemFree(b.recv));
}

static void play(struct e2e *e, const struct scene *s) {
    struct e2e_group g;
    unsigned node = (unsigned)(s->layout[s->victim] - '0');
    e2e_start(e, &g, s->layout, scene_rank, s);
    e2e_await(g.shared, 0);
    if (s->how == RANK_KILLED)
        kill(g.pids[s->victim], SIGKILL);
    else if (s->how == DAEMON_KILLED)
        e2e_daemon_kill(e, node);
    e2e_wait(e, &g, 20);
    for (int i = 0; i < g.nranks; i++) {
        bool gone = s->how == DAEMON_KILLED && s->layout[i] == s->layout[s->victim];
        if (i == s->victim && s->how != DAEMON_KILLED)
            continue;
        e2e_expect(&g, i,
                   gone                ? zipcclDaemonUnavailable
                   : s->how == ABORTED ? zipcclAborted
                                       : zipcclRemoteError,
                   SOON, "rank|node", NULL);
    }
    if (s->how == DAEMON_KILLED)
        e2e_daemon_start(e, node);
    raw_nothing_left(e);
    e2e_alive(e);
}

static void scenes(struct e2e *e, enum end how) {
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_daemons(e, 2);
    for (enum kind kind = ALL_TO_ALL; kind < KINDS; kind++) {
        play(e, &(struct scene){kind, how, 2, "000"});
        play(e, &(struct scene){kind, how, (int)kind, "0011"});
    }
}

static void case_rank_is_killed(struct e2e *e) {
    scenes(e, RANK_KILLED);
}
E2E_CASE(rank_is_killed, 60)

static void case_daemon_is_killed(struct e2e *e) {
    scenes(e, DAEMON_KILLED);
}
E2E_CASE(daemon_is_killed, 60)

static void case_rank_aborts(struct e2e *e) {
    scenes(e, ABORTED);
}
E2E_CASE(rank_aborts, 60)

/* A destroy waits for what is under way, and its results are there. */
static void destroys_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    struct buffers b;
    buffers_of(&b, r->nranks);
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    for (size_t i = 0; i < b.values; i++)
        b.send[i] = (uint16_t)(i + (size_t)r->rank * 7);
    e2e_sleep(0.03 * r->rank);
    for (int i = 0; i < 12; i++)
        E2E_OK(comm, once(r, (enum kind)(i % KINDS), comm, &b, stream));
    E2E_OK(comm, zipcclAllToAll(b.send, b.recv, COUNT, zipcclBfloat16, comm, stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    for (size_t i = 0; i < b.values; i++) {
        size_t from = i / COUNT, at = (size_t)r->rank * COUNT + i % COUNT;
        E2E_CHECK(b.recv[i] == (uint16_t)(at + from * 7), "value %zu", i);
    }
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclMemFree(b.send));
    E2E_OK(NULL, zipcclMemFree(b.recv));
}

static void case_destroy_waits(struct e2e *e) {
    e2e_daemons(e, 2);
    e2e_ranks(e, "000", destroys_rank, NULL, 20);
    e2e_ranks(e, "0110", destroys_rank, NULL, 20);
    raw_nothing_left(e);
}
E2E_CASE(destroy_waits, 40)

/* A daemon that shall end lets the exchange end that runs: the last rank calls it after that. */
static void drained_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    struct buffers b;
    int peer = r->rank ^ 1;
    buffers_of(&b, r->nranks);
    if (r->rank == 1) {
        e2e_await(r->shared, 0);
        e2e_sleep(0.5 * E2E_SLOW);
    }
    e2e_raise(r->shared, 0);
    if (r->args)
        E2E_OK(comm, once(r, ALL_TO_ALL, comm, &b, NULL));
    else if (r->rank == 1)
        E2E_OK(comm, zipcclSend(b.send, COUNT, zipcclBfloat16, peer, comm, NULL));
    else
        E2E_OK(comm, zipcclRecv(b.recv, COUNT, zipcclBfloat16, peer, comm, NULL));
    e2e_meet(r->shared, r->nranks); /* the next call is the end for all */
    E2E_CHECK(zipcclBarrier(comm, NULL) == zipcclDaemonUnavailable, "the daemon goes on");
    zipcclCommDestroy(comm);
    zipcclMemFree(b.send);
    zipcclMemFree(b.recv);
}

static void case_drain_of_exchanges(struct e2e *e) {
    static const int all = 1;
    for (int i = 0; i < 2; i++) {
        struct e2e_group g;
        e2e_set(e, "drain_timeout=%ds", 20 * E2E_SLOW);
        if (i == 0)
            e2e_daemons(e, 1);
        else
            e2e_daemon_start(e, 0);
        e2e_start(e, &g, "00", drained_rank, i ? &all : NULL);
        e2e_await(g.shared, 0);
        e2e_sleep(0.1);
        e2e_daemon_stop(e, 0, 25);
        e2e_wait(e, &g, 20);
        e2e_all_passed(e, &g);
    }
}
E2E_CASE(drain_of_exchanges, 60)

/* ---- frames ---- */

/* A rank alone in its communicator, with a buffer. */
struct raw_rank {
    int fd;
    uint64_t comm, buffer;
    uint64_t seq;
};

static struct raw_rank raw_rank(struct e2e *e) {
    struct raw_rank r = {.fd = raw_session(e->daemons[0].socket, "groups")};
    zipcclUniqueId id = raw_unique_id(r.fd);
    r.comm = raw_comm(r.fd, &id, 1, 0);
    r.buffer = raw_buffer(r.fd, 65536);
    return r;
}

static struct wire_request request(struct raw_rank *r, zipcclOp_t op, uint64_t count, uint16_t flags) {
    return (struct wire_request){.comm = r->comm,
                                 .seq = ++r->seq,
                                 .count = count,
                                 .send_buffer = r->buffer,
                                 .recv_buffer = r->buffer,
                                 .recv_offset = 32768,
                                 .op = (uint16_t)op,
                                 .dtype = zipcclFloat32,
                                 .codec = zipcclCodecAuto,
                                 .arm = op == zipcclOpAllReduce ? zipcclArmAuto : 0,
                                 .flags = flags};
}

/* Fails unless the next completion that is an error has this result; events of the communicator come between. */
static void expect_completion(int fd, zipcclResult_t result, const char *what) {
    struct raw_frame f;
    struct wire_completion c;
    for (;;) {
        E2E_CHECK(raw_next(fd, &f, 10) == 1, "%s: no completion", what);
        if (f.header.type != WIRE_COMPLETION)
            continue;
        memcpy(&c, f.payload, sizeof(c));
        if (c.result != zipcclSuccess)
            break;
        E2E_CHECK(result != zipcclSuccess, "%s", what);
    }
    E2E_CHECK(c.result == result, "%s: %s, expected %s", what, e2e_result_name((int)c.result),
              e2e_result_name((int)result));
}

/* A group without an end: refused when it is too long, gone when its client is. */
static void endless(struct e2e *e, zipcclOp_t op, unsigned n, bool dies) {
    struct raw_rank r = raw_rank(e);
    for (unsigned i = 0; i < n; i++) {
        struct wire_request q = request(&r, op, 4, WIRE_GROUP_MORE);
        if (!raw_send(r.fd, WIRE_REQUEST, i, &q, sizeof(q), NULL, 0))
            break;
    }
    if (!dies)
        expect_completion(r.fd, op == zipcclOpSend ? zipcclLimitExceeded : zipcclInvalidArgument, "endless");
    close(r.fd);
    raw_nothing_left(e);
}

static void case_endless_groups(struct e2e *e) {
    e2e_daemons(e, 1);
    endless(e, zipcclOpSend, WIRE_MAX_GROUP, false);
    endless(e, zipcclOpAllReduce, WIRE_MAX_GROUP_COLLECTIVES + 1, false);
    endless(e, zipcclOpSend, WIRE_MAX_GROUP - 1, true);
    endless(e, zipcclOpAllReduce, 3, true);
    /* It leaves in the middle: it is answered. */
    struct raw_rank r = raw_rank(e);
    struct raw_frame f;
    struct wire_request q = request(&r, zipcclOpAllReduce, 4, WIRE_GROUP_MORE);
    E2E_CHECK(raw_send(r.fd, WIRE_REQUEST, 1, &q, sizeof(q), NULL, 0), "send");
    Zipccl__CommRef ref = ZIPCCL__COMM_REF__INIT;
    ref.comm = r.comm;
    E2E_CHECK(raw_message(r.fd, WIRE_COMM_DESTROY, 2, &ref.base, NULL, 0), "send");
    do
        E2E_CHECK(raw_next(r.fd, &f, 10) == 1, "the destroy is not answered");
    while (f.header.type != WIRE_OK);
    close(r.fd);
    raw_nothing_left(e);
    e2e_alive(e);
}
E2E_CASE(endless_groups, 60)

/* A refused request in the middle ends the communicator: the rest would run without it. */
static void case_refused_in_a_group(struct e2e *e) {
    e2e_daemons(e, 1);
    struct raw_rank r = raw_rank(e);
    for (unsigned i = 0; i < 3; i++) {
        struct wire_request q = request(&r, zipcclOpAllReduce, i == 1 ? 1 << 20 : 4, i < 2 ? WIRE_GROUP_MORE : 0);
        E2E_CHECK(raw_send(r.fd, WIRE_REQUEST, i, &q, sizeof(q), NULL, 0), "send");
    }
    for (unsigned i = 0; i < 3; i++)
        expect_completion(r.fd, zipcclInvalidArgument, "refused");
    close(r.fd);
    raw_nothing_left(e);
    e2e_alive(e);
}
E2E_CASE(refused_in_a_group, 40)

/* A request with `n` counts behind it. */
static void counted(struct e2e *e, zipcclOp_t op, const uint64_t *counts, size_t n, zipcclResult_t result,
                    const char *what) {
    struct raw_rank r = raw_rank(e);
    uint8_t bytes[sizeof(struct wire_request) + 16 * sizeof(uint64_t)] = {0};
    struct wire_request q = request(&r, op, 0, 0);
    q.arm = op == zipcclOpReduceScatterv ? zipcclArmAuto : 0;
    memcpy(bytes, &q, sizeof(q));
    if (n > 0)
        memcpy(bytes + sizeof(q), counts, n * sizeof(*counts));
    E2E_CHECK(raw_send(r.fd, WIRE_REQUEST, 5, bytes, (uint32_t)(sizeof(q) + n * sizeof(*counts)), NULL, 0), "%s", what);
    if (result == zipcclSuccess) {
        struct raw_frame f;
        struct wire_completion c;
        raw_expect(r.fd, &f, WIRE_COMPLETION);
        memcpy(&c, f.payload, sizeof(c));
        E2E_CHECK(c.result == zipcclSuccess, "%s: %s", what, e2e_result_name((int)c.result));
    } else {
        expect_completion(r.fd, result, what);
    }
    close(r.fd);
}

static void case_bad_counts(struct e2e *e) {
    const zipcclOp_t all = zipcclOpAllToAllv, gather = zipcclOpAllGatherv, scatter = zipcclOpReduceScatterv;
    const zipcclResult_t bad = zipcclInvalidArgument, good = zipcclSuccess;
    const uint64_t most = UINT64_MAX, half = UINT64_MAX / 4 + 1;
    e2e_daemons(e, 1);
    counted(e, all, (uint64_t[]){3, 1, 3, 2}, 4, good, "well");
    counted(e, all, (uint64_t[]){3, 1, 3}, 3, bad, "too short");
    counted(e, all, (uint64_t[]){3, 1, 3, 2, 0}, 5, bad, "too long");
    counted(e, all, (uint64_t[]){most, 1, most, 1}, 4, bad, "end overflows");
    counted(e, all, (uint64_t[]){half, 0, half, 0}, 4, bad, "bytes overflow");
    counted(e, all, (uint64_t[]){3, half, 3, 0}, 4, bad, "bytes of the offset overflow");
    counted(e, all, (uint64_t[]){8193, 0, 8193, 0}, 4, bad, "outside of the buffer");
    counted(e, all, (uint64_t[]){3, 16382, 3, 0}, 4, bad, "partly outside");
    counted(e, all, (uint64_t[]){3, 0, 4, 0}, 4, bad, "differ");
    counted(e, all, (uint64_t[]){0, half, 0, half}, 4, good, "nothing, wherever");
    counted(e, gather, (uint64_t[]){5}, 1, good, "well");
    counted(e, gather, NULL, 0, bad, "none");
    counted(e, gather, (uint64_t[]){5, 5}, 2, bad, "too long");
    counted(e, gather, &half, 1, bad, "overflow");
    counted(e, gather, (uint64_t[]){9000}, 1, bad, "outside");
    counted(e, scatter, (uint64_t[]){5}, 1, good, "well");
    counted(e, scatter, &most, 1, bad, "overflow");
    counted(e, zipcclOpAllToAll, (uint64_t[]){5}, 1, bad, "counts where none are");
    raw_nothing_left(e);
    e2e_alive(e);
}
E2E_CASE(bad_counts, 40)

/* What rank 0 of two gives and takes, in parts of the count. A byte less than that is refused, on either side. */
static const struct {
    zipcclOp_t op;
    uint32_t root; /* or the peer */
    unsigned parts[2];
} needs[] = {
    {zipcclOpAllGather, 0, {1, 2}},     {zipcclOpBroadcast, 0, {1, 1}}, {zipcclOpBroadcast, 1, {0, 1}},
    {zipcclOpReduceScatter, 0, {2, 1}}, {zipcclOpAllReduce, 0, {1, 1}}, {zipcclOpReduce, 0, {1, 1}},
    {zipcclOpReduce, 1, {1, 0}},        {zipcclOpAllToAll, 0, {2, 2}},  {zipcclOpGather, 0, {1, 2}},
    {zipcclOpGather, 1, {1, 0}},        {zipcclOpScatter, 0, {2, 1}},   {zipcclOpScatter, 1, {0, 1}},
    {zipcclOpSend, 1, {1, 0}},          {zipcclOpRecv, 1, {0, 1}},
};

static void case_short_buffers(struct e2e *e) {
    enum { VALUES = 256, PART = 2 * VALUES };
    e2e_daemons(e, 1);
    const char *socket = e->daemons[0].socket;
    int fd = raw_session(socket, "requests"), other = raw_session(socket, "requests");
    struct wire_request good = {.seq = 1,
                                .count = VALUES,
                                .dtype = zipcclBfloat16,
                                .codec = zipcclCodecAuto,
                                .comm = raw_comm_of_two(fd, other)};
    good.send_buffer = raw_buffer(fd, 2 * PART);
    good.recv_buffer = raw_buffer(fd, 2 * PART);
    for (unsigned i = 0; i < 2 * sizeof(needs) / sizeof(needs[0]); i++) {
        const unsigned side = i % 2, parts = needs[i / 2].parts[side];
        struct wire_request r = good;
        struct raw_frame f;
        struct wire_completion c;
        char what[64], text[512];
        if (parts == 0)
            continue;
        r.op = needs[i / 2].op;
        r.root = needs[i / 2].root;
        r.arm =
            r.op == zipcclOpReduceScatter || r.op == zipcclOpAllReduce || r.op == zipcclOpReduce ? zipcclArmAuto : 0;
        *(side ? &r.recv_offset : &r.send_offset) = 2 * PART - parts * PART + 1;
        snprintf(what, sizeof(what), "operation %u, %s buffer", (unsigned)r.op, side ? "receive" : "send");
        E2E_CHECK(raw_send(fd, WIRE_REQUEST, 5, &r, sizeof(r), NULL, 0), "%s", what);
        E2E_CHECK(raw_next(fd, &f, 10) == 1 && f.header.type == WIRE_COMPLETION, "%s: no answer", what);
        memcpy(&c, f.payload, sizeof(c));
        snprintf(text, sizeof(text), "%.*s", (int)(f.header.length - sizeof(c)), (const char *)f.payload + sizeof(c));
        E2E_CHECK(c.result == zipcclInvalidArgument && e2e_mentions(text, "outside") &&
                      e2e_mentions(text, side ? "receive buffer" : "send buffer"),
                  "%s: %s: %s", what, e2e_result_name((int)c.result), text);
    }
    close(fd);
    close(other);
    raw_nothing_left(e);
    e2e_alive(e);
}
E2E_CASE(short_buffers, 40)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_is_killed),     cmocka_unit_test(test_daemon_is_killed),
        cmocka_unit_test(test_rank_aborts),        cmocka_unit_test(test_destroy_waits),
        cmocka_unit_test(test_drain_of_exchanges), cmocka_unit_test(test_endless_groups),
        cmocka_unit_test(test_refused_in_a_group), cmocka_unit_test(test_bad_counts),
        cmocka_unit_test(test_short_buffers),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
