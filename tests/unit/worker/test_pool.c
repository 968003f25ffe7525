/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools in memory of GPUs, as the daemon cuts them: they grow when something found no room, up to the bound, are known
 * to all communicators, outlive a block of a lost worker, and go back with the last communicator. No GPU is wanted.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/extents.h"
#include "daemon/worker/worker.h"
#include "fake_worker.h"

#define MIB ((size_t)1 << 20)

static struct device *g_device;
static struct nccl_launcher *g_launcher[2];
static int g_wake;
static unsigned g_told, g_lost;
static char g_text[512];
static const struct nccl_gpus_ops *const g_gpus = &nccl_gpus_workers;

static void heard(void *arg, const struct device_event *event) {
    (void)arg;
    g_told += event->kind == DEVICE_EVENT_POOL;
    g_lost += event->kind == DEVICE_EVENT_LOST;
    snprintf(g_text, sizeof(g_text), "%s", event->text);
}

static void open_mode(const char *mode, size_t bound) {
    const struct device_config config = {
        .workers = 1, .worker_program = "/proc/self/exe", .gpu_pool_bytes = bound, .event = heard};
    const char *why = "";
    int version = 0;
    alarm(100); /* nothing here takes a second, unless it hangs */
    g_told = g_lost = 0;
    assert_int_equal(setenv(FAKE_WORKER, mode, 1), 0);
    if (device_workers.open(&config, &g_device, &why) != zipcclSuccess)
        fail_msg("%s", why);
    assert_int_equal(g_gpus->open(g_device, &version, &why), zipcclSuccess);
    g_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (uint32_t i = 0; i < 2; i++) {
        g_launcher[i] = g_gpus->launcher(g_device, i, g_wake);
        assert_non_null(g_launcher[i]);
    }
}

static void close_all(void) {
    for (unsigned i = 0; i < 2; i++)
        g_gpus->launcher_end(g_launcher[i]);
    for (unsigned i = 0; i < 2; i++)
        g_gpus->launcher_close(g_launcher[i]);
    g_gpus->close(g_device);
    device_workers.close(g_device);
    close(g_wake);
}

static struct device_gpu gpu_of(unsigned i) {
    struct device_gpu gpu;
    assert_true(device_workers.gpu(g_device, i, &gpu));
    return gpu;
}

/* What the workers have to say, for a moment. */
static void turn(void) {
    struct pollfd p[] = {{.fd = device_workers.fd(g_device), .events = POLLIN}, {.fd = g_wake, .events = POLLIN}};
    uint64_t count;
    (void)poll(p, 2, 10);
    if (p[1].revents)
        (void)!read(g_wake, &count, sizeof(count));
    device_workers.poll(g_device);
}

static void *alloc(unsigned gpu, size_t bytes) {
    return device_workers.alloc_on(g_device, gpu, bytes);
}

static void release(void *memory, size_t bytes) {
    device_workers.free(g_device, memory, bytes);
}

/* Once the pool has grown by what the first one asked for. */
static void *alloc_warm(unsigned gpu, size_t bytes) {
    void *memory;
    while (!(memory = alloc(gpu, bytes)))
        turn();
    return memory;
}

static void ask(unsigned gpu, enum nccl_what what, uint64_t comm) {
    const struct nccl_command command = {.comm = comm, .id = 1, .what = what};
    struct nccl_answer answer;
    assert_true(g_gpus->ask(g_launcher[gpu], &command));
    do {
        while (!g_gpus->hear(g_launcher[gpu], &answer))
            turn();
    } while (answer.what == NCCL_FAILED); /* of one before */
    assert_int_equal(answer.what, what);  /* registrations are not told of */
    assert_int_equal(answer.comm, comm);
    assert_int_equal(answer.result, zipcclSuccess);
}

static bool is_registered(uint64_t comm, const void *memory) {
    return g_gpus->registered(g_device, comm, memory);
}

/* Against a map of what is taken. */
static void test_extents(void **state) {
    enum { UNITS = 200 };
    struct {
        size_t at, units;
    } held[UNITS];
    bool taken[UNITS] = {false};
    unsigned n = 0;
    uint32_t x = 12345;
    struct extents e;
    (void)state;
    assert_true(extents_open(&e, UNITS));
    for (unsigned i = 0; i < 20000; i++) {
        x = x * 1664525u + 1013904223u;
        if (n > 0 && (x >> 16) % 2) {
            unsigned k = (x >> 17) % n;
            extents_give(&e, held[k].at, held[k].units);
            memset(&taken[held[k].at], 0, held[k].units);
            held[k] = held[--n];
            continue;
        }
        size_t units = 1 + (x >> 20) % 9;
        size_t at = extents_take(&e, units);
        if (at == SIZE_MAX) {
            for (size_t u = 0, free = 0; u < UNITS; u++) {
                free = taken[u] ? 0 : free + 1;
                assert_true(free < units);
            }
            continue;
        }
        for (size_t u = at; u < at + units; u++) {
            assert_true(u < UNITS && !taken[u]);
            taken[u] = true;
        }
        held[n].at = at;
        held[n++].units = units;
    }
    while (n > 0) {
        n--;
        extents_give(&e, held[n].at, held[n].units);
    }
    assert_int_equal(e.n, 1); /* all of it, in one piece */
    assert_int_equal(extents_take(&e, UNITS), 0);
    assert_int_equal(extents_take(&e, 1), SIZE_MAX);
    extents_close(&e);
}

