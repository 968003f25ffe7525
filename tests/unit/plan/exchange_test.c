/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchange plans over many topologies: all-to-all(-v, -capped), gather, scatter, sends and receives, groups of them, in
 * every phase mode, with a rank that comes late; transfers of calls; bad arguments.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/plan/plan.h"
#include "kernels/dtype.h"
#include "proto/op.h"
#include "simulator.h"

#define MAX_RANKS 16
#define MAX_CALLS 4

static uint32_t g_seed;

static uint32_t roll(uint32_t n) {
    g_seed = g_seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(g_seed >> 8) * n) >> 24);
}

static uint64_t some_count(void) {
    static const uint64_t counts[] = {0, 0, 1, 7, 1000, 32768, 70001, 300007};
    return counts[roll(8)];
}

/* The calls of all ranks, and the arrays of all-to-all-v: [call][from][to]. */
struct world {
    struct plan_call calls[MAX_RANKS * MAX_CALLS];
    uint64_t matrix[MAX_CALLS][MAX_RANKS][MAX_RANKS];
    uint64_t recv_counts[MAX_CALLS][MAX_RANKS][MAX_RANKS];
    uint64_t send_offsets[MAX_CALLS][MAX_RANKS][MAX_RANKS], recv_offsets[MAX_CALLS][MAX_RANKS][MAX_RANKS];
};

static void fill_v(struct world *w, uint32_t call, uint32_t nranks, uint32_t ncalls) {
    bool displs = roll(2);
    for (uint32_t a = 0; a < nranks; a++) {
        for (uint32_t b = 0; b < nranks; b++) {
            w->matrix[call][a][b] = some_count();
            w->recv_counts[call][b][a] = w->matrix[call][a][b];
            w->send_offsets[call][a][b] = (nranks - b) * 1000000ull;
            w->recv_offsets[call][a][b] = (uint64_t)(b ^ 5u) * 2000000 + 17;
        }
    }
    for (uint32_t r = 0; r < nranks; r++) {
        struct plan_call *c = &w->calls[r * ncalls + call];
        c->send_counts = w->matrix[call][r];
        c->recv_counts = w->recv_counts[call][r];
        c->send_offsets = displs ? w->send_offsets[call][r] : NULL;
        c->recv_offsets = displs ? w->recv_offsets[call][r] : NULL;
    }
}

/* All, nothing, or any part of what may go. */
static void fill_capped(struct world *w, uint32_t call, uint32_t nranks, uint32_t ncalls) {
    for (uint32_t a = 0; a < nranks; a++) {
        struct plan_call *c = &w->calls[a * ncalls + call];
        for (uint32_t b = 0; b < nranks; b++) {
            uint32_t how = roll(4);
            w->matrix[call][a][b] = how == 0 ? 0 : how == 1 ? c->count : roll((uint32_t)c->count + 1);
        }
        c->send_counts = w->matrix[call][a];
    }
}

/* A group of calls that fits together on all ranks. */
static void fill(struct world *w, zipcclOp_t only, uint32_t nranks, uint32_t ncalls) {
    static const zipcclOp_t ops[] = {zipcclOpAllToAll, zipcclOpAllToAllv, zipcclOpGather,
                                     zipcclOpScatter,  zipcclOpSend,      zipcclOpAllToAllCapped};
    for (uint32_t i = 0; i < ncalls; i++) {
        zipcclOp_t op = only == zipcclNumOps ? ops[roll(6)] : only;
        struct plan_call call = {
            .op = op, .dtype = roll(3) ? zipcclBfloat16 : zipcclFloat32, .count = some_count(), .root = roll(nranks)};
        uint32_t from = roll(nranks), to = roll(nranks);
        for (uint32_t r = 0; r < nranks; r++) {
            struct plan_call *c = &w->calls[r * ncalls + i];
            *c = call;
            if (op != zipcclOpSend)
                continue;
            /* A receive takes the call's place on another rank. Between a rank and itself: not in one call. */
            c->op = from == to ? zipcclNumOps : r == from ? zipcclOpSend : r == to ? zipcclOpRecv : zipcclNumOps;
            c->root = r == from ? to : from;
        }
        if (op == zipcclOpAllToAllv)
            fill_v(w, i, nranks, ncalls);
        if (op == zipcclOpAllToAllCapped)
            fill_capped(w, i, nranks, ncalls);
    }
}

