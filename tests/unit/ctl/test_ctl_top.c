/* SPDX-License-Identifier: Apache-2.0
 *
 * The rates and the order of zipcclctl top.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/ctl/top_view.h"

static void row(Zipccl__OpStats *o, const char *job, uint64_t raw, uint64_t wire, uint64_t count, uint64_t ns) {
    zipccl__op_stats__init(o);
    o->job = (char *)(uintptr_t)job;
    o->raw_bytes = raw;
    o->wire_bytes = wire;
    o->count = count;
    o->total_ns = ns;
    o->wait_ns = ns / 4;
}

static void rates(void **state) {
    (void)state;
    static struct top_row rows[TOP_MAX_ROWS];
    Zipccl__OpStats a[2], b[4], *pa[] = {&a[0], &a[1]}, *pb[] = {&b[0], &b[1], &b[2], &b[3]};
    Zipccl__Stats before = ZIPCCL__STATS__INIT, after = ZIPCCL__STATS__INIT;
    row(&a[0], "x", 100, 80, 1, 10);
    row(&a[1], "z", 5000, 5000, 50, 50);
    row(&b[0], "x", 300, 180, 3, 50); /* two kinds of operations of one job */
    row(&b[1], "x", 1000, 500, 10, 40);
    row(&b[2], "y", 0, 0, 0, 0);
    row(&b[3], "z", 50, 50, 5, 5); /* of a daemon that began anew */
    before.ops = pa, before.n_ops = 2;
    after.ops = pb, after.n_ops = 4;
    assert_int_equal(top_rows(&before, &after, 2.0, rows), 3);
    assert_string_equal(rows[0].job, "x");
    assert_float_equal(rows[0].raw, 600, 1e-9);
    assert_float_equal(rows[0].wire, 300, 1e-9);
    assert_float_equal(rows[0].ratio, 2, 1e-9);
    assert_float_equal(rows[0].ops, 6, 1e-9);
    assert_true(rows[0].wait > 0.2 && rows[0].wait < 0.3);
    assert_float_equal(rows[1].raw + rows[1].ratio + rows[1].mean_s, 0, 1e-9);
    assert_float_equal(rows[2].raw, 25, 1e-9);
    top_sort(rows, 3, TOP_NAME);
    assert_string_equal(rows[2].job, "z");
    top_sort(rows, 3, TOP_RAW);
    assert_string_equal(rows[0].job, "x");
    assert_string_equal(rows[1].job, "z");
    assert_string_equal(rows[2].job, "y");
}

static void keys(void **state) {
    (void)state;
    enum top_key key;
    for (unsigned i = 0; i < TOP_NUM_KEYS; i++) {
        assert_true(top_key_named(top_key_name((enum top_key)i), &key));
        assert_int_equal(key, i);
    }
    assert_true(top_key_of('w', &key));
    assert_int_equal(key, TOP_WIRE);
    assert_false(top_key_of('q', &key));
    assert_false(top_key_named("", &key));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rates), cmocka_unit_test(keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
