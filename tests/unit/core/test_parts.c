/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles, statistics, the flight recorder, the events, and lines of the log that others cause.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/core/events.h"
#include "daemon/core/handles.h"
#include "daemon/core/log.h"
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

static void test_quantiles(void **state) {
    (void)state;
    static struct quantile q;
    assert_int_equal(quantile_at(&q, 500), 0);
    quantile_add(&q, 5);
    assert_int_equal(quantile_at(&q, 0), 5);
    assert_int_equal(quantile_at(&q, 1000), 5);
    /* One time alone: right to a sixteenth, whatever it is. */
    for (uint64_t ns = 1; ns < 1ull << 41; ns = ns * 9 / 8 + 1) {
        q = (struct quantile){{0}};
        quantile_add(&q, ns);
        double got = (double)quantile_at(&q, 990);
        assert_true(got >= (double)ns * 15 / 16 && got <= (double)ns * 17 / 16);
    }
    q = (struct quantile){{0}};
    for (uint64_t us = 1; us <= 1000; us++)
        quantile_add(&q, us * 1000);
    assert_true(quantile_at(&q, 500) > 468000 && quantile_at(&q, 500) < 532000);
    assert_true(quantile_at(&q, 990) > 928000 && quantile_at(&q, 990) < 1052000);
    /* More than a bucket can count: how they are spread stays. */
    q = (struct quantile){{0}};
    quantile_add(&q, 100);
    for (unsigned i = 0; i < QUANTILE_BUCKETS; i++)
        q.buckets[i] *= UINT32_MAX;
    quantile_add(&q, 100);
    quantile_add(&q, UINT64_MAX);
    assert_true(quantile_at(&q, 990) < 110);
    assert_true(quantile_at(&q, 1000) > 1ull << 40);
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
    assert_int_equal(quantile_at(r->times, 500), 3);
    assert_int_equal(quantile_at(r->times, 990), 5);
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

static void test_flight(void **state) {
    (void)state;
    static struct flight f;
    assert_int_equal(flight_first(&f, 0), 1);
    assert_null(flight_get(&f, 0));
    assert_null(flight_get(&f, 1));
    assert_null(flight_begin(NULL));
    assert_null(flight_get(NULL, 1));
    struct flight_op *op = flight_begin(&f);
    assert_int_equal(op->id, 1);
    op->seq = 7;
    snprintf(flight_where(&f, op), FLIGHT_WHERE, "waiting for rank 1");
    assert_ptr_equal(flight_get(&f, 1), op);
    assert_int_equal(flight_first(&f, 10), 1);
    for (unsigned i = 0; i < FLIGHT_OPS; i++)
        assert_non_null(flight_begin(&f));
    assert_null(flight_get(&f, 1)); /* overwritten, with its text */
    op = flight_get(&f, FLIGHT_OPS + 1);
    assert_int_equal(op->seq, 0);
    assert_string_equal(flight_where(&f, op), "");
    assert_int_equal(flight_first(&f, 0), 2);
    assert_int_equal(flight_first(&f, 10), FLIGHT_OPS - 8);
    assert_non_null(flight_get(&f, flight_first(&f, 0)));
    assert_null(flight_get(&f, FLIGHT_OPS + 2));
}

static void test_events(void **state) {
    (void)state;
    static struct events e;
    assert_null(events_next(&e, 0));
    assert_null(events_next(NULL, 0));
    events_add(NULL, EVENT_START, NULL, 0, "nothing");
    for (unsigned i = 0; i < EVENTS_KEPT + 10; i++)
        events_add(&e, EVENT_COMM_READY, "job", i, "%u ranks", i);
    const struct event *next = events_next(&e, 0);
    assert_int_equal(next->id, 11); /* the oldest that is left */
    assert_string_equal(next->text, "10 ranks");
    assert_string_equal(next->job, "job");
    assert_string_equal(event_kind_name(next->kind), "comm-ready");
    uint64_t n = 0;
    for (const struct event *at = events_next(&e, 0); at != NULL; at = events_next(&e, at->id))
        n++;
    assert_int_equal(n, EVENTS_KEPT);
    assert_int_equal(events_next(&e, EVENTS_KEPT + 9)->id, EVENTS_KEPT + 10);
    assert_null(events_next(&e, EVENTS_KEPT + 10));
    assert_null(events_next(&e, UINT64_MAX));
}

/* Recorders of ended jobs are dropped before their numbers are. */
static void test_kept_flights(void **state) {
    (void)state;
    struct stats s;
    char name[16];
    unsigned flights = 0;
    stats_init(&s);
    for (unsigned i = 0; i < STATS_KEPT_FLIGHTS + 5; i++) {
        snprintf(name, sizeof name, "j%u", i);
        stats_job_end(&s, stats_job_begin(&s, name, 0));
    }
    list_for_each(l, &s.jobs) flights += list_entry(l, struct stats_job, link)->flight != NULL;
    assert_int_equal(flights, STATS_KEPT_FLIGHTS);
    struct stats_job *again = stats_job_begin(&s, "j0", 0);
    assert_non_null(again->flight);
    stats_job_end(&s, again);
    stats_free(&s);
}

/* A thousand refusals in a second are ten lines, and one that counts the rest. */
static void test_log_often(void **state) {
    (void)state;
    struct log_often o = {0};
    char text[2048] = "";
    unsigned logged = 0;
    int ends[2], keep = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    const uint64_t start = 5000000000ull;
    dup2(ends[1], STDERR_FILENO);
    for (unsigned i = 0; i < 1000; i++)
        logged += log_often(&o, start + i * 1000, "requests were refused");
    const bool later = log_often(&o, start + 1000000001ull, "requests were refused");
    const bool again = log_often(&o, start + 3000000000ull, "requests were refused");
    dup2(keep, STDERR_FILENO);
    close(keep);
    close(ends[1]);
    const ssize_t n = read(ends[0], text, sizeof(text) - 1);
    close(ends[0]);
    assert_true(later && again && n > 0);
    assert_int_equal(logged, LOG_OFTEN_LINES);
    const char *line = strstr(text, "990 more requests were refused\n");
    assert_non_null(line);
    assert_int_equal(line - text + (ssize_t)strlen("990 more requests were refused\n"), n); /* that alone */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_handles),   cmocka_unit_test(test_stats),
                                       cmocka_unit_test(test_quantiles), cmocka_unit_test(test_flight),
                                       cmocka_unit_test(test_events),    cmocka_unit_test(test_kept_flights),
                                       cmocka_unit_test(test_log_often)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
