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

#define NUM_COUNTS (sizeof(g_counts) / sizeof(g_counts[0]))

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

/* Counts by rank, some of them zero; the same for the same seed. */
static const uint64_t *uneven(uint64_t count, uint32_t nranks, unsigned seed, uint64_t *counts) {
    for (uint32_t r = 0; r < nranks; r++) {
        seed = seed * 1664525u + 1013904223u;
        counts[r] = (seed >> 24) % 3 == 0 ? 0 : count * ((seed >> 16) % 8) / 4;
    }
    return counts;
}

static uint64_t part_of(const struct plan_op *op, const struct plan_topology *t, uint32_t node) {
    uint64_t total = 0;
    for (uint32_t r = 0; r < t->nranks; r++) {
        if (node == UINT32_MAX || t->rank_node[r] == node)
            total += op->counts ? op->counts[r] : op->count;
    }
    return total * dtype_get(op->dtype)->bytes;
}

static uint32_t members_of(const struct plan_topology *t, uint32_t node) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < t->nranks; r++)
        n += t->rank_node[r] == node;
    return n;
}

static bool is_small(const struct plan_op *op, const struct plan_topology *t) {
    return t->nnodes <= 8 && op->count * dtype_get(op->dtype)->bytes <= 64 << 10;
}

/* Ring: how often the parts of all ranks go from node to node. A part that starts on its owner's node makes one hop
 * more. */
static uint64_t ring_bytes(const struct plan_op *op, const struct plan_topology *t) {
    uint64_t bytes = 0, esz = dtype_get(op->dtype)->bytes;
    for (uint32_t r = 0; r < t->nranks && t->nnodes > 1; r++) {
        bool last = true;
        for (uint32_t q = r + 1; q < t->nranks; q++)
            last = last && t->rank_node[q] != t->rank_node[r];
        uint64_t count = op->counts ? op->counts[r] : op->op == zipcclOpReduce && r != op->root ? 0 : op->count;
        bytes += count * esz * (t->nnodes - last);
    }
    return bytes;
}

/* Bytes between nodes: exactly those that the operation needs. */
static void check_bytes(const struct plan_args *args, const struct sim_result *result) {
    const struct plan_op *op = args->ops;
    const struct plan_topology *t = args->topology;
    uint64_t all = 0, total = part_of(op, t, UINT32_MAX), each = op->count * dtype_get(op->dtype)->bytes;
    uint64_t others = t->nnodes - 1, most = 1, least = UINT64_MAX;
    bool flat = op->arm == zipcclArmFlat, ring = op->arm == zipcclArmRing;
    for (uint32_t n = 0; n < t->nnodes; n++) {
        uint64_t sent = result->sent_bytes[n], own = part_of(op, t, n), members = flat ? members_of(t, n) : 1;
        all += sent;
        most = members > most ? members : most;
        least = members < least ? members : least;
        if (op->op == zipcclOpAllGather || op->op == zipcclOpAllGatherv)
            assert_int_equal(sent, own * others);
        if ((op->op == zipcclOpReduceScatter || op->op == zipcclOpReduceScatterv) && !ring)
            assert_int_equal(sent, (total - own) * members);
        if (op->op == zipcclOpAllReduce && !ring && is_small(op, t))
            assert_int_equal(sent, each * others * members);
    }
    if (op->op == zipcclOpBroadcast)
        assert_int_equal(all, each * others);
    if (op->op == zipcclOpBarrier)
        assert_int_equal(all, 0);
    if (op->op == zipcclOpReduceScatter || op->op == zipcclOpReduceScatterv || op->op == zipcclOpReduce)
        assert_true(!ring || all == ring_bytes(op, t));
    /* All-reduce: the sum goes to the parts' owners, and back. Reduce: to the owners, and from them to the root, so at
     * most once more; the small one at once. */
    if (op->op == zipcclOpAllReduce && (ring || !is_small(op, t)))
        assert_in_range(all, each * others * (1 + least), each * others * (1 + most));
    if (op->op == zipcclOpReduce && !ring)
        assert_in_range(all, each * others * least, each * (others * most + (is_small(op, t) ? 0 : 1)));
}

