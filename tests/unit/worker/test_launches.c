/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's commands on their way to workers: each is answered once, in order, also where the ring is full, where the
 * worker dies of it, and where it lies. No GPU and no NCCL is wanted.
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

#include "fake_worker.h"
#include "tests/unit/worker/waited.h"

#define BYTES ((size_t)1 << 20)

static struct device *g_device;
static struct nccl_launcher *g_launcher[2];
static int g_wake;
static const struct nccl_gpus_ops *const g_gpus = &nccl_gpus_workers;

static void open_mode(const char *mode) {
    const struct device_config config = {.workers = 1, .worker_program = "/proc/self/exe"};
    const char *why = "";
    int version = 0;
    alarm(100); /* nothing here takes a second, unless it hangs */
    assert_int_equal(setenv(FAKE_WORKER, mode, 1), 0);
    if (device_workers.open(&config, &g_device, &why) != zipcclSuccess)
        fail_msg("%s", why);
    assert_int_equal(g_gpus->open(g_device, &version, &why), zipcclSuccess);
    assert_int_equal(version, 5000000);
    g_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(g_wake >= 0);
    for (uint32_t i = 0; i < 2; i++) {
        g_launcher[i] = g_gpus->launcher(g_device, i, g_wake);
        assert_non_null(g_launcher[i]);
    }
    assert_null(g_gpus->launcher(g_device, 2, g_wake));
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

static struct device_memory import(unsigned gpu) {
    static const uint8_t handle[DEVICE_IPC_BYTES];
    static uint64_t id;
    const uint8_t uuid[DEVICE_UUID_BYTES] = {(uint8_t)(gpu + 1)};
    const struct device_import in = {.kind = DEVICE_MEMORY_CUDA_IPC,
                                     .fd = -1,
                                     .bytes = BYTES,
                                     .handle = handle,
                                     .uuid = uuid,
                                     .pid = 1,
                                     .process_start = 1,
                                     .id = ++id};
    struct device_memory m;
    const char *why = "";
    if (waited_import(g_device, &in, &m, &why) != zipcclSuccess)
        fail_msg("%s", why);
    return m;
}

static void ask(unsigned gpu, enum nccl_what what, uint64_t comm, uint64_t id) {
    const struct nccl_command command = {.comm = comm, .id = id, .what = what};
    assert_true(g_gpus->ask(g_launcher[gpu], &command));
}

/* nops of so many bytes each. */
static void ask_ops(enum nccl_what what, uint64_t id, const struct device_memory *m, uint32_t nops, uint64_t bytes) {
    struct nccl_command command = {.comm = 1, .id = id, .what = what, .nops = nops};
    for (uint32_t i = 0; i < nops; i++)
        command.ops[i] = (struct nccl_op){.address = (uintptr_t)m->base + i * 64, .bytes = bytes, .kind = NCCL_OP_SEND};
    assert_true(g_gpus->ask(g_launcher[0], &command));
}

static struct nccl_answer hear(unsigned gpu) {
    struct pollfd p[] = {{.fd = device_workers.fd(g_device), .events = POLLIN}, {.fd = g_wake, .events = POLLIN}};
    struct nccl_answer answer;
    uint64_t count;
    while (!g_gpus->hear(g_launcher[gpu], &answer)) {
        assert_true(poll(p, 2, 20000) > 0);
        if (p[1].revents)
            assert_int_equal(read(g_wake, &count, sizeof(count)), sizeof(count));
        device_workers.poll(g_device);
    }
    return answer;
}

static const char *expect(unsigned gpu, enum nccl_what what, uint64_t comm, uint64_t id, zipcclResult_t result) {
    struct nccl_answer a = hear(gpu);
    assert_int_equal(a.what, what);
    assert_int_equal(a.comm, comm);
    assert_int_equal(a.id, id);
    assert_int_equal(a.result, result);
    return a.why;
}

static void make_comm(void) {
    ask(0, NCCL_MAKE, 1, 1);
    (void)expect(0, NCCL_MAKE, 1, 1, zipcclSuccess);
}

/* More than the ring has room for, each with all of its operations. */
static void test_many(void **state) {
    enum { N = 100 };
    (void)state;
    open_mode("works");
    struct device_memory m = import(0);
    make_comm();
    for (uint32_t i = 0; i < N; i++)
        ask_ops(NCCL_MAKE_ID, i, &m, i == 7 ? NCCL_MAX_OPS : i % 40, i + 1);
    for (uint32_t i = 0; i < N; i++) {
        struct nccl_answer a = hear(0);
        uint64_t sum;
        memcpy(&sum, a.unique.bytes, sizeof(sum));
        assert_int_equal(a.id, i);
        assert_int_equal(a.result, zipcclSuccess);
        assert_int_equal(sum, (uint64_t)(i == 7 ? NCCL_MAX_OPS : i % 40) * (i + 1));
    }
    waited_release(g_device, &m);
    close_all();
}

/* What the worker must not be told of, and where memory is. */
static void test_memory(void **state) {
    uint32_t gpu = 9;
    int local;
    (void)state;
    open_mode("works");
    struct device_memory m = import(1);
    void *pinned = g_gpus->alloc(g_device, 5000);
    assert_non_null(pinned);
    assert_int_equal(g_gpus->place(g_device, m.base + BYTES - 1, &gpu), NCCL_PLACE_GPU);
    assert_int_equal(gpu, 1);
    assert_int_equal(g_gpus->place(g_device, pinned, &gpu), NCCL_PLACE_PINNED);
    assert_int_equal(g_gpus->place(g_device, &local, &gpu), NCCL_PLACE_HOST);
    make_comm();
    ask_ops(NCCL_LAUNCH, 2, &m, 2, BYTES); /* the second one ends behind it */
    assert_non_null(expect(0, NCCL_LAUNCH, 1, 2, zipcclUnhandledDeviceError));
    ask_ops(NCCL_LAUNCH, 3, &m, 2, UINT64_MAX);
    assert_non_null(expect(0, NCCL_LAUNCH, 1, 3, zipcclUnhandledDeviceError));
    const struct device_memory none = {.base = (uint8_t *)(uintptr_t)64};
    ask_ops(NCCL_LAUNCH, 4, &none, 1, 8);
    assert_non_null(expect(0, NCCL_LAUNCH, 1, 4, zipcclUnhandledDeviceError));
    ask_ops(NCCL_LAUNCH, 5, &m, 2, BYTES - 64);
    (void)expect(0, NCCL_LAUNCH, 1, 5, zipcclSuccess);
    g_gpus->free(g_device, pinned, 5000);
    waited_release(g_device, &m);
    close_all();
}

/* The worker is lost at a launch: its communicators and commands end with the reason, the next one has neither. */
static void lose(const char *mode, const char *says) {
    open_mode(mode);
    struct device_memory m = import(0);
    ask(1, NCCL_MAKE, 1, 1);
    (void)expect(1, NCCL_MAKE, 1, 1, zipcclSuccess);
    if (strcmp(mode, "wrong") != 0)
        make_comm();
    assert_int_equal(setenv(FAKE_WORKER, "works", 1), 0); /* the next one */
    if (strcmp(mode, "wrong") == 0)
        ask(0, NCCL_MAKE, 1, 1);
    ask_ops(NCCL_LAUNCH, 2, &m, 3, 100);
    ask(0, NCCL_REVOKE, 1, 3);
    assert_non_null(strstr(expect(0, NCCL_FAILED, 1, 0, zipcclUnhandledDeviceError), says));
    uint64_t ended = 0; /* a bit each, once */
    for (unsigned n = strcmp(mode, "wrong") == 0 ? 3 : 2; n > 0; n--) {
        struct nccl_answer a = hear(0);
        assert_true(a.id < 64 && !(ended >> a.id & 1));
        ended |= 1ull << a.id;
        assert_int_equal(a.result, zipcclUnhandledDeviceError);
        assert_non_null(strstr(a.why, says));
    }
    ask(0, NCCL_ABORT, 1, 4);
    (void)expect(0, NCCL_ABORT, 1, 4, zipcclSuccess);
    ask_ops(NCCL_LAUNCH, 5, &m, 1, 100);
    (void)expect(0, NCCL_LAUNCH, 1, 5, zipcclAborted);
    ask_ops(NCCL_COLLECTIVE, 9, &m, 2, 100);
    (void)expect(0, NCCL_COLLECTIVE, 1, 9, zipcclAborted);
    ask(0, NCCL_MAKE, 2, 6);
    (void)expect(0, NCCL_MAKE, 2, 6, zipcclSuccess);
    struct nccl_command old = {.comm = 2, .id = 7, .what = NCCL_LAUNCH, .nops = 1};
    old.ops[0] = (struct nccl_op){.address = (uintptr_t)m.base, .bytes = 8};
    assert_true(g_gpus->ask(g_launcher[0], &old));
    assert_non_null(strstr(expect(0, NCCL_LAUNCH, 2, 7, zipcclUnhandledDeviceError), says));
    ask(1, NCCL_LEAVE, 1, 8); /* the other GPU has heard nothing of it */
    (void)expect(1, NCCL_LEAVE, 1, 8, zipcclSuccess);
    waited_release(g_device, &m);
    close_all();
}

static void test_dies(void **state) {
    (void)state;
    lose("no-launch", "ended with code 7");
}

static void test_lies(void **state) {
    (void)state;
    lose("wrong", "nonsense");
}

/* NCCL fails a communicator: that is told once, before the answer that it made fail. */
static void test_fails(void **state) {
    (void)state;
    open_mode("fails");
    struct device_memory m = import(0);
    make_comm();
    ask_ops(NCCL_LAUNCH, 2, &m, 1, 8);
    (void)expect(0, NCCL_FAILED, 1, 0, zipcclRemoteError);
    (void)expect(0, NCCL_LAUNCH, 1, 2, zipcclSuccess);
    ask_ops(NCCL_LAUNCH, 3, &m, 1, 8);
    (void)expect(0, NCCL_LAUNCH, 1, 3, zipcclSuccess);
    ask(0, NCCL_ABORT, 1, 4);
    (void)expect(0, NCCL_ABORT, 1, 4, zipcclSuccess);
    waited_release(g_device, &m);
    close_all();
}

/* What comes of a split is known by it: it fails with the worker, and is not made where its parent is not known. */
static void ask_split(uint64_t branch, uint64_t id) {
    const struct nccl_command command = {.comm = 1, .id = id, .what = NCCL_SPLIT, .branch = {.comm = branch}};
    assert_true(g_gpus->ask(g_launcher[0], &command));
}

static void test_split(void **state) {
    (void)state;
    open_mode("no-launch");
    struct device_memory m = import(0);
    make_comm();
    ask_split(2, 2);
    (void)expect(0, NCCL_SPLIT, 1, 2, zipcclSuccess);
    ask_split(0, 3); /* into none */
    (void)expect(0, NCCL_SPLIT, 1, 3, zipcclSuccess);
    assert_int_equal(setenv(FAKE_WORKER, "works", 1), 0); /* the next one */
    ask_ops(NCCL_LAUNCH, 4, &m, 1, 100);
    (void)expect(0, NCCL_FAILED, 2, 0, zipcclUnhandledDeviceError);
    (void)expect(0, NCCL_FAILED, 1, 0, zipcclUnhandledDeviceError);
    (void)expect(0, NCCL_LAUNCH, 1, 4, zipcclUnhandledDeviceError);
    ask_split(3, 5);
    (void)expect(0, NCCL_SPLIT, 1, 5, zipcclAborted);
    for (uint64_t comm = 1; comm <= 3; comm++) {
        ask(0, NCCL_ABORT, comm, 5 + comm);
        (void)expect(0, NCCL_ABORT, comm, 5 + comm, zipcclSuccess);
    }
    waited_release(g_device, &m);
    close_all();
}

int main(int argc, char **argv) {
    int fd;
    if (argc == 2 && sscanf(argv[1], "--worker=%d", &fd) == 1)
        return fake_worker_run(fd);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many),  cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_dies),  cmocka_unit_test(test_lies),
                                       cmocka_unit_test(test_fails), cmocka_unit_test(test_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
