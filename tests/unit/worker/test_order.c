/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose jobs a worker is told: flows share by weight and priority, small ones pass large ones, a closed flow's jobs are
 * still done, and all end where the worker dies. The worker answers in the order in which it is told.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/record.h"
#include "fake_worker.h"
#include "tests/unit/worker/waited.h"

#define ROOM  4096u
#define LARGE (1u << 20)
#define SMALL 60000u
#define N     300u /* jobs of a flow */

static struct device *g_device;
static struct device_memory g_memory;
static struct device_job g_jobs[2 * N + 2];
static const struct device_job *g_ended[2 * N + 2];
static unsigned g_njobs, g_nended;

static void open_mode(const char *mode) {
    static const uint8_t handle[DEVICE_IPC_BYTES], uuid[DEVICE_UUID_BYTES] = {1};
    const struct device_config config = {.workers = 1, .worker_program = "/proc/self/exe", .worker_timeout_ms = 60000};
    const struct device_import in = {.kind = DEVICE_MEMORY_CUDA_IPC,
                                     .fd = -1,
                                     .bytes = ROOM,
                                     .handle = handle,
                                     .uuid = uuid,
                                     .pid = 1,
                                     .process_start = 1,
                                     .id = 1};
    const char *why = "";
    alarm(100); /* nothing here takes a second, unless it hangs */
    g_njobs = g_nended = 0;
    assert_int_equal(setenv(FAKE_WORKER, mode, 1), 0);
    if (device_workers.open(&config, &g_device, &why) != zipcclSuccess ||
        waited_import(g_device, &in, &g_memory, &why) != zipcclSuccess)
        fail_msg("%s", why);
}

static void close_all(void) {
    waited_release(g_device, &g_memory);
    device_workers.close(g_device);
}

static void ended(struct device_job *job) {
    g_ended[g_nended++] = job;
}

/* A copy inside the GPU's memory; the worker looks at no byte of it. */
static const struct device_job *submit(struct device_flow *flow, uint64_t bytes) {
    struct device_job *job = &g_jobs[g_njobs++];
    *job = (struct device_job){.work = DEVICE_COPY,
                               .src = g_memory.base,
                               .dst = g_memory.base,
                               .count = bytes,
                               .done = ended,
                               .arg = flow,
                               .flow = flow};
    assert_false(device_workers.submit(g_device, job));
    return job;
}

static void wait_all(void) {
    struct pollfd p = {.fd = device_workers.fd(g_device), .events = POLLIN};
    while (g_nended < g_njobs) {
        (void)poll(&p, 1, 1000);
        device_workers.poll(g_device);
    }
}

static unsigned count(const struct device_flow *flow, unsigned from, unsigned to) {
    unsigned n = 0;
    for (unsigned i = from; i < to; i++)
        n += g_ended[i]->arg == flow;
    return n;
}

static unsigned place_of(const struct device_job *job) {
    unsigned i = 0;
    while (g_ended[i] != job)
        i++;
    return i;
}

static void shares(uint64_t bytes, unsigned told) {
    open_mode("works");
    struct device_flow *a = device_workers.flow_open(g_device, 1, FLOW_NORMAL);
    struct device_flow *b = device_workers.flow_open(g_device, 1, FLOW_NORMAL);
    assert_true(a && b);
    device_workers.flow_set(g_device, a, 3, FLOW_NORMAL);
    for (unsigned i = 0; i < 2 * N; i++)
        submit(i < N ? b : a, bytes);
    device_workers.flow_close(g_device, b);
    device_workers.flow_close(g_device, a);
    wait_all();
    /* The worker had the first ones before there was any of a's. */
    assert_int_equal(count(b, 0, told), told);
    assert_in_range(count(a, told, told + N), N * 3 / 4 - 2, N * 3 / 4 + 2);
    for (unsigned i = 0; i < 2 * N; i++)
        assert_int_equal(g_jobs[i].result, zipcclSuccess);
    close_all();
}

static void test_shares(void **state) {
    (void)state;
    shares(LARGE, WORKER_BULK);
    shares(SMALL, WORKER_SMALL);
}

/* Behind what the worker has already, and before all else. */
static void test_priority(void **state) {
    (void)state;
    open_mode("works");
    struct device_flow *low = device_workers.flow_open(g_device, 1000, FLOW_LOW);
    struct device_flow *high = device_workers.flow_open(g_device, 1, FLOW_HIGH);
    assert_true(low && high);
    for (unsigned i = 0; i < N; i++)
        submit(i % 2 ? low : NULL, LARGE); /* those that name no flow are of normal priority */
    const struct device_job *large = submit(high, LARGE), *small = submit(low, SMALL);
    device_workers.flow_close(g_device, high);
    wait_all();
    assert_int_equal(place_of(small), WORKER_BULK);
    assert_int_equal(place_of(large), WORKER_BULK + 1);
    /* A low one is given one byte in FLOW_STARVE while normal ones wait. */
    assert_in_range(count(low, WORKER_BULK + 2, WORKER_BULK + 2 + 80), 4, 6);
    device_workers.flow_close(g_device, low);
    close_all();
}

static void test_death(void **state) {
    (void)state;
    open_mode("dies");
    struct device_flow *a = device_workers.flow_open(g_device, 1, FLOW_NORMAL);
    struct device_flow *b = device_workers.flow_open(g_device, 1, FLOW_HIGH);
    assert_true(a && b);
    for (unsigned i = 0; i < 2 * N; i++)
        submit(i % 2 ? a : b, i % 3 ? LARGE : SMALL);
    device_workers.flow_close(g_device, a);
    wait_all();
    for (unsigned i = 0; i < 2 * N; i++) {
        assert_int_equal(g_jobs[i].result, zipcclUnhandledDeviceError);
        assert_non_null(strstr(g_jobs[i].why, "ended with code 7"));
    }
    /* What was told counts no more: the next worker is told as many. */
    static const uint8_t handle[DEVICE_IPC_BYTES], uuid[DEVICE_UUID_BYTES] = {1};
    const struct device_import in = {
        .kind = DEVICE_MEMORY_CUDA_IPC, .fd = -1, .bytes = ROOM, .handle = handle, .uuid = uuid, .pid = 1, .id = 2};
    struct device_memory dead = g_memory;
    const char *why = "";
    assert_int_equal(setenv(FAKE_WORKER, "works", 1), 0);
    assert_int_equal(waited_import(g_device, &in, &g_memory, &why), zipcclSuccess);
    g_njobs = g_nended = 0;
    for (unsigned i = 0; i < N; i++)
        submit(b, LARGE);
    wait_all();
    assert_int_equal(g_jobs[N - 1].result, zipcclSuccess);
    device_workers.flow_close(g_device, b);
    waited_release(g_device, &dead);
    close_all();
}

int main(int argc, char **argv) {
    int fd;
    if (argc == 2 && sscanf(argv[1], "--worker=%d", &fd) == 1)
        return fake_worker_run(fd);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares), cmocka_unit_test(test_priority),
                                       cmocka_unit_test(test_death)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
