/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of every operation over many topologies, run by the simulator; chunk sizes; bad arguments; names.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/plan/plan.h"
#include "kernels/dtype.h"
#include "proto/op.h"
#include "simulator.h"

#define MAX_RANKS 20

static const uint64_t g_counts[] = {0, 1, 7, 1000, 32768, 32769, 100001, 300007};

enum layout { BLOCKED, ROUND_ROBIN, UNEVEN, NUM_LAYOUTS };

static uint32_t lay_out(enum layout layout, uint32_t nodes, uint32_t per_node, uint32_t *rank_node) {
    uint32_t n = nodes * per_node;
    for (uint32_t r = 0; r < n; r++)
        rank_node[r] = layout == ROUND_ROBIN ? r % nodes : r / per_node;
    if (layout == UNEVEN) {
        /* Each node keeps a rank; the rest go where a hash says, mostly to early nodes. */
        for (uint32_t r = 0; r < n; r++)
            rank_node[r] = r < nodes ? nodes - 1 - r : (r * 7 + r / 3) % nodes * (r % 2);
    }
    return n;
}

static void check(const struct plan_args *args, unsigned seed) {
    const struct plan_topology *t = args->topology;
    struct sim_result result;
    const char *why = simulate(args, seed, &result);
    if (why)
        fail_msg("%s %s count %llu nodes %u ranks %u root %u window %u chunk %llu: %s", op_name(args->op),
                 args->codec ? "coded" : "raw", (unsigned long long)args->count, t->nnodes, t->nranks, args->root,
                 args->window, (unsigned long long)args->chunk_bytes, why);
    uint64_t shard = args->count * dtype_get(args->dtype)->bytes, total = 0;
    for (uint32_t n = 0; n < t->nnodes; n++) {
        uint64_t local = 0;
        for (uint32_t r = 0; r < t->nranks; r++)
            local += t->rank_node[r] == n;
        if (args->op == zipcclOpAllGather)
            assert_int_equal(result.sent_bytes[n], local * shard * (t->nnodes - 1));
        total += result.sent_bytes[n];
    }
    if (args->op == zipcclOpBroadcast)
        assert_int_equal(total, shard * (t->nnodes - 1));
    if (args->op == zipcclOpBarrier)
        assert_int_equal(total, 0);
}

static void sweep(zipcclOp_t op) {
    uint32_t rank_node[MAX_RANKS];
    unsigned seed = 1;
    for (uint32_t nodes = 1; nodes <= 5; nodes++) {
        for (uint32_t per = 1; per <= 4; per++) {
            for (unsigned layout = 0; layout < NUM_LAYOUTS; layout++) {
                uint32_t nranks = lay_out((enum layout)layout, nodes, per, rank_node);
                struct plan_topology t = {nranks, nodes, rank_node};
                for (size_t c = 0; c < sizeof(g_counts) / sizeof(g_counts[0]); c++) {
                    for (unsigned v = 0; v < 4; v++) {
                        seed++;
                        struct plan_args args = {.op = op,
                                                 .dtype = seed % 2 ? zipcclBfloat16 : zipcclFloat32,
                                                 .codec = v % 2 ? zipcclCodecTier : zipcclCodecRaw,
                                                 .count = op == zipcclOpBarrier ? 0 : g_counts[c],
                                                 .root = seed % nranks,
                                                 .topology = &t,
                                                 .chunk_bytes = v < 2 ? 64 << 10 : 4 << 20,
                                                 .window = 1 + seed % 4};
                        check(&args, seed);
                    }
                }
            }
        }
    }
}

static void test_all_gather(void **state) {
    (void)state;
    sweep(zipcclOpAllGather);
}

static void test_broadcast(void **state) {
    (void)state;
    sweep(zipcclOpBroadcast);
}

static void test_barrier(void **state) {
    (void)state;
    sweep(zipcclOpBarrier);
}

static void test_many_chunks(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0, 1, 2, 0, 1, 0};
    struct plan_topology t = {6, 3, rank_node};
    for (uint32_t window = 1; window <= 4; window++) {
        for (unsigned v = 0; v < 4; v++) {
            struct plan_args args = {.op = v % 2 ? zipcclOpBroadcast : zipcclOpAllGather,
                                     .dtype = zipcclFloat8e5m2,
                                     .codec = v / 2 ? zipcclCodecTier : zipcclCodecRaw,
                                     .count = (2 << 20) + 13,
                                     .root = window % 6,
                                     .topology = &t,
                                     .chunk_bytes = 64 << 10,
                                     .window = window};
            for (unsigned seed = 0; seed < 5; seed++)
                check(&args, seed);
        }
    }
}

