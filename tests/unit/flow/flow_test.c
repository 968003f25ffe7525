/* SPDX-License-Identifier: Apache-2.0
 *
 * The order that flows are served in: shares by weight over random sequences, weights changed under load, priorities
 * and their bound, rates, order inside a flow, removal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/flow/flow.h"

#define MAX_BYTES (4u << 20)

static uint64_t g_random = 88172645463325252ull;

static uint32_t roll(uint32_t n) {
    g_random ^= g_random << 13;
    g_random ^= g_random >> 7;
    g_random ^= g_random << 17;
    return (uint32_t)(g_random % n);
}

static void push(struct flow_sched *s, struct flow *f, enum flow_lane lane, uint64_t ready, uint64_t bytes) {
    struct flow_item *item = calloc(1, sizeof *item);
    item->ready = ready;
    item->bytes = bytes;
    flow_push(s, f, lane, item);
}

/* Serves one item; the flow it belongs to has its bytes added to and, where `refill`, gets another. */
static struct flow *serve(struct flow_sched *s, struct flow *flows, uint64_t *bytes, uint64_t refill, uint64_t at) {
    struct flow_item *item = flow_pop(s, FLOW_BULK, at);
    if (!item)
        return NULL;
    struct flow *f = item->flow;
    bytes[f - flows] += item->bytes;
    free(item);
    if (refill)
        push(s, f, FLOW_BULK, 0, refill);
    return f;
}

static void drain(struct flow_sched *s) {
    for (unsigned l = 0; l < FLOW_LANES; l++) {
        struct flow_item *item;
        while ((item = flow_pop(s, (enum flow_lane)l, UINT64_MAX - 1)))
            free(item);
        assert_false(flow_waits(s, (enum flow_lane)l));
    }
}

/* While all are backlogged, bytes / weight of any two differ by a few items at most, at any time. */
static void test_shares(void **state) {
    (void)state;
    for (unsigned round = 0; round < 200; round++) {
        struct flow_sched s = {0};
        struct flow flows[8];
        uint64_t bytes[8] = {0};
        unsigned n = 2 + roll(7);
        for (unsigned i = 0; i < n; i++) {
            flow_init(&flows[i]);
            flow_set(&s, &flows[i], 1 + roll(16), FLOW_NORMAL, 0);
            push(&s, &flows[i], FLOW_BULK, 0, 1 + roll(MAX_BYTES));
            push(&s, &flows[i], FLOW_BULK, 0, 1 + roll(MAX_BYTES));
        }
        for (unsigned k = 0; k < 500; k++) {
            assert_non_null(serve(&s, flows, bytes, 1 + roll(MAX_BYTES), 0));
            for (unsigned i = 1; i < n; i++) {
                double a = (double)bytes[0] / flows[0].weight, b = (double)bytes[i] / flows[i].weight;
                double bound = 2.0 * MAX_BYTES * (1.0 / flows[0].weight + 1.0 / flows[i].weight) + 16384;
                assert_true(a - b < bound && b - a < bound);
            }
        }
        drain(&s);
    }
}

static void test_weight_under_load(void **state) {
    (void)state;
    struct flow_sched s = {0};
    struct flow flows[2];
    uint64_t bytes[2] = {0};
    for (unsigned i = 0; i < 2; i++) {
        flow_init(&flows[i]);
        push(&s, &flows[i], FLOW_BULK, 0, 1 << 20);
        push(&s, &flows[i], FLOW_BULK, 0, 1 << 20);
    }
    for (unsigned k = 0; k < 100; k++)
        serve(&s, flows, bytes, 1 << 20, 0);
    assert_int_equal(bytes[0], bytes[1]);
    flow_set(&s, &flows[0], 3, FLOW_NORMAL, 0);
    bytes[0] = bytes[1] = 0;
    for (unsigned k = 0; k < 400; k++)
        serve(&s, flows, bytes, 1 << 20, 0);
    assert_true(bytes[0] >= 298ull << 20 && bytes[0] <= 302ull << 20);
    flow_set(&s, &flows[0], 0, FLOW_NORMAL, 0);
    assert_int_equal(flows[0].weight, 1);
    flow_set(&s, &flows[0], UINT32_MAX, FLOW_NORMAL, 0);
    assert_int_equal(flows[0].weight, FLOW_MAX_WEIGHT);
    drain(&s);
}

