/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions on AVX-512. BF16 needs no shuffle: a register's even values are its words shifted up, its odd ones its
 * words with the lower half cleared.
 */
#include <immintrin.h>

#include "kernels/cpu/reduce_passes.h"

#define VF_LANES 16u
typedef __m512 vf;

#define vf_set1  _mm512_set1_ps
#define vf_add   _mm512_add_ps
#define vf_mul   _mm512_mul_ps
#define vf_div   _mm512_div_ps
#define vf_fence _mm_sfence

#include "kernels/layout.h"

INLINE vf vf_load(const void *p) {
    return _mm512_loadu_ps(p);
}

INLINE void vf_store(void *p, vf v) {
    _mm512_storeu_ps(p, v);
}

/* FP8 goes by way of FP16: E5M2 is its upper byte, E4M3 has an exponent that is 8 too low there. */
INLINE vf widen8(enum layout_kind kind, __m128i codes) {
    const __m256i w = _mm256_cvtepi8_epi16(codes), magnitude = _mm256_set1_epi16(0x7f);
    if (kind == KIND_E5M2)
        return _mm512_cvtph_ps(_mm256_slli_epi16(w, 8));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(w, magnitude), magnitude);
    const __m256i h = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xbf80));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_mask_mov_epi16(h, nan, _mm256_set1_epi16(0x7fff))),
                         _mm512_set1_ps(256));
}

/* narrow_bits of reduce_passes.h. */
INLINE __m128i narrow8(enum layout_kind kind, vf v) {
    const unsigned mantissa = kind == KIND_E5M2 ? 2 : 3, bias = kind == KIND_E5M2 ? 15 : 7, shift = 23 - mantissa;
    const __m512i x = _mm512_castps_si512(v), a = _mm512_and_si512(x, _mm512_set1_epi32(0x7fffffff));
    const __m512i magic = _mm512_set1_epi32((int)((127 + 24 - bias - mantissa) << 23));
    const __m512i low =
        _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(magic))), magic);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(a, shift), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(a, _mm512_add_epi32(odd, _mm512_set1_epi32((1 << (shift - 1)) - 1)));
    const __m512i high =
        _mm512_sub_epi32(_mm512_srli_epi32(up, shift), _mm512_set1_epi32((int)((127 - bias) << mantissa)));
    const __mmask16 small = _mm512_cmplt_epi32_mask(a, _mm512_set1_epi32((int)((128 - bias) << 23)));
    const __m512i top = _mm512_set1_epi32(kind == KIND_E5M2 ? 0x7b : 0x7e);
    const __m512i code = _mm512_min_epi32(_mm512_mask_mov_epi32(high, small, low), top);
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(x, 24), _mm512_set1_epi32(0x80));
    return _mm512_cvtepi32_epi8(_mm512_mask_mov_epi32(_mm512_or_si512(code, sign),
                                                      _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7f)));
}

INLINE void vf_get(enum layout_kind kind, const uint8_t *p, vf v[4]) {
    if (kind == KIND_BF16) {
        const __m512i odd = _mm512_set1_epi32((int)0xffff0000u);
        for (unsigned i = 0; i < 2; i++) {
            const __m512i w = _mm512_loadu_si512(p + 64 * i);
            v[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
            v[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(w, odd));
        }
        return;
    }
    if (kind == KIND_E4M3 || kind == KIND_E5M2) {
        for (unsigned i = 0; i < 4; i++)
            v[i] = widen8(kind, _mm_loadu_si128((const void *)(p + 16 * i)));
        return;
    }
    for (unsigned i = 0; i < 4; i++)
        v[i] =
            kind == KIND_FP32 ? vf_load(p + 64 * i) : _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p + 32 * i)));
}

/* 32 values rounded to BF16, from their even and their odd ones. On 16-bit halves: the lower ones carry one up where
 * they are over a half, or a half below an odd upper one. A NaN shows in its upper half, since a result's is quiet. */
