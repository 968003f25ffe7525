/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen consecutive values of a lane: their exponents as four words of four bytes, their remainder as byte planes and
 * bit planes. Arithmetic on four bytes at once in plain 32-bit operations: no GPU of today has byte vectors in
 * hardware. A "mark" is a word in which the top bit of each byte is the answer for that byte.
 */
#ifndef ZIPCCL_KERNELS_CUDA_BYTES_CUH
#define ZIPCCL_KERNELS_CUDA_BYTES_CUH

#include "kernels/cuda/gpu.cuh"
#include "kernels/format.h"
#include "zipccl_types.h"

namespace zip {

constexpr uint32_t kOnes = 0x01010101u, kHigh = 0x80808080u, kLow = 0x7f7f7f7fu, kAll = 0xffffffffu;

/* What kernels/layout.h says of a dtype, as constants. */
template <int DTYPE> struct Kind {
    static constexpr uint32_t bytes = DTYPE == zipcclFloat32                              ? 4
                                      : DTYPE == zipcclBfloat16 || DTYPE == zipcclFloat16 ? 2
                                                                                          : 1;
    static constexpr uint32_t byte_planes = bytes - 1;
    static constexpr uint32_t bit_planes = DTYPE == zipcclFloat8e4m3                             ? 4
                                           : DTYPE == zipcclFloat16 || DTYPE == zipcclFloat8e5m2 ? 3
                                                                                                 : 0;
    static constexpr uint32_t raw = ZFMT_BLOCK * bytes;
    static constexpr uint32_t words = 4 * bytes; /* of 16 values */
    static GPU_CONST uint32_t coded(uint32_t planes) {
        return ZFMT_PLANE * (planes + bit_planes) + ZFMT_BLOCK * byte_planes;
    }
    static GPU_CONST uint32_t budget(uint32_t planes) {
        return raw - coded(planes) - ZFMT_TIER_MARGIN;
    }
};

GPU_FN uint32_t repeat(uint32_t byte) {
    return byte * kOnes;
}
GPU_FN uint32_t sub_bytes(uint32_t a, uint32_t b) {
    return ((a | kHigh) - (b & kLow)) ^ ((a ^ ~b) & kHigh);
}
/* Marks the bytes that are N or more. */
template <uint32_t N> GPU_FN uint32_t mark_ge(uint32_t a) {
    static_assert(N >= 1 && N <= 128, "a byte's lower half");
    return (((a & kLow) + (128 - N) * kOnes) | a) & kHigh;
}
GPU_FN uint32_t mark_ge(uint32_t a, uint32_t n) {
    const uint32_t x = (a & kLow) + repeat((0u - n) & 127);
    return n == 0 ? kHigh : n == 128 ? a & kHigh : n < 128 ? (x | a) & kHigh : x & a & kHigh;
}
GPU_FN uint32_t mark_zero(uint32_t a) {
    return ~(((a & kLow) + kLow) | a) & kHigh;
}
/* 0xff where marked. */
GPU_FN uint32_t full(uint32_t mark) {
    return (mark >> 7) * 255;
}
/* The bytes 0 and b (repeated) change places. */
GPU_FN uint32_t swap_bytes(uint32_t a, uint32_t b) {
    const uint32_t zero = full(mark_zero(a)), other = full(mark_zero(a ^ b));
    return (a & ~(zero | other)) | (b & zero);
}
/* How many bytes are marked. */
GPU_FN uint32_t count_marks(const uint32_t m[4]) {
    return static_cast<uint32_t>(__popc((m[0] >> 7) | (m[1] >> 6) | (m[2] >> 5) | (m[3] >> 4)));
}
/* Bit `shift` of each byte of two words, as 8 bits in the top byte: the product moves bit 8i to bit 24 + i. */
GPU_FN uint32_t gather_two(uint32_t a, uint32_t b, uint32_t shift) {
    return ((a & kOnes << shift) | ((b & kOnes << shift) << 4)) * (0x01020408u >> shift);
}
/* Bit `shift`, at most 3, of each byte of four words, as 16 bits in value order. What lies above them is junk. */
GPU_FN uint32_t gather(const uint32_t a[4], uint32_t shift) {
    return __byte_perm(gather_two(a[0], a[1], shift), gather_two(a[2], a[3], shift), 0x4473);
}
/* Bits 0 and 1 of 16 bytes that have no others, as two such planes. */
GPU_FN void gather_codes(const uint32_t c[4], uint32_t *plane0, uint32_t *plane1) {
    const uint32_t all = c[0] + c[1] * 16 + c[2] * 4 + c[3] * 64;
    constexpr uint32_t low = 0x11111111u, to = 0x01020408u;
    *plane0 = __byte_perm((all & low) * to, (all & low << 2) * (to >> 2), 0x4473);
    *plane1 = __byte_perm((all & low << 1) * (to >> 1), (all & low << 3) * (to >> 3), 0x4473);
}
/* The inverse, for word i: bits 4i to 4i + 3 become the lowest bits of four bytes. */
GPU_FN uint32_t spread(uint32_t bits, uint32_t i) {
    return ((bits >> (4 * i) & 15) * 0x00204081u) & kOnes;
}

template <int DTYPE> struct Values {
    using K = Kind<DTYPE>;
    uint32_t e[4];
    uint32_t b[K::byte_planes ? K::byte_planes : 1][4];
    uint32_t high[4]; /* the byte that holds the bit planes in its lowest bits */

    GPU_FN void split(const uint32_t w[K::words]) {
        if constexpr (K::bytes == 4) {
            GPU_UNROLL
            for (int i = 0; i < 4; i++) {
                uint32_t r[4];
                GPU_UNROLL
                for (int j = 0; j < 4; j++)
                    r[j] = __funnelshift_l(w[4 * i + j], w[4 * i + j], 1);
                const uint32_t l0 = __byte_perm(r[0], r[1], 0x5140), h0 = __byte_perm(r[0], r[1], 0x7362);
                const uint32_t l1 = __byte_perm(r[2], r[3], 0x5140), h1 = __byte_perm(r[2], r[3], 0x7362);
                b[0][i] = __byte_perm(l0, l1, 0x5410);
                b[1][i] = __byte_perm(l0, l1, 0x7632);
                b[2][i] = __byte_perm(h0, h1, 0x5410);
                high[i] = __byte_perm(h0, h1, 0x7632);
            }
        } else if constexpr (K::bytes == 2) {
            GPU_UNROLL
            for (int i = 0; i < 4; i++) {
                const uint32_t x = 2 * w[2 * i], y = 2 * w[2 * i + 1];
                const uint32_t sign = __byte_perm(w[2 * i], w[2 * i + 1], 0x7531);
                b[0][i] = (__byte_perm(x, y, 0x6420) & ~kOnes) | ((sign >> 7) & kOnes);
                high[i] = __byte_perm(x, y, 0x7531);
            }
        } else {
            GPU_UNROLL
            for (int i = 0; i < 4; i++)
                high[i] = ((w[i] << 1) & ~kOnes) | ((w[i] >> 7) & kOnes);
        }
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            e[i] = (high[i] >> K::bit_planes) & ((0xffu >> K::bit_planes) * kOnes);
    }

    /* From e, b and the low bits of high. */
    GPU_FN void join(uint32_t w[K::words]) {
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            const uint32_t mask = (0xffu << K::bit_planes & 0xffu) * kOnes;
            const uint32_t h = K::bit_planes ? ((e[i] << K::bit_planes) & mask) | high[i] : e[i];
            if constexpr (K::bytes == 4) {
                const uint32_t l0 = __byte_perm(b[0][i], b[1][i], 0x5140), h0 = __byte_perm(b[2][i], h, 0x5140);
                const uint32_t l1 = __byte_perm(b[0][i], b[1][i], 0x7362), h1 = __byte_perm(b[2][i], h, 0x7362);
                const uint32_t r[4] = {__byte_perm(l0, h0, 0x5410), __byte_perm(l0, h0, 0x7632),
                                       __byte_perm(l1, h1, 0x5410), __byte_perm(l1, h1, 0x7632)};
                GPU_UNROLL
                for (int j = 0; j < 4; j++)
                    w[4 * i + j] = __funnelshift_r(r[j], r[j], 1);
            } else if constexpr (K::bytes == 2) {
                const uint32_t x = __byte_perm(b[0][i], h, 0x5140), y = __byte_perm(b[0][i], h, 0x7362),
                               m = 0x80008000u;
                w[2 * i] = ((x >> 1) & ~m) | ((x << 15) & m);
                w[2 * i + 1] = ((y >> 1) & ~m) | ((y << 15) & m);
            } else {
                w[i] = ((h >> 1) & kLow) | ((h << 7) & kHigh);
            }
        }
    }
};

GPU_FN uint32_t max_bytes(uint32_t a, uint32_t b) {
    const uint32_t low = (a | kHigh) - (b & kLow), m = full(((a & ~b) | (~(a ^ b) & low)) & kHigh);
    return (a & m) | (b & ~m);
}

GPU_FN uint32_t scan_warp(uint32_t v, uint32_t lane) {
    GPU_UNROLL
    for (uint32_t d = 1; d < 32; d <<= 1) {
        const uint32_t below = __shfl_up_sync(ZIP_FAULT(3) ? kAll >> 1 : kAll, v, d);
        v += lane >= d ? below : 0;
    }
    return v;
}

} // namespace zip

#endif
