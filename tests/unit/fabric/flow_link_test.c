/* SPDX-License-Identifier: Apache-2.0
 *
 * Flows on a capped link between two fabrics in one process: shares, a weight changed under load, a flow's own rate,
 * priorities, a flow whose receiver does not post, messages of many pieces. What is compared are bytes, not times.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "pair.h"

#define FLOWS 3
#define DEPTH 650 /* messages of a flow, all given at once: it stays backlogged however busy the machine is */
#define CHUNK ((size_t)48 << 10)
#define RATE  400000000ull /* 50 MB/s */

static struct fabric *g_a, *g_b;
static struct fabric_peer *g_to_b, *g_to_a;
static uint64_t g_comm = 1;
static uint8_t *g_out, *g_in;

static struct load {
    struct fabric_flow *flow;
    uint64_t comm, bytes;
    bool stop, no_receives, announces; /* messages that go another way */
    unsigned next_tag, pending;
    struct tx tx[DEPTH];
    struct rx rx[DEPTH];
} g_loads[FLOWS];

static int set_up(void **state) {
    (void)state;
    struct fabric_config config = {.link_rate_bits = RATE};
    g_out = calloc(1, CHUNK);
    g_in = calloc(1, CHUNK);
    return pair_open(&config, &g_a, &g_b, &g_to_b, &g_to_a);
}

static int tear_down(void **state) {
    (void)state;
    fabric_ucx.close(g_a);
    fabric_ucx.close(g_b);
    free(g_out);
    free(g_in);
    return 0;
}

static void start(struct load *l, unsigned i) {
    uint32_t tag = 2 * l->next_tag++;
    if (!l->no_receives)
        rx_start(g_b, g_to_a, &l->rx[i], l->comm, 0, tag, g_in, CHUNK);
    tx_prepare(g_to_b, &l->tx[i], l->comm, 0, tag, g_out, l->announces ? 40 : CHUNK, l->flow);
    l->tx[i].send.carried = l->announces ? CHUNK : 0;
    fabric_ucx.send(g_a, &l->tx[i].send);
}

static void open_load(struct load *l, uint32_t weight, enum flow_priority priority, uint64_t rate) {
    struct fabric_share share = {weight, priority, rate};
    *l = (struct load){.flow = fabric_ucx.flow_open(g_a, &share), .comm = g_comm++};
    assert_non_null(l->flow);
}

static void start_all(unsigned n) {
    for (unsigned k = 0; k < n; k++) {
        for (unsigned i = 0; i < DEPTH; i++)
            start(&g_loads[k], i);
    }
}

/* Until the flows have sent `messages` together, from now. */
static void run(unsigned n, unsigned messages) {
    unsigned sum = 0, done[FLOWS] = {0};
    double end = seconds() + 60;
    for (unsigned k = 0; k < n; k++) {
        for (unsigned i = 0; i < DEPTH; i++)
            done[k] += g_loads[k].tx[i].result != PENDING;
    }
    while (sum < messages) {
        struct pollfd fds[2] = {{.fd = fabric_ucx.fd(g_a), .events = POLLIN},
                                {.fd = fabric_ucx.fd(g_b), .events = POLLIN}};
        assert_true(seconds() < end);
        poll(fds, 2, 50);
        fabric_ucx.poll(g_a);
        fabric_ucx.poll(g_b);
        sum = 0;
        for (unsigned k = 0; k < n; k++) {
            unsigned now = 0;
            for (unsigned i = 0; i < DEPTH; i++)
                now += g_loads[k].tx[i].result != PENDING;
            g_loads[k].bytes = (now - done[k]) * CHUNK;
            sum += now - done[k];
        }
    }
}

/* Lets all that is under way end. */
static void finish(unsigned n) {
    for (unsigned k = 0; k < n; k++) {
        struct load *l = &g_loads[k];
        for (unsigned i = 0; i < DEPTH; i++) {
            assert_true(wait_for(g_a, g_b, &l->tx[i].result, 20));
            assert_true(l->no_receives || wait_for(g_a, g_b, &l->rx[i].result, 20));
        }
        uint64_t queued, sent;
        fabric_ucx.flow_bytes(l->flow, &queued, &sent);
        assert_int_equal(queued, 0);
        assert_true(l->announces ? sent == 0 : sent >= l->bytes); /* who carries them counts them */
        fabric_ucx.flow_close(g_a, l->flow);
        fabric_ucx.forget(g_a, l->comm);
        fabric_ucx.forget(g_b, l->comm);
    }
}

