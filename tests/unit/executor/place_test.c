/* SPDX-License-Identifier: Apache-2.0
 *
 * No plan has a step that works on chunks of two local ranks, so that what it touches can lie on one GPU; and one that
 * had such a step would be seen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/core/executor_impl.h"
#include "proto/op.h"

static const uint32_t g_layouts[][6] = {{0, 1}, {0, 0, 1, 1}, {1, 0, 0, 2, 1, 2}, {0, 0, 0, 0, 0, 1}};
static const uint32_t g_nranks[] = {2, 4, 6, 6}, g_nnodes[] = {2, 2, 3, 2};

/* Of a node, or where it is one, of an exchange of rank `node`. */
static struct plan *build(zipcclOp_t op, zipcclCodec_t codec, zipcclArm_t arm, unsigned layout, uint32_t node,
                          uint64_t count) {
    const struct plan_topology t = {g_nranks[layout], g_nnodes[layout], g_layouts[layout]};
    struct plan *plan = NULL;
    const uint64_t counts[6] = {count, 0, count / 2, count, count, 3};
    if (op_exchanges(op)) {
        struct plan_transfer transfers[16];
        const struct plan_call call = {.op = op,
                                       .dtype = zipcclBfloat16,
                                       .count = count,
                                       .root = 0,
                                       .send_counts = counts,
                                       .send_offsets = counts,
                                       .recv_counts = counts,
                                       .recv_offsets = counts};
        uint32_t n = plan_transfers(&call, node, t.nranks, 0, transfers);
        for (uint32_t i = 0; i < n; i++)
            transfers[i].codec = codec;
        const struct plan_exchange_args args = {.transfers = transfers,
                                                .ntransfers = n,
                                                .nbuffers = 1,
                                                .rank = node,
                                                .topology = &t,
                                                .chunk_bytes = 64 << 10,
                                                .window = 4,
                                                .phases = (enum plan_phases)(count % 3)};
        assert_int_equal(plan_build_exchange(&args, &plan), zipcclSuccess);
        return plan;
    }
    const struct plan_op o = {.op = op,
                              .dtype = zipcclBfloat16,
                              .codec = codec,
                              .arm = arm,
                              .redop = zipcclSum,
                              .count = count,
                              .root = t.nranks - 1,
                              .counts = op == zipcclOpAllGatherv || op == zipcclOpReduceScatterv ? counts : NULL};
    const struct plan_args args = {
        .ops = &o, .nops = 1, .node = node, .topology = &t, .chunk_bytes = 64 << 10, .window = 4};
    assert_int_equal(plan_build(&args, &plan), zipcclSuccess);
    return plan;
}

static void test_all(void **state) {
    static const uint64_t counts[] = {100, 20000, 300001};
    static const zipcclArm_t arms[] = {zipcclArmHierarchical, zipcclArmFlat, zipcclArmRing};
    unsigned n = 0, with_chunks = 0;
    (void)state;
    for (unsigned op = 0; op < zipcclNumOps; op++) {
        for (unsigned i = 0; i < 3 * 3 * 2 * 4; i++) {
            const unsigned layout = i / 18;
            const uint32_t nodes = op_exchanges((zipcclOp_t)op) ? g_nranks[layout] : g_nnodes[layout];
            for (uint32_t node = 0; node < nodes; node++) {
                struct plan *plan = build((zipcclOp_t)op, i / 9 % 2 ? zipcclCodecTier : zipcclCodecRaw, arms[i / 3 % 3],
                                          layout, node, counts[i % 3]);
                if (!exec_place_fits(plan))
                    fail_msg("%s, layout %u, node %u, arm %u, count %u", op_name(op), layout, node, i / 3 % 3, i % 3);
                n++;
                with_chunks += plan->nslots + plan->nvalues > 0;
                plan_free(plan);
            }
        }
    }
    assert_true(with_chunks > n / 3);
}

/* Whom the step `kind` serves is changed. */
static void spoil(enum plan_kind kind, bool seen) {
    struct plan *plan = build(zipcclOpAllReduce, zipcclCodecTier, zipcclArmHierarchical, 1, 0, 300001);
    uint32_t i = 0;
    while (i < plan->nsteps && plan->steps[i].kind != kind)
        i++;
    assert_true(i < plan->nsteps);
    plan->steps[i].local ^= 1;
    assert_int_equal(exec_place_fits(plan), !seen);
    plan->steps[i].local = 7; /* there are two */
    assert_false(exec_place_fits(plan));
    plan_free(plan);
}

static void test_spoilt(void **state) {
    (void)state;
    spoil(PLAN_ENCODE, true);
    spoil(PLAN_REDUCE, true);
    spoil(PLAN_DECODE, true);
    spoil(PLAN_SEND, false); /* it works on nothing */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_spoilt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