static void test_grows(void **state) {
    (void)state;
    open_mode("works", 256 * MIB);
    assert_int_equal(gpu_of(1).pool_bytes, 0);
    ask(1, NCCL_MAKE, 1);
    assert_null(alloc(1, 100000));
    assert_int_equal(gpu_of(1).pool_missed_bytes, 100000);
    uint8_t *a = alloc_warm(1, 100000), *b = alloc(1, 50000);
    assert_non_null(b);
    assert_true(b >= a + 100000 || a >= b + 50000);
    assert_int_equal(device_workers.gpu_of(g_device, a), 1);
    assert_int_equal(device_workers.gpu_of(g_device, b + 49999), 1);
    assert_int_equal(device_workers.gpu_of(g_device, &a), -1);
    assert_true(device_workers.on_gpu(g_device, a));
    assert_int_equal(gpu_of(1).pool_bytes, 64 * MIB);
    assert_true(gpu_of(1).pool_used_bytes >= 150000);
    assert_int_equal(gpu_of(0).pool_bytes, 0);
    release(a, 100000);
    assert_ptr_equal(alloc(1, 100000), a);
    assert_null(alloc(1, 65 * MIB)); /* a slab of its own, later */
    uint8_t *large = alloc_warm(1, 65 * MIB);
    assert_int_equal(gpu_of(1).pool_bytes, 130 * MIB);
    release(large, 65 * MIB);
    release(a, 100000);
    release(b, 50000);
    assert_int_equal(gpu_of(1).pool_used_bytes, 0);
    assert_null(alloc(2, 100)); /* no such GPU */
    close_all();
}

static void test_bound(void **state) {
    void *all[4];
    (void)state;
    open_mode("works", 5 * MIB); /* four, for memory comes in pieces of two */
    ask(0, NCCL_MAKE, 1);
    for (unsigned i = 0; i < 4; i++)
        all[i] = alloc_warm(0, MIB);
    uint64_t missed = gpu_of(0).pool_missed_bytes;
    for (unsigned i = 0; i < 3; i++) {
        assert_null(alloc(0, MIB));
        turn();
    }
    assert_int_equal(g_told, 1);
    assert_non_null(strstr(g_text, "gpu_pool"));
    assert_int_equal(gpu_of(0).pool_bytes, 4 * MIB);
    assert_int_equal(gpu_of(0).pool_missed_bytes, missed + 3 * MIB);
    assert_null(alloc(0, 6 * MIB)); /* never */
    release(all[2], MIB);
    assert_ptr_equal(alloc(0, MIB), all[2]);
    for (unsigned i = 0; i < 4; i++)
        release(all[i], MIB);
    close_all();
}

static void test_off(void **state) {
    (void)state;
    open_mode("works", 0);
    ask(0, NCCL_MAKE, 1);
    for (unsigned i = 0; i < 3; i++) {
        assert_null(alloc(0, 5000));
        turn();
    }
    assert_int_equal(gpu_of(0).pool_missed_bytes, 15000);
    assert_int_equal(gpu_of(0).pool_bytes, 0);
    assert_int_equal(g_told, 0); /* it was wished so */
    close_all();
}

/* Each slab for each communicator; the last one's end gives them back, once nothing uses them. */
static void test_registered(void **state) {
    (void)state;
    open_mode("works", 256 * MIB);
    ask(0, NCCL_MAKE, 1);
    void *a = alloc_warm(0, 5000);
    while (!is_registered(1, a))
        turn();
    assert_false(is_registered(2, a));
    ask(0, NCCL_MAKE, 2);
    while (!is_registered(2, a))
        turn();
    void *b = alloc_warm(0, 64 * MIB); /* of another slab */
    while (!is_registered(1, b) || !is_registered(2, b))
        turn();
    assert_false(is_registered(1, &a));
    ask(0, NCCL_LEAVE, 1);
    assert_false(is_registered(1, a));
    assert_true(is_registered(2, a));
    release(b, 64 * MIB);
    ask(0, NCCL_LEAVE, 2);
    assert_true(gpu_of(0).pool_bytes > 0); /* a is in use */
    release(a, 5000);
    assert_int_equal(gpu_of(0).pool_bytes, 0);
    assert_int_equal(device_workers.gpu_of(g_device, a), -1);
    ask(0, NCCL_MAKE, 3);
    a = alloc_warm(0, 5000);
    release(a, 5000);
    assert_true(gpu_of(0).pool_bytes > 0); /* the next one will want it */
    ask(0, NCCL_LEAVE, 3);
    assert_int_equal(gpu_of(0).pool_bytes, 0);
    close_all();
}

