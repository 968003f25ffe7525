/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions, exchanges and groups whose ranks do not agree, leave, or die. Whoever can act is told, nothing hangs, and
 * the daemons keep nothing of it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collect.h"
#include "raw.h"

#define SOON    4.0 /* "at once", on a busy machine */
#define SECONDS 1   /* op_timeout */

/* What a rank calls in a scene; the last rank is the odd one. */
struct call {
    struct e2e_rank *r;
    zipcclComm_t comm;
    uint8_t *send, *recv; /* of 1 MiB each, zipcclMemAlloc */
    bool odd;
};

struct scene {
    zipcclResult_t (*call)(const struct call *c);
    zipcclResult_t result; /* of all ranks; but where `late` */
    bool late;             /* zipcclTimeout is right too: the ranks never meet in a message */
    const char *text, *layouts[5];
};

static void scene_rank(struct e2e_rank *r) {
    const struct scene *s = r->args;
    struct call c = {.r = r, .comm = e2e_comm(r), .odd = r->rank == r->nranks - 1};
    void *send = NULL, *recv = NULL;
    E2E_OK(NULL, zipcclMemAlloc(&send, 1 << 20));
    E2E_OK(NULL, zipcclMemAlloc(&recv, 1 << 20));
    c.send = send;
    c.recv = recv;
    E2E_OK(c.comm, zipcclAllReduce(send, recv, 100, zipcclFloat32, zipcclSum, c.comm, NULL));
    e2e_meet(r->shared, r->nranks);
    double start = e2e_now();
    zipcclResult_t rc = s->call(&c);
    if (rc == zipcclSuccess) /* its messages were sent before anybody looked at them */
        rc = zipcclBarrier(c.comm, NULL);
    e2e_report(r, rc, c.comm, start);
    zipcclCommDestroy(c.comm);
    E2E_OK(NULL, zipcclMemFree(send));
    E2E_OK(NULL, zipcclMemFree(recv));
}

static void play(struct e2e *e, const struct scene *s) {
    for (unsigned k = 0; s->layouts[k]; k++) {
        struct e2e_group g;
        bool one_node = strspn(s->layouts[k], "0") == strlen(s->layouts[k]);
        e2e_start(e, &g, s->layouts[k], scene_rank, s);
        e2e_wait(e, &g, 20);
        for (int i = 0; i < g.nranks; i++) {
            zipcclResult_t got = (zipcclResult_t)g.shared->reports[i].result;
            bool timed_out = s->late && !one_node && got == zipcclTimeout;
            e2e_expect(&g, i, timed_out ? got : s->result, SOON + (timed_out ? SECONDS : 0), timed_out ? "" : s->text,
                       NULL);
        }
        e2e_all_passed(e, &g);
        raw_nothing_left(e);
    }
}

#define CALL(name) static zipcclResult_t name(const struct call *c)

