/* SPDX-License-Identifier: Apache-2.0
 *
 * Two fabrics in one process over TCP: sizes and orders, short receives, abort, forget, the link rate, many
 * communicators. Given "bench", prints the throughput of raw messages instead.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "pair.h"

#define WAIT 20.0

static struct fabric *g_a, *g_b;
static struct fabric_peer *g_to_b, *g_to_a; /* b as a sees it; a as b does */
static uint64_t g_comm = 1000;

static void fill(uint8_t *p, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
}

static int set_up(void **state) {
    (void)state;
    struct fabric_config config = {0};
    return pair_open(&config, &g_a, &g_b, &g_to_b, &g_to_a);
}

static int tear_down(void **state) {
    (void)state;
    fabric_ucx.disconnect(g_a, g_to_b);
    fabric_ucx.disconnect(g_b, g_to_a);
    fabric_ucx.close(g_a);
    fabric_ucx.close(g_b);
    return 0;
}

static void test_sizes(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 3, 100, 101, 4095, 16384, 16385, 65537, 1000003, 4 << 20, (64 << 20) + 7};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (unsigned late = 0; late < 4; late++) {
            size_t n = sizes[i];
            uint8_t *out = malloc(n + 1), *in = calloc(1, n + 1);
            struct tx t;
            struct rx r;
            fill(out, n, late);
            if (late / 2 == 0)
                rx_start(g_b, g_to_a, &r, g_comm, 0, late, in, n);
            else
                tx_start(g_a, g_to_b, &t, g_comm, 0, late, out, n);
            poll(NULL, 0, n > 1 << 20 ? 0 : 3);
            if (late / 2 == 0)
                tx_start(g_a, g_to_b, &t, g_comm, 0, late, out, n);
            else
                rx_start(g_b, g_to_a, &r, g_comm, 0, late, in, n);
            assert_true(wait_for(g_a, g_b, &r.result, WAIT));
            assert_true(wait_for(g_a, g_b, &t.result, WAIT));
            assert_int_equal(t.result, zipcclSuccess);
            assert_int_equal(r.result, zipcclSuccess);
            assert_int_equal(r.recv.bytes, n);
            assert_int_equal(r.recv.header.count, n);
            assert_int_equal(r.recv.header.tag, late);
            assert_memory_equal(in, out, n);
            free(out);
            free(in);
        }
        g_comm++;
    }
}