static void run(zipcclOp_t op, uint32_t ncalls, const struct plan_topology *t, unsigned seed) {
    static struct world w;
    g_seed = seed;
    fill(&w, op, t->nranks, ncalls);
    struct sim_exchange args = {.topology = t,
                                .calls = w.calls,
                                .ncalls = ncalls,
                                .codec = seed % 3 ? zipcclCodecTier : zipcclCodecRaw,
                                .chunk_bytes = seed % 2 ? 64 << 10 : 4 << 20,
                                .window = 1 + seed % 4,
                                .phases = (enum plan_phases)(seed / 3 % 3)};
    struct sim_options options = {.seed = seed, .late = seed % 2 ? SIM_NOBODY : seed % t->nranks};
    struct sim_result result;
    const char *why = simulate_exchange(&args, &options, &result);
    if (why)
        fail_msg("%u x %s nodes %u ranks %u seed %u phases %d: %s", ncalls, op_name(op), t->nnodes, t->nranks, seed,
                 (int)args.phases, why);
}

static void sweep(zipcclOp_t op, uint32_t ncalls) {
    uint32_t rank_node[MAX_RANKS];
    unsigned seed = op * 1000u;
    for (uint32_t nodes = 1; nodes <= 5; nodes++) {
        for (uint32_t per = 1; per <= 3; per++) {
            for (unsigned layout = 0; layout < 3; layout++) {
                struct plan_topology t = {nodes * per, nodes, rank_node};
                for (uint32_t r = 0; r < t.nranks; r++)
                    rank_node[r] = layout == 0 ? r / per : layout == 1 ? r % nodes : r < nodes ? nodes - 1 - r : 0;
                for (unsigned k = 0; k < 18; k++)
                    run(op, ncalls, &t, ++seed);
            }
        }
    }
}

static void test_all_to_all(void **state) {
    (void)state;
    sweep(zipcclOpAllToAll, 1);
}

static void test_all_to_all_v(void **state) {
    (void)state;
    sweep(zipcclOpAllToAllv, 1);
}

static void test_all_to_all_capped(void **state) {
    (void)state;
    sweep(zipcclOpAllToAllCapped, 1);
    sweep(zipcclOpAllToAllCapped, 2);
}

/* Every count of a transfer of several chunks, around their ends. */
static void test_capped_counts(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0, 1};
    struct plan_topology t = {2, 2, rank_node};
    const uint64_t chunk = 32768, most = 4 * chunk + 5;
    for (uint64_t i = 0; i < 15; i++) {
        uint64_t actual = i / 3 * chunk + i % 3, counts[2][2] = {{0, actual ? actual - 1 : most}, {most, 0}};
        struct plan_call calls[] = {
            {.op = zipcclOpAllToAllCapped, .dtype = zipcclBfloat16, .count = most, .send_counts = counts[0]},
            {.op = zipcclOpAllToAllCapped, .dtype = zipcclBfloat16, .count = most, .send_counts = counts[1]}};
        for (unsigned k = 0; k < 6; k++) {
            struct sim_exchange args = {.topology = &t,
                                        .calls = calls,
                                        .ncalls = 1,
                                        .codec = k % 2 ? zipcclCodecTier : zipcclCodecRaw,
                                        .chunk_bytes = chunk * 2,
                                        .window = 1 + k % 3,
                                        .phases = (enum plan_phases)(k % 3)};
            struct sim_options options = {.seed = k, .late = SIM_NOBODY};
            struct sim_result result;
            const char *why = simulate_exchange(&args, &options, &result);
            if (why)
                fail_msg("%llu values: %s", (unsigned long long)counts[0][1], why);
            uint64_t chunks = (counts[0][1] + chunk - 1) / chunk;
            assert_int_equal(result.messages, 2 + 5 + (chunks ? chunks : 1)); /* to itself, from 1 to 0, from 0 to 1 */
            assert_int_equal(result.sent_bytes[0], counts[0][1] * 2);
        }
    }
}

