/* SPDX-License-Identifier: Apache-2.0
 *
 * What clients ask of a worker and wait for: memory and streams that open and close. The device never waits for it, so
 * the other GPU's work goes on; each call ends once, with the worker's answer or the reason of its death.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_worker.h"
#include "kernels/codec.h"
#include "tests/unit/worker/fds.h"
#include "tests/unit/worker/waited.h"

#define COUNT 4096u
#define BYTES ((size_t)COUNT * 4)

static struct device *g_device;
static unsigned g_done;

static void heard(void *arg, const struct device_event *event) {
    (void)arg, (void)event;
}

static void open_mode(const char *mode, unsigned timeout_ms) {
    const struct device_config config = {.workers = 1, .worker_timeout_ms = timeout_ms, .event = heard};
    const char *why = "";
    alarm(100);
    assert_int_equal(setenv(FAKE_WORKER, mode, 1), 0);
    if (device_workers.open(&config, &g_device, &why) != zipcclSuccess)
        fail_msg("%s", why);
}

/* A registration on its way. */
struct asked {
    struct waited waited; /* first */
    struct device_memory memory;
};

static zipcclResult_t ask(struct asked *a, unsigned gpu, uint64_t id, enum device_memory_kind kind, int fd) {
    static const uint8_t handle[DEVICE_IPC_BYTES];
    const uint8_t uuid[DEVICE_UUID_BYTES] = {(uint8_t)(gpu + 1)};
    const char *why = "";
    *a = (struct asked){.waited.call.done = waited_done};
    const struct device_import in = {.kind = kind,
                                     .fd = fd,
                                     .bytes = BYTES,
                                     .handle = kind == DEVICE_MEMORY_CUDA_IPC ? handle : NULL,
                                     .uuid = uuid,
                                     .pid = 1,
                                     .process_start = 1,
                                     .id = id,
                                     .call = &a->waited.call};
    zipcclResult_t result = device_workers.import(g_device, &in, &a->memory, &why);
    a->waited.over = result != zipcclInProgress;
    return result;
}

static void ask_ipc(struct asked *a, unsigned gpu, uint64_t id) {
    assert_int_equal(ask(a, gpu, id, DEVICE_MEMORY_CUDA_IPC, -1), zipcclInProgress);
    assert_false(a->waited.over);
}

static zipcclResult_t await(struct asked *a, const char **why) {
    *why = "";
    return waited_for(g_device, &a->waited, why);
}

static void expect_good(struct asked *a) {
    const char *why;
    if (await(a, &why) != zipcclSuccess)
        fail_msg("%s", why);
    assert_true(device_workers.on_gpu(g_device, a->memory.base));
}

static void expect_failed(struct asked *a, const char *says) {
    const char *why;
    assert_int_equal(await(a, &why), zipcclUnhandledDeviceError);
    if (strstr(why, says) == NULL)
        fail_msg("'%s' does not say '%s'", why, says);
}

static void job_done(struct device_job *job) {
    assert_int_equal(job->result, zipcclSuccess);
    g_done++;
}

/* A job on that memory is done; meanwhile() once it is submitted. */
static void work_and(const struct device_memory *m, void (*meanwhile)(void)) {
    const struct codec_sizes bound = codec_bound(zipcclCodecTier, zipcclFloat32, COUNT);
    uint8_t *slot = device_workers.alloc(g_device, 4 * BYTES);
    struct device_job job = {.work = DEVICE_ENCODE,
                             .codec = zipcclCodecTier,
                             .dtype = zipcclFloat32,
                             .src = m->base,
                             .dst = slot,
                             .dst_dynamic = slot + bound.static_bytes,
                             .count = COUNT,
                             .done = job_done};
    struct pollfd p = {.fd = device_workers.fd(g_device), .events = POLLIN};
    g_done = 0;
    assert_non_null(slot);
    assert_false(device_workers.submit(g_device, &job));
    if (meanwhile)
        meanwhile();
    while (g_done == 0) {
        (void)poll(&p, 1, 1000);
        device_workers.poll(g_device);
    }
    device_workers.free(g_device, slot, 4 * BYTES);
}

static void work(const struct device_memory *m) {
    work_and(m, NULL);
}

static pid_t worker(unsigned gpu) {
    struct device_gpu info;
    assert_true(device_workers.gpu(g_device, gpu, &info));
    return info.worker;
}

