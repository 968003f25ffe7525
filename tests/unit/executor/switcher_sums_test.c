/* SPDX-License-Identifier: Apache-2.0
 *
 * What choosing costs over the first 5, 10, 30, 100 and 2,000 operations, at every size from 4 KiB to 256 MiB and every
 * rate: all that was measured included, against the best pinned choice. For kinds of which nothing is known, such whose
 * neighbours have run, and such as a profile recalls. SWITCHER_PRINT=PERCENT tells which are over that.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "switcher_sim.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#    define SEEDS 1u
#else
#    define SEEDS 2u
#endif
#define LONG  2000u /* operations; with the first seed */
#define FIRST 100u
#define RATES 5u

static struct sim g_sim;
static const unsigned g_after[] = {5, 10, 30, 100, LONG};
#define AFTER (sizeof g_after / sizeof *g_after)

enum knows { COLD, NEIGHBOURS, PROFILE, KNOWS };
static const char *const g_knows[] = {"nothing known", "neighbours known", "profile"};

/* A machine: how its truth differs from what was measured at the start; and what is asked of it, in percent. */
struct machine {
    const char *name;
    double noise, outliers, encode, overlap;
    double rates[RATES];
    bool unpaced, runs_long;
    struct {
        double mean, most; /* of all cells, after 5 to 100 operations */
    } limit[KNOWS];
};

struct sums {
    double most, mean;
    unsigned cells, beyond; /* cells over 2 % */
};

static const struct {
    zipcclOp_t op;
    uint32_t nodes, per_node;
} g_worlds[] = {{zipcclOpAllGather, 2, 2},
                {zipcclOpReduceScatter, 2, 2},
                {zipcclOpAllReduce, 3, 1},
                {zipcclOpAllReduce, 4, 2},
                {zipcclOpAllToAll, 2, 4}};

static void begin(const struct machine *m, double gbits, unsigned world, uint64_t seed) {
    sim_init(&g_sim, gbits, g_worlds[world].nodes, g_worlds[world].per_node);
    g_sim.world.noise = m->noise;
    g_sim.world.outliers = m->outliers;
    g_sim.world.encode_bps *= m->encode;
    g_sim.world.overlap = m->overlap;
    g_sim.model.unpaced = m->unpaced;
    for (uint32_t i = 0; i < g_worlds[world].nodes; i++)
        switcher_init(&g_sim.nodes[i], &g_sim.model, &g_sim.shape, SWITCH_NODE_KINDS);
    g_sim.random += 7919 * (seed + 1) + 104729 * world;
    for (unsigned i = 0; i < 20; i++)
        (void)sim_uniform(&g_sim);
}

static void run(struct switch_want want, uint64_t bytes, unsigned n) {
    struct switch_choice choice;
    want.bytes = bytes;
    for (unsigned i = 0; i < n; i++)
        (void)sim_run(&g_sim, &want, &choice);
}

/* Sizes near to it have run. */
static void run_neighbours(const struct switch_want *want, bool itself) {
    uint64_t b = want->bytes;
    run(*want, b >= 16 * KIB ? b / 4 : b * 4, 60);
    run(*want, b >= 8 * KIB ? b / 2 : b * 2, 60);
    if (itself)
        run(*want, b, 200);
}

static void one(const struct machine *m, double gbits, unsigned world, uint64_t bytes, uint64_t seed, enum knows knows,
                unsigned operations, struct sums sums[AFTER]) {
    struct switch_want want = sim_want(g_worlds[world].op, bytes);
    struct switch_prior priors[8];
    struct switch_choice choice;
    double took = 0, best = 0;
    unsigned at = 0;
    want.flat = g_worlds[world].per_node == 2 && g_worlds[world].op != zipcclOpAllGather;
    begin(m, gbits, world, seed + bytes);
    if (knows == NEIGHBOURS)
        run_neighbours(&want, false);
    if (knows == PROFILE) {
        run_neighbours(&want, true);
        uint32_t n = switcher_learned(&g_sim.nodes[0], priors, 8);
        struct model learned = g_sim.nodes[0].model;
        sim_free(&g_sim);
        begin(m, gbits, world, seed + bytes + 1);
        memcpy(g_sim.model.fraction, learned.fraction, sizeof learned.fraction);
        for (uint32_t i = 0; i < g_worlds[world].nodes; i++) {
            switcher_init(&g_sim.nodes[i], &g_sim.model, &g_sim.shape, SWITCH_NODE_KINDS);
            switcher_recall(&g_sim.nodes[i], priors, n);
        }
    }
    const char *print = getenv("SWITCHER_PRINT");
    for (unsigned i = 1; i <= operations; i++) {
        took += sim_run(&g_sim, &want, &choice);
        best += sim_best_ns(&g_sim, &want);
        if (i != g_after[at])
            continue;
        double over = took / best - 1;
        if (print != NULL && 100 * over > atof(print))
            printf("%s, %s, op %d, %u x %u, %g Gbit/s, %llu KiB, seed %llu, %u operations: %.2f %%\n", m->name,
                   g_knows[knows], (int)want.op, g_worlds[world].nodes, g_worlds[world].per_node, gbits,
                   (unsigned long long)(bytes / KIB), (unsigned long long)seed, i, 100 * over);
        sums[at].most = over > sums[at].most ? over : sums[at].most;
        sums[at].mean += over;
        sums[at].cells++;
        sums[at].beyond += over > 0.02;
        at++;
    }
    sim_free(&g_sim);
}

