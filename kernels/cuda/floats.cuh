/* SPDX-License-Identifier: Apache-2.0
 *
 * Floats of 32 bits or less to FP32 and back, by the rule of zipccl_types.h, and 16 of them a lane to memory.
 */
#ifndef ZIPCCL_KERNELS_CUDA_FLOATS_CUH
#define ZIPCCL_KERNELS_CUDA_FLOATS_CUH

#include "kernels/cuda/chunk.cuh"
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

/* An unsigned integer of this many bytes. */
template <uint32_t BYTES> struct Bits;
template <> struct Bits<1> { using type = uint8_t; };
template <> struct Bits<2> { using type = uint16_t; };
template <> struct Bits<4> { using type = uint32_t; };
template <> struct Bits<8> { using type = uint64_t; };

/* Where byte n of a block lies in a stage. */
GPU_FN uint32_t staged(uint32_t n) {
    return 16 * swizzle(n / 16) + n % 16;
}

/* Rounds a lane's sums and stores them; `values` of the block's are wanted. aligned: dst is, to 16 bytes. */
template <int DTYPE>
GPU_FN void put_sums(uint8_t *dst, uint8_t *stage, uint32_t lane, const float acc[16], uint32_t values, bool aligned) {
    constexpr uint32_t bytes = Kind<DTYPE>::bytes, in_word = 4 / bytes;
    using B = typename Bits<bytes>::type;
    uint32_t w[4 * bytes];
    GPU_UNROLL
    for (uint32_t i = 0; i < 4 * bytes; i++) {
        w[i] = 0;
        GPU_UNROLL
        for (uint32_t j = 0; j < in_word; j++)
            w[i] |= from_float<DTYPE>(acc[i * in_word + j]) << (8 * bytes * j % 32);
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < bytes; j++)
        *reinterpret_cast<uint4 *>(stage + 16 * swizzle(lane * bytes + j)) =
            make_uint4(w[4 * j], w[4 * j + 1], w[4 * j + 2], w[4 * j + 3]);
    __syncwarp();
    if (values == ZFMT_BLOCK && aligned) {
        GPU_UNROLL
        for (uint32_t j = 0; j < bytes; j++)
            gpu_st16(dst + 16 * (32 * j + lane), *reinterpret_cast<const uint4 *>(stage + 16 * swizzle(32 * j + lane)));
    } else {
        GPU_ROLL
        for (uint32_t i = lane; i < values; i += 32)
            gpu_st(reinterpret_cast<B *>(dst) + i, *reinterpret_cast<const B *>(stage + staged(i * bytes)));
    }
    __syncwarp();
}

} // namespace zip

#endif
