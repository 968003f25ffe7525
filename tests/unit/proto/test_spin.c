/* SPDX-License-Identifier: Apache-2.0
 *
 * Spinning: what starts it and what ends it. No clock is read but in the last test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/spin.h"

#define BOUND 50000u
#define SHORT 20000u
#define LONG  10000000u

static unsigned waits_until(struct spin *s, bool worth, uint64_t waited_ns) {
    unsigned n = 0;
    while (spin_worth(s, BOUND, 0) != worth && n < 1000) {
        spin_waited(s, BOUND, waited_ns);
        n++;
    }
    return n;
}

static void short_and_long_waits(void **state) {
    (void)state;
    struct spin s = {0};
    assert_true(spin_worth(&s, BOUND, 0));
    assert_false(spin_worth(&s, 0, 0));
    for (int i = 0; i < 100; i++)
        spin_waited(&s, BOUND, SHORT);
    assert_true(spin_worth(&s, BOUND, 0));
    /* One long wait is enough, and however long it was, or however many there were, a few short ones make up for it. */
    assert_int_equal(waits_until(&s, false, LONG), 1);
    unsigned after_one = waits_until(&s, true, SHORT);
    assert_in_range(after_one, 2, 10);
    for (int i = 0; i < 1000; i++)
        spin_waited(&s, BOUND, UINT64_MAX);
    assert_in_range(waits_until(&s, true, SHORT), after_one, 20);
    /* Long and short in turn: never. */
    for (int i = 0; i < 100; i++) {
        spin_waited(&s, BOUND, LONG);
        assert_false(spin_worth(&s, BOUND, 0));
        spin_waited(&s, BOUND, SHORT);
        assert_false(spin_worth(&s, BOUND, 0));
    }
    /* Just too long, for ever. */
    s = (struct spin){0};
    for (int i = 0; i < 1000; i++)
        spin_waited(&s, BOUND, (uint64_t)SPIN_WORTH * BOUND + 1000);
    assert_false(spin_worth(&s, BOUND, 0));
    /* Turned off and on again. */
    spin_waited(&s, 0, LONG);
    assert_true(spin_worth(&s, BOUND, 0));
}

static void lost_slices(void **state) {
    (void)state;
    struct spin s = {0};
    uint64_t now = 1000000;
    spin_yielded(&s, now, now + SPIN_LOST_NS - 1);
    assert_true(spin_worth(&s, BOUND, now));
    /* A core that others want: it rests for longer and longer. */
    uint64_t last = 0;
    for (int i = 0; i < 20; i++) {
        spin_yielded(&s, now, now + SPIN_LOST_NS);
        now += SPIN_LOST_NS;
        assert_false(spin_worth(&s, BOUND, now));
        uint64_t rest = s.rest_until_ns - now;
        assert_in_range(rest, SPIN_REST_NS, SPIN_REST_MOST_NS);
        assert_true(rest == SPIN_REST_MOST_NS || rest > last);
        last = rest;
        now = s.rest_until_ns;
        assert_true(spin_worth(&s, BOUND, now));
    }
    assert_int_equal(last, SPIN_REST_MOST_NS);
    /* Long after that it starts anew. */
    now += 2 * (uint64_t)SPIN_REST_MOST_NS;
    spin_yielded(&s, now, now + SPIN_LOST_NS);
    assert_int_equal(s.rest_until_ns - now - SPIN_LOST_NS, SPIN_REST_NS);
}

static void yields(void **state) {
    (void)state;
    uint64_t before = spin_yield(), after = spin_yield();
    assert_true(before > 0 && after >= before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_and_long_waits),
        cmocka_unit_test(lost_slices),
        cmocka_unit_test(yields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