static void test_slot_memory(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0, 1, 2, 3};
    struct plan_topology t = {4, 4, rank_node};
    struct plan_args args = {.op = zipcclOpAllGather,
                             .dtype = zipcclBfloat16,
                             .codec = zipcclCodecTier,
                             .count = 1 << 28,
                             .topology = &t,
                             .chunk_bytes = 4 << 20,
                             .window = 4};
    struct plan *p;
    assert_int_equal(plan_build(&args, &p), zipcclSuccess);
    assert_int_equal(p->nslots, 4 + 3 * 4); /* whatever the size of the operation */
    assert_int_equal(p->slot_count, 2 << 20);
    assert_int_equal(p->raw_send_bytes, 3ull << 29);
    plan_free(p);
    args.count = 1000;
    assert_int_equal(plan_build(&args, &p), zipcclSuccess);
    assert_int_equal(p->nslots, 4);
    assert_int_equal(p->slot_count, 1000);
    plan_free(p);
}

static void test_bad_arguments(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0, 1}, gap[] = {0, 2}, far[] = {0, 9};
    struct plan_topology t = {2, 2, rank_node}, none = {2, 3, gap}, wild = {2, 2, far}, zero = {0, 0, rank_node};
    const struct plan_args good = {.op = zipcclOpBroadcast,
                                   .dtype = zipcclBfloat16,
                                   .count = 5,
                                   .topology = &t,
                                   .chunk_bytes = 1 << 20,
                                   .window = 2};
    struct plan *p;
    assert_int_equal(plan_build(&good, &p), zipcclSuccess);
    plan_free(p);
    struct plan_args bad[9];
    for (size_t i = 0; i < 9; i++)
        bad[i] = good;
    bad[0].root = 2;
    bad[1].node = 2;
    bad[2].dtype = (zipcclDataType_t)99;
    bad[3].op = (zipcclOp_t)99;
    bad[4].codec = zipcclCodecAuto;
    bad[5].count = UINT64_MAX / 2;
    bad[6].topology = &none;
    bad[7].topology = &wild;
    bad[8].topology = &zero;
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(plan_build(&bad[i], &p), zipcclInvalidArgument);
        assert_null(p);
    }
}

static void test_chunk_count(void **state) {
    (void)state;
    for (unsigned d = 0; d < zipcclNumTypes; d++) {
        uint64_t esz = dtype_get(d)->bytes;
        for (uint64_t bytes = 1; bytes < 1ull << 33; bytes = bytes * 3 + 1) {
            for (uint64_t chunk = 64 << 10; chunk <= 16 << 20; chunk *= 4) {
                uint64_t n = plan_chunk_count((zipcclDataType_t)d, bytes, chunk);
                assert_int_equal(n % 32768, 0);
                assert_true(n * esz >= 64 << 10);
                assert_true(n * esz <= chunk || n == 32768);
            }
        }
    }
    assert_int_equal(plan_chunk_count(zipcclBfloat16, 64 << 20, 4 << 20), 2 << 20);
    assert_int_equal(plan_chunk_count(zipcclBfloat16, 1 << 20, 4 << 20), 64 << 10);
}

static void test_names(void **state) {
    (void)state;
    zipcclOp_t op;
    assert_true(op_from_name("allgather", &op) && op == zipcclOpAllGather);
    assert_true(op_from_name("all_gather", &op) && op == zipcclOpAllGather);
    assert_true(op_from_name("All-Gather", &op) && op == zipcclOpAllGather);
    assert_true(op_from_name("broadcast", &op) && op == zipcclOpBroadcast);
    assert_true(op_from_name("barrier", &op) && op == zipcclOpBarrier);
    assert_false(op_from_name("", &op));
    assert_false(op_from_name("barrierx", &op));
    assert_false(op_from_name(NULL, &op));
    assert_string_equal(op_name(zipcclOpAllGather), "all-gather");
    assert_string_equal(op_name(77), "?");
    assert_string_equal(plan_kind_name(PLAN_DECODE), "decode");
    assert_null(plan_kind_name((enum plan_kind)50));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_gather),  cmocka_unit_test(test_broadcast),   cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_many_chunks), cmocka_unit_test(test_slot_memory), cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_chunk_count), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
