/* SPDX-License-Identifier: Apache-2.0
 *
 * The link clock, at times that the test makes up: rate of the link and of a flow, the latency class and its bound,
 * changes of the rate, removal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/flow/pace.h"

#define GBIT 1000000000ull

static void add(struct pace *p, struct flow *f, enum flow_lane lane, uint64_t now, uint64_t bytes) {
    struct flow_item *item = calloc(1, sizeof *item);
    item->ready = now;
    item->bytes = bytes;
    pace_add(p, f, lane, item);
}

/* Runs until `end`, looking too late now and then; bytes by flow. Flows are kept backlogged with bulk. */
static void run(struct pace *p, struct flow *flows, uint64_t *bytes, uint64_t refill, uint64_t *now, uint64_t end) {
    uint64_t due;
    while (*now < end) {
        struct flow_item *item = pace_take(p, *now, &due);
        if (item) {
            bytes[item->flow - flows] += item->bytes;
            if (refill && item->bytes == refill)
                add(p, item->flow, FLOW_BULK, *now, refill);
            free(item);
        } else if (due == UINT64_MAX) {
            break;
        } else {
            *now = due + (uint64_t)rand() % 50000;
        }
    }
}

static void drain(struct pace *p) {
    struct flow_item *item;
    uint64_t due;
    pace_set(p, 0);
    while ((item = pace_take(p, UINT64_MAX - 1, &due)))
        free(item);
    assert_false(pace_waits(p));
}

static void test_rates(void **state) {
    (void)state;
    struct pace p;
    struct flow flows[3];
    uint64_t bytes[3] = {0}, now = 1000, second = 1000000000ull;
    pace_init(&p, GBIT);
    for (unsigned i = 0; i < 3; i++) {
        flow_init(&flows[i]);
        for (unsigned k = 0; k < 4; k++)
            add(&p, &flows[i], FLOW_BULK, now, 1 << 20);
    }
    flow_set(&p.sched, &flows[0], 3, FLOW_NORMAL, 0);
    flow_set(&p.sched, &flows[2], 1000, FLOW_HIGH, GBIT / 5);
    run(&p, flows, bytes, 1 << 20, &now, 8 * second);
    /* 1 GB/s in 8 s: a fifth for the capped one, whatever its weight, the rest 3 to 1. */
    assert_true(bytes[0] + bytes[1] + bytes[2] <= 1000000000ull);
    assert_true(bytes[0] + bytes[1] + bytes[2] > 990000000ull);
    assert_true(bytes[2] <= 200000000ull && bytes[2] > 194000000ull);
    double ratio = (double)bytes[0] / (double)bytes[1];
    assert_true(ratio > 2.94 && ratio < 3.06);
    drain(&p);
}

/* A flow with a rate on a link without one. */
static void test_rate_alone(void **state) {
    (void)state;
    struct pace p;
    struct flow flow;
    uint64_t bytes = 0, now = 0;
    pace_init(&p, 0);
    flow_init(&flow);
    flow_set(&p.sched, &flow, 1, FLOW_NORMAL, GBIT);
    add(&p, &flow, FLOW_BULK, 0, 1000000);
    add(&p, &flow, FLOW_BULK, 0, 1000000);
    run(&p, &flow, &bytes, 1000000, &now, 1000000000ull);
    assert_true(bytes <= 125000000ull && bytes >= 122000000ull);
    drain(&p);
}

/* Small ones leave after their own wire time; the sum keeps to the rate; a flood of them leaves bulk half. */
static void test_small(void **state) {
    (void)state;
    struct pace p;
    struct flow flows[2];
    uint64_t due, now = 0, small = 0, bulk = 0;
    pace_init(&p, GBIT);
    flow_init(&flows[0]);
    flow_init(&flows[1]);
    for (unsigned k = 0; k < 3; k++)
        add(&p, &flows[0], FLOW_BULK, 0, 4 << 20);
    assert_null(pace_take(&p, 1000, &due));
    add(&p, &flows[1], FLOW_SMALL, 1000, 1000);
    assert_null(pace_take(&p, 1000, &due));
    assert_int_equal(due, 1000 + 8000);
    struct flow_item *item = pace_take(&p, 9000, &due);
    assert_int_equal(item->bytes, 1000);
    free(item);
    assert_null(pace_take(&p, 9000, &due));
    assert_int_equal(due, (4 << 20) * 8 + 8000);
    for (unsigned k = 0; k < 10; k++)
        add(&p, &flows[1], FLOW_SMALL, 9000, 1000);
    while (now < 1000000000ull) {
        if (!(item = pace_take(&p, now, &due))) {
            now = due;
            continue;
        }
        bool is_small = item->bytes == 1000;
        *(is_small ? &small : &bulk) += item->bytes;
        add(&p, item->flow, is_small ? FLOW_SMALL : FLOW_BULK, now, item->bytes);
        free(item);
    }
    assert_true(small + bulk <= 125000000ull + 2000);
    assert_true(small > 60000000ull && bulk > 55000000ull);
    drain(&p);
}

