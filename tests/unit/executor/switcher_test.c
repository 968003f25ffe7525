/* SPDX-License-Identifier: Apache-2.0
 *
 * The switcher: all nodes choose alike, whatever they measure; close to the best at every size and rate, trials
 * included; quick where the link changes, patient where it does not.
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

static struct sim g_sim;
static const double g_rates[] = {0.1, 1, 10, 20};

static const struct switch_kind *kind(unsigned i) {
    return &g_sim.nodes[0].kinds[i];
}

/* Noise without any relation to the candidates, kinds that come and go beyond what is kept, alarms of some nodes. */
static void test_alike(void **state) {
    (void)state;
    static const zipcclOp_t ops[] = {zipcclOpAllGather, zipcclOpReduceScatter, zipcclOpAllReduce};
    static const zipcclDataType_t dtypes[] = {zipcclBfloat16, zipcclFloat16, zipcclFloat32, zipcclInt32};
    struct switch_choice choice, follow;
    sim_init(&g_sim, 1, 3, 2);
    g_sim.world.noise = 0.9;
    g_sim.world.node_skew = 0.95;
    for (unsigned i = 0; i < 40000; i++) {
        double u = sim_uniform(&g_sim);
        struct switch_want w = sim_want(ops[(unsigned)(u * 3)], (4096ull + (i % 97)) << (unsigned)(u * 391) % 13);
        w.dtype = dtypes[(unsigned)(u * 23017) % 4];
        w.flat = w.op != zipcclOpAllGather;
        if ((unsigned)(u * 7919) % 11 == 0)
            w.codec = zipcclCodecTier;
        if (i % 501 == 0)
            switcher_alarm(&g_sim.nodes[i % 3]);
        (void)sim_run(&g_sim, &w, &choice);
        w.op = w.op == zipcclOpAllGather ? zipcclOpBroadcast : zipcclOpReduce;
        for (uint32_t n = 0; n < 3; n++) {
            struct switch_choice other = switcher_follow(&g_sim.nodes[n], &w, false);
            follow = n == 0 ? other : follow;
            assert_int_equal(other.codec, follow.codec);
            assert_int_equal(other.arm, follow.arm);
        }
        assert_memory_equal(&g_sim.nodes[0].model, &g_sim.nodes[2].model, sizeof g_sim.model);
    }
    assert_int_equal(g_sim.nodes[0].nkinds, SWITCH_NODE_KINDS);
    sim_free(&g_sim);
}

/* Every size from 4 KiB to 256 MiB at every rate: so many operations, all included, against the best pinned one. */
static double most_over_best(unsigned operations, double noise) {
    static const struct {
        zipcclOp_t op;
        uint32_t nodes, per_node;
    } worlds[] = {{zipcclOpAllGather, 2, 2},
                  {zipcclOpReduceScatter, 2, 2},
                  {zipcclOpAllReduce, 3, 1},
                  {zipcclOpAllReduce, 4, 2},
                  {zipcclOpAllToAll, 2, 4}};
    double worst = 0;
    for (unsigned w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        for (unsigned r = 0; r < sizeof g_rates / sizeof *g_rates; r++) {
            for (uint64_t bytes = 4 * KIB; bytes <= 256 * MIB; bytes *= 2) {
                struct switch_want want = sim_want(worlds[w].op, bytes);
                struct switch_choice choice;
                double took = 0, best = 0;
                want.flat = worlds[w].per_node == 2 && worlds[w].op != zipcclOpAllGather;
                sim_init(&g_sim, g_rates[r], worlds[w].nodes, worlds[w].per_node);
                g_sim.random += bytes * (r + 7);
                g_sim.world.noise = noise;
                for (unsigned i = 0; i < operations; i++) {
                    took += sim_run(&g_sim, &want, &choice);
                    best += sim_best_ns(&g_sim, &want);
                }
                double over = took / best - 1;
                if (getenv("SWITCHER_PRINT"))
                    printf("op %d, %u x %u, %g Gbit/s, %llu KiB: %.2f %% over the best, trials %u alarms %u, codec "
                           "%d arm %d\n",
                           (int)want.op, worlds[w].nodes, worlds[w].per_node, g_rates[r],
                           (unsigned long long)(bytes / KIB), 100 * over, kind(0)->trials, kind(0)->alarms,
                           (int)choice.codec, (int)choice.arm);
                worst = over > worst ? over : worst;
                sim_free(&g_sim);
            }
        }
    }
    printf("%u operations, times vary by %.0f %%: at most %.2f %% over the best pinned choice\n", operations,
           100 * noise, 100 * worst);
    return worst;
}