static void run(const struct plan_args *args, unsigned seed) {
    const struct plan_topology *t = args->topology;
    struct sim_options options = {.seed = seed, .in_place = seed % 5 < 2, .late = SIM_NOBODY};
    if (seed % 7 == 0)
        options.late = seed % t->nranks;
    struct sim_result result;
    const char *why = simulate(args, &options, &result);
    const struct plan_op *op = args->ops;
    if (why)
        fail_msg("%u x %s %s %s %s count %llu nodes %u ranks %u root %u window %u chunk %llu seed %u%s: %s", args->nops,
                 op_name(op->op), op->codec ? "coded" : "raw", arm_name(op->arm), redop_name(op->redop),
                 (unsigned long long)op->count, t->nnodes, t->nranks, op->root, args->window,
                 (unsigned long long)args->chunk_bytes, seed, options.in_place ? " in place" : "", why);
    if (args->nops == 1)
        check_bytes(args, &result);
}

static const uint64_t *counts_for(zipcclOp_t op, uint64_t count, uint32_t nranks, unsigned seed, uint64_t *room) {
    bool v = op == zipcclOpAllGatherv || op == zipcclOpReduceScatterv;
    return v ? uneven(count, nranks, seed, room) : NULL;
}

/* All topologies with some counts, each way of coding. */
static void sweep(const struct plan_op *like, unsigned thin) {
    uint32_t rank_node[MAX_RANKS];
    uint64_t room[MAX_RANKS];
    unsigned seed = 1;
    for (uint32_t nodes = 1; nodes <= 5; nodes++) {
        for (uint32_t per = 1; per <= 4; per++) {
            for (unsigned layout = 0; layout < NUM_LAYOUTS; layout++) {
                uint32_t nranks = lay_out((enum layout)layout, nodes, per, rank_node);
                struct plan_topology t = {nranks, nodes, rank_node};
                for (unsigned v = 0; v < 4 * NUM_COUNTS; v++) {
                    if (++seed % thin)
                        continue;
                    struct plan_op op = *like;
                    op.dtype = seed % 2 ? zipcclBfloat16 : zipcclFloat32;
                    op.codec = v % 2 ? zipcclCodecTier : zipcclCodecRaw;
                    op.count = op.op == zipcclOpBarrier ? 0 : g_counts[v / 4];
                    op.root = seed % nranks;
                    op.counts = counts_for(op.op, op.count, nranks, seed, room);
                    if (op.counts)
                        op.count = 0;
                    struct plan_args args = {.ops = &op,
                                             .nops = 1,
                                             .topology = &t,
                                             .chunk_bytes = v % 4 < 2 ? 64 << 10 : 4 << 20,
                                             .window = 1 + seed / 2 % 4};
                    run(&args, seed);
                }
            }
        }
    }
}

static void sweep_moves(zipcclOp_t op) {
    struct plan_op like = {.op = op};
    sweep(&like, 1);
}

static void sweep_sums(zipcclOp_t op) {
    for (unsigned arm = 0; arm < zipcclNumArms; arm++) {
        struct plan_op like = {.op = op, .arm = (zipcclArm_t)arm, .redop = zipcclSum};
        sweep(&like, 1);
        like.redop = zipcclAvg;
        sweep(&like, 5);
        like.redop = zipcclPreMulSum;
        if (arm != zipcclArmFlat)
            sweep(&like, 3);
    }
}

static void test_reduce_scatter(void **state) {
    (void)state;
    sweep_sums(zipcclOpReduceScatter);
}

static void test_reduce_scatter_v(void **state) {
    (void)state;
    sweep_sums(zipcclOpReduceScatterv);
}

static void test_all_reduce(void **state) {
    (void)state;
    sweep_sums(zipcclOpAllReduce);
}

static void test_reduce(void **state) {
    (void)state;
    sweep_sums(zipcclOpReduce);
}

static void test_all_gather(void **state) {
    (void)state;
    sweep_moves(zipcclOpAllGather);
}

static void test_all_gather_v(void **state) {
    (void)state;
    sweep_moves(zipcclOpAllGatherv);
}

static void test_broadcast(void **state) {
    (void)state;
    sweep_moves(zipcclOpBroadcast);
}

