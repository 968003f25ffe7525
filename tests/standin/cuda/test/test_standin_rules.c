/* SPDX-License-Identifier: Apache-2.0
 *
 * What the stand-in refuses: the checker's rules, injected errors, sticky errors, and what it counts.
 */
#include "driver_calls.h"
#include "kernels_of_tests.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>

static cudaStream_t new_stream(void) {
    cudaStream_t s;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static uint32_t *new_memory(void) {
    uint32_t *p;
    OK(cudaMalloc((void **)&p, 4096));
    return p;
}

/* ---- the checker ---- */

static void frees_in_use(int peer) {
    cudaStream_t s = new_stream();
    uint32_t *p = new_memory();
    (void)peer;
    (void)stop_stream(s);
    OK(launch_add(p + 3, 1, 1, s));
    CHECK_IS(cudaFree(p), cudaErrorInvalidValue);
    exit(7);
}

/* The same with ZIPCCL_STANDIN_CHECK=report: an error, and the program goes on. */
static void reports(int peer) {
    cudaStream_t s = new_stream();
    uint32_t *p = new_memory();
    (void)peer;
    const struct stop stop = stop_stream(s);
    OK(launch_add(p, 1, 1, s));
    CHECK_IS(cudaFree(p), cudaErrorInvalidValue);
    stop_release(stop);
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(p));
    OK(cudaFreeHost(stop.word));
}

static void frees_host_in_use(int peer) {
    cudaStream_t s = new_stream();
    uint32_t *p = new_memory(), *host;
    (void)peer;
    (void)stop_stream(s);
    OK(cudaHostAlloc((void **)&host, 64, 0));
    OK(cudaMemcpyAsync(host, p, 64, cudaMemcpyDeviceToHost, s));
    (void)cudaFreeHost(host);
}

static void launches_on_wrong_device(int peer) {
    cudaStream_t s = new_stream();
    uint32_t *p = new_memory();
    (void)peer;
    OK(cudaSetDevice(1));
    (void)launch_add(p, 1, 1, s);
}

static void records_on_wrong_device(int peer) {
    cudaStream_t s = new_stream();
    cudaEvent_t e;
    (void)peer;
    OK(cudaSetDevice(1));
    OK(cudaEventCreate(&e));
    (void)cudaEventRecord(e, s);
}

static void opens_own_memory(int peer) {
    cudaIpcMemHandle_t h;
    void *p;
    (void)peer;
    OK(cudaIpcGetMemHandle(&h, new_memory()));
    (void)cudaIpcOpenMemHandle(&p, h, cudaIpcMemLazyEnablePeerAccess);
}

static void launches_unknown(int peer) {
    (void)peer;
    (void)launch_missing(new_memory(), NULL);
}

static void destroys_awaited(int peer) {
    cudaStream_t s = new_stream();
    cudaEvent_t e = event_give(peer);
    (void)stop_stream(s);
    OK(cudaEventRecord(e, s));
    peer_meet(peer);
    peer_meet(peer); /* the other one waits */
    (void)cudaEventDestroy(e);
}

static void awaits(int peer) {
    char c;
    cudaEvent_t e = event_take(peer);
    peer_meet(peer);
    OK(cudaStreamWaitEvent(new_stream(), e, 0));
    peer_meet(peer);
    (void)!read(peer, &c, 1);
}

static void event_gone(int peer) {
    cudaEvent_t e = event_give(peer);
    char c;
    peer_receive(peer, &c, 1);
    OK(cudaEventDestroy(e));
    peer_send(peer, &c, 1);
    (void)!read(peer, &c, 1);
}

static void opens_destroyed(int peer) {
    cudaIpcEventHandle_t h;
    cudaEvent_t e;
    peer_receive(peer, &h, sizeof(h));
    peer_meet(peer);
    (void)cudaIpcOpenEventHandle(&e, h);
}

static void uses_destroyed(int peer) {
    cudaEvent_t e = event_take(peer);
    peer_meet(peer);
    (void)cudaEventRecord(e, new_stream());
}

static void frees_imported(int peer) {
    cudaIpcMemHandle_t h;
    uint32_t *p = new_memory();
    OK(cudaIpcGetMemHandle(&h, p));
    peer_send(peer, &h, sizeof(h));
    peer_meet(peer);
    (void)cudaFree(p);
}

static void imports(int peer) {
    cudaIpcMemHandle_t h;
    void *p;
    char c;
    peer_receive(peer, &h, sizeof(h));
    OK(cudaIpcOpenMemHandle(&p, h, cudaIpcMemLazyEnablePeerAccess));
    peer_meet(peer);
    (void)!read(peer, &c, 1);
}

