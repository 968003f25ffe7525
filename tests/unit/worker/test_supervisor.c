/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's side of workers, with workers that die, stop, and lie: its own memory stays whole, jobs and gates end
 * with a reason, the other GPU goes on, and a new worker takes what comes next. No GPU is wanted.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_worker.h"
#include "kernels/codec.h"
#include "tests/unit/worker/fds.h"
#include "tests/unit/worker/waited.h"

#define COUNT 4096u

static struct device *g_device;
static unsigned g_lost, g_up, g_done, g_opened;
static unsigned g_reap_ms = 60000;
static pid_t g_stuck; /* is not reaped; 0: all are */
static zipcclResult_t g_gate_result;
static const char *g_gate_why;

static void heard(void *arg, const struct device_event *event) {
    (void)arg;
    assert_non_null(event->text);
    g_lost += event->kind == DEVICE_EVENT_LOST;
    g_up += event->kind == DEVICE_EVENT_BACK;
}

static pid_t reap(pid_t pid, int *status, int how) {
    return pid == g_stuck ? 0 : waitpid(pid, status, how);
}

static zipcclResult_t open_mode(const char *mode, const char **why) {
    const struct device_config config = {.workers = 1,
                                         .worker_program = "/proc/self/exe",
                                         .worker_timeout_ms = strcmp(mode, "stops") == 0 ? 1000 : 60000,
                                         .event = heard,
                                         .worker_reap_ms = g_reap_ms,
                                         .reap = reap};
    alarm(100); /* nothing here takes a second, unless it hangs */
    g_lost = g_up = g_done = g_opened = 0;
    assert_int_equal(setenv(FAKE_WORKER, mode, 1), 0);
    return device_workers.open(&config, &g_device, why);
}

static void open_good(const char *mode) {
    const char *why = "";
    if (open_mode(mode, &why) != zipcclSuccess)
        fail_msg("%s", why);
}

static struct device_memory import(unsigned gpu) {
    static const uint8_t handle[DEVICE_IPC_BYTES];
    static uint64_t id;
    const uint8_t uuid[DEVICE_UUID_BYTES] = {(uint8_t)(gpu + 1)};
    const struct device_import in = {.kind = DEVICE_MEMORY_CUDA_IPC,
                                     .fd = -1,
                                     .bytes = COUNT * 4,
                                     .handle = handle,
                                     .uuid = uuid,
                                     .pid = 1,
                                     .process_start = 1,
                                     .id = ++id};
    struct device_memory m;
    const char *why = "";
    if (waited_import(g_device, &in, &m, &why) != zipcclSuccess)
        fail_msg("%s", why);
    assert_true(device_workers.on_gpu(g_device, m.base));
    return m;
}

static void job_done(struct device_job *job) {
    (void)job;
    g_done++;
}

/* Encodes memory of a GPU. True: it ended at once. */
static bool submit(struct device_job *job, const struct device_memory *m, uint8_t *slot) {
    const struct codec_sizes bound = codec_bound(zipcclCodecTier, zipcclFloat32, COUNT);
    *job = (struct device_job){.work = DEVICE_ENCODE,
                               .codec = zipcclCodecTier,
                               .dtype = zipcclFloat32,
                               .src = m->base,
                               .dst = slot,
                               .dst_dynamic = slot + bound.static_bytes,
                               .count = COUNT,
                               .done = job_done};
    return device_workers.submit(g_device, job);
}

static void poll_until(const unsigned *count, unsigned n) {
    struct pollfd p = {.fd = device_workers.fd(g_device), .events = POLLIN};
    while (*count < n) {
        (void)poll(&p, 1, 1000);
        device_workers.poll(g_device);
    }
}

static void gate_opened(const struct device_gate *gate, zipcclResult_t result, const char *why) {
    (void)gate;
    g_opened++;
    g_gate_result = result;
    g_gate_why = why;
}

static struct device_stream *open_stream(unsigned gpu) {
    static const uint8_t events[5 * DEVICE_IPC_BYTES];
    const uint8_t uuid[DEVICE_UUID_BYTES] = {(uint8_t)(gpu + 1)};
    struct device_stream *stream;
    const char *why = "";
    if (waited_stream_open(g_device, uuid, events, 5, &stream, &why) != zipcclSuccess)
        fail_msg("%s", why);
    return stream;
}