/* One GPU's worker answers nothing: the other's clients do not notice. */
static void test_others_go_on(void **state) {
    const uint8_t uuid[DEVICE_UUID_BYTES] = {1}, events[3 * DEVICE_IPC_BYTES] = {0};
    struct waited opening = {.call.done = waited_done};
    struct device_stream *stream;
    struct asked mute, same, other;
    const char *why = "";
    (void)state;
    open_mode("mute", 60000);
    ask_ipc(&mute, 0, 1);
    ask_ipc(&same, 0, 1);
    assert_ptr_equal(mute.memory.base, same.memory.base);
    assert_int_equal(device_workers.stream_open(g_device, uuid, events, 3, &opening.call, &stream, &why),
                     zipcclInProgress);
    ask_ipc(&other, 1, 2);
    expect_good(&other);
    work(&other.memory);
    assert_false(mute.waited.over || same.waited.over || opening.over);
    kill(worker(0), SIGKILL);
    expect_failed(&mute, "killed by signal 9");
    expect_failed(&same, "killed by signal 9");
    assert_int_equal(waited_for(g_device, &opening, &why), zipcclUnhandledDeviceError);
    work(&other.memory);
    waited_release(g_device, &other.memory);
    device_workers.close(g_device);
}

static void test_time(void **state) {
    struct asked mute;
    (void)state;
    open_mode("mute", 200);
    ask_ipc(&mute, 0, 1);
    expect_failed(&mute, "does not answer");
    device_workers.close(g_device);
}

/* Answers end what they answer, in its order; memory of several registrations is open until the last one's end. */
static void test_together(void **state) {
    struct asked a, again, b, c, late;
    struct waited first = {.call.done = waited_done}, second = first, third = first;
    (void)state;
    open_mode("late", 60000);
    ask_ipc(&a, 0, 1);
    ask_ipc(&again, 0, 1);
    ask_ipc(&b, 0, 2);
    assert_ptr_equal(a.memory.base, again.memory.base);
    assert_ptr_not_equal(a.memory.base, b.memory.base);
    ask_ipc(&c, 0, 3); /* the third call */
    expect_good(&a);
    expect_good(&again);
    expect_good(&b);
    expect_good(&c);
    assert_int_equal(ask(&late, 0, 1, DEVICE_MEMORY_CUDA_IPC, -1), zipcclSuccess); /* it is open */
    assert_true(device_workers.release(g_device, &late.memory, &first.call));
    assert_true(device_workers.release(g_device, &a.memory, &first.call));
    assert_false(device_workers.release(g_device, &again.memory, &first.call));
    ask_ipc(&late, 0, 1); /* what is being closed is not lent again */
    assert_false(device_workers.release(g_device, &b.memory, &second.call));
    const char *why;
    assert_int_equal(waited_for(g_device, &first, &why), zipcclSuccess);
    expect_good(&late);
    assert_int_equal(waited_for(g_device, &second, &why), zipcclSuccess);
    /* Closed by its death: that is what was asked. */
    assert_false(device_workers.release(g_device, &c.memory, &third.call));
    kill(worker(0), SIGKILL);
    assert_int_equal(waited_for(g_device, &third, &why), zipcclSuccess);
    assert_true(device_workers.release(g_device, &late.memory, NULL));
    device_workers.close(g_device);
}

static void test_denied(void **state) {
    struct asked a;
    const char *why;
    (void)state;
    open_mode("denies", 60000);
    for (unsigned i = 0; i < 3; i++) {
        ask_ipc(&a, 0, 1);
        assert_int_equal(await(&a, &why), zipcclInvalidArgument);
        assert_string_equal(why, "no such handle");
        assert_false(device_workers.on_gpu(g_device, a.memory.base));
    }
    device_workers.close(g_device);
}