static void test_near_best(void **state) {
    (void)state;
    assert_true(most_over_best(2000, 0.05) <= 0.01);
    assert_true(most_over_best(100, 0.05) <= 0.04);
    assert_true(most_over_best(1000, 0.3) <= 0.1); /* a busy machine */
}

/* Operations after a change until what is in force is within 5 % of the best for good. Others are measured now and
 * then after that too: what that costs, test_near_best adds up. */
static unsigned settle(const struct switch_want *want) {
    struct switch_choice choice;
    unsigned last = 0;
    for (unsigned i = 1; i <= 60; i++) {
        (void)sim_run(&g_sim, want, &choice);
        const struct switch_candidate *c = &kind(0)->candidates[kind(0)->chosen];
        if (sim_true_ns(&g_sim, want, (zipcclArm_t)c->arm, (zipcclCodec_t)c->codec) > 1.05 * sim_best_ns(&g_sim, want))
            last = i;
    }
    return last == 60 ? 99 : last;
}

/* The rate changes from any to any other one, also while the choice is young. */
static void test_settles(void **state) {
    (void)state;
    static const unsigned before[] = {30, 31, 45, 100, 1500};
    unsigned most = 0;
    for (unsigned from = 0; from < 4; from++) {
        for (unsigned to = 0; to < 4; to++) {
            for (uint64_t bytes = 64 * KIB; bytes <= 64 * MIB; bytes *= 4) {
                for (unsigned b = 0; b < 5; b++) {
                    for (unsigned reduces = 0; reduces < 2; reduces++) {
                        struct switch_want want = sim_want(reduces ? zipcclOpReduceScatter : zipcclOpAllGather, bytes);
                        struct switch_choice choice;
                        want.flat = reduces;
                        sim_init(&g_sim, g_rates[from], 2, 2);
                        g_sim.random += bytes + 11 * b;
                        for (unsigned i = 0; i < before[b]; i++)
                            (void)sim_run(&g_sim, &want, &choice);
                        g_sim.world.link_bps = g_rates[to] * 1.25e8;
                        unsigned n = settle(&want);
                        if (n > 20)
                            printf("%g to %g Gbit/s, %llu KiB, after %u, reduces %u: %u operations\n", g_rates[from],
                                   g_rates[to], (unsigned long long)(bytes / KIB), before[b], reduces, n);
                        most = n > most ? n : most;
                        sim_free(&g_sim);
                    }
                }
            }
        }
    }
    printf("settled after at most %u operations\n", most);
    assert_true(most <= 20);
}

static void run(const struct switch_want *want, unsigned n) {
    struct switch_choice choice;
    for (unsigned i = 0; i < n; i++)
        (void)sim_run(&g_sim, want, &choice);
}

/* Data that stops being Gaussian: coding stops to pay. */
static void test_data_changes(void **state) {
    (void)state;
    struct switch_want want = sim_want(zipcclOpAllGather, 4 * MIB), next = sim_want(zipcclOpBroadcast, 4 * MIB);
    sim_init(&g_sim, 1, 2, 1);
    run(&want, 100);
    assert_int_equal(kind(0)->candidates[kind(0)->chosen].codec, zipcclCodecTier);
    assert_int_equal(switcher_follow(&g_sim.nodes[0], &next, false).codec, zipcclCodecTier);
    assert_in_range(g_sim.nodes[0].model.fraction[zipcclCodecTier][zipcclBfloat16], 660, 740);
    g_sim.world.ratio[zipcclCodecTier] = g_sim.world.ratio[zipcclCodecTop7] = 1.0;
    g_sim.world.encode_bps /= 2; /* what it codes as exceptions takes longer: raw is ahead by 4 % */
    run(&want, 150);
    assert_int_equal(kind(0)->candidates[kind(0)->chosen].codec, zipcclCodecRaw);
    assert_int_equal(switcher_follow(&g_sim.nodes[0], &next, false).codec, zipcclCodecRaw);
    assert_true(g_sim.nodes[0].model.fraction[zipcclCodecTier][zipcclBfloat16] > 900);
    sim_free(&g_sim);
}

