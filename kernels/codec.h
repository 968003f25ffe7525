/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec: turns values of one dtype into a coded chunk and back, bit for bit.
 *
 * Pure functions: no allocation, no lock, no state; any thread; up to 96 KiB of stack.
 * Pointers to values may have any alignment. Static and dynamic buffers are 64-byte aligned for encode; decode
 * takes any alignment. The result does not depend on the instruction set.
 */
#ifndef ZIPCCL_KERNELS_CODEC_H
#define ZIPCCL_KERNELS_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

/* Hint: the destination will not be read soon (larger than the caches): stores may bypass them. */
#define CODEC_STREAMING 1u

/* Bytes of values / coded bytes, of BF16 by tier, where nothing was measured: that of trained weights, tests/data has
 * some. The simulator takes it, and kernels/cuda/report.py, which reads this line. */
#define CODEC_USUAL_RATIO 1.488

/* Sizes in bytes of the two parts of a coded chunk. raw: dynamic is 0. */
struct codec_sizes {
    size_t static_bytes;
    size_t dynamic_bytes;
};

/* Instruction sets of the CPU codec. */
enum codec_isa { CODEC_ISA_SCALAR = 0, CODEC_ISA_AVX2 = 1, CODEC_ISA_AVX512 = 2, CODEC_NUM_ISAS };

/* "raw", "top7", "tier", "auto"; NULL for an unknown value. */
const char *codec_name(zipcclCodec_t codec);
/* False for an unknown name. */
bool codec_from_name(const char *name, zipcclCodec_t *codec);
/* False where the codec leaves this dtype raw (integers, FP64). raw: always true. */
bool codec_supports(zipcclCodec_t codec, zipcclDataType_t dtype);

/* "scalar", "avx2", "avx512". */
const char *codec_isa_name(enum codec_isa isa);
/* Whether this processor can run it. */
bool codec_isa_available(enum codec_isa isa);
/* The one in use: the best available, or the one that $ZIPCCL_ISA names (ignored with one line on stderr where
 * unknown or unavailable). Read once. */
enum codec_isa codec_isa_current(void);
/* Forces an available one in this process from here on; for tests and benchmarks, not thread-safe. */
ZIPCCL_MUST_CHECK bool codec_isa_force(enum codec_isa isa);

/* Greatest sizes for count values, 128-byte multiples (raw: exactly the bytes of the values).
 * 0 on both where codec_supports is false or count is over ZFMT_MAX_COUNT. */
struct codec_sizes codec_bound(zipcclCodec_t codec, zipcclDataType_t dtype, size_t count);

/* Codes count values from src. static_part and dynamic_part have room for codec_bound. *sizes is set on success.
 * zipcclInvalidArgument: unsupported dtype or count. */
ZIPCCL_MUST_CHECK zipcclResult_t codec_encode(zipcclCodec_t codec, zipcclDataType_t dtype, const void *src,
                                              size_t count, void *static_part, void *dynamic_part, unsigned flags,
                                              struct codec_sizes *sizes);

/* Restores count values to dst. The parts are untrusted: zipcclCorruptData where they are not a chunk of exactly
 * this codec, dtype, count and size; dst then holds any values. No access outside the given ranges. */
ZIPCCL_MUST_CHECK zipcclResult_t codec_decode(zipcclCodec_t codec, zipcclDataType_t dtype, const void *static_part,
                                              size_t static_bytes, const void *dynamic_part, size_t dynamic_bytes,
                                              void *dst, size_t count, unsigned flags);

/* Reads the sizes out of the first 128 bytes of a static part (untrusted, checked against codec_bound). */
ZIPCCL_MUST_CHECK zipcclResult_t codec_peek(zipcclCodec_t codec, zipcclDataType_t dtype, size_t count,
                                            const void *header, size_t header_bytes, struct codec_sizes *sizes);

#endif
