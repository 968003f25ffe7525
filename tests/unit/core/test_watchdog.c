/* SPDX-License-Identifier: Apache-2.0
 *
 * The watchdog's judgement, with heartbeats and a clock of the test's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/core/watchdog.h"

#define SECOND UINT64_C(1000000000)

static struct watchdog w;
static struct heartbeat beats[WATCHDOG_MAX + 1];

static void start(unsigned n, uint64_t limit) {
    watchdog_init(&w, limit);
    for (unsigned i = 0; i < n; i++) {
        beats[i] = (struct heartbeat){0};
        assert_true(watchdog_add(&w, &beats[i], "worker", 0));
    }
}

static void test_idle_for_ever(void **state) {
    (void)state;
    start(3, SECOND);
    for (uint64_t s = 0; s < 1000; s++)
        assert_true(watchdog_alive(&w, s * SECOND));
    /* Idle after work, too; and an idle thread that says so again. */
    heartbeat_work(&beats[1]);
    heartbeat_idle(&beats[1]);
    heartbeat_idle(&beats[1]);
    assert_false(heartbeat_busy(heartbeat_read(&beats[1])));
    assert_true(watchdog_alive(&w, 5000 * SECOND));
    assert_true(watchdog_alive(&w, 9000 * SECOND));
}

static void test_work_that_goes_on(void **state) {
    (void)state;
    start(2, SECOND);
    for (uint64_t i = 0; i < 100; i++) {
        heartbeat_work(&beats[0]); /* piece after piece, never idle */
        assert_true(heartbeat_busy(heartbeat_read(&beats[0])));
        assert_true(watchdog_alive(&w, i * SECOND * 9 / 10));
    }
}

static void test_stuck(void **state) {
    (void)state;
    start(3, SECOND);
    heartbeat_work(&beats[2]);
    assert_true(watchdog_alive(&w, 10 * SECOND)); /* seen at work for the first time: since when is not known */
    heartbeat_work(&beats[0]);
    heartbeat_idle(&beats[0]);
    assert_true(watchdog_alive(&w, 11 * SECOND - 1));
    assert_false(watchdog_alive(&w, 11 * SECOND));
    heartbeat_work(&beats[0]); /* that others work does not help */
    assert_false(watchdog_alive(&w, 11 * SECOND + 1));
    heartbeat_idle(&beats[0]);
    heartbeat_work(&beats[2]); /* the next piece */
    assert_true(watchdog_alive(&w, 12 * SECOND));
    assert_false(watchdog_alive(&w, 13 * SECOND));
    heartbeat_idle(&beats[2]);
    assert_true(watchdog_alive(&w, 14 * SECOND));
}

static void test_off_and_full(void **state) {
    (void)state;
    start(WATCHDOG_MAX, 0);
    assert_false(watchdog_add(&w, &beats[WATCHDOG_MAX], "one more", 0));
    heartbeat_work(&beats[0]);
    assert_true(watchdog_alive(&w, 1));
    assert_true(watchdog_alive(&w, 1000 * SECOND)); /* no limit */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_for_ever),
        cmocka_unit_test(test_work_that_goes_on),
        cmocka_unit_test(test_stuck),
        cmocka_unit_test(test_off_and_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
