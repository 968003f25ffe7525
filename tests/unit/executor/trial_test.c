/* SPDX-License-Identifier: Apache-2.0
 *
 * Trials: nodes with different clocks choose alike, take what is faster on the slowest node, and try again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/trial.h"

#define NODES 3

/* Runs ops on all nodes; ns[node][raw, coded]. Asserts that they choose alike; returns how many were coded. */
static unsigned run(struct trial_kind kinds[NODES], unsigned ops, const uint64_t ns[NODES][2]) {
    unsigned coded = 0;
    for (unsigned i = 0; i < ops; i++) {
        zipcclCodec_t codec[NODES];
        uint32_t report[NODES], worst = 0;
        for (unsigned n = 0; n < NODES; n++) {
            codec[n] = trial_choose(&kinds[n], zipcclCodecTier, &report[n]);
            assert_int_equal(codec[n], codec[0]);
            worst = trial_worst(worst, report[n]);
        }
        for (unsigned n = 0; n < NODES; n++)
            trial_done(&kinds[n], codec[n] != zipcclCodecRaw, ns[n][codec[n] != zipcclCodecRaw], worst);
        coded += codec[0] != zipcclCodecRaw;
    }
    return coded;
}

static void test_faster_wins(void **state) {
    (void)state;
    static const uint64_t pays[NODES][2] = {{1000000, 700000}, {1200000, 750000}, {900000, 690000}};
    static const uint64_t loses[NODES][2] = {{1000000, 500000}, {1000000, 600000}, {900000, 990000}};
    struct trial_kind kinds[NODES];
    memset(kinds, 0, sizeof kinds);
    assert_int_equal(run(kinds, TRIAL_OPS, pays), 3);
    assert_int_equal(run(kinds, 100, pays), 100);
    memset(kinds, 0, sizeof kinds);
    assert_int_equal(run(kinds, TRIAL_OPS, loses), 3);
    assert_int_equal(run(kinds, 100, loses), 0);
    /* The link becomes slower: the next trial finds out. */
    (void)run(kinds, TRIAL_REPEAT, pays);
    assert_int_equal(run(kinds, 100, pays), 100);
}

static void test_pack(void **state) {
    (void)state;
    uint64_t before = 0;
    for (uint64_t ns = 1; ns < UINT64_MAX / 3; ns = ns * 3 / 2 + 1) {
        uint32_t p = trial_pack(ns, before);
        assert_true(p >> 16 >= (p & 0xffff));
        assert_int_equal(trial_worst(p, trial_pack(before, ns)), trial_pack(ns, ns));
        before = ns;
    }
    assert_int_equal(trial_pack(0, 0), 0);
}

static void test_find(void **state) {
    (void)state;
    static struct trial trial;
    assert_ptr_equal(trial_find(&trial, zipcclBfloat16, 1 << 20), trial_find(&trial, zipcclBfloat16, (2 << 20) - 1));
    assert_ptr_not_equal(trial_find(&trial, zipcclBfloat16, 1 << 20), trial_find(&trial, zipcclFloat16, 1 << 20));
    assert_ptr_not_equal(trial_find(&trial, zipcclBfloat16, 1 << 20), trial_find(&trial, zipcclBfloat16, 2 << 20));
    (void)trial_find(&trial, zipcclBfloat16, UINT64_MAX);
    (void)trial_find(&trial, zipcclBfloat16, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faster_wins),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_find),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
