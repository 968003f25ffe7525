/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec on a GPU: the chunks of kernels/codec.h, byte for byte, from and to device memory.
 *
 * A call codes many segments (each a chunk of its own) in one batch. The table of segments and the results lie in
 * device memory. Calls only enqueue work on the stream: no allocation, no synchronisation, nothing read back; a CUDA
 * graph may capture them. Calls that share a workspace must be ordered. `stream` is a cudaStream_t.
 */
#ifndef ZIPCCL_KERNELS_CODEC_CUDA_H
#define ZIPCCL_KERNELS_CODEC_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* values: 16-byte aligned; encode reads them, decode writes them. static_part, dynamic_part: 128-byte aligned, the
 * bytes that may be written (encode; static_room at least codec_bound's) or read (decode; at least the chunk's). */
struct zipccl_cuda_segment {
    void *values;
    void *static_part;
    void *dynamic_part;
    uint64_t count;
    uint64_t static_room;
    uint64_t dynamic_room;
};

/* Bits of a result's status. */
enum {
    ZIPCCL_CUDA_OVERFLOW = 1, /* encode: the dynamic part needs dynamic_bytes; what did not fit was not written */
    ZIPCCL_CUDA_INVALID = 2,  /* pointer, room or count; nothing was written */
    ZIPCCL_CUDA_CORRUPT = 4   /* decode: not a chunk of this codec, dtype and count; values hold anything */
};

struct zipccl_cuda_result {
    uint64_t static_bytes; /* set by encode */
    uint64_t dynamic_bytes;
    uint32_t status;
    uint32_t bad_input; /* reduce: with CORRUPT, which */
};

/* Bytes of workspace for segments of total_values values together. */
size_t zipccl_cuda_workspace(uint32_t segments, uint64_t total_values);

/* Encodes each segment. max_sms: streaming multiprocessors to use, 0 for all. */
ZIPCCL_MUST_CHECK zipcclResult_t zipccl_cuda_encode(zipcclCodec_t codec, zipcclDataType_t dtype,
                                                    const struct zipccl_cuda_segment *table, uint32_t segments,
                                                    uint64_t total_values, struct zipccl_cuda_result *results,
                                                    void *workspace, unsigned max_sms, void *stream);

/* Decodes each segment. The coded input is untrusted. */
ZIPCCL_MUST_CHECK zipcclResult_t zipccl_cuda_decode(zipcclCodec_t codec, zipcclDataType_t dtype,
                                                    const struct zipccl_cuda_segment *table, uint32_t segments,
                                                    uint64_t total_values, struct zipccl_cuda_result *results,
                                                    void *workspace, unsigned max_sms, void *stream);

/* Decodes `inputs` chunks a segment and adds them: rows s * inputs to s * inputs + inputs - 1 of the table are segment
 * s; count and values of its first row count. Sums run in FP32 in row order, with one rounding (to nearest even; FP8
 * saturates) to out_dtype: dtype or zipcclFloat32. A corrupt input leaves the segment's values undefined. */
ZIPCCL_MUST_CHECK zipcclResult_t zipccl_cuda_decode_add(zipcclCodec_t codec, zipcclDataType_t dtype,
                                                        zipcclDataType_t out_dtype, unsigned inputs,
                                                        const struct zipccl_cuda_segment *table, uint32_t segments,
                                                        uint64_t total_values, struct zipccl_cuda_result *results,
                                                        void *workspace, unsigned max_sms, void *stream);

#ifdef __cplusplus
}
#endif

#endif
