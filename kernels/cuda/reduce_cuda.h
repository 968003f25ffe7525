/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions on a GPU: those of kernels/reduce.h, bit for bit, over inputs that are raw or coded, in device memory.
 *
 * A call makes many reductions of one dtype, codec and operation in one batch. What codec_cuda.h says of calls,
 * workspace (zipccl_cuda_workspace, of as many segments as reductions), results and streams holds here too. Hashes of
 * coded inputs are not checked.
 */
#ifndef ZIPCCL_KERNELS_REDUCE_CUDA_H
#define ZIPCCL_KERNELS_REDUCE_CUDA_H

#include "kernels/cuda/codec_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of an input's flags, as in struct reduce_input. The last input always ends a group. */
enum { ZIPCCL_CUDA_SCALED = 1, ZIPCCL_CUDA_ENDS_GROUP = 2, ZIPCCL_CUDA_ROUND_GROUP = 4 };

/* One input, in the order in which they are combined. */
struct zipccl_cuda_input {
    const void *src;         /* raw: values, aligned as the dtype, best to 16. Coded: static part, 128-byte aligned */
    const void *src_dynamic; /* coded: 128-byte aligned */
    uint64_t static_bytes;   /* coded: readable bytes of both parts, at least the chunk's */
    uint64_t dynamic_bytes;
    uint64_t scalar; /* where scaled: bits of the dtype, from the lowest */
    uint32_t codec;  /* zipcclCodec_t */
    uint32_t flags;
};

/* One reduction. dst: aligned as the dtype, best to 16; may be the memory of a raw input, from its start. */
struct zipccl_cuda_reduction {
    void *dst;
    const struct zipccl_cuda_input *inputs; /* device memory */
    uint64_t count;                         /* values, at most ZFMT_MAX_COUNT */
    uint32_t ninputs;                       /* at least 1 */
    uint32_t divisor;                       /* avg: what the end result is divided by; 0 or 1: not at all */
};

/* Reduces. codec: of the inputs that are coded; raw where none is, which is the cheaper call. An input of another codec
 * is ZIPCCL_CUDA_INVALID. total_values: of all counts. A result's status: INVALID, nothing was written; CORRUPT,
 * bad_input is the first such input of a group that has one, and dst holds anything. */
ZIPCCL_MUST_CHECK zipcclResult_t zipccl_cuda_reduce(zipcclCodec_t codec, zipcclDataType_t dtype, zipcclRedOp_t op,
                                                    const struct zipccl_cuda_reduction *table, uint32_t reductions,
                                                    uint64_t total_values, struct zipccl_cuda_result *results,
                                                    void *workspace, unsigned max_sms, void *stream);

#ifdef __cplusplus
}
#endif

#endif