CALL(other_count_all_to_all) {
    return zipcclAllToAll(c->send, c->recv, c->odd ? 1001 : 1000, zipcclBfloat16, c->comm, NULL);
}
CALL(other_large_all_to_all) {
    return zipcclAllToAll(c->send, c->recv, c->odd ? 7 : 100000, zipcclBfloat16, c->comm, NULL);
}
CALL(other_dtype_all_to_all) {
    return zipcclAllToAll(c->send, c->recv, 1000, c->odd ? zipcclFloat16 : zipcclBfloat16, c->comm, NULL);
}
/* The last rank expects `mine` of everybody, who sends it `theirs`. */
static zipcclResult_t other_parts(const struct call *c, size_t theirs, size_t mine) {
    size_t send[E2E_MAX_RANKS], recv[E2E_MAX_RANKS];
    for (int i = 0; i < c->r->nranks; i++) {
        send[i] = i == c->r->nranks - 1 ? theirs : 10;
        recv[i] = c->odd ? mine : 10;
    }
    return zipcclAllToAllv(c->send, send, NULL, c->recv, recv, NULL, zipcclFloat32, c->comm, NULL);
}
CALL(other_parts_all_to_all_v) {
    return other_parts(c, 7, 8);
}
CALL(none_sent_all_to_all_v) {
    return other_parts(c, 0, 8);
}
CALL(none_expected_all_to_all_v) {
    return other_parts(c, 30000, 0);
}
CALL(other_redop) {
    return zipcclAllReduce(c->send, c->recv, 1000, zipcclBfloat16, c->odd ? zipcclMax : zipcclSum, c->comm, NULL);
}
CALL(other_redop_reduce_scatter) {
    return zipcclReduceScatter(c->send, c->recv, 1000, zipcclBfloat16, c->odd ? zipcclAvg : zipcclSum, c->comm, NULL);
}
CALL(other_arm) {
    E2E_OK(c->comm, zipcclCommSetArm(c->comm, c->odd ? zipcclArmRing : zipcclArmHierarchical));
    return zipcclAllReduce(c->send, c->recv, 40000, zipcclBfloat16, zipcclSum, c->comm, NULL);
}
CALL(flat_and_hierarchical) {
    E2E_OK(c->comm, zipcclCommSetArm(c->comm, c->odd ? zipcclArmFlat : zipcclArmHierarchical));
    return zipcclReduceScatter(c->send, c->recv, 10000, zipcclBfloat16, zipcclSum, c->comm, NULL);
}
CALL(all_to_all_and_all_gather) {
    if (c->odd)
        return zipcclAllGather(c->send, c->recv, 1000, zipcclBfloat16, c->comm, NULL);
    return zipcclAllToAll(c->send, c->recv, 1000, zipcclBfloat16, c->comm, NULL);
}
CALL(all_reduce_and_reduce_scatter) {
    if (c->odd)
        return zipcclReduceScatter(c->send, c->recv, 1000, zipcclBfloat16, zipcclSum, c->comm, NULL);
    return zipcclAllReduce(c->send, c->recv, 1000, zipcclBfloat16, zipcclSum, c->comm, NULL);
}
static zipcclResult_t other_counts(const struct call *c, bool gathers) {
    size_t counts[E2E_MAX_RANKS] = {10, 20, 30, 40};
    if (c->odd)
        counts[0] = 11;
    if (gathers)
        return zipcclAllGatherv(c->send, c->recv, counts, zipcclFloat32, c->comm, NULL);
    return zipcclReduceScatterv(c->send, c->recv, counts, zipcclFloat32, zipcclSum, c->comm, NULL);
}
CALL(other_counts_all_gather_v) {
    return other_counts(c, true);
}
CALL(other_counts_reduce_scatter_v) {
    return other_counts(c, false);
}
CALL(other_root_reduce) {
    return zipcclReduce(c->send, c->recv, 1000, zipcclFloat32, zipcclSum, c->odd, c->comm, NULL);
}
CALL(other_root_gather) {
    return zipcclGather(c->send, c->recv, 1000, zipcclFloat32, c->odd, c->comm, NULL);
}
/* Where all messages fit into buffers, nobody waits: but the next call does not take them for its own. */
CALL(other_root_scatter) {
    zipcclResult_t rc = zipcclScatter(c->send, c->recv, 1000, zipcclFloat32, c->odd, c->comm, NULL);
    for (int i = 0; i < 2 && rc == zipcclSuccess; i++)
        rc = zipcclScatter(c->send, c->recv, 1000, zipcclFloat32, i, c->comm, NULL);
    return rc;
}
/* The last rank's group is longer. */
CALL(longer_group) {
    E2E_OK(NULL, zipcclGroupStart());
    for (size_t i = 0; i < (c->odd ? 3 : 2); i++)
        E2E_OK(c->comm,
               zipcclAllReduce(c->send + i * 4096, c->recv + i * 4096, 1000, zipcclFloat32, zipcclSum, c->comm, NULL));
    return zipcclGroupEnd();
}
CALL(other_message) {
    int last = c->r->nranks - 1;
    if (c->odd)
        return zipcclRecv(c->recv, 999, zipcclFloat32, 0, c->comm, NULL);
    return zipcclSend(c->send, 1000, zipcclFloat32, last, c->comm, NULL);
}
/* The last rank leaves instead. */
static zipcclResult_t leaves(const struct call *c) {
    return zipcclAllToAll(c->send, c->recv, 1000, zipcclBfloat16, c->comm, NULL);
}

