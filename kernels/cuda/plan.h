/* SPDX-License-Identifier: Apache-2.0
 *
 * How a call to codec_cuda.h becomes launches: the workspace's layout, names of kernels, their shared memory. Host code
 * without CUDA, so that the launcher and the tests that run kernels on a CPU share it.
 */
#ifndef ZIPCCL_KERNELS_CUDA_PLAN_H
#define ZIPCCL_KERNELS_CUDA_PLAN_H

#include "kernels/cuda/codec_cuda.h"
#include "kernels/format.h"

#include <stdint.h>

/* The workspace: a ticket, then the first tile of every segment, windows of top7, and the look-back words. */
namespace zip {
struct Work {
    uint32_t *ticket;
    uint32_t *first;   /* [segments + 1] */
    uint32_t *window;  /* [segments]: base | zero << 8 */
    uint32_t *bodies;  /* [tiles] */
    uint32_t *dynamic; /* [tiles] */
    uint32_t segments, tiles;
};

/* A segment without values has a tile too, and each may end in a short group. */
inline uint64_t tiles_of(uint32_t segments, uint64_t total_values) {
    return total_values / ZFMT_GROUP + segments;
}
inline size_t work_words(uint32_t segments, uint64_t tiles) {
    return 2 + 2 * static_cast<size_t>(segments) + 2 * static_cast<size_t>(tiles);
}
inline Work work_of(void *memory, uint32_t segments, uint64_t tiles) {
    uint32_t *p = static_cast<uint32_t *>(memory);
    Work w;
    w.ticket = p;
    w.first = p + 1;
    w.window = w.first + segments + 1;
    w.bodies = w.window + segments;
    w.dynamic = w.bodies + tiles;
    w.segments = segments;
    w.tiles = static_cast<uint32_t>(tiles);
    return w;
}

constexpr unsigned kBlockThreads = 512;

/* Encode's shared memory has a place for each block of a group: its values, later its coded body and behind it (from
 * encode_escapes on) its escapes. Tier wants 72 KiB of it in the end (encode.cuh). FP32 that is not staged leaves its
 * byte planes out. */
constexpr uint32_t encode_coded(bool tier, uint32_t bytes, uint32_t bit_planes, bool staged) {
    return ZFMT_PLANE * ((tier ? 2 : 3) + bit_planes) + (staged ? ZFMT_BLOCK * (bytes - 1) : 0);
}
constexpr uint32_t encode_escapes(bool tier, uint32_t bytes, uint32_t bit_planes, bool staged) {
    const uint32_t coded = encode_coded(tier, bytes, bit_planes, staged);
    return coded > ZFMT_BLOCK ? coded : ZFMT_BLOCK;
}
constexpr uint32_t encode_pitch(bool tier, uint32_t bytes, uint32_t bit_planes, bool staged) {
    const uint32_t raw = ZFMT_BLOCK * bytes, saved = raw - encode_coded(tier, bytes, bit_planes, true);
    const uint32_t end = encode_escapes(tier, bytes, bit_planes, staged) + (tier ? ZFMT_BLOCK : saved);
    const uint32_t least = tier ? 1152 : 1024, most = end > least ? end : least;
    return staged && raw > most ? raw : most;
}
constexpr uint32_t encode_shared(zipcclCodec_t codec, zipcclDataType_t dtype, bool staged) {
    const uint32_t bytes = dtype == zipcclFloat32 ? 4 : dtype == zipcclBfloat16 || dtype == zipcclFloat16 ? 2 : 1;
    const uint32_t bits = dtype == zipcclFloat8e4m3 ? 4 : dtype == zipcclFloat16 || dtype == zipcclFloat8e5m2 ? 3 : 0;
    return ZFMT_GROUP_BLOCKS * encode_pitch(codec == zipcclCodecTier, bytes, bits, staged);
}

/* Decode's: two times a byte a value and the code planes (decode.cuh). */
constexpr uint32_t kDecodeSharedTier = 2 * ZFMT_GROUP + ZFMT_GROUP_BLOCKS * 2 * ZFMT_PLANE;
constexpr uint32_t kDecodeSharedTop7 = 2 * ZFMT_GROUP + ZFMT_GROUP_BLOCKS * 3 * ZFMT_PLANE;
inline uint32_t reduce_shared(zipcclCodec_t codec) {
    return codec == zipcclCodecRaw ? 0 : codec == zipcclCodecTier ? kDecodeSharedTier : kDecodeSharedTop7;
}
} // namespace zip

#endif
