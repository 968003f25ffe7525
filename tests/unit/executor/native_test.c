/* SPDX-License-Identifier: Apache-2.0
 *
 * Which collectives the executor leaves to a fabric that has them, how often it asks after a no, and every answer: two
 * nodes on the fake fabric, whose collectives are a script.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/executor.h"
#include "fake_fabric.h"

enum { NODES = 2, LOCAL = 2, RANKS = NODES * LOCAL, COUNT = 600 };

static const uint32_t rank_node[RANKS] = {0, 1, 1, 0};
static const struct plan_topology topology = {RANKS, NODES, rank_node};
static struct fabric_ops fabric_scripted;
static struct fabric *fabric[NODES];
static struct device *device[NODES];
static struct executor *executor[NODES];
static struct exec_comm *comm[NODES];
static float values[RANKS][COUNT], results[RANKS][RANKS * COUNT];
static uint64_t seq;

/* What the fabric does. */
static struct fabric_collective *asked[NODES];
static unsigned nasked, nmessages, njoins_native;
static bool says_yes, says_never;
static zipcclResult_t fails;
static struct fabric_header theirs;

static unsigned node_of(const struct fabric *f) {
    return f == fabric[1];
}

static void scripted_collective(struct fabric *f, struct fabric_collective *c) {
    assert_null(asked[node_of(f)]);
    assert_int_equal(c->nparts, LOCAL);
    asked[node_of(f)] = c;
    nasked++;
}

static void scripted_by_messages(struct fabric *f, const struct fabric_header *header) {
    assert_int_equal(header->node, node_of(f));
    assert_int_equal(header->seq, seq);
    nmessages++;
}

static zipcclResult_t scripted_join(struct fabric *f, const struct fabric_join *join) {
    (void)f;
    njoins_native += join->native;
    assert_true(!join->native || (join->nranks == RANKS && join->rank_gpus[0] == 1 && join->gpus == 3));
    return zipcclSuccess;
}

static void scripted_poll(struct fabric *f) {
    struct fabric_collective *c = asked[node_of(f)];
    fabric_fake.poll(f);
    if (!c || (fails == zipcclSuccess && !(asked[0] && asked[1]) && !c->launched))
        return;
    c->launched = true; /* both have come */
    if (fails == zipcclSuccess && asked[1 - node_of(f)])
        asked[1 - node_of(f)]->launched = true;
    asked[node_of(f)] = NULL;
    c->taken = says_yes;
    c->never = says_never;
    c->header.report = c->combine(c->header.report, 7);
    c->theirs = theirs;
    c->done(c, fails);
}

struct outcome {
    unsigned done;
    struct exec_result result;
    char text[256];
};
static struct outcome out[NODES];

static void done(void *arg, const struct exec_result *result) {
    struct outcome *o = arg;
    o->done++;
    o->result = *result;
    snprintf(o->text, sizeof(o->text), "%s", result->text);
}

static void open_all(bool native, bool verify, uint8_t second_gpu) {
    static const uint8_t own[] = {1, 0};
    const uint8_t gpus[] = {own[0], second_gpu};
    struct fabric_peer *peers[NODES][NODES] = {{NULL}};
    const char *why;
    fabric_scripted = fabric_fake;
    fabric_scripted.collective = scripted_collective;
    fabric_scripted.by_messages = scripted_by_messages;
    fabric_scripted.join = scripted_join;
    fabric_scripted.poll = scripted_poll;
    memset((void *)asked, 0, sizeof(asked));
    nasked = nmessages = njoins_native = 0;
    says_yes = says_never = false;
    fails = zipcclSuccess;
    seq = 0;
    for (uint32_t n = 0; n < NODES; n++) {
        const struct device_config dc = {.workers = 1, .inline_bytes = 1 << 20};
        const struct fabric_config fc = {0};
        assert_int_equal(device_host.open(&dc, &device[n], &why), zipcclSuccess);
        assert_int_equal(fabric_fake.open(&fc, &fabric[n], &why), zipcclSuccess);
    }
    for (uint32_t n = 0; n < NODES; n++) {
        const struct executor_config ec = {.device_ops = &device_host,
                                           .device = device[n],
                                           .fabric_ops = &fabric_scripted,
                                           .fabric = fabric[n],
                                           .chunk_bytes = 1 << 16,
                                           .window = 2,
                                           .verify = verify,
                                           .native = native};
        peers[n][1 - n] = fake_peer(fabric[1 - n]);
        assert_int_equal(executor_new(&ec, &executor[n]), zipcclSuccess);
        assert_int_equal(exec_comm_new(executor[n], 5, n, &topology, peers[n], 0, gpus, 0, &comm[n]), zipcclSuccess);
    }
}

