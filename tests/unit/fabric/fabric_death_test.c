/* SPDX-License-Identifier: Apache-2.0
 *
 * A peer in a process of its own that is killed: what waits for it ends, soon, and a new one can take its place.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "pair.h"

#define SOON  5.0 /* usual is a few ms; a loaded machine may take longer */
#define BYTES ((size_t)8 << 20)

enum role { IDLE, SENDS, RECEIVES_HALF };

/* The peer: gets our address, gives its own, connects, does its part and waits to be killed. */
static void child(enum role role, int in, int out) {
    struct fabric_config config = {0};
    struct fabric *f;
    struct fabric_peer *peer;
    const char *why;
    size_t n = 0, own;
    uint8_t address[4096];
    uint8_t *data = calloc(1, BYTES);
    struct tx t[8];
    struct rx r;
    if (fabric_ucx.open(&config, &f, &why) || read(in, &n, sizeof(n)) != sizeof(n) || n > sizeof(address) ||
        read(in, address, n) != (ssize_t)n || fabric_ucx.connect(f, address, n, &same_token, &peer))
        _exit(1);
    const void *a = fabric_ucx.address(f, &own);
    if (write(out, &own, sizeof(own)) != sizeof(own) || write(out, a, own) != (ssize_t)own)
        _exit(1);
    /* A first message, so that the other side knows that we are there. */
    tx_start(f, peer, &t[0], 1, 1, 0, data, 4);
    wait_for(f, NULL, &t[0].result, SOON);
    for (unsigned i = 1; role == SENDS && i < 8; i++)
        tx_start(f, peer, &t[i], 1, 1, i, data, BYTES);
    if (role == RECEIVES_HALF) {
        rx_start(f, peer, &r, 1, 0, 0, data, BYTES);
        wait_for(f, NULL, &r.result, SOON);
    }
    zipcclResult_t never = PENDING;
    wait_for(f, NULL, &never, 60);
    _exit(0);
}

static pid_t start_child(enum role role, int *to, int *from) {
    int in[2], out[2];
    if (pipe(in) || pipe(out))
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        close(in[1]);
        close(out[0]);
        child(role, in[0], out[1]);
    }
    close(in[0]);
    close(out[1]);
    *to = in[1];
    *from = out[0];
    return pid;
}

static void run(enum role role) {
    /* Forked before UCX starts threads here. */
    int to = -1, from = -1;
    pid_t pid = start_child(role, &to, &from);
    assert_true(pid > 0);
    struct fabric_config config = {0};
    struct fabric *f;
    struct fabric_peer *peer;
    const char *why;
    size_t n;
    uint8_t address[4096];
    uint32_t word = 0;
    uint8_t *data = calloc(8, BYTES);
    assert_int_equal(fabric_ucx.open(&config, &f, &why), zipcclSuccess);
    const void *own = fabric_ucx.address(f, &n);
    assert_int_equal(write(to, &n, sizeof(n)), sizeof(n));
    assert_int_equal(write(to, own, n), n);
    assert_int_equal(read(from, &n, sizeof(n)), sizeof(n));
    assert_true(n <= sizeof(address));
    assert_int_equal(read(from, address, n), n);
    assert_int_equal(fabric_ucx.connect(f, address, n, &same_token, &peer), zipcclSuccess);
    struct rx hello, r[8];
    struct tx t[8];
    rx_start(f, peer, &hello, 1, 1, 0, &word, sizeof(word));
    assert_true(wait_for(f, NULL, &hello.result, SOON));
    for (unsigned i = 0; i < 8; i++) {
        tx_start(f, peer, &t[i], 1, 0, i, data, BYTES);
        rx_start(f, peer, &r[i], 1, 1, i + 1, data + i * BYTES, BYTES);
    }
    zipcclResult_t *first = role == SENDS ? &r[0].result : role == RECEIVES_HALF ? &t[0].result : NULL;
    if (first)
        assert_true(wait_for(f, NULL, first, SOON));
    double start = seconds();
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    for (unsigned i = 0; i < 8; i++) {
        assert_true(wait_for(f, NULL, &t[i].result, SOON));
        assert_true(wait_for(f, NULL, &r[i].result, SOON));
        if (role != SENDS)
            assert_int_equal(r[i].result, zipcclRemoteError);
        if (role != RECEIVES_HALF || i > 0)
            assert_int_equal(t[i].result, zipcclRemoteError);
    }
    print_message("all ended %.1f ms after the kill\n", (seconds() - start) * 1e3);
    /* From now on at once. */
    tx_start(f, peer, &t[0], 2, 0, 0, data, 10);
    rx_start(f, peer, &r[0], 2, 1, 0, data, 10);
    assert_true(wait_for(f, NULL, &t[0].result, SOON) && wait_for(f, NULL, &r[0].result, SOON));
    assert_int_equal(t[0].result, zipcclRemoteError);
    assert_int_equal(r[0].result, zipcclRemoteError);
    fabric_ucx.disconnect(f, peer);
    fabric_ucx.close(f);
    free(data);
    close(to);
    close(from);
}

static void test_idle(void **state) {
    (void)state;
    run(IDLE);
}

static void test_sender(void **state) {
    (void)state;
    run(SENDS);
}

static void test_receiver(void **state) {
    (void)state;
    run(RECEIVES_HALF);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_idle), cmocka_unit_test(test_sender),
                                       cmocka_unit_test(test_receiver)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