static void expect_ratio(uint64_t a, uint64_t b, double want, double tolerance) {
    double ratio = (double)a / (double)b;
    print_message("ratio %.3f of %.3f\n", ratio, want);
    assert_true(ratio > want * (1 - tolerance) && ratio < want * (1 + tolerance));
}

static void test_weights(void **state) {
    (void)state;
    open_load(&g_loads[0], 3, FLOW_NORMAL, 0);
    open_load(&g_loads[1], 1, FLOW_NORMAL, 0);
    start_all(2);
    run(2, 20);
    run(2, 400);
    expect_ratio(g_loads[0].bytes, g_loads[1].bytes, 3, 0.1);
    /* Changed while both are backlogged. */
    struct fabric_share share = {5, FLOW_NORMAL, 0};
    fabric_ucx.flow_set(g_a, g_loads[1].flow, &share);
    run(2, 200);
    expect_ratio(g_loads[1].bytes, g_loads[0].bytes, 5.0 / 3, 0.1);
    finish(2);
}

static void test_priority(void **state) {
    (void)state;
    open_load(&g_loads[0], 1, FLOW_HIGH, 0);
    open_load(&g_loads[1], 1000, FLOW_LOW, 0);
    start_all(2);
    run(2, 600);
    assert_true(g_loads[0].bytes > 12 * g_loads[1].bytes);
    assert_true(g_loads[1].bytes >= 20 * CHUNK); /* does not starve */
    finish(2);
}

static void test_rate(void **state) {
    (void)state;
    open_load(&g_loads[0], 100, FLOW_NORMAL, RATE / 5);
    open_load(&g_loads[1], 1, FLOW_NORMAL, 0);
    double before = seconds();
    start_all(2);
    run(2, 400);
    double most = RATE / 5 / 8.0 * (seconds() - before) + 4 * CHUNK;
    print_message("capped: %.3f of its rate\n", (double)g_loads[0].bytes / most);
    assert_true((double)g_loads[0].bytes <= most);
    /* It gets its rate also beside one that takes all that is left; on a busy machine that is less. */
    assert_true(g_loads[1].bytes < 5 * g_loads[0].bytes);
    finish(2);
}

/* Takes nothing of the link: the others get all of it, and what waited goes when its receiver posts. */
static void test_stalled(void **state) {
    (void)state;
    open_load(&g_loads[0], 1, FLOW_NORMAL, 0);
    open_load(&g_loads[1], 1000, FLOW_HIGH, 0);
    g_loads[1].no_receives = true;
    double before = seconds();
    start_all(2);
    run(2, 600);
    double took = seconds() - before, theory = 600 * (CHUNK + 64) * 8.0 / RATE;
    print_message("beside a stalled flow: %.3f of theory\n", took / theory);
    assert_int_equal(g_loads[1].bytes, 0);
    uint64_t queued, sent;
    fabric_ucx.flow_bytes(g_loads[1].flow, &queued, &sent);
    assert_true(queued == DEPTH * CHUNK && sent == 0);
    for (unsigned i = 0; i < DEPTH; i++)
        rx_start(g_b, g_to_a, &g_loads[1].rx[i], g_loads[1].comm, 0, 2 * i, g_in, CHUNK);
    for (unsigned i = 0; i < DEPTH; i++)
        assert_true(wait_for(g_a, g_b, &g_loads[1].rx[i].result, 20) && g_loads[1].rx[i].result == zipcclSuccess);
    finish(2);
}

/* What another fabric carries shares with what goes here, by the bytes that it announces; what has no receiver takes
 * nothing. */
static void test_announced(void **state) {
    (void)state;
    open_load(&g_loads[0], 3, FLOW_NORMAL, 0);
    open_load(&g_loads[1], 1, FLOW_NORMAL, 0);
    open_load(&g_loads[2], 1000, FLOW_HIGH, 0);
    g_loads[0].announces = g_loads[2].announces = g_loads[2].no_receives = true;
    double before = seconds();
    start_all(3);
    run(3, 20);
    run(3, 400);
    assert_true(seconds() - before >= 420 * CHUNK * 8.0 / RATE * 0.99);
    expect_ratio(g_loads[0].bytes, g_loads[1].bytes, 3, 0.1);
    assert_int_equal(g_loads[2].bytes, 0);
    for (unsigned k = 0; k < 3; k++) {
        fabric_ucx.abort(g_a, g_loads[k].comm);
        fabric_ucx.abort(g_b, g_loads[k].comm);
    }
    finish(3);
    unsigned aborted = 0; /* one may be allowed and leave in between */
    for (unsigned i = 0; i < DEPTH; i++)
        aborted += g_loads[2].tx[i].result == zipcclAborted;
    assert_in_range(aborted, DEPTH - 2, DEPTH);
}