static void close_all(void) {
    for (uint32_t n = 0; n < NODES; n++)
        exec_comm_free(comm[n]);
    for (uint32_t n = 0; n < NODES; n++)
        fabric_fake.close(fabric[n]);
    for (uint32_t n = 0; n < NODES; n++) {
        executor_free(executor[n]);
        device_host.close(device[n]);
    }
}

static void poll_all(void) {
    for (uint32_t n = 0; n < NODES; n++) {
        device_host.poll(device[n]);
        scripted_poll(fabric[n]);
    }
}

static struct exec_op *begin(uint32_t n, const struct plan_op *ops, uint32_t nops) {
    const struct exec_args args = {.ops = ops, .nops = nops, .seq = seq, .report = n, .done = done, .arg = &out[n]};
    struct exec_op *op;
    memset(&out[n], 0, sizeof(out[n]));
    assert_int_equal(exec_op_start(comm[n], &args, &op), zipcclSuccess);
    return op;
}

static void arrive(struct exec_op *op, uint32_t n, uint32_t local) {
    struct exec_buffers buffers[2];
    uint32_t rank = 0;
    for (uint32_t left = local + 1; left > 0; rank++)
        left -= rank_node[rank] == n;
    rank--;
    for (unsigned i = 0; i < 2; i++)
        buffers[i] = (struct exec_buffers){.send = values[rank], .recv = results[rank]};
    exec_op_arrive(op, local, buffers);
}

/* One operation on both nodes, to its end; whether the fabric was asked for it. */
static bool run(const struct plan_op *op) {
    struct exec_op *running[NODES];
    unsigned before = nasked;
    seq++;
    for (uint32_t n = 0; n < NODES; n++)
        running[n] = begin(n, op, 1);
    for (uint32_t local = 0; local < LOCAL; local++) {
        assert_int_equal(nasked, before);
        for (uint32_t n = 0; n < NODES; n++)
            arrive(running[n], n, local);
    }
    assert_true(nasked == before || nasked == before + NODES);
    for (unsigned i = 0; i < 100000 && !(out[0].done && out[1].done); i++)
        poll_all();
    for (uint32_t n = 0; n < NODES; n++) {
        assert_int_equal(out[n].done, 1);
        assert_int_equal(out[n].result.native, nasked != before && says_yes && fails == zipcclSuccess);
    }
    return nasked != before;
}

static struct plan_op op_of(zipcclOp_t op) {
    return (struct plan_op){.op = op,
                            .dtype = zipcclFloat32,
                            .codec = zipcclCodecRaw,
                            .arm = zipcclArmRing,
                            .redop = zipcclSum,
                            .count = COUNT,
                            .root = 1};
}

static void test_which(void **state) {
    (void)state;
    static const zipcclOp_t moves[] = {zipcclOpAllGather, zipcclOpBroadcast},
                            sums[] = {zipcclOpReduceScatter, zipcclOpAllReduce, zipcclOpReduce};
    open_all(true, false, 0);
    assert_int_equal(njoins_native, NODES);
    says_yes = true;
    for (unsigned i = 0; i < 2; i++) {
        struct plan_op op = op_of(moves[i]);
        assert_true(run(&op));
        assert_int_equal(out[0].result.worst_report, out[1].result.worst_report | 7);
        op.dtype = zipcclFloat8e4m3;
        assert_true(run(&op));
        op.count = 0;
        assert_false(run(&op));
        op.count = COUNT;
        op.codec = zipcclCodecTier;
        assert_false(run(&op));
    }
    for (unsigned i = 0; i < 3; i++) {
        struct plan_op op = op_of(sums[i]);
        op.count = COUNT / RANKS;
        for (op.redop = 0; op.redop <= zipcclPreMulSum; op.redop++)
            assert_int_equal(run(&op), op.redop != zipcclPreMulSum);
        op.redop = zipcclSum;
        op.dtype = zipcclFloat8e5m2;
        assert_false(run(&op));
        op.dtype = zipcclBfloat16;
        assert_true(run(&op));
        op.arm = zipcclArmHierarchical;
        assert_false(run(&op));
    }
    struct plan_op barrier = op_of(zipcclOpBarrier);
    assert_false(run(&barrier));
    assert_int_equal(nmessages, NODES * (2 * 2 + 3 * 3 + 1));
    close_all();
}

