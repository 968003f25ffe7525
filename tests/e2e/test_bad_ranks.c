/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that do not agree, do not come, or die. Whoever can act is told what happened, nothing hangs, and the daemons
 * go on to serve others.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collect.h"
#include "proto/wire.h"

/* "At once", on a busy machine. */
#define SOON 4.0

struct call {
    zipcclOp_t op;
    zipcclDataType_t dtype;
    size_t count;
    int root;
    zipcclCodec_t codec;
};

static zipcclResult_t issue(zipcclComm_t comm, const struct call *c, const void *send, void *recv) {
    zipcclResult_t rc = zipcclCommSetCodec(comm, c->codec);
    if (rc != zipcclSuccess)
        return rc;
    if (c->op == zipcclOpAllGather)
        return zipcclAllGather(send, recv, c->count, c->dtype, comm, NULL);
    if (c->op == zipcclOpBroadcast)
        return zipcclBroadcast(send, recv, c->count, c->dtype, c->root, comm, NULL);
    return zipcclBarrier(comm, NULL);
}

/* A good operation, then args[0] on the lower ranks and args[1] on the last. */
static void disagree_rank(struct e2e_rank *r) {
    const struct call *calls = r->args;
    zipcclComm_t comm = e2e_comm(r);
    zipcclResult_t error = zipcclSuccess;
    uint8_t *send = calloc(1, 1 << 20), *recv = calloc((size_t)r->nranks, 1 << 20);
    E2E_CHECK(send && recv, "memory");
    E2E_OK(comm, zipcclAllGather(send, recv, 100, zipcclUint8, comm, NULL));
    e2e_meet(r->shared, r->nranks); /* it is over everywhere */
    double start = e2e_now();
    zipcclResult_t rc = issue(comm, &calls[r->rank == r->nranks - 1], send, recv);
    e2e_report(r, rc, comm, start);
    if (rc != zipcclSuccess) {
        E2E_OK(comm, zipcclCommGetAsyncError(comm, &error));
        E2E_CHECK(error != zipcclSuccess, "no asynchronous error");
        /* What failed stays failed, and says so at once. */
        E2E_CHECK(zipcclBarrier(comm, NULL) != zipcclSuccess, "it works again");
    }
    zipcclCommDestroy(comm);
    free(send);
    free(recv);
}

static void disagree(struct e2e *e, const char *layout, const struct call *calls, const char *what, const char *also) {
    struct e2e_group g;
    e2e_start(e, &g, layout, disagree_rank, calls);
    e2e_wait(e, &g, 20);
    for (int i = 0; i < g.nranks; i++) {
        zipcclResult_t result =
            g.shared->reports[i].result == zipcclInvalidUsage ? zipcclInvalidUsage : zipcclInvalidArgument;
        e2e_expect(&g, i, result, SOON, what, also, "rank|node", NULL);
    }
    e2e_all_passed(e, &g);
}