static void test_barrier(void **state) {
    (void)state;
    sweep_moves(zipcclOpBarrier);
}

static void test_many_chunks(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0, 1, 2, 0, 1, 0};
    static const zipcclOp_t ops[] = {zipcclOpAllGather, zipcclOpBroadcast, zipcclOpReduceScatter, zipcclOpAllReduce,
                                     zipcclOpReduce};
    struct plan_topology t = {6, 3, rank_node};
    for (uint32_t window = 1; window <= 4; window++) {
        for (unsigned v = 0; v < 2 * sizeof(ops) / sizeof(ops[0]); v++) {
            struct plan_op po = {.op = ops[v / 2],
                                 .dtype = zipcclFloat8e5m2,
                                 .codec = v % 2 ? zipcclCodecTier : zipcclCodecRaw,
                                 .arm = (zipcclArm_t)(window % zipcclNumArms),
                                 .count = (2 << 20) + 13,
                                 .root = window % 6};
            struct plan_args args = {.ops = &po, .nops = 1, .topology = &t, .chunk_bytes = 64 << 10, .window = window};
            for (unsigned seed = 0; seed < 5; seed++)
                run(&args, seed);
        }
    }
}

/* Many ranks on a node, of uneven number, not side by side. */
static void test_wide_nodes(void **state) {
    (void)state;
    static const uint32_t rank_node[2][16] = {{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1},
                                              {2, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0}};
    static const zipcclOp_t ops[] = {zipcclOpReduceScatter, zipcclOpReduceScatterv, zipcclOpAllReduce, zipcclOpReduce,
                                     zipcclOpAllGather};
    uint64_t room[16];
    for (unsigned seed = 0; seed < 360; seed++) {
        struct plan_topology t = {seed % 2 ? 16 : 12, 3 - seed % 2, rank_node[1 - seed % 2]};
        struct plan_op op = {.op = ops[seed % 5],
                             .dtype = zipcclBfloat16,
                             .codec = seed % 7 < 4 ? zipcclCodecTier : zipcclCodecRaw,
                             .arm = (zipcclArm_t)(seed / 5 % 3),
                             .redop = seed / 5 % 3 != 1 && seed % 4 == 0 ? zipcclPreMulSum : zipcclSum,
                             .count = g_counts[seed / 15 % NUM_COUNTS],
                             .root = seed % 12};
        op.counts = counts_for(op.op, op.count, t.nranks, seed, room);
        if (op.counts)
            op.count = 0;
        struct plan_args args = {
            .ops = &op, .nops = 1, .topology = &t, .chunk_bytes = 64 << 10, .window = 1 + seed % 3};
        run(&args, seed);
    }
}

/* Who sends something to whom, from the plans of all nodes. */
static bool is_heard_by_all(const struct plan_op *op, const struct plan_topology *t) {
    for (uint32_t node = 0; node < t->nnodes; node++) {
        const struct plan_args args = {
            .ops = op, .nops = 1, .node = node, .topology = t, .chunk_bytes = 4u << 20, .window = 2};
        struct plan *plan;
        uint32_t told = 0;
        assert_int_equal(plan_build(&args, &plan), zipcclSuccess);
        for (uint32_t i = 0; i < plan->nsteps; i++) {
            if (plan->steps[i].kind == PLAN_SEND)
                told |= 1u << plan->steps[i].peer;
        }
        plan_free(plan);
        if (told != ((1u << t->nnodes) - 1) - (1u << node))
            return false;
    }
    return true;
}

/* The switcher goes by what all nodes hear from each other: the claim is what plans do, at the bounds where parts of
 * all-reduce get empty (of 512 values or a multiple), and for few nodes and many. */
