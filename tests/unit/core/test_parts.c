/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles and statistics.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/core/handles.h"
#include "daemon/core/stats.h"

static void test_handles(void **state) {
    (void)state;
    struct handles t;
    int objects[100];
    uint64_t h[100];
    handles_init(&t, 100);
    for (int i = 0; i < 100; i++) {
        h[i] = handles_add(&t, &objects[i]);
        assert_int_not_equal(h[i], 0);
    }
    assert_int_equal(handles_add(&t, &objects[0]), 0);
    for (int i = 0; i < 100; i++)
        assert_ptr_equal(handles_get(&t, h[i]), &objects[i]);
    assert_ptr_equal(handles_remove(&t, h[7]), &objects[7]);
    assert_null(handles_get(&t, h[7]));
    assert_null(handles_remove(&t, h[7]));
    uint64_t again = handles_add(&t, &objects[8]);
    assert_int_equal((uint32_t)again, (uint32_t)h[7]); /* the slot is used again, */
    assert_int_not_equal(again, h[7]);                 /* the handle is not */
    assert_null(handles_get(&t, h[7]));
    assert_null(handles_get(&t, 0));
    assert_null(handles_get(&t, UINT64_MAX));
    handles_free(&t);
}

static void test_stats(void **state) {
    (void)state;
    struct stats s;
    stats_init(&s);
    struct stats_job *job = stats_job_begin(&s, "a", 1);
    assert_ptr_equal(stats_job_begin(&s, "a", 1), job);
    assert_ptr_not_equal(stats_job_begin(&s, "a", 2), job);
    struct stats_sample sample = {.op = zipcclOpAllGather,
                                  .dtype = zipcclBfloat16,
                                  .codec = zipcclCodecTier,
                                  .raw_bytes = 10,
                                  .wire_bytes = 7,
                                  .total_ns = 5};
    stats_add(&s, job, &sample);
    sample.total_ns = 3;
    stats_add(&s, job, &sample);
    sample.result = zipcclCorruptData;
    stats_add(&s, job, &sample);
    const struct stats_row *r = &job->rows[zipcclOpAllGather][zipcclBfloat16][zipcclCodecTier];
    assert_int_equal(r->count, 2);
    assert_int_equal(r->errors, 1);
    assert_int_equal(r->wire_bytes, 14);
    assert_int_equal(r->min_ns, 3);
    assert_int_equal(r->max_ns, 5);
    assert_int_equal(s.counters[STATS_corrupt_chunks], 1);
    assert_int_equal(s.counters[STATS_ops_coded], 2);
    sample.op = (zipcclOp_t)99;
    stats_add(&s, job, &sample); /* out of the table: nothing */
    for (unsigned i = 0; i < 3 * STATS_KEPT_JOBS; i++) {
        char name[16];
        snprintf(name, sizeof name, "j%u", i);
        stats_job_end(&s, stats_job_begin(&s, name, 0));
    }
    uint32_t n = 0;
    list_for_each(l, &s.jobs) n++;
    assert_int_equal(n, STATS_KEPT_JOBS + 2);
    stats_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_handles), cmocka_unit_test(test_stats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