static void all_disagreements(struct e2e *e, const char *layout) {
    const zipcclCodec_t automatic = zipcclCodecAuto;
    const struct call counts[2] = {{zipcclOpAllGather, zipcclBfloat16, 1000, 0, automatic},
                                   {zipcclOpAllGather, zipcclBfloat16, 1001, 0, automatic}};
    const struct call large[2] = {{zipcclOpAllGather, zipcclBfloat16, 500000, 0, automatic},
                                  {zipcclOpAllGather, zipcclBfloat16, 17, 0, automatic}};
    const struct call none[2] = {{zipcclOpAllGather, zipcclBfloat16, 0, 0, automatic},
                                 {zipcclOpAllGather, zipcclBfloat16, 1001, 0, automatic}};
    const struct call ops[2] = {{zipcclOpAllGather, zipcclBfloat16, 1000, 0, automatic},
                                {zipcclOpBroadcast, zipcclBfloat16, 1000, 0, automatic}};
    const struct call barrier[2] = {{zipcclOpBarrier, zipcclInt8, 0, 0, automatic},
                                    {zipcclOpBroadcast, zipcclBfloat16, 1000, 0, automatic}};
    const struct call dtypes[2] = {{zipcclOpAllGather, zipcclBfloat16, 1000, 0, automatic},
                                   {zipcclOpAllGather, zipcclFloat16, 1000, 0, automatic}};
    const struct call codecs[2] = {{zipcclOpAllGather, zipcclBfloat16, 100000, 0, zipcclCodecTier},
                                   {zipcclOpAllGather, zipcclBfloat16, 100000, 0, zipcclCodecRaw}};
    disagree(e, layout, counts, "count|values", "1001");
    disagree(e, layout, large, "count|values", "500000");
    disagree(e, layout, none, "count|values", "1001");
    disagree(e, layout, ops, "broadcast", "all-gather");
    disagree(e, layout, barrier, "broadcast", "barrier");
    disagree(e, layout, dtypes, "dtype|type|fp16|float16", "bf16|bfloat16");
    disagree(e, layout, codecs, "codec|coded", "tier");
    e2e_alive(e);
}

/* Two roots, and none: the ranks never meet in a message, unless they tell each other what they were called with. */
static void root_disagreements(struct e2e *e, const char *layout) {
    const zipcclCodec_t automatic = zipcclCodecAuto;
    int last = (int)strlen(layout) - 1;
    const struct call both_roots[2] = {{zipcclOpBroadcast, zipcclBfloat16, 1000, 0, automatic},
                                       {zipcclOpBroadcast, zipcclBfloat16, 1000, last, automatic}};
    const struct call no_root[2] = {{zipcclOpBroadcast, zipcclBfloat16, 1000, last, automatic},
                                    {zipcclOpBroadcast, zipcclBfloat16, 1000, 0, automatic}};
    disagree(e, layout, both_roots, "root|rank 0", "0");
    disagree(e, layout, no_root, "root|rank 0", "0");
    e2e_alive(e);
}

static void case_disagree_on_one_node(struct e2e *e) {
    e2e_daemons(e, 1);
    all_disagreements(e, "00");
    all_disagreements(e, "000");
    root_disagreements(e, "00");
    root_disagreements(e, "000");
}
E2E_CASE(disagree_on_one_node, 60)

static void case_disagree_across_nodes(struct e2e *e) {
    e2e_daemons(e, 2);
    all_disagreements(e, "01");
    all_disagreements(e, "0011");
}
E2E_CASE(disagree_across_nodes, 60)

static void case_roots_differ_across_nodes(struct e2e *e) {
    e2e_daemons(e, 2);
    root_disagreements(e, "01");
    root_disagreements(e, "0011");
}
E2E_CASE(roots_differ_across_nodes, 60)