/* Times that jump without end: alarms, each after twice as many operations as the one before. */
static void test_back_off(void **state) {
    (void)state;
    struct switch_want want = sim_want(zipcclOpAllGather, 4 * MIB);
    sim_init(&g_sim, 0.1, 2, 1);
    run(&want, 60);
    for (unsigned i = 0; i < 900; i++) {
        g_sim.world.link_bps = i / 20 % 2 ? 1.25e7 : 0.7e7;
        run(&want, 1);
    }
    printf("%u alarms in 900 operations\n", kind(0)->alarms);
    assert_in_range(kind(0)->alarms, 4, 9);
    uint64_t hold = kind(0)->hold;
    assert_true(hold >= 128);
    /* Where another candidate wins, the next alarm may come sooner. */
    g_sim.world.link_bps = 4e9;
    for (unsigned i = 0; i < 1200 && kind(0)->candidates[kind(0)->chosen].codec != zipcclCodecRaw; i++)
        run(&want, 1);
    assert_int_equal(kind(0)->candidates[kind(0)->chosen].codec, zipcclCodecRaw);
    assert_true(kind(0)->hold < hold);
    sim_free(&g_sim);
}

/* Small operations of a machine that others use too: nothing changes, but three times in a row are often far from the
 * usual one. What was measured is not forgotten for that, and tells apart what lies 6 % apart. */
static void test_noise(void **state) {
    (void)state;
    struct switch_want want = sim_want(zipcclOpAllGather, 4 * KIB);
    struct switch_choice choice;
    double worst = 0, sum = 0;
    unsigned alarms = 0;
    enum { RUNS = 8, OPERATIONS = 6000 };
    for (unsigned r = 0; r < RUNS; r++) {
        double took = 0, best = 0;
        sim_init(&g_sim, 20, 2, 2);
        for (uint32_t n = 0; n < 2; n++)
            g_sim.nodes[n].start.latency_ns = g_sim.nodes[n].model.latency_ns = 1000000;
        g_sim.random += 1000 * r;
        g_sim.world.latency_ns = 1e6;
        g_sim.world.noise = 0.3;
        g_sim.world.node_skew = 0.4;
        for (unsigned i = 0; i < OPERATIONS; i++) {
            took += sim_run(&g_sim, &want, &choice);
            best += sim_best_ns(&g_sim, &want);
        }
        alarms += kind(0)->alarms;
        sum += took / best - 1;
        worst = took / best - 1 > worst ? took / best - 1 : worst;
        sim_free(&g_sim);
    }
    printf("noise: %.2f %% over the best on average, at most %.2f %%, %u alarms\n", 100 * sum / RUNS, 100 * worst,
           alarms);
    assert_true(sum / RUNS <= 0.015 && alarms <= 2 * RUNS);
}

/* One node hears that its cap changed: all try again with the operation after next, at once. */
static void test_told(void **state) {
    (void)state;
    struct switch_want want = sim_want(zipcclOpAllGather, 1 * MIB);
    sim_init(&g_sim, 0.2, 3, 1);
    run(&want, 60);
    uint32_t trials = kind(0)->trials;
    assert_int_equal(kind(0)->phase, SWITCH_CHOSEN);
    g_sim.world.link_bps = 4e9;
    switcher_alarm(&g_sim.nodes[1]);
    run(&want, 1);
    assert_int_equal(kind(0)->trials, trials + 1);
    assert_int_equal(kind(0)->phase, SWITCH_TRIAL);
    run(&want, 10);
    assert_int_equal(kind(0)->candidates[kind(0)->chosen].codec, zipcclCodecRaw);
    sim_free(&g_sim);
}

/* What the ranks or the configuration pin is kept, without trials. */
static void test_pinned(void **state) {
    (void)state;
    struct switch_want want = sim_want(zipcclOpAllReduce, 1 * MIB);
    struct switch_choice choice;
    sim_init(&g_sim, 20, 2, 2);
    want.codec = zipcclCodecTop7;
    for (unsigned i = 0; i < 50; i++) {
        (void)sim_run(&g_sim, &want, &choice);
        assert_int_equal(choice.codec, zipcclCodecTop7);
        assert_int_equal(choice.arm, zipcclArmHierarchical);
    }
    assert_int_equal(kind(0)->trials, 0);
    want.codec = zipcclCodecAuto;
    want.arm = zipcclArmFlat;
    run(&want, 50);
    for (unsigned i = 0; i < kind(1)->ncandidates; i++)
        assert_int_equal(kind(1)->candidates[i].arm, zipcclArmFlat);
    want.arm = zipcclArmRing;
    want.codec = zipcclCodecTier;
    (void)sim_run(&g_sim, &want, &choice);
    assert_int_equal(choice.arm, zipcclArmRing);
    assert_int_equal(choice.codec, zipcclCodecRaw);
    want = sim_want(zipcclOpAllGather, 1 * MIB);
    want.dtype = zipcclInt64;
    want.codec = zipcclCodecTier;
    assert_int_equal(switcher_follow(&g_sim.nodes[0], &want, false).codec, zipcclCodecRaw);
    sim_free(&g_sim);
}

