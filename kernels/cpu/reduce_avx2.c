/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions on AVX2 with F16C; see reduce_avx512.c.
 */
#include <immintrin.h>

#include "kernels/cpu/reduce_passes.h"

#define VF_LANES 8u
typedef __m256 vf;

#define vf_set1  _mm256_set1_ps
#define vf_add   _mm256_add_ps
#define vf_mul   _mm256_mul_ps
#define vf_div   _mm256_div_ps
#define vf_fence _mm_sfence

#include "kernels/layout.h"

INLINE vf vf_load(const void *p) {
    return _mm256_loadu_ps(p);
}

INLINE void vf_store(void *p, vf v) {
    _mm256_storeu_ps(p, v);
}

INLINE void vf_get(enum layout_kind kind, const uint8_t *p, vf v[4]) {
    if (kind == KIND_BF16) {
        const __m256i odd = _mm256_set1_epi32((int)0xffff0000u);
        for (unsigned i = 0; i < 2; i++) {
            const __m256i w = _mm256_loadu_si256((const void *)(p + 32 * i));
            v[2 * i] = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
            v[2 * i + 1] = _mm256_castsi256_ps(_mm256_and_si256(w, odd));
        }
        return;
    }
    for (unsigned i = 0; i < 4; i++)
        v[i] = kind == KIND_FP32 ? vf_load(p + 32 * i) : _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 16 * i)));
}

INLINE __m256i is_nan(vf v) {
    return _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

/* The upper half of each word is the value rounded to BF16. */
INLINE __m256i to_upper(vf v) {
    const __m256i x = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fffffff), is_nan(v));
}

INLINE __m128i to_half(vf v) {
    const __m256i nan = is_nan(v);
    const __m128i nan16 = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    return _mm_blendv_epi8(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), _mm_set1_epi16(0x7fff),
                           nan16);
}

INLINE vf vf_rounded(enum layout_kind kind, vf v) {
    if (kind == KIND_BF16)
        return _mm256_castsi256_ps(_mm256_and_si256(to_upper(v), _mm256_set1_epi32((int)0xffff0000u)));
    return kind == KIND_FP16 ? _mm256_cvtph_ps(to_half(v)) : v;
}

INLINE void put32(uint8_t *p, __m256i v, bool stream) {
    if (stream)
        _mm256_stream_si256((void *)p, v);
    else
        _mm256_storeu_si256((void *)p, v);
}

INLINE void vf_put(enum layout_kind kind, uint8_t *p, const vf v[4], bool stream) {
    if (kind == KIND_FP32) {
        for (unsigned i = 0; i < 4; i++)
            put32(p + 32 * i,
                  _mm256_blendv_epi8(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff), is_nan(v[i])), stream);
        return;
    }
    for (unsigned i = 0; i < 2; i++) {
        const vf a = v[2 * i], b = v[2 * i + 1];
        const __m256i r = kind == KIND_BF16 ? _mm256_blend_epi16(_mm256_srli_epi32(to_upper(a), 16), to_upper(b), 0xaa)
                                            : _mm256_set_m128i(to_half(b), to_half(a));
        put32(p + 32 * i, r, stream);
    }
}

#include "kernels/cpu/reduce_sum.h"

const struct reduce_passes reduce_passes_avx2[zipcclNumTypes] = REDUCE_TABLE(sum_bf16, sum_fp16, sum_fp32, NULL, NULL);
