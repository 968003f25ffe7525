/* SPDX-License-Identifier: Apache-2.0
 *
 * What zipcclctl asks of its CUDA module, which it loads for bench codec --device cuda: plain C, so that zipcclctl
 * needs no CUDA to be built or to start.
 */
#ifndef ZIPCCL_CTL_BENCH_CUDA_H
#define ZIPCCL_CTL_BENCH_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BENCH_CUDA_EXPORT     __attribute__((visibility("default")))
#define BENCH_CUDA_MODULE     "zipcclctl-cuda.so"
#define BENCH_CUDA_TEXT       256
#define BENCH_CUDA_MAX_ROUNDS 1000

/* A chunk of the values, and room for its coded parts. */
struct bench_cuda_segment {
    uint64_t count, static_room, dynamic_room;
};

struct bench_cuda {
    zipcclCodec_t codec;
    zipcclDataType_t dtype;
    unsigned value_bytes;
    const void *values; /* period bytes in host memory, repeated to `bytes` on the GPU; a multiple of 16, or all */
    size_t period, bytes;
    const struct bench_cuda_segment *segments; /* the values one after another, each but the last whole 16 bytes */
    size_t nsegments;
    double min_seconds;
    /* results */
    double *copy_bps, *encode_bps, *decode_bps; /* room for BENCH_CUDA_MAX_ROUNDS each */
    size_t rounds;
    uint64_t coded;
    bool exact;
};

enum bench_cuda_answer { BENCH_CUDA_OK, BENCH_CUDA_NO_DEVICE, BENCH_CUDA_FAILED };

/* text: the device's name, or why not. */
BENCH_CUDA_EXPORT enum bench_cuda_answer bench_cuda_open(char text[BENCH_CUDA_TEXT]);
/* Measures. text: why it failed. */
BENCH_CUDA_EXPORT enum bench_cuda_answer bench_cuda_run(struct bench_cuda *b, char text[BENCH_CUDA_TEXT]);

#ifdef __cplusplus
}
#endif

#endif
