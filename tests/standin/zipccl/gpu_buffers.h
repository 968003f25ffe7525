/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on memory of GPUs, checked as others are: filled on the host, carried to the GPU, run in a CUDA stream,
 * brought back by copies in that stream behind the operation.
 */
#ifndef ZIPCCL_TESTS_GPU_BUFFERS_H
#define ZIPCCL_TESTS_GPU_BUFFERS_H

#include <cuda_runtime_api.h>

#include "anyop.h"
#include "zipccl_cuda.h"

enum gpu_kind {
    GPU_MALLOC, /* cudaMalloc: shared by IPC */
    GPU_VMM,    /* shared by descriptor */
    GPU_POOL,   /* cudaMallocAsync: cannot be shared, staged */
    GPU_HOST,   /* cudaMallocHost: staged too */
    GPU_ZIPCCL, /* zipcclMemAlloc */
    GPU_KINDS
};

#define CUDA_OK(call) gpu_ok(__FILE__, __LINE__, #call, (call))
void gpu_ok(const char *file, int line, const char *what, cudaError_t e);

/* Whether CUDA is the stand-in, which counts calls and fails on demand, or a real one (tests/gpu/run.sh). */
bool gpu_standin(void);

struct gpu_memory {
    enum gpu_kind kind;
    uint8_t *base;
    size_t bytes;
    unsigned long long handle; /* VMM */
};
void gpu_memory_new(struct gpu_memory *m, enum gpu_kind kind, size_t bytes, cudaStream_t stream);
void gpu_memory_free(struct gpu_memory *m, cudaStream_t stream);

/* The process that works on a GPU for a daemon; 0: there is none now. */
pid_t gpu_worker(pid_t daemon, unsigned gpu);

/* A rank of a case: its GPU, its streams. */
struct gpu_rank {
    cudaStream_t cuda;
    zipcclStream_t stream;
};
void gpu_rank_begin(struct gpu_rank *g, int device);
void gpu_rank_end(struct gpu_rank *g);

struct gpu_buffers {
    struct any_buffers any; /* first */
    struct gpu_memory send, recv;
    cudaStream_t cuda;
};
void gpu_buffers_new(struct gpu_buffers *b, const struct gpu_rank *g, enum gpu_kind send, enum gpu_kind recv,
                     size_t bytes);
void gpu_buffers_free(struct gpu_buffers *b);
/* Behind an operation: what the buffers hold comes back, in stream order. */
void gpu_fetch(struct gpu_buffers *b);

#endif
