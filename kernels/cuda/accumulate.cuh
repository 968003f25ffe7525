/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode + accumulate: a group of each input after another, the sums of its 32,768 values in registers (64 a thread).
 * Inputs are added in order in FP32; one rounding at the end.
 */
#ifndef ZIPCCL_KERNELS_CUDA_ACCUMULATE_CUH
#define ZIPCCL_KERNELS_CUDA_ACCUMULATE_CUH

#include "kernels/cuda/decode.cuh"

namespace zip {

/* Exponents of the narrow formats are rebased by an exact product, denormals too. */
template <int DTYPE> GPU_FN float to_float(uint32_t v) {
    if constexpr (DTYPE == zipcclFloat32) {
        return __uint_as_float(v);
    } else if constexpr (DTYPE == zipcclBfloat16) {
        return __uint_as_float(v << 16);
    } else if constexpr (DTYPE == zipcclFloat8e4m3) {
        const float f = __uint_as_float((v & 0x7f) << 20) * 0x1p120f;
        return __uint_as_float((v & 0x7f) == 0x7f ? 0x7fffffffu : __float_as_uint(f) | (v & 0x80) << 24);
    } else {
        const uint32_t h = DTYPE == zipcclFloat8e5m2 ? v << 8 : v;
        const float f = __uint_as_float((h & 0x7fff) << 13) * 0x1p112f;
        return __uint_as_float(__float_as_uint(f) | (h & 0x8000) << 16 | ((h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u));
    }
}

/* To nearest even. MANTISSA bits, exponent BIAS, codes above TOP become OVER. */
template <uint32_t MANTISSA, uint32_t BIAS, uint32_t TOP, uint32_t OVER> GPU_FN uint32_t narrow(uint32_t a) {
    constexpr uint32_t shift = 23 - MANTISSA, magic = (127 + 24 - BIAS - MANTISSA) << 23;
    uint32_t r;
    if (a < (128 - BIAS) << 23)
        r = __float_as_uint(__fadd_rn(__uint_as_float(a), __uint_as_float(magic))) - magic;
    else
        r = ((a + (1u << (shift - 1)) - 1 + (a >> shift & 1)) >> shift) - ((127 - BIAS) << MANTISSA);
    return r > TOP ? OVER : r;
}

template <int DTYPE> GPU_FN uint32_t from_float(float f) {
    const uint32_t x = __float_as_uint(f), a = x & 0x7fffffff, sign = x >> 31;
    const bool nan = a > 0x7f800000;
    if constexpr (DTYPE == zipcclFloat32)
        return nan ? 0x7fffffff : x;
    else if constexpr (DTYPE == zipcclBfloat16)
        return nan ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16;
    else if constexpr (DTYPE == zipcclFloat16)
        return nan ? 0x7fff : narrow<10, 15, 0x7c00, 0x7c00>(a) | sign << 15;
    else if constexpr (DTYPE == zipcclFloat8e5m2)
        return (nan ? 0x7f : narrow<2, 15, 0x7b, 0x7b>(a)) | (nan ? 0 : sign << 7);
    else
        return (nan ? 0x7f : narrow<3, 7, 0x7e, 0x7e>(a)) | (nan ? 0 : sign << 7);
}

/* Value i of a lane's words. */
template <int DTYPE> GPU_FN float value_of(const uint32_t w[Kind<DTYPE>::words], uint32_t i) {
    constexpr uint32_t bytes = Kind<DTYPE>::bytes, in_word = 4 / bytes;
    return to_float<DTYPE>(w[i / in_word] >> (8 * bytes * (i % in_word)) &
                           (bytes == 4 ? kAll : (1u << (8 * bytes % 32)) - 1));
}

/* The values of a lane of the short block. */
template <int DTYPE>
GPU_FN void short_lane(const uint8_t *body, bool raw, uint32_t bytes, uint32_t lane, uint32_t w[Kind<DTYPE>::words]) {
    GPU_UNROLL
    for (uint32_t j = 0; j < Kind<DTYPE>::bytes; j++) {
        const uint32_t at = 16 * (lane * Kind<DTYPE>::bytes + j);
        const uint4 v = raw && at < bytes ? gpu_ld16(body + at) : zero16();
        w[4 * j] = v.x, w[4 * j + 1] = v.y, w[4 * j + 2] = v.z, w[4 * j + 3] = v.w;
    }
}

/* Rounds a lane's sums and stores them; `values` of the block's are wanted. */
template <int DTYPE>
GPU_FN void put_sums(uint8_t *dst, uint8_t *stage, uint32_t lane, const float acc[16], uint32_t values) {
    constexpr uint32_t bytes = Kind<DTYPE>::bytes, in_word = 4 / bytes;
    uint32_t w[4 * bytes];
    GPU_UNROLL
    for (uint32_t i = 0; i < 4 * bytes; i++) {
        w[i] = 0;
        GPU_UNROLL
        for (uint32_t j = 0; j < in_word; j++)
            w[i] |= from_float<DTYPE>(acc[i * in_word + j]) << (8 * bytes * j % 32);
    }
    if (values == ZFMT_BLOCK) {
        put_lane<bytes>(dst, stage, lane, w);
        return;
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < 16 * bytes; i++)
        if (16 * bytes * lane + i < values * bytes)
            gpu_st(dst + 16 * bytes * lane + i, static_cast<uint8_t>(w[i / 4] >> (8 * (i % 4))));
}

/* A call, not inlined: beside the sums and the rounding to FP8 its registers would spill. */
template <int DTYPE, int CODEC>
GPU_COLD bool take_input_apart(const zipccl_cuda_segment *table, uint32_t inputs, uint32_t k, uint8_t *big,
                               TileShared &sh) {
    return take_input<DTYPE, CODEC>(table, inputs, k, big, sh);
}

template <int DTYPE, int CODEC>
GPU_FN void decode_add(const Work &work, const zipccl_cuda_segment *table, zipccl_cuda_result *results, uint32_t inputs,
                       bool to_fp32, uint8_t *big, TileShared &sh) {
    using K = Kind<DTYPE>;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint8_t *const stage = big + kTwo + warp * 4 * ZFMT_BLOCK;
    fill_select(sh.decode.select);
    while (draw_input(work, table, inputs, sh)) {
        float acc[kRounds][16];
        bool ok = true;
        GPU_UNROLL
        for (uint32_t q = 0; q < kRounds; q++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < 16; i++)
                acc[q][i] = -0.0f; /* the sum of nothing: x + -0 is x for every x */
        }
        GPU_ROLL
        for (uint32_t k = 0; k < inputs && ok; k++) {
            if constexpr (K::bytes == 1)
                ok = take_input_apart<DTYPE, CODEC>(table, inputs, k, big, sh);
            else
                ok = take_input<DTYPE, CODEC>(table, inputs, k, big, sh);
            GPU_ROLL /* one block at a time: two would not fit the registers */
                for (uint32_t r = 0; r < kRounds; r++) {
                const uint32_t block = warp + r * kWarps;
                if (!ok || block >= sh.tile.blocks)
                    continue;
                uint32_t w[K::words];
                if (block < sh.tile.full)
                    decode_lane<DTYPE, CODEC, true>(block, sh.group, big, sh.decode, stage, lane, w);
                else
                    short_lane<DTYPE>(sh.group.bodies + uint64_t{sh.decode.offset[block]} * ZFMT_BODY_ALIGN,
                                      (sh.decode.head[block] & 255) == ZFMT_RAW, sh.tile.rest * K::bytes, lane, w);
                GPU_UNROLL
                for (uint32_t q = 0; q < kRounds; q++) {
                    if (q != r)
                        continue;
                    GPU_UNROLL
                    for (uint32_t i = 0; i < 16; i++)
                        acc[q][i] = __fadd_rn(acc[q][i], value_of<DTYPE>(w, i));
                }
            }
            __syncthreads(); /* the escapes have been used */
        }
        if (!ok) {
            if (threadIdx.x == 0)
                atomicOr(&results[sh.tile.segment].status, static_cast<uint32_t>(ZIPCCL_CUDA_CORRUPT));
            continue;
        }
        GPU_ROLL
        for (uint32_t r = 0; r < kRounds; r++) {
            const uint32_t block = warp + r * kWarps;
            if (block >= sh.tile.blocks)
                continue;
            const uint64_t at = uint64_t{sh.tile.group} * ZFMT_GROUP + block * ZFMT_BLOCK;
            const uint32_t values = block < sh.tile.full ? ZFMT_BLOCK : sh.tile.rest;
            float sum[16] = {};
            GPU_UNROLL
            for (uint32_t q = 0; q < kRounds; q++) {
                GPU_UNROLL
                for (uint32_t i = 0; i < 16; i++)
                    sum[i] = q == r ? acc[q][i] : sum[i];
            }
            if (to_fp32 || DTYPE == zipcclFloat32)
                put_sums<zipcclFloat32>(sh.dst + 4 * at, stage, lane, sum, values);
            else
                put_sums<DTYPE>(sh.dst + K::bytes * at, stage, lane, sum, values);
        }
    }
}

} // namespace zip

#endif