/* The low one gets its sixteenth, never waits for more than that allows, and no more where it could. */
static void test_priorities(void **state) {
    (void)state;
    struct flow_sched s = {0};
    struct flow flows[3];
    uint64_t bytes[3] = {0}, since = 0;
    for (unsigned i = 0; i < 3; i++) {
        flow_init(&flows[i]);
        flow_set(&s, &flows[i], i == 0 ? 1 : 1000, (enum flow_priority)i, 0);
        push(&s, &flows[i], FLOW_BULK, 0, 1000);
        push(&s, &flows[i], FLOW_BULK, 0, 1000);
    }
    for (unsigned k = 0; k < 16000; k++) {
        struct flow *f = serve(&s, flows, bytes, 1000, 0);
        since = f == &flows[2] ? 0 : since + 1;
        assert_true(since <= FLOW_STARVE + 1);
    }
    assert_true(bytes[1] > 900000 && bytes[1] < 1050000);
    assert_true(bytes[2] > 900000 && bytes[2] < 1050000);
    /* Raised while it waits: at once. */
    flow_set(&s, &flows[2], 1, FLOW_HIGH, 0);
    bytes[0] = bytes[2] = 0;
    for (unsigned k = 0; k < 1600; k++)
        serve(&s, flows, bytes, 1000, 0);
    assert_true(bytes[2] > 700000 && bytes[2] <= bytes[0] + 2000);
    drain(&s);
}

static void test_rate(void **state) {
    (void)state;
    struct flow_sched s = {.ns_per_byte = 1};
    struct flow flows[2];
    uint64_t bytes[2] = {0};
    for (unsigned i = 0; i < 2; i++) {
        flow_init(&flows[i]);
        push(&s, &flows[i], FLOW_BULK, 100, 1000);
    }
    flow_set(&s, &flows[0], 1000, FLOW_HIGH, 1000000000); /* 8 ns a byte */
    assert_int_equal(flow_next_ready(&s, FLOW_BULK), 100);
    assert_ptr_equal(serve(&s, flows, bytes, 0, 100), &flows[1]);
    assert_int_equal(flow_next_ready(&s, FLOW_BULK), 100 + 7000);
    assert_null(serve(&s, flows, bytes, 0, 7099));
    assert_ptr_equal(serve(&s, flows, bytes, 0, 7100), &flows[0]);
    assert_int_equal(flow_next_ready(&s, FLOW_BULK), UINT64_MAX);
}

static bool is_odd(const struct flow_item *item, const void *arg) {
    (void)arg;
    return item->bytes % 2;
}

static void count(struct flow_item *item, void *to) {
    ++*(unsigned *)to;
    free(item);
}

static void test_order_and_removal(void **state) {
    (void)state;
    for (unsigned round = 0; round < 100; round++) {
        struct flow_sched s = {0};
        struct flow flows[5];
        unsigned odd = 0, removed = 0, left = 0;
        uint64_t last[5] = {0};
        for (unsigned i = 0; i < 5; i++) {
            flow_init(&flows[i]);
            flow_set(&s, &flows[i], 1 + roll(5), (enum flow_priority)roll(3), 0);
        }
        for (unsigned k = 1; k <= 100; k++) {
            odd += k % 2;
            push(&s, &flows[roll(5)], (enum flow_lane)0 + (round % 2 ? FLOW_BULK : FLOW_SMALL), 0, k);
        }
        flow_remove(&s, is_odd, NULL, count, &removed);
        assert_int_equal(removed, odd);
        struct flow_item *item;
        while ((item = flow_pop(&s, round % 2 ? FLOW_BULK : FLOW_SMALL, 0))) {
            assert_true(item->bytes % 2 == 0 && item->bytes > last[item->flow - flows]);
            last[item->flow - flows] = item->bytes;
            left++;
            free(item);
        }
        assert_int_equal(left, 100 - odd);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares), cmocka_unit_test(test_weight_under_load), cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_rate),   cmocka_unit_test(test_order_and_removal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