/* Arguments that the library itself refuses; the communicator works on. */
static void arguments_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r), other = NULL;
    zipcclUniqueId garbage;
    char b[64] = {0};
    const zipcclResult_t bad = zipcclInvalidArgument;
    const zipcclDataType_t bf16 = zipcclBfloat16;
    memset(&garbage, 0x5a, sizeof(garbage));
    E2E_CHECK(zipcclAllGather(b, b, 1, (zipcclDataType_t)99, comm, NULL) == bad, "dtype");
    E2E_CHECK(e2e_mentions(zipcclGetLastError(comm), "99"), "%s", zipcclGetLastError(comm));
    E2E_CHECK(zipcclAllGather(b, b, 1, (zipcclDataType_t)-1, comm, NULL) == bad, "dtype");
    E2E_CHECK(zipcclAllGather(NULL, b, 1, bf16, comm, NULL) == bad, "send");
    E2E_CHECK(zipcclAllGather(b, NULL, 1, bf16, comm, NULL) == bad, "recv");
    E2E_CHECK(zipcclAllGather(b, b, SIZE_MAX, bf16, comm, NULL) == bad, "count");
    E2E_CHECK(zipcclAllGather(b, b, SIZE_MAX / 2 + 2, bf16, comm, NULL) == bad, "count");
    E2E_CHECK(zipcclAllGather(b, b, 1, bf16, NULL, NULL) == bad, "comm");
    E2E_CHECK(zipcclBroadcast(b, b, 1, bf16, r->nranks, comm, NULL) == bad, "root");
    E2E_CHECK(e2e_mentions(zipcclGetLastError(comm), "root"), "%s", zipcclGetLastError(comm));
    E2E_CHECK(zipcclBroadcast(b, b, 1, bf16, -1, comm, NULL) == bad, "root");
    E2E_CHECK(zipcclCommSetCodec(comm, (zipcclCodec_t)77) == bad, "codec");
    E2E_CHECK(zipcclBarrier(NULL, NULL) == bad, "comm");
    E2E_CHECK(zipcclCommCount(comm, NULL) == bad && zipcclCommUserRank(NULL, NULL) == bad, "NULL");
    E2E_CHECK(zipcclCommInitRank(NULL, 1, garbage, 0) == bad, "NULL");
    E2E_CHECK(zipcclCommInitRank(&other, 1, garbage, 0) == bad, "id");
    E2E_CHECK(e2e_mentions(zipcclGetLastError(NULL), "unique id|id"), "%s", zipcclGetLastError(NULL));
    E2E_CHECK(zipcclCommInitRank(&other, 0, garbage, 0) == bad, "nranks");
    E2E_CHECK(zipcclCommInitRank(&other, 2, garbage, 2) == bad, "rank");
    E2E_CHECK(zipcclCommInitRank(&other, 2, garbage, -1) == bad, "rank");
    E2E_CHECK(zipcclCommDestroy(NULL) != zipcclInternalError, "NULL");
    E2E_CHECK(zipcclMemFree(b) == bad, "free");
    E2E_CHECK(zipcclMemAlloc(NULL, 1) == bad, "alloc");
    E2E_CHECK(zipcclMemDeregister(NULL) != zipcclInternalError && zipcclMemFree(NULL) != zipcclInternalError, "NULL");
    E2E_OK(comm, zipcclBarrier(comm, NULL));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_bad_arguments(struct e2e *e) {
    e2e_daemons(e, 2);
    e2e_ranks(e, "01", arguments_rank, NULL, 20);
    e2e_alive(e);
}
E2E_CASE(bad_arguments, 40)

/* ---- joining ---- */

static void lonely_rank(struct e2e_rank *r) {
    zipcclComm_t comm = NULL;
    zipcclUniqueId id = e2e_id(r);
    double start = e2e_now();
    e2e_report(r, zipcclCommInitRank(&comm, r->nranks + 1, id, r->rank), NULL, start);
}

static void case_rank_never_joins(struct e2e *e) {
    const char *const layouts[] = {"0", "00", "01", "10"};
    e2e_set(e, "join_timeout=1s");
    e2e_daemons(e, 2);
    for (unsigned k = 0; k < 4; k++) {
        struct e2e_group g;
        char missing[2] = {(char)('0' + strlen(layouts[k])), 0};
        e2e_start(e, &g, layouts[k], lonely_rank, NULL);
        e2e_wait(e, &g, 20);
        for (int i = 0; i < g.nranks; i++)
            e2e_expect(&g, i, zipcclTimeout, 1 + SOON, "rank", missing, "join_timeout|1s|1 s|1.0", NULL);
        e2e_all_passed(e, &g);
    }
    e2e_alive(e);
}
E2E_CASE(rank_never_joins, 40)

/* All ranks say that they are rank 0. */
static void twin_rank(struct e2e_rank *r) {
    zipcclComm_t comm = NULL;
    zipcclUniqueId id = e2e_id(r);
    double start = e2e_now();
    zipcclResult_t rc = zipcclCommInitRank(&comm, 2, id, 0);
    e2e_report(r, rc, NULL, start);
    if (rc == zipcclSuccess)
        zipcclCommDestroy(comm);
}