static void test_gather(void **state) {
    (void)state;
    sweep(zipcclOpGather, 1);
}

static void test_scatter(void **state) {
    (void)state;
    sweep(zipcclOpScatter, 1);
}

static void test_send(void **state) {
    (void)state;
    sweep(zipcclOpSend, MAX_CALLS);
}

static void test_groups(void **state) {
    (void)state;
    sweep(zipcclNumOps, 2);
    sweep(zipcclNumOps, MAX_CALLS);
}

static void test_eight_ranks_a_node(void **state) {
    (void)state;
    uint32_t rank_node[MAX_RANKS];
    struct plan_topology t = {16, 2, rank_node};
    for (uint32_t r = 0; r < 16; r++)
        rank_node[r] = r / 8;
    for (unsigned seed = 1; seed < 40; seed++)
        run(zipcclOpAllToAllv, 1, &t, seed);
}

static void test_to_itself(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0};
    struct plan_topology t = {1, 1, rank_node};
    struct plan_call calls[] = {{.op = zipcclOpSend, .dtype = zipcclFloat32, .count = 99},
                                {.op = zipcclOpRecv, .dtype = zipcclFloat32, .count = 99}};
    struct sim_exchange args = {.topology = &t,
                                .calls = calls,
                                .ncalls = 2,
                                .codec = zipcclCodecTier,
                                .chunk_bytes = 1 << 20,
                                .window = 1,
                                .phases = PLAN_TWO_PHASE};
    struct sim_options options = {.seed = 1, .late = SIM_NOBODY};
    struct sim_result result;
    assert_null(simulate_exchange(&args, &options, &result));
    assert_int_equal(result.messages, 1);
    assert_int_equal(result.sent_bytes[0], 0);
}

/* Who is served first; sizes of plans. */
static void test_transfers(void **state) {
    (void)state;
    struct plan_call call = {.op = zipcclOpAllToAll, .dtype = zipcclBfloat16, .count = 10};
    struct plan_transfer list[8];
    assert_int_equal(plan_transfers(&call, 1, 4, 7, list), 8);
    static const uint32_t to[] = {2, 3, 0, 1}, from[] = {0, 3, 2, 1};
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(list[2 * i].send && !list[2 * i + 1].send);
        assert_int_equal(list[2 * i].peer, to[i]);
        assert_int_equal(list[2 * i].offset, to[i] * 20);
        assert_int_equal(list[2 * i + 1].peer, from[i]);
        assert_int_equal(list[2 * i + 1].offset, from[i] * 20);
        assert_int_equal(list[i].buffer, 7);
    }
    static const uint64_t counts[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}}, offsets[2][4] = {{9, 0, 2, 30}, {50, 7, 0, 1}};
    static const uint64_t summed[2][4] = {{0, 1, 3, 6}, {0, 5, 11, 18}};
    struct plan_call v = {.op = zipcclOpAllToAllv, .dtype = zipcclBfloat16, .root = 0};
    v.send_counts = counts[0];
    v.recv_counts = counts[1];
    for (unsigned given = 0; given < 4; given++) { /* either's offsets, both's, none */
        v.send_offsets = given & 1 ? offsets[0] : NULL;
        v.recv_offsets = given & 2 ? offsets[1] : NULL;
        assert_int_equal(plan_transfers(&v, 1, 4, 0, list), 8);
        for (uint32_t i = 0; i < 8; i++) {
            const unsigned way = !list[i].send;
            const uint64_t *at = given >> way & 1 ? offsets[way] : summed[way];
            assert_int_equal(list[i].count, counts[way][list[i].peer]);
            assert_int_equal(list[i].offset, 2 * at[list[i].peer]);
        }
    }
    call.op = zipcclOpGather;
    call.root = 2;
    assert_int_equal(plan_transfers(&call, 1, 4, 0, list), 1);
    assert_int_equal(plan_transfers(&call, 2, 4, 0, list), 5);
    call.op = zipcclOpScatter;
    assert_int_equal(plan_transfers(&call, 1, 4, 0, list), 1);
    assert_int_equal(plan_transfers(&call, 2, 4, 0, list), 5);
    call.op = zipcclOpBarrier;
    assert_int_equal(plan_transfers(&call, 2, 4, 0, list), 0);
}