/* Nothing is asked, and the fabric need not hear of messages, where a rank has no GPU, or all is hashed, or it is off.
 */
static void test_not_at_all(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct plan_op op = op_of(zipcclOpAllGather);
        open_all(i != 0, i == 1, i == 2 ? EXEC_NO_GPU : 0);
        assert_false(run(&op));
        assert_int_equal(nmessages + njoins_native, 0);
        close_all();
    }
}

/* 0, 1, 3, 7 .. 63 do not ask after each no; a yes ends that, a never ends it for good. */
static void test_refused(void **state) {
    (void)state;
    static const unsigned asks[] = {0, 1, 3, 7, 15, 31, 63, 127, 191};
    struct plan_op op = op_of(zipcclOpAllGather);
    unsigned next = 0;
    memset(values, 0x3f, sizeof(values));
    open_all(true, false, 0);
    for (unsigned i = 0; i < 200; i++) {
        bool is_asked = run(&op);
        assert_int_equal(is_asked, next < 9 && i == asks[next]);
        next += is_asked;
        assert_int_equal(out[0].result.result, zipcclSuccess);
        for (unsigned rank = 0; rank < RANKS; rank++)
            assert_memory_equal(&results[rank][i % RANKS * COUNT], values[i % RANKS], sizeof(values[0]));
        memset(results, 0, sizeof(results));
    }
    says_yes = true;
    for (unsigned i = 200; i < 255; i++)
        assert_false(run(&op));
    assert_true(run(&op) && run(&op));
    says_yes = false;
    assert_true(run(&op) && run(&op));
    assert_false(run(&op));
    says_never = true;
    assert_true(run(&op));
    unsigned before = nmessages;
    for (unsigned i = 0; i < 200; i++)
        assert_false(run(&op));
    assert_int_equal(nmessages, before);
    close_all();
}

static void test_fails(void **state) {
    (void)state;
    static const struct {
        zipcclResult_t result;
        const char *text;
    } cases[] = {
        {zipcclSystemError, "all-gather #1: NCCL's own collective fails"},
        {zipcclAborted, "all-gather #1: aborted while"},
        {zipcclRemoteError, "all-gather #1: another node, or its GPU, is gone"},
        {zipcclInvalidArgument, "all-gather #1: node 1 sends broadcast of 9 bf16 values from rank 3, this node expects "
                                "all-gather of 600 fp32 values a rank"},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan_op op = op_of(zipcclOpAllGather);
        open_all(true, false, 0);
        fails = cases[i].result;
        theirs = (struct fabric_header){
            .node = 1, .op = zipcclOpBroadcast, .dtype = zipcclBfloat16, .op_count = 9, .root = 3};
        assert_true(run(&op));
        assert_int_equal(out[0].result.result, cases[i].result);
        if (!strstr(out[0].text, cases[i].text))
            fail_msg("%s", out[0].text);
        close_all();
    }
}

/* It fails elsewhere: before the ranks have come, and while the fabric is at it. */
static void test_failed_elsewhere(void **state) {
    (void)state;
    for (unsigned narrived = 1; narrived <= LOCAL; narrived++) {
        const struct plan_op op = op_of(zipcclOpAllGather);
        open_all(true, false, 0);
        seq = 1;
        struct exec_op *running = begin(0, &op, 1);
        for (uint32_t local = 0; local < narrived; local++)
            arrive(running, 0, local);
        struct exec_where where;
        exec_op_where(running, &where);
        assert_int_equal(where.native, narrived == LOCAL ? EXEC_NATIVE_WAITS : EXEC_BY_PLAN);
        exec_op_fail(running, zipcclRemoteError, "somebody died");
        assert_int_equal(out[0].done, narrived < LOCAL);
        fails = zipcclAborted;
        poll_all();
        assert_int_equal(out[0].done, 1);
        assert_int_equal(out[0].result.result, zipcclRemoteError);
        assert_string_equal(out[0].text, "somebody died");
        close_all();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_which), cmocka_unit_test(test_not_at_all),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_fails),
                                       cmocka_unit_test(test_failed_elsewhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
