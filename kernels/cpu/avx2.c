/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec's loops on AVX2: a vector is a pair of ymm registers, a mask a 64-bit integer. Compaction shuffles 8 bytes
 * at a time by a table of their 256 masks; expansion shuffles 16 bytes by the running sums of theirs.
 */
#include "kernels/cpu/ops.h"

#include <immintrin.h>
#include <string.h>

#define VINLINE static inline __attribute__((always_inline))

typedef struct {
    __m256i a, b;
} v64;

struct v_parts {
    v64 e;
    v64 bytes[3];
    uint64_t bits[4];
};

VINLINE v64 v_load(const void *p) {
    const __m256i *q = p;
    return (v64){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}

VINLINE void v_store(void *p, v64 v) {
    __m256i *q = p;
    _mm256_storeu_si256(q, v.a);
    _mm256_storeu_si256(q + 1, v.b);
}

VINLINE void v_stream(void *p, v64 v) {
    __m256i *q = p;
    _mm256_stream_si256(q, v.a);
    _mm256_stream_si256(q + 1, v.b);
}

VINLINE void v_fence(void) {
    _mm_sfence();
}

VINLINE v64 v_set1(uint8_t b) {
    const __m256i v = _mm256_set1_epi8((char)b);
    return (v64){v, v};
}

#define PAIRWISE(name, op)                                                                                             \
    VINLINE v64 name(v64 x, v64 y) {                                                                                   \
        return (v64){op(x.a, y.a), op(x.b, y.b)};                                                                      \
    }
PAIRWISE(v_add, _mm256_add_epi8)
PAIRWISE(v_sub, _mm256_sub_epi8)
PAIRWISE(v_subs, _mm256_subs_epu8)
PAIRWISE(v_max, _mm256_max_epu8)
PAIRWISE(v_min, _mm256_min_epu8)
PAIRWISE(v_and, _mm256_and_si256)
PAIRWISE(v_or, _mm256_or_si256)
PAIRWISE(v_is_eq, _mm256_cmpeq_epi8)
PAIRWISE(v_is_gt, _mm256_cmpgt_epi8)

/* The top bits of the bytes. */
VINLINE uint64_t v_signs(v64 v) {
    return (uint32_t)_mm256_movemask_epi8(v.a) | (uint64_t)(uint32_t)_mm256_movemask_epi8(v.b) << 32;
}

VINLINE v64 v_shl16(v64 v, int n) {
    return (v64){_mm256_slli_epi16(v.a, n), _mm256_slli_epi16(v.b, n)};
}

VINLINE v64 v_shr16(v64 v, int n) {
    return (v64){_mm256_srli_epi16(v.a, n), _mm256_srli_epi16(v.b, n)};
}

/* A constant m: its bit moves to the top of the byte. */
VINLINE uint64_t v_bit(v64 v, uint8_t m) {
    return v_signs(v_shl16(v, 7 - __builtin_ctz(m)));
}

VINLINE uint64_t v_eq(v64 x, v64 y) {
    return v_signs(v_is_eq(x, y));
}

VINLINE uint64_t v_ge(v64 x, v64 y) {
    return v_signs(v_is_eq(v_max(x, y), x));
}

VINLINE bool v_same(v64 x, v64 y) {
    return v_eq(x, y) == UINT64_MAX;
}

VINLINE v64 v_keep_le(v64 v, v64 limit) {
    return v_and(v, v_is_eq(v_min(v, limit), v));
}

VINLINE v64 v_sad(v64 acc, v64 v) {
    const __m256i zero = _mm256_setzero_si256();
    return (v64){_mm256_add_epi64(acc.a, _mm256_sad_epu8(v.a, zero)),
                 _mm256_add_epi64(acc.b, _mm256_sad_epu8(v.b, zero))};
}

VINLINE unsigned v_hsum(v64 acc) {
    const __m256i y = _mm256_add_epi64(acc.a, acc.b);
    __m128i x = _mm_add_epi64(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    x = _mm_add_epi64(x, _mm_unpackhi_epi64(x, x));
    return (unsigned)_mm_cvtsi128_si32(x);
}

VINLINE v64 v_swap(v64 v, uint8_t b) {
    const v64 x = v_set1(b), is_zero = v_is_eq(v, v_set1(0)), is_b = v_is_eq(v, x);
    const v64 kept = {_mm256_andnot_si256(is_b.a, v.a), _mm256_andnot_si256(is_b.b, v.b)};
    return v_or(kept, v_and(is_zero, x));
}

#define v_both(p0, p1, d, three)  ((p0) & (p1))
#define v_none(p0, p1, p2, codes) (~((p0) | (p1) | (p2)))

/* Row m: the places of the bits of m, in order. */
#define PLACE(m, i, above) (((uint64_t)(above) << ((m) >> (i)&1) * 8) + ((m) >> (i)&1) * (i))
#define ROW(m)                                                                                                         \
    PLACE(m, 0ull,                                                                                                     \
          PLACE(m, 1ull,                                                                                               \
                PLACE(m, 2ull, PLACE(m, 3ull, PLACE(m, 4ull, PLACE(m, 5ull, PLACE(m, 6ull, PLACE(m, 7ull, 0))))))))
#define ROW4(m)  ROW(m), ROW((m) + 1), ROW((m) + 2), ROW((m) + 3)
#define ROW16(m) ROW4(m), ROW4((m) + 4), ROW4((m) + 8), ROW4((m) + 12)
#define ROW64(m) ROW16(m), ROW16((m) + 16), ROW16((m) + 32), ROW16((m) + 48)
static const _Alignas(64) uint64_t g_places[256] = {ROW64(0ull), ROW64(64ull), ROW64(128ull), ROW64(192ull)};

/* Step by step: both of the lowest bytes can then be had without a shift. */
VINLINE uint64_t shift16(uint64_t mask) {
    mask >>= 16;
    __asm__("" : "+Q"(mask));
    return mask;
}

/* The bytes of v under the low 16 bits of the mask, as two parts of 8. */
VINLINE void compact16(uint8_t *out, __m128i v, uint64_t mask) {
    const __m128i high = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8);
    const unsigned m0 = mask & 0xff, m1 = mask >> 8 & 0xff;
    const __m128 low = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)&g_places[m0]));
    const __m128i at = _mm_castps_si128(_mm_loadh_pi(low, (const __m64 *)(const void *)&g_places[m1]));
    const __m128i r = _mm_shuffle_epi8(v, _mm_or_si128(at, high));
    _mm_storel_epi64((__m128i *)(void *)out, r);
    _mm_storeh_pi((__m64 *)(void *)(out + __builtin_popcountll(m0)), _mm_castsi128_ps(r));
}