static bool of_flow(const struct flow_item *item, const void *arg) {
    return item->flow == arg;
}

static void take(struct flow_item *item, void *to) {
    ++*(unsigned *)to;
    free(item);
}

/* An item in pieces leaves piece by piece, in turn with others, and is removed once. */
static void test_pieces(void **state) {
    (void)state;
    struct pace p;
    struct flow flows[2];
    uint64_t due, now = 0, sent[2] = {0};
    unsigned taken = 0;
    struct flow_item whole = {.bytes = 1000, .piece = 300};
    pace_init(&p, 8000000); /* 1 us a byte */
    flow_init(&flows[0]);
    flow_init(&flows[1]);
    pace_add(&p, &flows[0], FLOW_BULK, &whole);
    static const uint64_t sizes[] = {300, 300, 300, 100};
    for (unsigned i = 0; i < 4; i++) {
        assert_null(pace_take(&p, now, &due));
        assert_int_equal(due, now + sizes[i] * 1000);
        now = due;
        assert_ptr_equal(pace_take(&p, now, &due), &whole);
        assert_int_equal(whole.taken, sizes[i]);
        assert_true(flow_item_waits(&whole) == (i < 3));
    }
    assert_false(pace_waits(&p));
    /* Weights hold between messages of any length; pieces of a flow stay in order. */
    struct flow_item *items[2];
    flow_set(&p.sched, &flows[0], 3, FLOW_NORMAL, 0);
    for (unsigned i = 0; i < 2; i++) {
        items[i] = calloc(1, sizeof **items);
        *items[i] = (struct flow_item){.bytes = 4 << 20, .piece = 60 << 10};
        pace_add(&p, &flows[i], FLOW_BULK, items[i]);
    }
    while (sent[0] + sent[1] < 4 << 20) {
        struct flow_item *item = pace_take(&p, now, &due);
        if (item)
            sent[item->flow - flows] += item->taken;
        else
            now = due;
    }
    double ratio = (double)sent[0] / (double)sent[1];
    assert_true(ratio > 2.85 && ratio < 3.15);
    assert_null(pace_take(&p, now, &due)); /* one is on the link, and waits, too */
    pace_remove(&p, of_flow, &flows[0], take, &taken);
    pace_remove(&p, of_flow, &flows[1], take, &taken);
    assert_int_equal(taken, 2);
    assert_false(pace_waits(&p));
}

static void test_changes(void **state) {
    (void)state;
    struct pace p;
    struct flow flows[2];
    uint64_t due;
    unsigned taken = 0;
    pace_init(&p, 8000); /* 1 ms a byte */
    flow_init(&flows[0]);
    flow_init(&flows[1]);
    add(&p, &flows[0], FLOW_BULK, 0, 1000);
    add(&p, &flows[0], FLOW_BULK, 0, 1000);
    add(&p, &flows[1], FLOW_BULK, 0, 500);
    assert_null(pace_take(&p, 0, &due));
    assert_int_equal(due, 1000000000ull);
    pace_remove(&p, of_flow, &flows[0], take, &taken);
    assert_int_equal(taken, 2);
    assert_null(pace_take(&p, 1, &due)); /* the link is free for the next from the beginning */
    assert_int_equal(due, 500000000ull);
    pace_set(&p, 16000);
    assert_null(pace_take(&p, 1, &due));
    assert_int_equal(due, 250000000ull);
    pace_set(&p, 0);
    struct flow_item *item = pace_take(&p, 2, &due);
    assert_non_null(item);
    free(item);
    assert_null(pace_take(&p, 2, &due));
    assert_int_equal(due, UINT64_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),   cmocka_unit_test(test_rate_alone), cmocka_unit_test(test_small),
        cmocka_unit_test(test_changes), cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