static void test_one_address(void **state) {
    (void)state;
    open_mode("one-address", 256 * MIB);
    ask(0, NCCL_MAKE, 1);
    void *a = alloc_warm(0, 5000);
    for (unsigned i = 0; i < 5; i++)
        turn();
    assert_false(is_registered(1, a));
    release(a, 5000);
    close_all();
}

static void test_no_memory(void **state) {
    (void)state;
    open_mode("no-memory", 256 * MIB);
    ask(0, NCCL_MAKE, 1);
    for (unsigned i = 0; i < 5; i++) {
        assert_null(alloc(0, 5000));
        turn();
    }
    assert_int_equal(g_told, 1);
    assert_non_null(strstr(g_text, "it is full"));
    assert_int_equal(gpu_of(0).pool_bytes, 0);
    assert_int_equal(gpu_of(0).pool_missed_bytes, 25000);
    assert_int_equal(g_lost, 0);
    close_all();
}

static void test_other_memory(void **state) {
    (void)state;
    open_mode("other-memory", 256 * MIB);
    ask(0, NCCL_MAKE, 1);
    assert_null(alloc(0, 5000));
    while (g_lost == 0)
        turn();
    assert_non_null(strstr(g_text, "nonsense"));
    close_all();
}

static void done(struct device_job *job) {
    *(bool *)job->arg = true;
}

static const char *copy(void *dst, const void *src, zipcclResult_t expected) {
    bool ended = false;
    struct device_job job = {.work = DEVICE_COPY, .src = src, .dst = dst, .count = 100, .done = done, .arg = &ended};
    ended = device_workers.submit(g_device, &job);
    while (!ended)
        turn();
    assert_int_equal(job.result, expected);
    return job.why;
}

/* Work goes where the pool is; no other worker reaches it. */
static void test_whose(void **state) {
    (void)state;
    open_mode("works", 256 * MIB);
    ask(0, NCCL_MAKE, 1);
    ask(1, NCCL_MAKE, 1);
    uint8_t *a = alloc_warm(0, 5000), *b = alloc_warm(1, 5000), *pinned = device_workers.alloc(g_device, 5000);
    (void)copy(a, pinned, zipcclSuccess);
    (void)copy(pinned, b, zipcclSuccess);
    assert_non_null(copy(a, b, zipcclUnhandledDeviceError));
    struct nccl_command command = {.comm = 1, .id = 5, .what = NCCL_LAUNCH, .nops = 1};
    struct nccl_answer answer;
    command.ops[0] = (struct nccl_op){.address = (uintptr_t)a, .bytes = 100, .kind = NCCL_OP_SEND};
    assert_true(g_gpus->ask(g_launcher[1], &command));
    while (!g_gpus->hear(g_launcher[1], &answer))
        turn();
    assert_int_equal(answer.result, zipcclUnhandledDeviceError);
    release(a, 5000);
    release(b, 5000);
    release(pinned, 5000);
    close_all();
}

/* What was taken of a lost worker's pool can be given back; it is of no use before. */
static void test_lost(void **state) {
    (void)state;
    open_mode("dies", 256 * MIB);
    ask(0, NCCL_MAKE, 1);
    uint8_t *a = alloc_warm(0, 5000), *b = alloc_warm(0, 5000), *pinned = device_workers.alloc(g_device, 5000);
    assert_int_equal(setenv(FAKE_WORKER, "works", 1), 0); /* the next one */
    assert_non_null(strstr(copy(a, pinned, zipcclUnhandledDeviceError), "ended with code 7"));
    assert_int_equal(gpu_of(0).pool_bytes, 0);
    assert_int_equal(gpu_of(0).pool_used_bytes, 0);
    assert_false(is_registered(1, a));
    release(b, 5000);
    assert_non_null(strstr(copy(a, pinned, zipcclUnhandledDeviceError), "ended with code 7"));
    while (gpu_of(0).failed)
        turn();
    ask(0, NCCL_MAKE, 2);
    uint8_t *c = alloc_warm(0, 5000);
    (void)copy(c, pinned, zipcclSuccess);
    assert_non_null(copy(c, a, zipcclUnhandledDeviceError));
    release(a, 5000);
    assert_int_equal(device_workers.gpu_of(g_device, a), -1);
    release(c, 5000);
    release(pinned, 5000);
    assert_int_equal(gpu_of(0).pool_used_bytes, 0);
    close_all();
}

int main(int argc, char **argv) {
    int fd;
    if (argc == 2 && sscanf(argv[1], "--worker=%d", &fd) == 1)
        return fake_worker_run(fd);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_extents),    cmocka_unit_test(test_grows),
                                       cmocka_unit_test(test_bound),      cmocka_unit_test(test_off),
                                       cmocka_unit_test(test_registered), cmocka_unit_test(test_one_address),
                                       cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_other_memory),
                                       cmocka_unit_test(test_whose),      cmocka_unit_test(test_lost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