VINLINE void v_compact(uint8_t *out, v64 v, v64 codes, v64 code, uint64_t mask) {
    (void)codes;
    (void)code;
    uint8_t *const out2 = out + __builtin_popcountll((uint32_t)mask);
    compact16(out, _mm256_castsi256_si128(v.a), mask);
    out += __builtin_popcountll(mask & 0xffff);
    mask = shift16(mask);
    compact16(out, _mm256_extracti128_si256(v.a, 1), mask);
    mask = shift16(mask);
    compact16(out2, _mm256_castsi256_si128(v.b), mask);
    out = out2 + __builtin_popcountll(mask & 0xffff);
    compact16(out, _mm256_extracti128_si256(v.b, 1), shift16(mask));
}

/* Each bit of a mask to a byte of all ones or zeros. */
VINLINE v64 v_spread(uint64_t mask) {
    const __m256i low = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3,
                                         3, 3, 3, 3, 3, 3);
    const __m256i high = _mm256_setr_epi8(4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 7, 7,
                                          7, 7, 7, 7, 7, 7);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    const __m256i x = _mm256_set1_epi64x((long long)mask);
    return (v64){_mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(x, low), bit), bit),
                 _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(x, high), bit), bit)};
}

/* The bytes of in0, in order, where the lower half of escape is all ones, and those of in1 for the upper half; other
 * places hold anything. */
VINLINE __m256i expand32(__m256i escape, const uint8_t *in0, const uint8_t *in1) {
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)in0);
    const __m128i y = _mm_loadu_si128((const __m128i *)(const void *)in1);
    const __m256i carry = _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 7, 7, 7, 7, 7, 7, 7, 7, -1, -1, -1, -1, -1,
                                           -1, -1, -1, 7, 7, 7, 7, 7, 7, 7, 7);
    __m256i s = _mm256_add_epi8(escape, _mm256_slli_epi64(escape, 8));
    s = _mm256_add_epi8(s, _mm256_slli_epi64(s, 16));
    s = _mm256_add_epi8(s, _mm256_slli_epi64(s, 32));
    s = _mm256_add_epi8(s, _mm256_shuffle_epi8(s, carry));
    return _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(x), y, 1),
                               _mm256_xor_si256(s, _mm256_set1_epi8(-1)));
}