/* Messages and receives in different random orders, both ways at once. */
static void test_order(void **state) {
    (void)state;
    enum { N = 300, MAX = 40000 };
    struct tx *t = calloc(2 * N, sizeof(*t));
    struct rx *r = calloc(2 * N, sizeof(*r));
    uint8_t *out = malloc(MAX), *in = malloc((size_t)2 * N * MAX);
    uint32_t order[N];
    uint64_t comm = g_comm++;
    fill(out, MAX, 5);
    srand(7);
    for (uint32_t i = 0; i < N; i++)
        order[i] = i;
    for (uint32_t i = N - 1; i > 0; i--) {
        uint32_t k = (uint32_t)rand() % (i + 1), swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
    for (uint32_t i = 0; i < N; i++) {
        size_t bytes = (size_t)(i * 7919) % MAX;
        tx_start(g_a, g_to_b, &t[i], comm, 0, i, out, bytes);
        tx_start(g_b, g_to_a, &t[N + i], comm, 1, i, out, bytes);
        rx_start(g_b, g_to_a, &r[i], comm, 0, order[i], in + (size_t)order[i] * MAX, MAX);
        rx_start(g_a, g_to_b, &r[N + i], comm, 1, order[i], in + (size_t)(N + order[i]) * MAX, MAX);
    }
    for (uint32_t i = 0; i < 2 * N; i++) {
        assert_true(wait_for(g_a, g_b, &t[i].result, WAIT));
        assert_true(wait_for(g_a, g_b, &r[i].result, WAIT));
        assert_int_equal(t[i].result, zipcclSuccess);
        assert_int_equal(r[i].result, zipcclSuccess);
        uint32_t tag = r[i].recv.tag;
        assert_int_equal(r[i].recv.bytes, (size_t)(tag * 7919) % MAX);
        assert_memory_equal(in + (size_t)(i / N * N + tag) * MAX, out, r[i].recv.bytes);
    }
    free(t);
    free(r);
    free(out);
    free(in);
}

/* Far more small messages than gates let pass, to a receiver that is late. */
static void test_gates(void **state) {
    (void)state;
    enum { N = 2000 };
    struct tx *t = calloc(N, sizeof(*t));
    struct rx *r = calloc(N, sizeof(*r));
    uint32_t out = 42, *in = calloc(N, sizeof(*in)), waiting = 0;
    uint64_t comm = g_comm++;
    for (uint32_t i = 0; i < N; i++)
        tx_start(g_a, g_to_b, &t[i], comm, 0, 2 * i, &out, sizeof(out));
    zipcclResult_t never = PENDING;
    wait_for(g_a, g_b, &never, 0.2);
    for (uint32_t i = 0; i < N; i++)
        waiting += t[i].result == PENDING;
    assert_true(waiting > N / 2);
    for (uint32_t i = 0; i < N; i++)
        rx_start(g_b, g_to_a, &r[i], comm, 0, 2 * i, &in[i], sizeof(*in));
    for (uint32_t i = 0; i < N; i++) {
        assert_true(wait_for(g_a, g_b, &r[i].result, WAIT) && wait_for(g_a, g_b, &t[i].result, WAIT));
        assert_int_equal(in[i], 42);
    }
    free(t);
    free(r);
    free(in);
}

static void test_too_long(void **state) {
    (void)state;
    static const size_t sizes[] = {500, 1 << 20};
    for (unsigned i = 0; i < 4; i++) {
        size_t n = sizes[i / 2];
        uint8_t *out = calloc(1, n), *in = calloc(1, n);
        struct tx t;
        struct rx r;
        if (i % 2)
            rx_start(g_b, g_to_a, &r, g_comm, 0, 0, in, n - 1);
        tx_start(g_a, g_to_b, &t, g_comm, 0, 0, out, n);
        if (i % 2 == 0) {
            poll(NULL, 0, 20);
            rx_start(g_b, g_to_a, &r, g_comm, 0, 0, in, n - 1);
        }
        assert_true(wait_for(g_a, g_b, &r.result, WAIT) && wait_for(g_a, g_b, &t.result, WAIT));
        assert_int_equal(r.result, zipcclLimitExceeded);
        assert_int_equal(r.recv.header.count, n);
        free(out);
        free(in);
        g_comm++;
    }
}

static void test_abort(void **state) {
    (void)state;
    size_t n = 1 << 20;
    uint8_t *out = calloc(1, n), *in = calloc(1, n);
    struct tx held, late, other;
    struct rx posted, after, alive;
    uint64_t comm = g_comm++, second = g_comm++;
    tx_start(g_a, g_to_b, &held, comm, 0, 0, out, n);
    rx_start(g_b, g_to_a, &posted, comm, 0, 9, in, n);
    assert_false(wait_for(g_a, g_b, &held.result, 0.1));
    fabric_ucx.abort(g_b, comm);
    assert_true(wait_for(g_a, g_b, &held.result, WAIT)); /* the sender ends, whatever its result */
    assert_true(wait_for(g_a, g_b, &posted.result, WAIT));
    assert_int_equal(posted.result, zipcclAborted);
    tx_start(g_a, g_to_b, &late, comm, 0, 1, out, n);
    assert_true(wait_for(g_a, g_b, &late.result, WAIT));
    rx_start(g_b, g_to_a, &after, comm, 0, 1, in, n);
    assert_true(wait_for(g_a, g_b, &after.result, WAIT));
    assert_int_equal(after.result, zipcclAborted);
    rx_start(g_b, g_to_a, &alive, second, 0, 0, in, n);
    tx_start(g_a, g_to_b, &other, second, 0, 0, out, n);
    assert_true(wait_for(g_a, g_b, &alive.result, WAIT) && alive.result == zipcclSuccess);
    assert_true(wait_for(g_a, g_b, &other.result, WAIT) && other.result == zipcclSuccess);
    fabric_ucx.forget(g_b, second);
    tx_start(g_a, g_to_b, &late, second, 0, 1, out, n);
    assert_true(wait_for(g_a, g_b, &late.result, WAIT));
    free(out);
    free(in);
}

static void test_many_comms(void **state) {
    (void)state;
    for (unsigned i = 0; i < 6000; i++) {
        uint32_t out = i, in = 0;
        struct tx t;
        struct rx r;
        tx_start(g_a, g_to_b, &t, g_comm, 0, 0, &out, sizeof(out));
        rx_start(g_b, g_to_a, &r, g_comm, 0, 0, &in, sizeof(in));
        assert_true(wait_for(g_a, g_b, &r.result, WAIT) && wait_for(g_a, g_b, &t.result, WAIT));
        assert_int_equal(in, i);
        fabric_ucx.forget(g_a, g_comm);
        fabric_ucx.forget(g_b, g_comm);
        g_comm++;
    }
}

/* Seconds for n messages of `bytes`, all given at once. */
static double transfer(unsigned n, size_t bytes) {
    struct tx *t = calloc(n, sizeof(*t));
    struct rx *r = calloc(n, sizeof(*r));
    uint8_t *out = malloc(bytes), *in = malloc(bytes * n);
    memset(out, 1, bytes);
    memset(in, 2, bytes * n);
    uint64_t comm = g_comm++;
    double start = seconds();
    for (unsigned i = 0; i < n; i++) {
        rx_start(g_b, g_to_a, &r[i], comm, 0, 2 * i, in + bytes * i, bytes);
        tx_start(g_a, g_to_b, &t[i], comm, 0, 2 * i, out, bytes);
    }
    for (unsigned i = 0; i < n; i++) {
        assert_true(wait_for(g_a, g_b, &r[i].result, WAIT) && wait_for(g_a, g_b, &t[i].result, WAIT));
        assert_int_equal(r[i].result, zipcclSuccess);
    }
    double took = seconds() - start;
    free(t);
    free(r);
    free(out);
    free(in);
    return took;
}

static void test_rate(void **state) {
    (void)state;
    /* 100 MB/s: 20 MB take 0.2 s. Never less; more only where the machine is busy. */
    transfer(1, 1000);
    fabric_ucx.set_link_rate(g_a, 800000000);
    double took = transfer(20, 1000000), theory = 20 * (1e6 + 64) / 1e8;
    print_message("paced: %.4f of theory\n", took / theory);
    assert_true(took >= theory * 0.999);
    assert_true(took < theory * 3);
    /* A small message passes the large ones. */
    size_t n = 10000000;
    uint8_t *out = calloc(1, n), *in = calloc(1, n);
    struct tx large, small;
    struct rx large_in, small_in;
    uint64_t comm = g_comm++;
    rx_start(g_b, g_to_a, &large_in, comm, 0, 0, in, n);
    rx_start(g_b, g_to_a, &small_in, comm, 0, 1, in, n);
    tx_start(g_a, g_to_b, &large, comm, 0, 0, out, n);
    tx_start(g_a, g_to_b, &small, comm, 0, 1, out, 100);
    assert_true(wait_for(g_a, g_b, &small_in.result, WAIT));
    assert_int_equal(large_in.result, PENDING);
    /* Aborted at the sender: what waits for its time ends. */
    fabric_ucx.abort(g_a, comm);
    assert_true(wait_for(g_a, g_b, &large.result, WAIT));
    fabric_ucx.abort(g_b, comm);
    assert_true(wait_for(g_a, g_b, &large_in.result, WAIT) && wait_for(g_a, g_b, &small.result, WAIT));
    free(out);
    free(in);
    fabric_ucx.set_link_rate(g_a, 0);
}

static void test_bad(void **state) {
    (void)state;
    struct fabric_config config = {.tls = "nonsense"};
    struct fabric *f;
    struct fabric_peer *peer;
    const char *why;
    assert_int_not_equal(fabric_ucx.open(&config, &f, &why), zipcclSuccess);
    assert_non_null(why);
    assert_null(f);
    assert_int_equal(fabric_ucx.connect(g_a, NULL, 0, &same_token, &peer), zipcclInvalidArgument);
    uint64_t sent, received;
    fabric_ucx.counters(g_a, &sent, &received);
    assert_true(sent > 64 << 20);
    char text[100];
    fabric_ucx.describe(g_a, text, sizeof(text));
    assert_true(strncmp(text, "ucx 1.", 6) == 0);
}

/* Closing with messages of all kinds under way leaks and hangs nothing. */
static void test_close_busy(void **state) {
    (void)state;
    struct fabric_config config = {0};
    struct fabric *f;
    struct fabric_peer *peer;
    const char *why;
    size_t bytes, n = 1 << 20;
    uint8_t *out = calloc(1, n), *in = calloc(1, n);
    struct tx t[3];
    struct rx r;
    assert_int_equal(fabric_ucx.open(&config, &f, &why), zipcclSuccess);
    const void *address = fabric_ucx.address(g_b, &bytes);
    assert_int_equal(fabric_ucx.connect(f, address, bytes, &same_token, &peer), zipcclSuccess);
    tx_start(f, peer, &t[0], g_comm, 3, 0, out, n);
    tx_start(f, peer, &t[1], g_comm, 3, 1, out, n);
    tx_start(f, peer, &t[2], g_comm, 3, 2, out, 10);
    rx_start(f, peer, &r, g_comm, 3, 0, in, n);
    poll(NULL, 0, 50);
    fabric_ucx.close(f);
    fabric_ucx.abort(g_b, g_comm++);
    free(out);
    free(in);
}

static void bench(void) {
    static const size_t sizes[] = {16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20};
    set_up(NULL);
    for (size_t i = 0; i < 6; i++) {
        unsigned n = (unsigned)((256 << 20) / sizes[i]);
        double best = 1e9;
        for (int k = 0; k < 5; k++) {
            double took = transfer(n > 512 ? 512 : n, sizes[i]);
            best = took < best ? took : best;
        }
        printf("%8zu bytes: %7.0f MB/s\n", sizes[i], (n > 512 ? 512 : n) * sizes[i] / best / 1e6);
    }
    double start = seconds();
    for (int k = 0; k < 1000; k++)
        transfer(1, 8);
    printf("8 bytes one way, both callbacks: %.1f us\n", (seconds() - start) * 1e3);
    fabric_ucx.set_link_rate(g_a, 1000000000);
    double took = transfer(16, 4 << 20);
    printf("64 MiB at 1 Gbit/s: %.4f of theory\n", took / (16 * ((4 << 20) + 64) * 8e-9));
    fabric_ucx.set_link_rate(g_a, 10000000000);
    took = transfer(64, 1 << 20);
    printf("64 MiB at 10 Gbit/s: %.4f of theory\n", took / (64 * ((1 << 20) + 64) * 8e-10));
    tear_down(NULL);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),    cmocka_unit_test(test_order), cmocka_unit_test(test_gates),
        cmocka_unit_test(test_too_long), cmocka_unit_test(test_abort), cmocka_unit_test(test_many_comms),
        cmocka_unit_test(test_rate),     cmocka_unit_test(test_bad),   cmocka_unit_test(test_close_busy),
    };
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        bench();
        return 0;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