/* More than its ring and its socket hold, while it does not run. */
static void test_flood(void **state) {
    enum { N = 3000 };
    struct asked *all = calloc(N, sizeof(*all));
    struct waited *gone = calloc(N, sizeof(*gone));
    const char *why;
    (void)state;
    assert_true(all && gone);
    int fd = memfd_create("flood", MFD_CLOEXEC);
    assert_true(fd >= 0);
    open_mode("works", 60000);
    kill(worker(0), SIGSTOP);
    for (unsigned i = 0; i < N; i++) {
        const bool vmm = i % 8 == 0;
        assert_int_equal(ask(&all[i], 0, i, vmm ? DEVICE_MEMORY_CUDA_VMM : DEVICE_MEMORY_CUDA_IPC, vmm ? fd : -1),
                         zipcclInProgress);
    }
    device_workers.poll(g_device);
    assert_false(all[0].waited.over);
    kill(worker(0), SIGCONT);
    for (unsigned i = 0; i < N; i++) {
        expect_good(&all[i]);
        gone[i].call.done = waited_done;
    }
    work(&all[N - 1].memory);
    for (unsigned i = 0; i < N; i++)
        assert_false(device_workers.release(g_device, &all[i].memory, &gone[i].call));
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(waited_for(g_device, &gone[i], &why), zipcclSuccess);
    device_workers.close(g_device);
    close(fd);
    free(all);
    free(gone);
}

/* Asked of a worker that has just died: the next one takes it. */
static void test_next_worker(void **state) {
    struct asked a;
    struct pollfd p;
    (void)state;
    open_mode("works", 60000);
    const pid_t first = worker(0);
    kill(first, SIGKILL);
    p = (struct pollfd){.fd = device_workers.fd(g_device), .events = POLLIN};
    while (worker(0) == first) {
        (void)poll(&p, 1, 1000);
        device_workers.poll(g_device);
    }
    ask_ipc(&a, 0, 1);
    expect_good(&a);
    work(&a.memory);
    waited_release(g_device, &a.memory);
    device_workers.close(g_device);
}

static void go_on(void) {
    device_workers.poll(g_device);
    kill(worker(0), SIGCONT);
}

/* Its socket takes no more descriptors, its ring would take more records: a job does not go past those that wait. */
static void test_in_order(void **state) {
    enum { N = 600 };
    struct asked first, *all = calloc(N, sizeof(*all));
    (void)state;
    assert_non_null(all);
    int fd = memfd_create("order", MFD_CLOEXEC);
    assert_true(fd >= 0);
    open_mode("works", 60000);
    ask_ipc(&first, 0, N);
    expect_good(&first);
    kill(worker(0), SIGSTOP);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(ask(&all[i], 0, i, DEVICE_MEMORY_CUDA_VMM, fd), zipcclInProgress);
    work_and(&first.memory, go_on);
    for (unsigned i = 0; i < N; i++)
        assert_true(all[i].waited.over);
    device_workers.close(g_device);
    close(fd);
    free(all);
}

/* A device that is closed calls nobody, and leaves nothing. */
static void test_closed(void **state) {
    const uint8_t uuid[DEVICE_UUID_BYTES] = {1}, events[9 * DEVICE_IPC_BYTES] = {0};
    struct waited opening = {.call.done = waited_done}, closing = opening, leaving = opening;
    struct device_stream *stream, *other;
    struct asked a, b;
    const char *why = "";
    (void)state;
    unsigned fds = count_fds();
    int fd = memfd_create("closed", MFD_CLOEXEC);
    open_mode("works", 60000);
    ask_ipc(&a, 0, 1);
    expect_good(&a);
    assert_int_equal(waited_stream_open(g_device, uuid, events, 9, &other, &why), zipcclSuccess);
    kill(worker(0), SIGSTOP);
    assert_int_equal(ask(&b, 0, 2, DEVICE_MEMORY_CUDA_VMM, fd), zipcclInProgress);
    assert_int_equal(device_workers.stream_open(g_device, uuid, events, 9, &opening.call, &stream, &why),
                     zipcclInProgress);
    assert_false(device_workers.release(g_device, &a.memory, &leaving.call));
    assert_false(device_workers.stream_close(other, &closing.call));
    device_workers.close(g_device);
    assert_false(b.waited.over || opening.over || leaving.over || closing.over);
    close(fd);
    assert_int_equal(count_fds(), fds);
}

int main(int argc, char **argv) {
    int fd;
    if (argc == 2 && sscanf(argv[1], "--worker=%d", &fd) == 1)
        return fake_worker_run(fd);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_others_go_on), cmocka_unit_test(test_time),
                                       cmocka_unit_test(test_together),     cmocka_unit_test(test_denied),
                                       cmocka_unit_test(test_flood),        cmocka_unit_test(test_next_worker),
                                       cmocka_unit_test(test_in_order),     cmocka_unit_test(test_closed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