/* The bytes of `in`, in order, where escape is all ones; anything elsewhere. */
VINLINE v64 v_expand(v64 escape, uint64_t mask, const uint8_t *in) {
    const uint8_t *in1 = in + __builtin_popcountll(mask & 0xffff), *in2 = in + __builtin_popcountll((uint32_t)mask);
    const uint8_t *in3 = in2 + __builtin_popcountll(mask >> 32 & 0xffff);
    return (v64){expand32(escape.a, in, in1), expand32(escape.b, in2, in3)};
}

VINLINE v64 v_blend(v64 x, v64 y, v64 where) {
    return (v64){_mm256_blendv_epi8(x.a, y.a, where.a), _mm256_blendv_epi8(x.b, y.b, where.b)};
}

VINLINE v64 v_recode(uint64_t p0, uint64_t p1, v64 l0, v64 l1, v64 l2, const uint8_t *in) {
    const v64 a = v_spread(p0), b = v_spread(p1), escape = v_and(a, b);
    const v64 v = v_blend(v_blend(l0, l1, a), l2, b);
    return v_blend(v, v_expand(escape, p0 & p1, in), escape);
}

VINLINE v64 v_untier(uint64_t p0, uint64_t p1, const uint8_t *in) {
    return v_recode(p0, p1, v_set1(0), v_set1(1), v_set1(2), in);
}

VINLINE v64 v_untop7(uint64_t p0, uint64_t p1, uint64_t p2, v64 top, bool zero, uint8_t swapped, const uint8_t *in) {
    const v64 c =
        v_or(v_or(v_and(v_spread(p0), v_set1(1)), v_and(v_spread(p1), v_set1(2))), v_and(v_spread(p2), v_set1(4)));
    const v64 escape = v_is_eq(c, v_set1(0));
    v64 v = v_sub(top, c);
    if (zero)
        v = v_swap(v, swapped);
    return v_blend(v, v_expand(escape, ~(p0 | p1 | p2), in), escape);
}

/* The low bytes of 32 and 32 words in order, and their high bytes. */
VINLINE void bytes_of(v64 x, v64 y, v64 *low, v64 *high) {
    const __m256i m = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14,
                                       1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i a = _mm256_shuffle_epi8(x.a, m), b = _mm256_shuffle_epi8(x.b, m);
    const __m256i c = _mm256_shuffle_epi8(y.a, m), d = _mm256_shuffle_epi8(y.b, m);
    low->a = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a, b), 0xd8);
    low->b = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(c, d), 0xd8);
    high->a = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a, b), 0xd8);
    high->b = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(c, d), 0xd8);
}

/* 64 words from their low and high bytes. */
VINLINE void words_of(v64 low, v64 high, v64 *x, v64 *y) {
    const __m256i la = _mm256_permute4x64_epi64(low.a, 0xd8), ha = _mm256_permute4x64_epi64(high.a, 0xd8);
    const __m256i lb = _mm256_permute4x64_epi64(low.b, 0xd8), hb = _mm256_permute4x64_epi64(high.b, 0xd8);
    *x = (v64){_mm256_unpacklo_epi8(la, ha), _mm256_unpackhi_epi8(la, ha)};
    *y = (v64){_mm256_unpacklo_epi8(lb, hb), _mm256_unpackhi_epi8(lb, hb)};
}

/* The low and the high words of 32 doublewords in two vectors, rotated left by one. */
VINLINE void halves_of(const uint8_t *src, v64 *low, v64 *high) {
    v64 x[2];
    for (unsigned i = 0; i < 2; i++) {
        const v64 v = v_load(src + (size_t)64 * i);
        x[i].a = _mm256_or_si256(_mm256_slli_epi32(v.a, 1), _mm256_srli_epi32(v.a, 31));
        x[i].b = _mm256_or_si256(_mm256_slli_epi32(v.b, 1), _mm256_srli_epi32(v.b, 31));
    }
    const __m256i m = _mm256_set1_epi32(0xffff);
#define PACK(f, i) _mm256_permute4x64_epi64(_mm256_packus_epi32(f(x[i].a), f(x[i].b)), 0xd8)
#define LOW(v)     _mm256_and_si256(v, m)
#define HIGH(v)    _mm256_srli_epi32(v, 16)
    *low = (v64){PACK(LOW, 0), PACK(LOW, 1)};
    *high = (v64){PACK(HIGH, 0), PACK(HIGH, 1)};
#undef PACK
#undef LOW
#undef HIGH
}