/* They do not agree on how many they are. */
static void sizes_rank(struct e2e_rank *r) {
    zipcclComm_t comm = NULL;
    zipcclUniqueId id = e2e_id(r);
    double start = e2e_now();
    zipcclResult_t rc = zipcclCommInitRank(&comm, 2 + r->rank, id, r->rank);
    e2e_report(r, rc, NULL, start);
}

/* Rank 1's id names another daemon as the meeting point, with the key and nonce of the real one. */
static void forged_rank(struct e2e_rank *r) {
    zipcclComm_t comm = NULL;
    zipcclUniqueId id = e2e_id(r);
    if (r->rank == 1) {
        struct wire_unique_id wire;
        memcpy(&wire, &id, sizeof wire);
        (void)snprintf(wire.root, sizeof wire.root, "127.0.0.1:1");
        memcpy(&id, &wire, sizeof wire);
        e2e_sleep(0.3); /* after rank 0 */
    }
    double start = e2e_now();
    zipcclResult_t rc = zipcclCommInitRank(&comm, 2, id, r->rank);
    e2e_report(r, rc, NULL, start);
}

/* Rank 1 knows the key alone, not the nonce, and comes before or after rank 0. */
static int g_late;

static void guessed_rank(struct e2e_rank *r) {
    zipcclComm_t comm = NULL;
    zipcclUniqueId id = e2e_id(r);
    struct wire_unique_id wire;
    memcpy(&wire, &id, sizeof wire);
    wire.nonce ^= r->rank == 1;
    memcpy(&id, &wire, sizeof wire);
    if (r->rank == g_late)
        e2e_sleep(0.3);
    double start = e2e_now();
    zipcclResult_t rc = zipcclCommInitRank(&comm, 2, id, r->rank);
    e2e_report(r, rc, NULL, start);
    E2E_CHECK(r->rank == 0 || rc == zipcclInvalidArgument, "%s", e2e_result_name((int)rc));
}

static void join_conflict(struct e2e *e, const char *layout, e2e_rank_fn fn, const char *what) {
    struct e2e_group g;
    int refused = 0;
    e2e_start(e, &g, layout, fn, NULL);
    e2e_wait(e, &g, 20);
    for (int i = 0; i < g.nranks; i++) {
        const struct e2e_report *report = &g.shared->reports[i];
        E2E_CHECK(report->result > 0 && report->seconds < (2 + SOON) * E2E_SLOW, "rank %d: %s after %.1f s: %s", i,
                  e2e_result_name(report->result), report->seconds, report->text);
        refused += (report->result == zipcclInvalidArgument || report->result == zipcclInvalidUsage) &&
                   e2e_mentions(report->text, what);
    }
    E2E_CHECK(refused >= 1, "nobody was told about \"%s\"", what);
    e2e_all_passed(e, &g);
}

static void case_join_conflicts(struct e2e *e) {
    e2e_set(e, "join_timeout=2s");
    e2e_daemons(e, 2);
    join_conflict(e, "00", twin_rank, "rank 0");
    join_conflict(e, "01", twin_rank, "rank 0");
    join_conflict(e, "10", twin_rank, "rank 0");
    join_conflict(e, "00", sizes_rank, "2|3");
    join_conflict(e, "01", sizes_rank, "2|3");
    join_conflict(e, "00", forged_rank, "unique id");
    for (g_late = 0; g_late < 2; g_late++)
        join_conflict(e, g_late ? "00" : "01", guessed_rank, "unique id");
    e2e_alive(e);
}
E2E_CASE(join_conflicts, 60)

static void dies_joining_rank(struct e2e_rank *r) {
    if (r->rank == 0) {
        e2e_raise(r->shared, 1);
        e2e_await(r->shared, 0);
    }
    lonely_rank(r);
}

