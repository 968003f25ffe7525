/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose job the host device's workers take next: shares of flows, small before large and codec before copy with their
 * bounds, a flow that is closed with jobs in it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/device/host.h"

#define LARGE (1u << 20)
#define SMALL 1000u

static struct device_job *push(struct host_queue *q, struct device_flow *flow, enum device_work work, size_t bytes) {
    struct device_job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    job->work = work;
    job->dtype = zipcclUint8;
    job->count = bytes;
    job->flow = flow;
    host_queue_push(q, job);
    return job;
}

static void test_shares(void **state) {
    (void)state;
    struct host_queue q;
    unsigned of_a = 0;
    assert_true(host_queue_init(&q));
    struct device_flow *a = host_queue_flow(&q, 3, FLOW_NORMAL), *b = host_queue_flow(&q, 1, FLOW_NORMAL);
    for (unsigned i = 0; i < 400; i++) {
        push(&q, b, DEVICE_ENCODE, LARGE);
        push(&q, a, DEVICE_DECODE, LARGE);
    }
    for (unsigned i = 0; i < 400; i++) {
        struct device_job *job = host_queue_take(&q);
        of_a += job->flow == a;
        free(job);
    }
    assert_in_range(of_a, 298, 302);
    host_queue_close(&q, a); /* what is in it is still done */
    for (unsigned i = 0; i < 400; i++)
        free(host_queue_take(&q));
    assert_false(host_queue_waits(&q));
    assert_null(host_queue_take(&q));
    host_queue_close(&q, b);
    assert_ptr_equal(q.flows, q.fallback);
    host_queue_free(&q);
}

/* Takes n jobs while all kinds wait; the longest time that one of `late` waited for its turn. */
static unsigned longest(struct host_queue *q, unsigned n, bool (*late)(const struct device_job *)) {
    unsigned most = 0, since = 0;
    for (unsigned i = 0; i < n; i++) {
        struct device_job *job = host_queue_take(q);
        since = late(job) ? 0 : since + 1;
        most = since > most ? since : most;
        host_queue_push(q, job);
    }
    return most;
}

static bool is_copy(const struct device_job *job) {
    return job->work == DEVICE_COPY;
}

static bool is_large(const struct device_job *job) {
    return job->count == LARGE;
}

static void test_bounds(void **state) {
    (void)state;
    struct host_queue q;
    assert_true(host_queue_init(&q));
    push(&q, NULL, DEVICE_ENCODE, LARGE);
    struct device_job *small = push(&q, NULL, DEVICE_ENCODE, SMALL);
    struct device_job *first = host_queue_take(&q);
    assert_ptr_equal(first, small); /* though it came later */
    host_queue_push(&q, first);
    assert_in_range(longest(&q, 1000, is_large), 1, 8);
    push(&q, NULL, DEVICE_COPY, LARGE);
    assert_in_range(longest(&q, 1000, is_copy), 1, 8);
    while (host_queue_waits(&q))
        free(host_queue_take(&q));
    host_queue_free(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares), cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