/* What a worker of GPU 0 does is found out, and said; all else goes on. */
static void lose(const char *mode, const char *says) {
    struct device_job job;
    const size_t room = COUNT * 16;
    const struct device_gate gate = {.opened = gate_opened};
    open_good(mode);
    struct device_memory bad = import(0), good = import(1);
    struct device_stream *stream = open_stream(0), *other = open_stream(1);
    uint8_t *slot = device_workers.alloc(g_device, room);
    assert_non_null(slot);
    assert_int_equal(device_workers.stream_gate(stream, 4, &gate), zipcclSuccess);
    assert_int_equal(device_workers.stream_gate(stream, 5, &gate), zipcclInvalidArgument);
    assert_false(submit(&job, &bad, slot));
    poll_until(&g_lost, 1);
    if (strcmp(mode, "ring") != 0) { /* there it had done the job first */
        poll_until(&g_done, 1);
        assert_int_equal(job.result, zipcclUnhandledDeviceError);
        assert_non_null(strstr(job.why, says));
    }
    poll_until(&g_opened, 1);
    assert_int_equal(g_gate_result, zipcclUnhandledDeviceError);
    assert_non_null(strstr(g_gate_why, says));
    /* What it had is gone, at once and with the reason. */
    assert_true(submit(&job, &bad, slot));
    assert_int_equal(job.result, zipcclUnhandledDeviceError);
    assert_non_null(strstr(job.why, says));
    g_opened = 0;
    assert_int_equal(device_workers.stream_gate(stream, 0, &gate), zipcclSuccess);
    poll_until(&g_opened, 1);
    assert_int_equal(g_gate_result, zipcclUnhandledDeviceError);
    /* The other GPU has heard nothing of it. */
    g_done = g_opened = 0;
    assert_false(submit(&job, &good, slot));
    poll_until(&g_done, 1);
    assert_int_equal(job.result, zipcclSuccess);
    assert_int_equal(device_workers.stream_gate(other, 0, &gate), zipcclSuccess);
    poll_until(&g_opened, 1);
    assert_int_equal(g_gate_result, zipcclSuccess);
    /* A new worker takes what is new. */
    assert_int_equal(setenv(FAKE_WORKER, "works", 1), 0);
    if (g_up == 0) {
        struct device_gpu gpu;
        assert_true(device_workers.gpu(g_device, 0, &gpu) && gpu.restarts == 1);
    }
    struct device_memory fresh = import(0);
    waited_stream_close(g_device, stream);
    waited_stream_close(g_device, other);
    waited_release(g_device, &bad);
    waited_release(g_device, &good);
    waited_release(g_device, &fresh);
    device_workers.free(g_device, slot, room);
    device_workers.close(g_device);
}

static void test_dies(void **state) {
    (void)state;
    lose("dies", "ended with code 7");
}

static void test_failed(void **state) {
    (void)state;
    lose("failed", "GPU 0 is broken");
}

static void test_stops(void **state) {
    (void)state;
    lose("stops", "stuck");
}

static void test_lies(void **state) {
    (void)state;
    lose("slot", "nonsense");
    lose("sizes", "nonsense");
    lose("result", "nonsense");
    lose("ring", "broken ring");
}

/* GPU 0's worker is killed, and stays. Its job ends with the reason; what it may write to is used for nothing else. */
static void get_stuck(struct device_memory *bad, uint8_t **slot, size_t room) {
    struct device_job job;
    struct device_gpu gpu;
    g_reap_ms = 100;
    open_good("failed");
    g_reap_ms = 60000;
    assert_true(device_workers.gpu(g_device, 0, &gpu));
    g_stuck = gpu.worker;
    *bad = import(0);
    *slot = device_workers.alloc(g_device, room);
    assert_non_null(*slot);
    assert_false(submit(&job, bad, *slot));
    poll_until(&g_done, 1);
    assert_int_equal(job.result, zipcclUnhandledDeviceError);
    assert_non_null(strstr(job.why, "GPU 0 is broken"));
    assert_non_null(strstr(job.why, "not gone after 0.1 s"));
    assert_int_equal(g_lost, 1);
    assert_true(device_workers.gpu(g_device, 0, &gpu));
    assert_non_null(strstr(gpu.failed, "not gone"));
    assert_int_equal(gpu.worker, g_stuck);
    device_workers.free(g_device, *slot, room);
}

