/* SPDX-License-Identifier: Apache-2.0
 *
 * What the BF16 loops on AVX-512 share: avx512_bf16_encode.c and avx512_bf16_decode.c.
 */
#ifndef ZIPCCL_KERNELS_CPU_AVX512_BF16_H
#define ZIPCCL_KERNELS_CPU_AVX512_BF16_H

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/avx512.h"

#define INLINE   static inline __attribute__((always_inline))
#define RARE(c)  __builtin_expect(!!(c), 0)
#define EACH8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

typedef __m512i v64;

enum {
    STEP = 2 * ZFMT_BLOCK,                   /* bytes of a block's values */
    TIER_BODY = 2 * ZFMT_PLANE + ZFMT_BLOCK, /* of its coded body */
    TOP7_BODY = 3 * ZFMT_PLANE + ZFMT_BLOCK
};

INLINE v64 set1(unsigned b) {
    return _mm512_set1_epi8((char)b);
}

INLINE v64 load(const void *p) {
    return _mm512_loadu_si512(p);
}

/* A value that is made where it stands, not where the compiler would like to. */
INLINE v64 here(v64 v) {
    __asm__ volatile("" : "+v"(v));
    return v;
}

INLINE void put(void *p, v64 v, bool stream) {
    if (stream)
        _mm512_stream_si512(p, v);
    else
        _mm512_storeu_si512(p, v);
}

INLINE void copy_block(uint8_t *dst, const uint8_t *src, bool stream) {
    for (unsigned i = 0; i < STEP; i += 64)
        put(dst + i, load(src + i), stream);
}

INLINE v64 swap(v64 v, v64 b) {
    const __mmask64 is_zero = _mm512_testn_epi8_mask(v, v), is_b = _mm512_cmpeq_epi8_mask(v, b);
    return _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(~is_b, v), is_zero, b);
}

/* Bit matrices of 8 by 8 transposed: byte k of a qword gets bit k of its bytes, the last byte's lowest. */
INLINE v64 transpose_reversed(v64 v) {
    return _mm512_gf2p8affine_epi64_epi8(_mm512_set1_epi64((long long)0x8040201008040201ull), v, 0);
}

#endif