static void case_ranks_disagree(struct e2e *e) {
    static const struct scene scenes[] = {
        {other_count_all_to_all, zipcclInvalidArgument, false, "all-to-all", {"00", "01", "0011"}},
        {other_large_all_to_all, zipcclInvalidArgument, false, "all-to-all", {"00", "01", "0011"}},
        {other_dtype_all_to_all, zipcclInvalidArgument, false, "fp16", {"00", "01"}},
        {other_parts_all_to_all_v, zipcclInvalidArgument, false, "all-to-all-v", {"00", "01", "0011"}},
        {none_sent_all_to_all_v, zipcclInvalidArgument, false, "all-to-all-v", {"00", "01"}},
        {none_expected_all_to_all_v, zipcclInvalidArgument, false, "all-to-all-v", {"00", "01"}},
        {other_redop, zipcclInvalidArgument, false, "max", {"00", "01", "0011"}},
        {other_redop_reduce_scatter, zipcclInvalidArgument, false, "avg", {"00", "01"}},
        {other_arm, zipcclInvalidArgument, true, "ring", {"00", "01", "0011"}},
        {flat_and_hierarchical, zipcclInvalidArgument, true, "flat", {"00", "01", "0011"}},
        {other_counts_all_gather_v, zipcclInvalidArgument, false, "count", {"00", "01"}},
        {other_counts_reduce_scatter_v, zipcclInvalidArgument, false, "count", {"00", "01", "0011"}},
        {other_root_reduce, zipcclInvalidArgument, true, "root|rank 0", {"00", "01"}},
        {longer_group, zipcclInvalidArgument, true, "group|rank", {"00"}},
        {other_message, zipcclInvalidArgument, false, "999", {"00", "01"}},
    };
    e2e_set(e, "op_timeout=%ds", SECONDS);
    e2e_daemons(e, 2);
    for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
        play(e, &scenes[i]);
    e2e_alive(e);
}
E2E_CASE(ranks_disagree, 90)

/* Here ranks of two nodes wait for messages that nobody sends. */
static void case_ranks_never_meet(struct e2e *e) {
    static const struct scene scenes[] = {
        {all_to_all_and_all_gather, zipcclInvalidArgument, true, "all-gather", {"00", "01", "0011"}},
        {all_reduce_and_reduce_scatter, zipcclInvalidArgument, true, "reduce-scatter", {"00", "01"}},
        {other_root_gather, zipcclInvalidArgument, true, "root", {"00", "01"}},
        {other_root_scatter, zipcclInvalidArgument, true, "root|operation #", {"00", "01"}},
    };
    e2e_set(e, "op_timeout=%ds", SECONDS);
    e2e_daemons(e, 2);
    for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
        play(e, &scenes[i]);
    e2e_alive(e);
}
E2E_CASE(ranks_never_meet, 90)

static void unmatched_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    char b[64] = {0};
    double start = e2e_now();
    if (r->rank == 0)
        e2e_report(r, zipcclSend(b, 64, zipcclInt8, 1, comm, NULL), comm, start);
    else if (r->rank == 1)
        e2e_report(r, zipcclRecv(b, 64, zipcclInt8, 0, comm, NULL), comm, start);
    if (r->rank == 0) /* not answered by anybody */
        start = e2e_now(), e2e_report(r, zipcclRecv(b, 64, zipcclInt8, 1, comm, NULL), comm, start);
    e2e_meet(r->shared, r->nranks);
    zipcclCommDestroy(comm);
}

static void case_receive_without_send(struct e2e *e) {
    const char *const layouts[] = {"00", "01"};
    e2e_set(e, "op_timeout=1s");
    e2e_daemons(e, 2);
    for (unsigned k = 0; k < 2; k++) {
        struct e2e_group g;
        e2e_start(e, &g, layouts[k], unmatched_rank, NULL);
        e2e_wait(e, &g, 20);
        e2e_expect(&g, 0, zipcclTimeout, 1 + SOON, "receive", "timed out", NULL);
        e2e_all_passed(e, &g);
        raw_nothing_left(e);
    }
}
E2E_CASE(receive_without_send, 40)

/* Every other rank calls; the last one has left, before or in the middle. */
static void leaves_rank(struct e2e_rank *r) {
    const int *delay_ms = r->args;
    struct call c = {.r = r, .comm = e2e_comm(r)};
    c.send = calloc(1, 1 << 16);
    c.recv = calloc(1, 1 << 16);
    E2E_CHECK(c.send && c.recv, "memory");
    E2E_OK(c.comm, leaves(&c));
    if (r->rank == r->nranks - 1) {
        e2e_sleep(*delay_ms * 1e-3);
        E2E_OK(NULL, zipcclCommDestroy(c.comm));
        e2e_report(r, zipcclSuccess, NULL, e2e_now());
    } else {
        e2e_sleep(0.3 - *delay_ms * 1e-3);
        double start = e2e_now();
        e2e_report(r, leaves(&c), c.comm, start);
        zipcclCommDestroy(c.comm);
    }
    free(c.send);
    free(c.recv);
}