/* Where coding is hopeless nothing is tried; small operations, integers and single nodes neither. */
static void test_pruned(void **state) {
    (void)state;
    struct switch_want want = sim_want(zipcclOpAllGather, 16 * MIB);
    char why[SWITCH_WHY];
    sim_init(&g_sim, 20, 2, 2);
    run(&want, 3000);
    assert_int_equal(kind(0)->trials, 0);
    assert_int_equal(kind(0)->ncandidates, 3);
    switcher_why(&g_sim.nodes[0], kind(0), why, sizeof why);
    assert_non_null(strstr(why, "raw: the model says"));
    sim_free(&g_sim);

    sim_init(&g_sim, 1, 2, 2);
    want.bytes = 512;
    run(&want, 10);
    switcher_why(&g_sim.nodes[0], kind(0), why, sizeof why);
    assert_non_null(strstr(why, "too little to code"));
    want.bytes = 8 * MIB;
    want.dtype = zipcclInt32;
    run(&want, 10);
    switcher_why(&g_sim.nodes[0], kind(1), why, sizeof why);
    assert_non_null(strstr(why, "not coded"));
    want.dtype = zipcclBfloat16;
    run(&want, 40);
    switcher_why(&g_sim.nodes[0], kind(2), why, sizeof why);
    assert_non_null(strstr(why, "measured against"));
    assert_int_equal(kind(0)->trials + kind(1)->trials, 0);
    assert_int_equal(kind(2)->trials, 1);
    /* The flat arm moves twice the bytes: at this size it is out. */
    struct switch_want sum = sim_want(zipcclOpReduceScatter, 8 * MIB);
    sum.flat = true;
    run(&sum, 1);
    for (unsigned i = 0; i < kind(3)->ncandidates; i++) {
        const struct switch_candidate *c = &kind(3)->candidates[i];
        if (c->arm == zipcclArmFlat && c->codec == zipcclCodecRaw)
            assert_false(c->kept);
    }
    sim_free(&g_sim);

    sim_init(&g_sim, 1, 1, 4);
    run(&want, 10);
    switcher_why(&g_sim.nodes[0], kind(0), why, sizeof why);
    assert_non_null(strstr(why, "one node"));
    sim_free(&g_sim);
}

/* Followers: the nearest decided kind; the model where none is near; the model of the creation where they must. */
static void test_follow(void **state) {
    (void)state;
    struct switch_want want = sim_want(zipcclOpAllGather, 4 * MIB), next = sim_want(zipcclOpBroadcast, 8 * MIB);
    sim_init(&g_sim, 20, 2, 1);
    run(&want, 40);
    g_sim.world.link_bps = 1.25e7;
    run(&want, 40);
    assert_int_equal(switcher_follow(&g_sim.nodes[0], &next, false).codec, zipcclCodecTier);
    assert_int_equal(switcher_follow(&g_sim.nodes[0], &next, true).codec, zipcclCodecRaw);
    next.bytes = 256 * MIB; /* nothing is near: the model, with the link as measured */
    assert_int_equal(switcher_follow(&g_sim.nodes[0], &next, false).codec, zipcclCodecTier);
    next.dtype = zipcclInt8;
    assert_int_equal(switcher_follow(&g_sim.nodes[0], &next, false).codec, zipcclCodecRaw);
    next = sim_want(zipcclOpReduce, 4 * MIB);
    next.codec = zipcclCodecTop7;
    assert_int_equal(switcher_follow(&g_sim.nodes[0], &next, false).codec, zipcclCodecTop7);
    sim_free(&g_sim);
}

/* Sizes of one class differ by up to two: no alarms. */
static void test_sizes_of_a_class(void **state) {
    (void)state;
    struct switch_want want = sim_want(zipcclOpAllGather, 4 * MIB);
    sim_init(&g_sim, 1, 2, 1);
    for (unsigned i = 0; i < 500; i++) {
        want.bytes = i / 7 % 2 ? 4 * MIB + 4096 : 8 * MIB - 4096;
        run(&want, 1);
    }
    assert_int_equal(g_sim.nodes[0].nkinds, 1);
    assert_int_equal(kind(0)->alarms, 0);
    sim_free(&g_sim);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alike),        cmocka_unit_test(test_near_best),        cmocka_unit_test(test_settles),
        cmocka_unit_test(test_data_changes), cmocka_unit_test(test_back_off),         cmocka_unit_test(test_noise),
        cmocka_unit_test(test_told),         cmocka_unit_test(test_pinned),           cmocka_unit_test(test_pruned),
        cmocka_unit_test(test_follow),       cmocka_unit_test(test_sizes_of_a_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