/* A rank that dies while others wait for a third: the wait is over at once. */
static void case_rank_dies_joining(struct e2e *e) {
    e2e_set(e, "join_timeout=60s");
    e2e_daemons(e, 2);
    struct e2e_group g;
    e2e_start(e, &g, "01", dies_joining_rank, NULL);
    e2e_await(g.shared, 1);
    e2e_raise(g.shared, 0);
    e2e_sleep(0.5 * E2E_SLOW); /* both are in their join by now, or will meet an id that is over */
    kill(g.pids[1], SIGKILL);
    e2e_wait(e, &g, 10);
    e2e_expect(&g, 0, zipcclRemoteError, 0, "rank 1|node1", NULL);
    e2e_alive(e);
}
E2E_CASE(rank_dies_joining, 40)

/* ---- dying ---- */

enum death { KILLED_WAITING, KILLED_BUSY, EXITS };

struct dying {
    enum death how;
    int victim;
};

static void dying_rank(struct e2e_rank *r) {
    const struct dying *d = r->args;
    zipcclComm_t comm = e2e_comm(r);
    struct collect_buffers b;
    struct collect c = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .count = 1 << 20, .in_place = true};
    size_t bytes = c.count * 2;
    collect_buffers_new(&b, r, MEMORY_ZIPCCL, bytes);
    uint8_t *recv = b.recv.data + COLLECT_GUARD;
    collect_run(r, comm, &b, &c);
    e2e_meet(r->shared, r->nranks); /* the first operation is over everywhere */
    if (r->rank == d->victim && d->how == EXITS)
        exit(0);
    if (r->rank == d->victim && d->how == KILLED_WAITING) {
        e2e_raise(r->shared, 0);
        e2e_sleep(60 * E2E_SLOW);
    }
    double start = e2e_now();
    zipcclResult_t rc = zipcclSuccess;
    for (int i = 0; rc == zipcclSuccess && e2e_now() < start + 30 * E2E_SLOW; i++) {
        start = e2e_now();
        rc = zipcclAllGather(recv + bytes * (size_t)r->rank, recv, c.count, c.dtype, comm, NULL);
        if (i == 2)
            e2e_raise(r->shared, 0);
    }
    e2e_report(r, rc, comm, start);
    zipcclCommDestroy(comm);
    collect_buffers_free(&b);
}

static void death(struct e2e *e, const char *layout, enum death how, int victim) {
    struct dying d = {how, victim};
    struct e2e_group g;
    char name[32];
    snprintf(name, sizeof(name), "rank %d", victim);
    e2e_start(e, &g, layout, dying_rank, &d);
    if (how != EXITS) {
        e2e_await(g.shared, 0);
        e2e_sleep(0.05);
        kill(g.pids[victim], SIGKILL);
    }
    double start = e2e_now();
    e2e_wait(e, &g, 20);
    double took = e2e_now() - start;
    E2E_CHECK(how == EXITS || took < SOON * E2E_SLOW, "took %.1f s", took);
    for (int i = 0; i < g.nranks; i++)
        if (i != victim)
            e2e_expect(&g, i, zipcclRemoteError, 0, name, NULL);
    e2e_alive(e);
}

static void case_rank_dies_on_this_node(struct e2e *e) {
    pool();
    e2e_daemons(e, 1);
    for (enum death how = KILLED_WAITING; how <= EXITS; how++)
        for (int victim = 0; victim < 2; victim++)
            death(e, "000", how, victim);
}
E2E_CASE(rank_dies_on_this_node, 60)

static void case_rank_dies_on_another_node(struct e2e *e) {
    pool();
    e2e_daemons(e, 2);
    for (enum death how = KILLED_WAITING; how <= EXITS; how++)
        for (int victim = 0; victim < 3; victim += 2)
            death(e, "0011", how, victim);
}
E2E_CASE(rank_dies_on_another_node, 60)

/* ---- waiting ---- */