VINLINE void v_split(enum layout_kind kind, const uint8_t *src, struct v_parts *x) {
    const unsigned bits = layout_bit_planes(kind);
    v64 high;
    if (kind == KIND_FP32) {
        v64 l0, l1, h0, h1;
        halves_of(src, &l0, &h0);
        halves_of(src + 128, &l1, &h1);
        bytes_of(l0, l1, &x->bytes[0], &x->bytes[1]);
        bytes_of(h0, h1, &x->bytes[2], &x->e);
        return;
    }
    if (kind == KIND_BF16 || kind == KIND_FP16) {
        /* The rotation, after the split: each byte doubled, plus the other one's top bit. */
        const v64 none = v_set1(0);
        v64 l, h;
        bytes_of(v_load(src), v_load(src + 64), &l, &h);
        x->bytes[0] = v_sub(v_add(l, l), v_is_gt(none, h));
        high = v_sub(v_add(h, h), v_is_gt(none, l));
    } else {
        const v64 v = v_load(src);
        high = v_or(v_add(v, v), v_and(v_shr16(v, 7), v_set1(1)));
    }
    x->e = bits ? v_and(v_shr16(high, (int)bits), v_set1((uint8_t)(0xff >> bits))) : high;
    for (unsigned p = 0; p < bits; p++)
        x->bits[p] = v_bit(high, (uint8_t)(1u << p));
}

VINLINE __m256i ror32(__m256i v) {
    return _mm256_or_si256(_mm256_srli_epi32(v, 1), _mm256_slli_epi32(v, 31));
}

/* 32 doublewords from their low and high words. */
VINLINE void doubles_of(v64 low, v64 high, v64 out[2]) {
    const __m256i la = _mm256_permute4x64_epi64(low.a, 0xd8), ha = _mm256_permute4x64_epi64(high.a, 0xd8);
    const __m256i lb = _mm256_permute4x64_epi64(low.b, 0xd8), hb = _mm256_permute4x64_epi64(high.b, 0xd8);
    out[0] = (v64){ror32(_mm256_unpacklo_epi16(la, ha)), ror32(_mm256_unpackhi_epi16(la, ha))};
    out[1] = (v64){ror32(_mm256_unpacklo_epi16(lb, hb)), ror32(_mm256_unpackhi_epi16(lb, hb))};
}

VINLINE void v_join(enum layout_kind kind, const struct v_parts *x, v64 out[4]) {
    const unsigned bits = layout_bit_planes(kind);
    if (kind == KIND_FP32) {
        v64 l0, l1, h0, h1;
        words_of(x->bytes[0], x->bytes[1], &l0, &l1);
        words_of(x->bytes[2], x->e, &h0, &h1);
        doubles_of(l0, h0, out);
        doubles_of(l1, h1, out + 2);
        return;
    }
    v64 high = bits ? v_and(v_shl16(x->e, (int)bits), v_set1((uint8_t)(0xff << bits))) : x->e;
    for (unsigned p = 0; p < bits; p++)
        high = v_or(high, v_and(v_spread(x->bits[p]), v_set1((uint8_t)(1u << p))));
    if (kind == KIND_BF16 || kind == KIND_FP16) {
        v64 a, b;
        words_of(x->bytes[0], high, &a, &b);
        out[0] = v_or(v_shr16(a, 1), v_shl16(a, 15));
        out[1] = v_or(v_shr16(b, 1), v_shl16(b, 15));
    } else {
        out[0] = v_or(v_and(v_shr16(high, 1), v_set1(0x7f)), v_and(v_shl16(high, 7), v_set1(0x80)));
    }
}

#define LOOPS_UNROLL
#include "kernels/cpu/loops.h"

const struct cpu_ops cpu_ops_avx2 = LOOPS_TABLE;