static void test_all_hear(void **state) {
    static const zipcclOp_t ops[] = {zipcclOpAllReduce, zipcclOpAllGather, zipcclOpReduceScatter, zipcclOpAllGatherv,
                                     zipcclOpReduceScatterv};
    unsigned all = 0, some = 0;
    (void)state;
    for (uint32_t nodes = 2; nodes <= 12; nodes++) {
        const uint64_t edges[] = {1,
                                  512,
                                  513,
                                  512 * (nodes - 2),
                                  512 * (nodes - 1),
                                  512 * nodes,
                                  1024 * (nodes - 2),
                                  1024 * (nodes - 1),
                                  16384,
                                  100001};
        for (unsigned k = 0; k < 3 * sizeof(edges) / sizeof(edges[0]); k++) {
            uint32_t rank_node[MAX_RANKS];
            uint64_t counts[MAX_RANKS];
            if (edges[k / 3] + k % 3 < 2)
                continue; /* of nothing: a barrier */
            struct plan_topology t = {.nnodes = nodes, .rank_node = rank_node};
            t.nranks = lay_out(UNEVEN, nodes, nodes <= MAX_RANKS / 2 ? 1 + k % 2 : 1, rank_node);
            for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
                struct plan_op op = {.op = ops[i],
                                     .dtype = zipcclFloat32,
                                     .codec = k % 2 ? zipcclCodecTier : zipcclCodecRaw,
                                     .arm = k % 4 < 2 ? zipcclArmHierarchical : zipcclArmFlat,
                                     .redop = zipcclSum,
                                     .count = edges[k / 3] + k % 3 - 1};
                if (op.op == zipcclOpAllGatherv || op.op == zipcclOpReduceScatterv)
                    op.counts = uneven(op.count + 4, t.nranks, nodes * 31 + k, counts);
                if (part_of(&op, &t, UINT32_MAX) == 0)
                    continue;
                const bool heard = is_heard_by_all(&op, &t);
                if (plan_all_hear(&op, &t) != heard)
                    fail_msg("%s of %llu on %u nodes: all are%s heard", op_name(op.op), (unsigned long long)op.count,
                             nodes, heard ? "" : " not");
                all += heard && op.op == zipcclOpAllReduce && nodes > 8;
                some += !heard && op.op == zipcclOpAllReduce && nodes > 8;
            }
        }
    }
    assert_true(all > 10 && some > 10);
}

static void test_groups(void **state) {
    (void)state;
    static const zipcclOp_t ops[] = {zipcclOpAllGather,     zipcclOpBroadcast,      zipcclOpAllGatherv,
                                     zipcclOpReduceScatter, zipcclOpReduceScatterv, zipcclOpAllReduce,
                                     zipcclOpReduce};
    uint32_t rank_node[MAX_RANKS];
    uint64_t room[6][MAX_RANKS];
    for (unsigned seed = 0; seed < 300; seed++) {
        uint32_t nranks = lay_out(seed % NUM_LAYOUTS, 1 + seed % 4, 1 + seed / 4 % 4, rank_node);
        struct plan_topology t = {nranks, 1 + seed % 4, rank_node};
        struct plan_op po[6];
        uint32_t n = 2 + seed % 5;
        for (uint32_t i = 0; i < n; i++) {
            unsigned h = seed * 31 + i * 7;
            po[i] = (struct plan_op){.op = ops[h % (sizeof(ops) / sizeof(ops[0]))],
                                     .dtype = h % 5 ? zipcclBfloat16 : zipcclFloat32,
                                     .codec = h % 3 ? zipcclCodecTier : zipcclCodecRaw,
                                     .arm = (zipcclArm_t)(h / 2 % zipcclNumArms),
                                     .count = g_counts[h / 3 % 7],
                                     .root = h % nranks};
            po[i].counts = counts_for(po[i].op, po[i].count, nranks, h, room[i]);
            if (po[i].counts)
                po[i].count = 0;
        }
        struct plan_args args = {.ops = po, .nops = n, .topology = &t, .chunk_bytes = 64 << 10, .window = 1 + seed % 3};
        run(&args, seed);
    }
}