static void checker_aborts(void **state) {
    (void)state;
    forked_aborts(frees_in_use, "rule broken: buffer freed while in use by queued work", NULL);
    forked_aborts(frees_host_in_use, "rule broken: buffer freed while in use by queued work", NULL);
    forked_aborts(launches_on_wrong_device, "rule broken: wrong device current", NULL);
    forked_aborts(records_on_wrong_device, "rule broken: wrong device current", NULL);
    forked_aborts(opens_own_memory, "rule broken: handle opened by its exporter", NULL);
    forked_aborts(launches_unknown, "unknown kernel test_missing", NULL);
    forked_passes(reports, "ZIPCCL_STANDIN_CHECK=report", NULL);
}

static void checker_aborts_between_processes(void **state) {
    (void)state;
    forked_pair_aborts(destroys_awaited, awaits, "rule broken: event destroyed while waited on", NULL);
    forked_pair_aborts(opens_destroyed, event_gone, "rule broken: event opened after its exporter destroyed it", NULL);
    forked_pair_aborts(uses_destroyed, event_gone, "rule broken: imported event used after its exporter", NULL);
    forked_pair_aborts(frees_imported, imports, "rule broken: memory freed before its importers closed it", NULL);
}

/* ---- injected and sticky errors ---- */

static void third_fails(int peer) {
    cudaStream_t s = new_stream();
    uint32_t *p = new_memory();
    (void)peer;
    for (unsigned i = 1; i <= 5; i++)
        CHECK_IS(cudaMemsetAsync(p, 0, 4, s), i == 3 ? cudaErrorMemoryAllocation : 0);
    CHECK_IS(cudaGetLastError(), cudaErrorMemoryAllocation);
    for (unsigned i = 1; i <= 3; i++)
        CHECK_IS(cudaStreamQuery(s) == cudaErrorUnknown, i >= 2);
    OK(cudaStreamSynchronize(s));
}

/* An error of the device stays: the call that meets it, and every one after it. */
static void sticky(int peer) {
    uint32_t *p = new_memory();
    int n;
    (void)peer;
    CHECK_IS(cudaMemset(p, 0, 4), cudaErrorIllegalAddress);
    CHECK_IS(cudaMemset(p, 0, 4), cudaErrorIllegalAddress);
    CHECK_IS(cudaGetDeviceCount(&n), cudaErrorIllegalAddress);
    CHECK_IS(cudaGetLastError(), cudaErrorIllegalAddress);
    CHECK_IS(cudaGetLastError(), cudaErrorIllegalAddress);
}

/* A kernel fails while it runs: launches succeed, waits tell, what was queued behind it does not run. */
static void kernel_fails(int peer) {
    cudaStream_t s = new_stream();
    uint32_t *p = new_memory(), *host;
    cudaError_t e = cudaSuccess;
    (void)peer;
    OK(cudaHostAlloc((void **)&host, 4, 0));
    *host = 9;
    OK(launch_add(p, 1, 1, s));
    OK(cudaStreamSynchronize(s));
    const struct stop stop = stop_stream(s);
    OK(launch_add(p, 1, 1, s));
    OK(cudaMemcpyAsync(host, p, 4, cudaMemcpyDeviceToHost, s));
    stop_release(stop);
    e = cudaStreamSynchronize(s);
    CHECK_IS(e, cudaErrorLaunchFailure);
    CHECK_IS(*host, 9);
}