static void case_rank_leaves_early(struct e2e *e) {
    const char *const layouts[] = {"00", "01", "10", "0011"};
    const int delays[] = {0, 300};
    e2e_daemons(e, 2); /* without op_timeout */
    for (unsigned k = 0; k < 8; k++) {
        struct e2e_group g;
        e2e_start(e, &g, layouts[k / 2], leaves_rank, &delays[k % 2]);
        e2e_wait(e, &g, 15);
        for (int i = 0; i < g.nranks - 1; i++)
            e2e_expect(&g, i, zipcclInvalidUsage, SOON, "left", NULL);
        e2e_all_passed(e, &g);
        raw_nothing_left(e);
    }
    e2e_alive(e);
}
E2E_CASE(rank_leaves_early, 60)

/* ---- refused, and the communicator works on ---- */

static void flat_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    zipcclRedOp_t op;
    float a[64], b[64], two = 2;
    for (int i = 0; i < 64; i++)
        a[i] = (float)i;
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    for (int round = 0; round < 3; round++) {
        E2E_OK(comm, zipcclCommSetArm(comm, zipcclArmFlat));
        zipcclResult_t rc = zipcclAllReduce(a, b, 64, zipcclFloat32, zipcclSum, comm, round ? stream : NULL);
        if (rc == zipcclSuccess)
            rc = zipcclStreamSynchronize(stream);
        E2E_CHECK(rc == zipcclInvalidArgument, "%s", e2e_result_name((int)rc));
        E2E_CHECK(e2e_mentions(zipcclGetLastError(round ? NULL : comm), "flat"), "%s", zipcclGetLastError(comm));
        E2E_OK(comm, zipcclRedOpCreatePreMulSum(&op, &two, zipcclFloat32, comm));
        E2E_CHECK(zipcclAllReduce(a, b, 64, zipcclFloat32, op, comm, NULL) == zipcclInvalidArgument, "premulsum");
        E2E_OK(comm, zipcclCommSetArm(comm, zipcclArmAuto));
        E2E_OK(comm, zipcclAllReduce(a, b, 64, zipcclFloat32, op, comm, NULL));
        for (int i = 0; i < 64; i++)
            E2E_CHECK(b[i] == 2 * (float)(i * r->nranks), "%g", (double)b[i]);
        E2E_OK(comm, zipcclRedOpDestroy(op, comm));
        E2E_CHECK(zipcclAllReduce(a, b, 64, zipcclFloat32, op, comm, NULL) == zipcclInvalidArgument, "destroyed");
        /* A bad note in the middle of a group: nothing of it is issued. */
        E2E_OK(NULL, zipcclGroupStart());
        E2E_OK(comm, zipcclAllReduce(a, a, 64, zipcclFloat32, zipcclSum, comm, stream));
        E2E_CHECK(zipcclAllReduce(a, b, 64, (zipcclDataType_t)99, zipcclSum, comm, stream) == zipcclInvalidArgument,
                  "dtype");
        E2E_CHECK(zipcclBarrier(comm, stream) == zipcclInvalidUsage, "barrier");
        E2E_OK(comm, zipcclAllReduce(b, b, 64, zipcclFloat32, zipcclSum, comm, stream));
        E2E_CHECK(zipcclGroupEnd() == zipcclInvalidArgument, "group");
        E2E_OK(comm, zipcclStreamSynchronize(stream));
        for (int i = 0; i < 64; i++)
            E2E_CHECK(a[i] == (float)i && b[i] == 2 * (float)(i * r->nranks), "something of the group was issued");
        E2E_CHECK(zipcclGroupEnd() == zipcclInvalidUsage, "no group is open");
    }
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_refused_and_goes_on(struct e2e *e) {
    e2e_daemons(e, 2);
    e2e_ranks(e, "0001", flat_rank, NULL, 20);
    raw_nothing_left(e);
}
E2E_CASE(refused_and_goes_on, 40)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_disagree),       cmocka_unit_test(test_ranks_never_meet),
        cmocka_unit_test(test_receive_without_send), cmocka_unit_test(test_rank_leaves_early),
        cmocka_unit_test(test_refused_and_goes_on),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