INLINE __m512i to_bf16_pair(vf even, vf odd) {
    static const uint16_t upper[32]
        __attribute__((aligned(64))) = {1,  33, 3,  35, 5,  37, 7,  39, 9,  41, 11, 43, 13, 45, 15, 47,
                                        17, 49, 19, 51, 21, 53, 23, 55, 25, 57, 27, 59, 29, 61, 31, 63};
    static const uint16_t lower[32]
        __attribute__((aligned(64))) = {0,  32, 2,  34, 4,  36, 6,  38, 8,  40, 10, 42, 12, 44, 14, 46,
                                        16, 48, 18, 50, 20, 52, 22, 54, 24, 56, 26, 58, 28, 60, 30, 62};
    const __m512i e = _mm512_castps_si512(even), o = _mm512_castps_si512(odd);
    const __m512i high = _mm512_permutex2var_epi16(e, _mm512_load_si512(upper), o);
    const __m512i low = _mm512_permutex2var_epi16(e, _mm512_load_si512(lower), o);
    const __m512i half = _mm512_ternarylogic_epi32(high, _mm512_set1_epi16(1), _mm512_set1_epi16(0x7ffe), 0xea);
    const __m512i carry = _mm512_srli_epi16(_mm512_avg_epu16(low, half), 15);
    const __mmask32 nan = _mm512_cmpgt_epu16_mask(_mm512_add_epi16(high, high), _mm512_set1_epi16((short)0xff00));
    return _mm512_mask_mov_epi16(_mm512_add_epi16(high, carry), nan, _mm512_set1_epi16(0x7fff));
}

INLINE vf vf_rounded(enum layout_kind kind, vf v) {
    if (kind == KIND_BF16) {
        const __m512i x = _mm512_castps_si512(v), half = _mm512_set1_epi32(0x7fff);
        const __m512i r =
            _mm512_add_epi32(x, _mm512_mask_mov_epi32(half, _mm512_test_epi32_mask(x, _mm512_set1_epi32(0x10000)),
                                                      _mm512_set1_epi32(0x8000)));
        return _mm512_castsi512_ps(
            _mm512_mask_and_epi32(x, _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), r, _mm512_set1_epi32((int)0xffff0000u)));
    }
    if (kind == KIND_FP16)
        return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return kind == KIND_FP32 ? v : widen8(kind, narrow8(kind, v));
}

INLINE void put64(uint8_t *p, __m512i v, bool stream) {
    if (stream)
        _mm512_stream_si512((void *)p, v);
    else
        _mm512_storeu_si512(p, v);
}

INLINE __m256i to_half(vf v) {
    return _mm256_mask_mov_epi16(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                                 _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm256_set1_epi16(0x7fff));
}

INLINE void vf_put(enum layout_kind kind, uint8_t *p, const vf v[4], bool stream) {
    if (kind == KIND_FP32) {
        for (unsigned i = 0; i < 4; i++)
            put64(p + 64 * i,
                  _mm512_mask_mov_epi32(_mm512_castps_si512(v[i]), _mm512_cmp_ps_mask(v[i], v[i], _CMP_UNORD_Q),
                                        _mm512_set1_epi32(0x7fffffff)),
                  stream);
        return;
    }
    if (kind == KIND_E4M3 || kind == KIND_E5M2) {
        __m512i r = _mm512_castsi128_si512(narrow8(kind, v[0]));
        r = _mm512_inserti32x4(r, narrow8(kind, v[1]), 1);
        r = _mm512_inserti32x4(r, narrow8(kind, v[2]), 2);
        put64(p, _mm512_inserti32x4(r, narrow8(kind, v[3]), 3), stream);
        return;
    }
    for (unsigned i = 0; i < 2; i++) {
        const vf a = v[2 * i], b = v[2 * i + 1];
        const __m512i r = kind == KIND_BF16 ? to_bf16_pair(a, b)
                                            : _mm512_inserti64x4(_mm512_castsi256_si512(to_half(a)), to_half(b), 1);
        put64(p + 64 * i, r, stream);
    }
}

#include "kernels/cpu/reduce_sum.h"
SUM_OF(sum_e4m3, KIND_E4M3)
SUM_OF(sum_e5m2, KIND_E5M2)

const struct reduce_passes reduce_passes_avx512[zipcclNumTypes] =
    REDUCE_TABLE(sum_bf16, sum_fp16, sum_fp32, sum_e4m3, sum_e5m2);