/* A real fault: memory that is not there any more, and a mapping without access. */
static void kernel_faults(int peer) {
    cudaStream_t s = new_stream();
    uint32_t *p = new_memory();
    (void)peer;
    OK(cudaFree(p));
    const struct stop stop = stop_stream(s); /* or it may have failed before the launch returns */
    OK(launch_touch(p, s));
    stop_release(stop);
    CHECK_IS(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    CHECK_IS(launch_add(p, 1, 1, s), cudaErrorIllegalAddress);
}

/* Armed in a running process by a file. */
static void armed_by_file(int peer) {
    const char *path = getenv("ZIPCCL_STANDIN_FAIL_FILE");
    uint32_t *p = new_memory();
    (void)peer;
    for (unsigned round = 0; round < 2; round++) {
        OK(cudaMemset(p, 0, 4));
        FILE *f = fopen(path, "w");
        CHECK(f && fprintf(f, "cudaMemset:%u=1\n", round + 1) > 0 && fclose(f) == 0);
        CHECK_IS(cudaMemset(p, 0, 4), round == 0 ? cudaErrorInvalidValue : 0);
        CHECK_IS(cudaMemset(p, 0, 4), round == 1 ? cudaErrorInvalidValue : 0);
    }
    unlink(path);
}

static void no_driver(int peer) {
    int n = 5;
    (void)peer;
    CHECK_IS(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    CHECK_IS(n, 0);
}

static void errors_are_injected(void **state) {
    char file[64];
    (void)state;
    snprintf(file, sizeof(file), "ZIPCCL_STANDIN_FAIL_FILE=/tmp/zipccl-standin-fail.%d", (int)getpid());
    forked_passes(third_fails, "ZIPCCL_STANDIN_FAIL=cudaMemsetAsync:3=2;cudaStreamQuery:2+=999", NULL);
    forked_passes(sticky, "ZIPCCL_STANDIN_FAIL=cudaMemset:1=700", NULL);
    forked_passes(kernel_fails, "ZIPCCL_STANDIN_FAIL=kernel:2=719", NULL);
    forked_passes(kernel_faults, NULL);
    forked_passes(armed_by_file, file, NULL);
    forked_passes(no_driver, "ZIPCCL_STANDIN_FAIL=cudaGetDeviceCount:*=35", NULL);
}

/* ---- separate addresses ---- */

static void host_touches(int peer) {
    volatile uint32_t *p = new_memory();
    (void)peer;
    *p = 1;
}

static void host_calls_fail(int peer) {
    uint32_t *p = new_memory();
    int ends[2];
    (void)peer;
    OK(cudaMemset(p, 0, 4096));
    OK(cudaDeviceSynchronize());
    OK(pipe(ends));
    CHECK(write(ends[1], p, 4) == -1 && errno == EFAULT); /* the operating system's own access fails too */
}

static void kernel_touches_pageable(int peer) {
    uint32_t *own = calloc(64, sizeof(*own)), *locked, value = 0;
    cudaStream_t s = new_stream();
    (void)peer;
    OK(cudaHostAlloc((void **)&locked, 256, 0));
    *locked = 4;
    OK(launch_add(locked, 1, 3, s));
    OK(cudaStreamSynchronize(s));
    CHECK_IS(*locked, 7);
    OK(cudaMemcpy(&value, locked, 4, cudaMemcpyDefault));
    CHECK_IS(value, 7);
    const struct stop stop = stop_stream(s);
    OK(launch_add(own, 1, 3, s));
    stop_release(stop);
    CHECK_IS(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    free(own);
}

static void addresses_are_separate(void **state) {
    (void)state;
    forked_crashes(host_touches, "the host touched device memory", "ZIPCCL_STANDIN_SEPARATE=1", NULL);
    forked_passes(host_calls_fail, "ZIPCCL_STANDIN_SEPARATE=1", NULL);
    forked_passes(kernel_touches_pageable, "ZIPCCL_STANDIN_SEPARATE=1", NULL);
    forked_passes(kernel_faults, "ZIPCCL_STANDIN_SEPARATE=1", NULL);
}

/* ---- fork, counts ---- */

static void forks(int peer) {
    int n, status;
    (void)peer;
    (void)new_memory();
    const pid_t pid = fork();
    if (pid == 0)
        _exit(cudaGetDeviceCount(&n) == cudaErrorInitializationError ? 0 : 1);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_IS(status, 0);
}

static unsigned long counted(const char *text, const char *name) {
    const size_t n = strlen(name);
    for (const char *p = text; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (strncmp(p, name, n) == 0 && p[n] == ' ')
            return strtoul(p + n, NULL, 10);
    return 0;
}

static void counts(int peer) {
    cudaStream_t s = new_stream();
    uint32_t *p = new_memory(), *host, pageable = 0;
    char path[256], text[64 * 256 + 1];
    (void)peer;
    OK(cudaHostAlloc((void **)&host, 4, 0));
    snprintf(path, sizeof(path), "%s.%d", getenv("ZIPCCL_STANDIN_COUNT"), (int)getpid());
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    text[pread(fd, text, sizeof(text) - 1, 0)] = 0;
    const unsigned long blocked = counted(text, "blocking");
    CHECK_IS(blocked, 2); /* the two allocations */
    for (unsigned i = 0; i < 12; i++)
        OK(cudaMemcpyAsync(p, host, 4, cudaMemcpyHostToDevice, s));
    OK(launch_add(p, 1, 1, s));
    text[pread(fd, text, sizeof(text) - 1, 0)] = 0;
    CHECK_IS(counted(text, "cudaMemcpyAsync"), 12);
    CHECK_IS(counted(text, "cudaLaunchKernel"), 1);
    CHECK_IS(counted(text, "blocking"), blocked);
    OK(cudaMemcpyAsync(&pageable, p, 4, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    text[pread(fd, text, sizeof(text) - 1, 0)] = 0;
    CHECK_IS(counted(text, "copy(pageable)"), 1);
    CHECK_IS(counted(text, "blocking"), blocked + 2);
    close(fd);
    unlink(path);
}

static void fork_and_counts(void **state) {
    char count[64];
    (void)state;
    snprintf(count, sizeof(count), "ZIPCCL_STANDIN_COUNT=/tmp/zipccl-standin-count.%d", (int)getpid());
    forked_passes(forks, NULL);
    forked_passes(counts, count, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checker_aborts),      cmocka_unit_test(checker_aborts_between_processes),
        cmocka_unit_test(errors_are_injected), cmocka_unit_test(addresses_are_separate),
        cmocka_unit_test(fork_and_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
