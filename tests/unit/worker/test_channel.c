/* SPDX-License-Identifier: Apache-2.0
 *
 * The channel of a worker: records in order between two threads that sleep and wake, a full ring, a ring that the other
 * side has broken, descriptors over the socket; and the table of addresses.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/device/ranges.h"
#include "daemon/worker/channel.h"

#define RECORDS 200000u

static void *writer(void *arg) {
    struct worker_channel *c = arg;
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct worker_record r = {.type = WORKER_JOB, .call = i, .job = {.count = i * 3ull}};
        while (!worker_ring_push(&c->shared->to_worker, &r, c->worker_event))
            sched_yield();
        if (i % 1777 == 0)
            (void)usleep(200); /* so that the reader sleeps now and then */
    }
    return NULL;
}

static void test_order(void **state) {
    struct worker_channel c;
    pthread_t thread;
    uint32_t next = 0, sleeps = 0;
    bool broken = false;
    (void)state;
    assert_true(worker_channel_open(&c));
    struct worker_ring *ring = &c.shared->to_worker;
    assert_int_equal(pthread_create(&thread, NULL, writer, &c), 0);
    while (next < RECORDS) {
        struct worker_record r;
        while (worker_ring_pop(ring, &r, &broken)) {
            assert_int_equal(r.call, next);
            assert_int_equal(r.job.count, next * 3ull);
            next++;
        }
        if (next == RECORDS || !worker_ring_sleep(ring))
            continue;
        struct pollfd p = {.fd = c.worker_event, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1); /* a wake-up that is lost ends here */
        worker_ring_wake(ring);
        worker_event_read(c.worker_event);
        sleeps++;
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(broken);
    assert_true(sleeps > 0);
    assert_true(worker_ring_empty(ring));
    worker_channel_close(&c);
}

static void test_full(void **state) {
    struct worker_channel c;
    struct worker_record r = {.type = WORKER_PING};
    bool broken = false;
    (void)state;
    assert_true(worker_channel_open(&c));
    struct worker_ring *ring = &c.shared->to_daemon;
    for (unsigned i = 0; i < WORKER_RING_RECORDS; i++) {
        assert_int_equal(worker_ring_room(ring), WORKER_RING_RECORDS - i);
        assert_true(worker_ring_push(ring, &r, c.daemon_event));
    }
    assert_false(worker_ring_push(ring, &r, c.daemon_event));
    assert_false(worker_ring_sleep(ring));
    assert_true(worker_ring_pop(ring, &r, &broken));
    assert_true(worker_ring_push(ring, &r, c.daemon_event));
    /* What only a broken writer can have written. */
    atomic_store(&ring->tail, atomic_load(&ring->head) + WORKER_RING_RECORDS + 1);
    assert_int_equal(worker_ring_room(ring), 0);
    assert_false(worker_ring_pop(ring, &r, &broken));
    assert_true(broken);
    worker_channel_reset(&c);
    assert_true(worker_ring_empty(ring));
    worker_channel_close(&c);
}

static void test_socket(void **state) {
    int pair[2], fds[3] = {-1, -1, -1}, sent[3];
    uint32_t data = 17, got = 0;
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_true((sent[i] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0);
    assert_true(worker_socket_send(pair[0], &data, sizeof(data), sent, 3, 1000));
    assert_true(worker_socket_receive(pair[1], &got, sizeof(got), fds, 3, 1000));
    assert_int_equal(got, 17);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(fds[i] >= 0 && (fcntl(fds[i], F_GETFD) & FD_CLOEXEC));
        close(fds[i]);
    }
    /* Another number of descriptors than was said, or of bytes: none of it is kept. */
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(next);
    assert_true(worker_socket_send(pair[0], &data, sizeof(data), sent, 2, 1000));
    assert_false(worker_socket_receive(pair[1], &got, sizeof(got), fds, 1, 1000));
    assert_true(worker_socket_send(pair[0], &data, sizeof(data), sent, 1, 1000));
    assert_false(worker_socket_receive(pair[1], &got, 1, fds, 1, 1000));
    int after = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(after, next);
    close(after);
    assert_false(worker_socket_receive(pair[1], &got, sizeof(got), fds, 1, 10)); /* nothing comes */
    close(pair[0]);
    assert_false(worker_socket_receive(pair[1], &got, sizeof(got), fds, 1, 1000));
    assert_false(worker_socket_send(pair[1], &data, sizeof(data), NULL, 0, 10));
    close(pair[1]);
    for (unsigned i = 0; i < 3; i++)
        close(sent[i]);
}

static void test_ranges(void **state) {
    enum { N = 300 };
    static uint8_t memory[N * 64];
    struct range all[N];
    struct ranges table = {0};
    (void)state;
    assert_null(ranges_find(&table, memory));
    for (unsigned i = 0; i < N; i++) { /* in an order that is none; each has 32 bytes, and 32 lie between */
        unsigned at = i * 77 % N;
        all[at] = (struct range){memory + at * 64, 32};
        assert_true(ranges_add(&table, &all[at]));
    }
    for (unsigned i = 0; i < N; i++) {
        assert_ptr_equal(ranges_find(&table, memory + i * 64), &all[i]);
        assert_ptr_equal(ranges_find(&table, memory + i * 64 + 31), &all[i]);
        assert_null(ranges_find(&table, memory + i * 64 + 32));
    }
    for (unsigned i = 0; i < N; i += 2)
        ranges_remove(&table, &all[i]);
    ranges_remove(&table, &all[0]); /* again */
    for (unsigned i = 0; i < N; i++)
        assert_ptr_equal(ranges_find(&table, memory + i * 64 + 5), i % 2 ? &all[i] : NULL);
    ranges_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_full),
                                       cmocka_unit_test(test_socket), cmocka_unit_test(test_ranges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