static void absent_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    uint16_t send[8] = {0}, recv[8 * E2E_MAX_RANKS];
    E2E_OK(comm, zipcclAllGather(send, recv, 8, zipcclBfloat16, comm, NULL));
    if (r->rank == r->nranks - 1)
        e2e_await(r->shared, 0);
    double start = e2e_now();
    zipcclResult_t rc = zipcclAllGather(send, recv, 8, zipcclBfloat16, comm, NULL);
    e2e_report(r, rc, comm, start);
    zipcclCommDestroy(comm);
}

static void case_rank_never_calls(struct e2e *e) {
    const char *const layouts[] = {"00", "001", "110"};
    e2e_set(e, "op_timeout=1s");
    e2e_daemons(e, 2);
    for (unsigned k = 0; k < 3; k++) {
        struct e2e_group g;
        char missing[48];
        e2e_start(e, &g, layouts[k], absent_rank, NULL);
        for (int i = 0; i < g.nranks - 1; i++)
            e2e_wait_rank(e, &g, i, 15);
        e2e_raise(g.shared, 0);
        e2e_wait(e, &g, 10);
        snprintf(missing, sizeof(missing), "rank %d|ranks %d", g.nranks - 1, g.nranks - 1);
        for (int i = 0; i < g.nranks - 1; i++)
            e2e_expect(&g, i, zipcclTimeout, 1 + SOON, k ? "all-gather" : missing, "op_timeout|1s|1 s|1.0", NULL);
        E2E_CHECK(g.shared->reports[g.nranks - 1].result > 0, "the late rank was told nothing");
        e2e_all_passed(e, &g);
    }
    e2e_alive(e);
}
E2E_CASE(rank_never_calls, 40)

static void abort_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    uint16_t send[8] = {0}, recv[8 * E2E_MAX_RANKS];
    E2E_OK(comm, zipcclAllGather(send, recv, 8, zipcclBfloat16, comm, NULL));
    if (r->rank == r->nranks - 1) {
        e2e_meet(r->shared, r->nranks);
        e2e_sleep(0.1);
        E2E_OK(NULL, zipcclCommAbort(comm));
        e2e_report(r, zipcclSuccess, NULL, e2e_now());
        return;
    }
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    e2e_meet(r->shared, r->nranks);
    double start = e2e_now();
    zipcclResult_t rc = zipcclSuccess;
    for (int i = 0; i < 3 && rc == zipcclSuccess; i++)
        rc = zipcclAllGather(send, recv, 8, zipcclBfloat16, comm, r->rank == 0 ? NULL : stream);
    if (rc == zipcclSuccess)
        rc = zipcclStreamSynchronize(stream);
    e2e_report(r, rc, comm, start);
    zipcclCommDestroy(comm);
    zipcclStreamDestroy(stream);
}

static void case_abort_wakes_all(struct e2e *e) {
    const char *const layouts[] = {"000", "0011", "0101", "110"};
    e2e_daemons(e, 2);
    for (unsigned k = 0; k < 4; k++) {
        struct e2e_group g;
        e2e_start(e, &g, layouts[k], abort_rank, NULL);
        e2e_wait(e, &g, 15);
        for (int i = 0; i < g.nranks - 1; i++)
            e2e_expect(&g, i, zipcclAborted, SOON, "rank|abort", NULL);
        e2e_all_passed(e, &g);
    }
    e2e_alive(e);
}
E2E_CASE(abort_wakes_all, 40)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disagree_on_one_node),      cmocka_unit_test(test_disagree_across_nodes),
        cmocka_unit_test(test_roots_differ_across_nodes), cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_rank_never_joins),          cmocka_unit_test(test_join_conflicts),
        cmocka_unit_test(test_rank_dies_joining),         cmocka_unit_test(test_rank_dies_on_this_node),
        cmocka_unit_test(test_rank_dies_on_another_node), cmocka_unit_test(test_rank_never_calls),
        cmocka_unit_test(test_abort_wakes_all),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