static void test_slot_memory(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0, 1, 2, 3};
    struct plan_topology t = {4, 4, rank_node};
    struct plan_op op = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .codec = zipcclCodecTier, .count = 1 << 28};
    struct plan_args args = {.ops = &op, .nops = 1, .topology = &t, .chunk_bytes = 4 << 20, .window = 4};
    struct plan *p;
    assert_int_equal(plan_build(&args, &p), zipcclSuccess);
    assert_int_equal(p->nslots, 4 + 3 * 4); /* whatever the size of the operation */
    assert_int_equal(p->items[0].slot_count, 2 << 20);
    assert_int_equal(p->raw_send_bytes, 3ull << 29);
    plan_free(p);
    op.count = 1000;
    assert_int_equal(plan_build(&args, &p), zipcclSuccess);
    assert_int_equal(p->nslots, 4);
    assert_int_equal(p->items[0].slot_count, 1000);
    plan_free(p);
}

static void test_bad_arguments(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0, 1}, gap[] = {0, 2}, far[] = {0, 9};
    static const uint64_t counts[] = {1, 2}, huge[] = {1, UINT64_MAX / 2};
    struct plan_topology t = {2, 2, rank_node}, none = {2, 3, gap}, wild = {2, 2, far}, zero = {0, 0, rank_node};
    const struct plan_op good_op = {.op = zipcclOpBroadcast, .dtype = zipcclBfloat16, .count = 5};
    struct plan_op ops[2] = {good_op, good_op};
    const struct plan_args good = {.ops = ops, .nops = 2, .topology = &t, .chunk_bytes = 1 << 20, .window = 2};
    struct plan *p;
    assert_int_equal(plan_build(&good, &p), zipcclSuccess);
    plan_free(p);
    struct plan_args bad[7];
    for (size_t i = 0; i < 7; i++)
        bad[i] = good;
    bad[0].node = 2;
    bad[1].topology = &none;
    bad[2].topology = &wild;
    bad[3].topology = &zero;
    bad[4].nops = 0;
    bad[5].window = 0;
    bad[6].chunk_bytes = 0;
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(plan_build(&bad[i], &p), zipcclInvalidArgument);
        assert_null(p);
    }
    const struct plan_op bad_ops[] = {
        {.op = zipcclOpBroadcast, .dtype = zipcclBfloat16, .count = 5, .root = 2},
        {.op = zipcclOpReduce, .dtype = zipcclBfloat16, .count = 0, .root = 2},
        {.op = zipcclOpBroadcast, .dtype = (zipcclDataType_t)99, .count = 5},
        {.op = (zipcclOp_t)99, .dtype = zipcclBfloat16, .count = 5},
        {.op = zipcclOpAllToAll, .dtype = zipcclBfloat16, .count = 0},
        {.op = zipcclOpSend, .dtype = zipcclBfloat16, .count = 5},
        {.op = zipcclOpBroadcast, .dtype = zipcclBfloat16, .codec = zipcclCodecAuto, .count = 5},
        {.op = zipcclOpBroadcast, .dtype = zipcclBfloat16, .count = UINT64_MAX / 2},
        {.op = zipcclOpAllGatherv, .dtype = zipcclBfloat16},
        {.op = zipcclOpReduceScatterv, .dtype = zipcclBfloat16},
        {.op = zipcclOpAllGatherv, .dtype = zipcclBfloat16, .counts = huge},
        {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .counts = counts},
        {.op = zipcclOpAllReduce, .dtype = zipcclBfloat16, .count = 5, .arm = zipcclArmAuto},
        {.op = zipcclOpAllReduce, .dtype = zipcclBfloat16, .count = 5, .redop = zipcclNumRedOps},
        {.op = zipcclOpReduce, .dtype = zipcclBfloat16, .count = 5, .redop = zipcclPreMulSum, .arm = zipcclArmFlat},
    };
    for (size_t i = 0; i < sizeof(bad_ops) / sizeof(bad_ops[0]); i++) {
        ops[1] = bad_ops[i];
        assert_int_equal(plan_build(&good, &p), zipcclInvalidArgument);
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
        cmocka_unit_test(test_all_gather),       cmocka_unit_test(test_all_gather_v),
        cmocka_unit_test(test_wide_nodes),       cmocka_unit_test(test_all_hear),
        cmocka_unit_test(test_groups),           cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_reduce_scatter_v), cmocka_unit_test(test_all_reduce),
        cmocka_unit_test(test_reduce),           cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_barrier),          cmocka_unit_test(test_many_chunks),
        cmocka_unit_test(test_slot_memory),      cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_chunk_count),      cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