/* Ends while asked for, and while it waits for its time. */
static void test_abort(void **state) {
    (void)state;
    open_load(&g_loads[0], 1, FLOW_NORMAL, 8000);
    open_load(&g_loads[1], 1, FLOW_NORMAL, 0);
    g_loads[1].no_receives = true;
    start_all(2);
    zipcclResult_t never = PENDING;
    assert_false(wait_for(g_a, g_b, &never, 0.2));
    for (unsigned k = 0; k < 2; k++) {
        fabric_ucx.abort(g_a, g_loads[k].comm);
        fabric_ucx.abort(g_b, g_loads[k].comm);
    }
    finish(2);
    for (unsigned i = 0; i < DEPTH; i++) {
        assert_int_equal(g_loads[0].tx[i].result, zipcclAborted);
        assert_int_equal(g_loads[0].rx[i].result, zipcclAborted);
    }
    /* A flow that is closed with sends under way lives until they end. */
    open_load(&g_loads[0], 1, FLOW_NORMAL, 0);
    start_all(1);
    fabric_ucx.flow_close(g_a, g_loads[0].flow);
    for (unsigned i = 0; i < DEPTH; i++)
        assert_true(wait_for(g_a, g_b, &g_loads[0].rx[i].result, 20) &&
                    wait_for(g_a, g_b, &g_loads[0].tx[i].result, 20));
}

/* Sizes around those of pieces, in one part and in two; too long for the receive; ended on the way. */
static void test_pieces(void **state) {
    (void)state;
    static const size_t sizes[] = {16385, 61439, 61440, 61441, 122880, 200000, (1 << 20) + 13};
    enum { N = sizeof(sizes) / sizeof(sizes[0]), MOST = (1 << 20) + 13 };
    static struct tx tx[2 * N];
    static struct rx rx[2 * N];
    static uint8_t in[2 * N][MOST];
    uint8_t *out = malloc(MOST);
    assert_non_null(out);
    for (size_t i = 0; i < MOST; i++)
        out[i] = (uint8_t)(i * 2654435761u >> 21);
    uint64_t comm = g_comm++;
    for (unsigned i = 0; i < 2 * N; i++) {
        memset(in[i], 0, MOST);
        rx_start(g_b, g_to_a, &rx[i], comm, 0, i, in[i], sizes[i / 2] - (i % 8 == 4));
        tx_start(g_a, g_to_b, &tx[i], comm, 0, i, out, sizes[i / 2]);
    }
    for (unsigned i = 0; i < 2 * N; i++) {
        assert_true(wait_for(g_a, g_b, &rx[i].result, 20) && wait_for(g_a, g_b, &tx[i].result, 20));
        assert_int_equal(tx[i].result, zipcclSuccess);
        assert_int_equal(rx[i].result, i % 8 == 4 ? zipcclLimitExceeded : zipcclSuccess);
        assert_int_equal(rx[i].recv.header.count, sizes[i / 2]);
        assert_true(i % 8 == 4 || (rx[i].recv.bytes == sizes[i / 2] && memcmp(in[i], out, sizes[i / 2]) == 0));
    }
    struct fabric_share share = {1, FLOW_NORMAL, 10000000};
    struct fabric_flow *slow = fabric_ucx.flow_open(g_a, &share);
    zipcclResult_t never = PENDING;
    assert_non_null(slow);
    memset(in[0], 0, MOST);
    rx_start(g_b, g_to_a, &rx[0], comm, 0, 99, in[0], MOST);
    tx_start_flow(g_a, g_to_b, &tx[0], comm, 0, 99, out, MOST, slow);
    assert_false(wait_for(g_a, g_b, &never, 0.2));
    assert_true(tx[0].result == PENDING && rx[0].result == PENDING);
    fabric_ucx.abort(g_a, comm);
    fabric_ucx.abort(g_b, comm);
    assert_true(wait_for(g_a, g_b, &tx[0].result, 20) && tx[0].result == zipcclAborted);
    assert_true(wait_for(g_a, g_b, &rx[0].result, 20) && rx[0].result == zipcclAborted);
    assert_memory_equal(in[0], out, 61440);
    fabric_ucx.flow_close(g_a, slow);
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights), cmocka_unit_test(test_priority),  cmocka_unit_test(test_rate),
        cmocka_unit_test(test_stalled), cmocka_unit_test(test_announced), cmocka_unit_test(test_abort),
        cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