static void test_memory(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0, 1, 1};
    struct plan_topology t = {3, 2, rank_node};
    struct plan_transfer list[2] = {
        {.send = true, .dtype = zipcclBfloat16, .codec = zipcclCodecTier, .peer = 1, .count = 1 << 28},
        {.send = false, .dtype = zipcclBfloat16, .codec = zipcclCodecTier, .peer = 2, .count = 1000}};
    struct plan_exchange_args args = {.transfers = list,
                                      .ntransfers = 2,
                                      .nbuffers = 1,
                                      .topology = &t,
                                      .chunk_bytes = 4 << 20,
                                      .window = 4,
                                      .phases = PLAN_TWO_PHASE};
    struct plan *p;
    assert_int_equal(plan_build_exchange(&args, &p), zipcclSuccess);
    assert_int_equal(p->nslots, 5);
    assert_int_equal(p->items[0].slot_count, 2 << 20);
    assert_int_equal(p->items[1].slot_count, 1000);
    assert_int_equal(p->raw_send_bytes, 1ull << 29);
    plan_free(p);
    args.ntransfers = 0;
    assert_int_equal(plan_build_exchange(&args, &p), zipcclSuccess);
    assert_int_equal(p->nsteps, 1);
    plan_free(p);
}

static void test_bad_arguments(void **state) {
    (void)state;
    static const uint32_t rank_node[] = {0, 1}, far[] = {0, 2};
    struct plan_topology t = {2, 2, rank_node}, wild = {2, 2, far};
    const struct plan_transfer good = {.send = true, .dtype = zipcclBfloat16, .peer = 1, .count = 5};
    struct plan_transfer one = good;
    const struct plan_exchange_args args = {
        .transfers = &one, .ntransfers = 1, .nbuffers = 1, .topology = &t, .chunk_bytes = 1 << 20, .window = 1};
    struct plan *p;
    assert_int_equal(plan_build_exchange(&args, &p), zipcclSuccess);
    plan_free(p);
    struct plan_exchange_args bad[6];
    for (size_t i = 0; i < 6; i++)
        bad[i] = args;
    bad[0].rank = 2;
    bad[1].topology = &wild;
    bad[2].chunk_bytes = 0;
    bad[3].window = 0;
    bad[4].phases = (enum plan_phases)9;
    bad[5].nbuffers = 0;
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(plan_build_exchange(&bad[i], &p), zipcclInvalidArgument);
        assert_null(p);
    }
    struct plan_transfer wrong[5];
    for (size_t i = 0; i < 5; i++)
        wrong[i] = good;
    wrong[0].peer = 2;
    wrong[1].dtype = (zipcclDataType_t)99;
    wrong[2].codec = zipcclCodecAuto;
    wrong[3].count = UINT64_MAX / 2;
    wrong[4].offset = UINT64_MAX / 2;
    for (size_t i = 0; i < 5; i++) {
        one = wrong[i];
        assert_int_equal(plan_build_exchange(&args, &p), zipcclInvalidArgument);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_all_to_all_v),
        cmocka_unit_test(test_all_to_all_capped),
        cmocka_unit_test(test_capped_counts),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_send),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_to_itself),
        cmocka_unit_test(test_eight_ranks_a_node),
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