static void test_stuck(void **state) {
    struct device_job job;
    struct device_memory bad, refused;
    struct device_gpu gpu;
    const size_t room = COUNT * 16;
    const uint8_t uuid[DEVICE_UUID_BYTES] = {1};
    static const uint8_t handle[DEVICE_IPC_BYTES];
    const struct device_import in = {.kind = DEVICE_MEMORY_CUDA_IPC,
                                     .fd = -1,
                                     .bytes = COUNT,
                                     .handle = handle,
                                     .uuid = uuid,
                                     .pid = 1,
                                     .process_start = 1,
                                     .id = 12345};
    const char *why = "";
    uint8_t *slot, *other;
    (void)state;
    get_stuck(&bad, &slot, room);
    other = device_workers.alloc(g_device, room);
    assert_non_null(other);
    assert_ptr_not_equal(other, slot);
    /* The GPU is out of use, the other one is not. */
    assert_true(submit(&job, &bad, other));
    assert_non_null(strstr(job.why, "not gone"));
    assert_int_equal(waited_import(g_device, &in, &refused, &why), zipcclUnhandledDeviceError);
    assert_non_null(strstr(why, "not gone"));
    struct device_memory good = import(1);
    g_done = 0;
    assert_false(submit(&job, &good, other));
    poll_until(&g_done, 1);
    assert_int_equal(job.result, zipcclSuccess);
    assert_int_equal(g_up, 0);
    /* It goes in the end: a new one takes what is new, and its memory is free again. */
    assert_int_equal(setenv(FAKE_WORKER, "works", 1), 0);
    g_stuck = 0;
    poll_until(&g_up, 1);
    assert_int_equal(g_lost, 1);
    assert_true(device_workers.gpu(g_device, 0, &gpu) && gpu.restarts == 1 && !gpu.failed);
    assert_ptr_equal(device_workers.alloc(g_device, room), slot);
    struct device_memory fresh = import(0);
    g_done = 0;
    assert_false(submit(&job, &fresh, slot));
    poll_until(&g_done, 1);
    assert_int_equal(job.result, zipcclSuccess);
    waited_release(g_device, &bad);
    waited_release(g_device, &good);
    waited_release(g_device, &fresh);
    device_workers.free(g_device, slot, room);
    device_workers.free(g_device, other, room);
    device_workers.close(g_device);
}

/* Nor does it keep the daemon. */
static void test_stuck_at_the_end(void **state) {
    struct device_memory bad;
    uint8_t *slot;
    (void)state;
    get_stuck(&bad, &slot, COUNT * 16);
    waited_release(g_device, &bad);
    device_workers.close(g_device);
    assert_int_equal(waitpid(g_stuck, NULL, 0), g_stuck);
    g_stuck = 0;
}

/* An error of a job alone; its text has no end. */
static void test_refuses(void **state) {
    struct device_job job;
    (void)state;
    open_good("refuses");
    struct device_memory m = import(0);
    uint8_t *slot = device_workers.alloc(g_device, COUNT * 16);
    assert_false(submit(&job, &m, slot));
    poll_until(&g_done, 1);
    assert_int_equal(job.result, zipcclInvalidArgument);
    assert_true(strlen(job.why) > 100 && job.why[strspn(job.why, "x")] == '\0');
    assert_int_equal(g_lost, 0);
    device_workers.free(g_device, slot, COUNT * 16);
    waited_release(g_device, &m);
    device_workers.close(g_device);
}

static void test_start(void **state) {
    const char *why = "";
    (void)state;
    assert_int_equal(open_mode("unready", &why), zipcclInvalidUsage);
    assert_string_equal(why, "no GPU: none here");
    assert_int_equal(open_mode("exits", &why), zipcclUnhandledDeviceError);
    assert_non_null(strstr(why, "code 9"));
}

/* Scratch keeps its addresses apart, and gives back what is too much; nothing is left of a device. */
static void test_scratch(void **state) {
    enum { N = 40 };
    uint8_t *blocks[N];
    (void)state;
    unsigned fds = count_fds();
    open_good("works");
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < N; i++) {
            size_t bytes = (size_t)(i * 7919 % 50 + 1) * 3000 + round;
            blocks[i] = device_workers.alloc(g_device, bytes);
            assert_non_null(blocks[i]);
            assert_int_equal((uintptr_t)blocks[i] % 4096, 0);
            assert_false(device_workers.on_gpu(g_device, blocks[i]));
            memset(blocks[i], (int)i, bytes);
        }
        for (unsigned i = 0; i < N; i++) {
            size_t bytes = (size_t)(i * 7919 % 50 + 1) * 3000 + round;
            assert_int_equal(blocks[i][0], i);
            assert_int_equal(blocks[i][bytes - 1], i);
            device_workers.free(g_device, blocks[i], bytes);
        }
    }
    uint64_t encode = 0, decode = 0;
    assert_true(device_workers.measure(g_device, &encode, &decode));
    assert_int_equal(encode, 5000000);
    assert_int_equal(decode, 6000000);
    device_workers.close(g_device);
    assert_int_equal(count_fds(), fds);
}

int main(int argc, char **argv) {
    int fd;
    if (argc == 2 && sscanf(argv[1], "--worker=%d", &fd) == 1)
        return fake_worker_run(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dies),    cmocka_unit_test(test_failed), cmocka_unit_test(test_stops),
        cmocka_unit_test(test_lies),    cmocka_unit_test(test_stuck),  cmocka_unit_test(test_stuck_at_the_end),
        cmocka_unit_test(test_refuses), cmocka_unit_test(test_start),  cmocka_unit_test(test_scratch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
