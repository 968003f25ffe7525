/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of the stand-in share: the driver's calls, found as the product finds them (through the runtime, so that
 * nothing links libcuda), a stream that is held back, an event between processes.
 */
#ifndef ZIPCCL_TESTS_STANDIN_DRIVER_CALLS_H
#define ZIPCCL_TESTS_STANDIN_DRIVER_CALLS_H

#include "forked.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

static inline void *driver_call(const char *name) {
    void *fn = NULL;
    enum cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion(name, &fn, 12000, cudaEnableDefault, &found));
    CHECK_IS(found, cudaDriverEntryPointSuccess);
    return fn;
}
/* The call by the type of its declaration; its name without the version that cuda.h adds. */
#define DRIVER(call, name) ((__typeof__(&(call)))driver_call(name))
#define WAIT_VALUE         DRIVER(cuStreamWaitValue32, "cuStreamWaitValue32")
#define WRITE_VALUE        DRIVER(cuStreamWriteValue32, "cuStreamWriteValue32")

/* A stream that stands still until the word is set. */
struct stop {
    uint32_t *word;
};
static inline struct stop stop_stream(cudaStream_t stream) {
    struct stop s;
    OK(cudaHostAlloc((void **)&s.word, sizeof(*s.word), cudaHostAllocMapped));
    *s.word = 0;
    OK(WAIT_VALUE(stream, (CUdeviceptr)(uintptr_t)s.word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    return s;
}
static inline void stop_release(struct stop s) {
    __atomic_store_n(s.word, 1, __ATOMIC_RELEASE);
}

/* An event for the other process of a pair, and its side. */
static inline cudaEvent_t event_give(int peer) {
    cudaEvent_t e;
    cudaIpcEventHandle_t handle;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventInterprocess));
    OK(cudaIpcGetEventHandle(&handle, e));
    peer_send(peer, &handle, sizeof(handle));
    return e;
}
static inline cudaEvent_t event_take(int peer) {
    cudaEvent_t e;
    cudaIpcEventHandle_t handle;
    peer_receive(peer, &handle, sizeof(handle));
    OK(cudaIpcOpenEventHandle(&e, handle));
    return e;
}

#endif
