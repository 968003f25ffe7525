/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and events of the stand-in: what runs when, seen with streams that a word in memory holds back.
 */
#include "driver_calls.h"
#include "kernels_of_tests.h"

#include <time.h>

static void streams_open(cudaStream_t *s, unsigned n, unsigned flags) {
    for (unsigned i = 0; i < n; i++)
        OK(cudaStreamCreateWithPriority(&s[i], flags, -1));
}

/* A call returns before its work runs; one stream does not hold another; work of a stream keeps its order. */
static void asynchronous(int peer) {
    cudaStream_t s[2];
    uint32_t *device, *host, value = 0;
    (void)peer;
    streams_open(s, 2, cudaStreamNonBlocking);
    OK(cudaMalloc((void **)&device, 4));
    OK(cudaHostAlloc((void **)&host, 4, 0));
    *host = 1;
    OK(cudaMemset(device, 0, 4));
    OK(cudaDeviceSynchronize());
    const struct stop stop = stop_stream(s[0]);
    OK(cudaMemcpyAsync(device, host, 4, cudaMemcpyHostToDevice, s[0]));
    OK(launch_add(device, 1, 41, s[0]));
    OK(cudaMemcpyAsync(host, device, 4, cudaMemcpyDeviceToHost, s[0]));
    CHECK_IS(cudaStreamQuery(s[0]), cudaErrorNotReady);
    CHECK_IS(cudaGetLastError(), cudaErrorNotReady);
    OK(cudaMemcpyAsync(&value, device, 4, cudaMemcpyDeviceToHost, s[1])); /* pageable: it is there on return */
    CHECK_IS(value, 0);
    OK(cudaStreamQuery(s[1]));
    stop_release(stop);
    OK(cudaStreamSynchronize(s[0]));
    CHECK_IS(*host, 42);
    OK(cudaStreamQuery(s[0]));
    OK(cudaFree(device));
    OK(cudaFreeHost(host));
    OK(cudaFreeHost(stop.word));
    for (unsigned i = 0; i < 2; i++)
        OK(cudaStreamDestroy(s[i]));
    CHECK_IS(cudaStreamQuery(s[0]), cudaErrorInvalidResourceHandle);
}

static void events(int peer) {
    cudaStream_t s[2];
    cudaEvent_t done, timed[2];
    float ms = -1;
    (void)peer;
    streams_open(s, 2, cudaStreamNonBlocking);
    OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    OK(cudaEventQuery(done)); /* never recorded: nothing to wait for */
    OK(cudaStreamWaitEvent(s[1], done, 0));
    OK(cudaStreamSynchronize(s[1]));
    for (unsigned i = 0; i < 2; i++)
        OK(cudaEventCreate(&timed[i]));
    OK(cudaEventRecord(timed[0], s[0]));
    const struct stop stop = stop_stream(s[0]);
    OK(cudaEventRecord(done, s[0]));
    OK(cudaEventRecord(timed[1], s[0]));
    OK(cudaStreamWaitEvent(s[1], done, 0));
    CHECK_IS(cudaEventQuery(done), cudaErrorNotReady);
    CHECK_IS(cudaStreamQuery(s[1]), cudaErrorNotReady);
    CHECK_IS(cudaEventElapsedTime(&ms, timed[0], timed[1]), cudaErrorNotReady);
    OK(cudaEventSynchronize(timed[0]));
    nanosleep(&(struct timespec){0, 2000000}, NULL);
    stop_release(stop);
    OK(cudaEventSynchronize(done));
    OK(cudaStreamSynchronize(s[1]));
    OK(cudaStreamSynchronize(s[0]));
    OK(cudaEventElapsedTime(&ms, timed[0], timed[1]));
    CHECK(ms >= 1);
    CHECK_IS(cudaEventElapsedTime(&ms, timed[0], done), cudaErrorInvalidResourceHandle);
    OK(cudaEventRecord(done, s[0])); /* an own event may go while it is pending */
    OK(cudaEventDestroy(done));
    CHECK_IS(cudaEventQuery(done), cudaErrorInvalidResourceHandle);
    OK(cudaDeviceSynchronize());
}

/* The legacy stream waits for blocking streams and they for it; streams that do not block go their way. */
static void legacy(int peer) {
    cudaStream_t blocking[2], free_one;
    uint32_t *device, *host;
    (void)peer;
    streams_open(blocking, 2, cudaStreamDefault);
    streams_open(&free_one, 1, cudaStreamNonBlocking);
    OK(cudaMalloc((void **)&device, 4));
    OK(cudaHostAlloc((void **)&host, 4, 0));
    *host = 5;
    OK(cudaMemset(device, 0, 4));
    OK(cudaStreamSynchronize(NULL));
    const struct stop stop = stop_stream(blocking[0]);
    OK(cudaMemcpyAsync(device, host, 4, cudaMemcpyHostToDevice, NULL));
    OK(launch_add(device, 1, 2, blocking[1]));
    CHECK_IS(cudaStreamQuery(NULL), cudaErrorNotReady);
    CHECK_IS(cudaStreamQuery(blocking[1]), cudaErrorNotReady);
    uint32_t seen = 9;
    OK(cudaMemcpyAsync(&seen, device, 4, cudaMemcpyDeviceToHost, free_one));
    CHECK_IS(seen, 0);
    stop_release(stop);
    OK(cudaStreamSynchronize(blocking[1]));
    OK(cudaMemcpy(&seen, device, 4, cudaMemcpyDeviceToHost));
    CHECK_IS(seen, 7);
}