static void print_sums(const struct machine *m, unsigned k, const struct sums *sums) {
    printf("%-11s %-16s", m->name, g_knows[k]);
    for (unsigned a = 0; a < AFTER && sums[a].cells > 0; a++)
        printf("  %4u: %5.2f %5.2f %4.1f%%", g_after[a], 100 * sums[a].most, 100 * sums[a].mean / sums[a].cells,
               100.0 * sums[a].beyond / sums[a].cells);
    printf("\n");
}

static void measure(const struct machine *m, unsigned k) {
    struct sums sums[AFTER] = {{0}};
    for (unsigned w = 0; w < sizeof g_worlds / sizeof *g_worlds; w++) {
        for (unsigned r = 0; r < RATES && m->rates[r] > 0; r++) {
            for (uint64_t bytes = 4 * KIB; bytes <= 256 * MIB; bytes *= 2) {
                for (unsigned seed = 0; seed < SEEDS; seed++)
                    one(m, m->rates[r], w, bytes, seed, (enum knows)k, seed == 0 && m->runs_long ? LONG : FIRST, sums);
            }
        }
    }
    print_sums(m, k, sums);
    for (unsigned a = 0; a < AFTER && sums[a].cells > 0; a++) {
        bool is_long = g_after[a] == LONG;
        assert_true(100 * sums[a].mean / sums[a].cells <= (is_long ? 0.5 : m->limit[k].mean));
        assert_true(100 * sums[a].most <= (is_long ? 1 : m->limit[k].most));
    }
}

/* The model may be wrong by far where nothing else is known; what is known makes the first operations good ones. */
static void test_sums(void **state) {
    (void)state;
    static const struct machine machines[] = {
        {"plain", 0.05, 0, 1, 0.7, {0.1, 1, 10, 20}, false, true, {{2.5, 25}, {0.8, 15}, {0.8, 4}}},
        {"busy", 0.15, 0.03, 1, 0.7, {0.1, 1, 10, 20}, false, false, {{2.5, 45}, {1.5, 45}, {1.2, 15}}},
        {"slow codec", 0.05, 0, 0.4, 0, {0.1, 1, 10, 20}, false, false, {{2.5, 35}, {1.0, 40}, {0.8, 6}}},
        {"uncapped", 0.05, 0, 0.25, 0, {5, 8, 12, 20, 30}, true, false, {{3.0, 35}, {0.5, 20}, {0.5, 4}}},
    };
    printf("percent over the best pinned choice: the most, the mean, and how many cells are over 2 %%\n");
    for (unsigned i = 0; i < sizeof machines / sizeof *machines; i++) {
        for (unsigned k = 0; k < KNOWS; k++)
            measure(&machines[i], k);
    }
}

/* What was measured on another link tells nothing: a kind that has not run since the cap changed is no neighbour. */
static void test_stale(void **state) {
    (void)state;
    struct switch_want want = sim_want(zipcclOpAllGather, 2 * MIB);
    struct switch_choice choice;
    sim_init(&g_sim, 1, 2, 2);
    run(want, 4 * MIB, 100);
    run(want, 16 * MIB, 100);
    (void)sim_run(&g_sim, &want, &choice);
    assert_int_not_equal(choice.codec, zipcclCodecRaw); /* by its neighbours */
    g_sim.world.link_bps = 20 * 1.25e8;
    switcher_alarm(&g_sim.nodes[0]);
    run(want, 16 * MIB, 30);
    want.bytes = 8 * MIB;
    (void)sim_run(&g_sim, &want, &choice);
    assert_int_equal(choice.codec, zipcclCodecRaw);
    sim_free(&g_sim);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_stale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