struct counter {
    uint32_t *value;
    uint32_t seen;
};
static void CUDART_CB note(void *arg) {
    struct counter *c = arg;
    c->seen = *c->value;
}

/* What is read from pageable memory is read at the call; host functions and words come in order. */
static void words_and_functions(int peer) {
    cudaStream_t s;
    uint32_t *word, own = 3;
    struct counter c = {NULL, 0};
    (void)peer;
    streams_open(&s, 1, cudaStreamNonBlocking);
    OK(cudaHostAlloc((void **)&word, 8, cudaHostAllocMapped));
    word[0] = word[1] = 0;
    c.value = word;
    const struct stop stop = stop_stream(s);
    OK(cudaMemcpyAsync(word, &own, 4, cudaMemcpyDefault, s));
    own = 4;
    OK(cudaLaunchHostFunc(s, note, &c));
    OK(WRITE_VALUE(s, (CUdeviceptr)(uintptr_t)&word[1], 77, 0));
    OK(WAIT_VALUE(s, (CUdeviceptr)(uintptr_t)&word[1], 77, CU_STREAM_WAIT_VALUE_EQ));
    OK(WAIT_VALUE(s, (CUdeviceptr)(uintptr_t)&word[1], 0x40, CU_STREAM_WAIT_VALUE_AND));
    CHECK_IS(WAIT_VALUE(s, (CUdeviceptr)(uintptr_t)&own, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_IS(word[1], 0);
    stop_release(stop);
    OK(cudaStreamSynchronize(s));
    CHECK_IS(c.seen, 3);
    CHECK_IS(word[1], 77);
}

static void capture(int peer) {
    cudaStream_t s, other;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    enum cudaStreamCaptureStatus status;
    cudaEvent_t event;
    uint32_t *device, value = 9;
    (void)peer;
    streams_open(&s, 1, cudaStreamNonBlocking);
    streams_open(&other, 1, cudaStreamDefault);
    OK(cudaEventCreate(&event));
    OK(cudaMalloc((void **)&device, 4));
    OK(cudaMemset(device, 0, 4));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamIsCapturing(s, &status));
    CHECK_IS(status, cudaStreamCaptureStatusNone);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamIsCapturing(s, &status));
    CHECK_IS(status, cudaStreamCaptureStatusActive);
    OK(launch_add(device, 1, 5, s));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost));
    CHECK_IS(value, 0); /* captured, and not run */
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost));
    CHECK_IS(value, 10);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CHECK_IS(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
    OK(cudaStreamIsCapturing(s, &status));
    CHECK_IS(status, cudaStreamCaptureStatusInvalidated);
    CHECK_IS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
    CHECK_IS(cudaMemsetAsync(device, 0, 4, NULL), cudaErrorStreamCaptureImplicit);
    CHECK_IS(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(graph == NULL);
}

static void launches(int peer) {
    cudaStream_t s;
    uint8_t *out, got[1024];
    int blocks = 0;
    (void)peer;
    streams_open(&s, 1, cudaStreamNonBlocking);
    OK(cudaMalloc((void **)&out, sizeof(got)));
    CHECK_IS(launch_big_block(out, 256, 60 << 10, false, &blocks, s), cudaErrorInvalidValue);
    CHECK_IS(launch_big_block(out, 256, 300 << 10, true, &blocks, s), cudaErrorInvalidValue);
    CHECK_IS(launch_big_block(out, 2048, 0, false, &blocks, s), cudaErrorInvalidConfiguration);
    (void)cudaGetLastError();
    OK(launch_big_block(out, 256, 60 << 10, true, &blocks, s));
    CHECK_IS(blocks, 3);
    OK(cudaMemcpyAsync(got, out, 256, cudaMemcpyDeviceToHost, s));
    for (unsigned i = 0; i < 256; i++)
        CHECK_IS(got[i], 255 - i);
    OK(launch_big_block(out, 256, 1 << 10, true, &blocks, s));
    CHECK_IS(blocks, 8);
    OK(cudaStreamSynchronize(s));
}

#define CASE(name)                                                                                                     \
    static void run_##name(void **state) {                                                                             \
        (void)state;                                                                                                   \
        forked_passes(name, NULL);                                                                                     \
    }
CASE(asynchronous)
CASE(events)
CASE(legacy)
CASE(words_and_functions)
CASE(capture)
CASE(launches)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_asynchronous),        cmocka_unit_test(run_events),  cmocka_unit_test(run_legacy),
        cmocka_unit_test(run_words_and_functions), cmocka_unit_test(run_capture), cmocka_unit_test(run_launches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
