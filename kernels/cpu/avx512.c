/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec's loops on AVX-512 (F, BW, VL, DQ, VBMI, VBMI2): a vector is one zmm register, a mask a mask register.
 * Compaction and expansion use the register forms with whole loads and stores: the memory forms are microcoded on
 * some processors.
 */
#include "kernels/cpu/avx512.h"

#include <immintrin.h>
#include <string.h>

#define VINLINE static inline __attribute__((always_inline))

typedef __m512i v64;

struct v_parts {
    v64 e;
    v64 bytes[3];
    uint64_t bits[4];
};

/* Indices of the bytes of two registers: every fourth, at 0 and 1 or 2 and 3. */
static const uint8_t g_pick4[2][64] __attribute__((aligned(64))) = {
    {0,  4,  8,  12,  16,  20,  24,  28,  32,  36,  40, 44, 48, 52,  56,  60,  64,  68,  72,  76, 80, 84,
     88, 92, 96, 100, 104, 108, 112, 116, 120, 124, 1,  5,  9,  13,  17,  21,  25,  29,  33,  37, 41, 45,
     49, 53, 57, 61,  65,  69,  73,  77,  81,  85,  89, 93, 97, 101, 105, 109, 113, 117, 121, 125},
    {2,  6,  10, 14,  18,  22,  26,  30,  34,  38,  42, 46, 50, 54,  58,  62,  66,  70,  74,  78, 82, 86,
     90, 94, 98, 102, 106, 110, 114, 118, 122, 126, 3,  7,  11, 15,  19,  23,  27,  31,  35,  39, 43, 47,
     51, 55, 59, 63,  67,  71,  75,  79,  83,  87,  91, 95, 99, 103, 107, 111, 115, 119, 123, 127}};

VINLINE v64 v_load(const void *p) {
    return _mm512_loadu_si512(p);
}

VINLINE void v_store(void *p, v64 v) {
    _mm512_storeu_si512(p, v);
}

VINLINE void v_stream(void *p, v64 v) {
    _mm512_stream_si512(p, v);
}

VINLINE void v_fence(void) {
    _mm_sfence();
}

VINLINE v64 v_set1(uint8_t b) {
    return _mm512_set1_epi8((char)b);
}

#define v_add       _mm512_add_epi8
#define v_sub       _mm512_sub_epi8
#define v_subs      _mm512_subs_epu8
#define v_max       _mm512_max_epu8
#define v_min       _mm512_min_epu8
#define v_eq        _mm512_cmpeq_epi8_mask
#define v_ge        _mm512_cmpge_epu8_mask
#define v_bit(v, m) _mm512_test_epi8_mask(v, v_set1(m))

/* v where it is at most limit, else 0. */
VINLINE v64 v_keep_le(v64 v, v64 limit) {
    return _mm512_maskz_mov_epi8(_mm512_cmple_epu8_mask(v, limit), v);
}

VINLINE bool v_same(v64 a, v64 b) {
    return _mm512_cmpneq_epi8_mask(a, b) == 0;
}

VINLINE v64 v_sad(v64 acc, v64 v) {
    return _mm512_add_epi64(acc, _mm512_sad_epu8(v, _mm512_setzero_si512()));
}

VINLINE unsigned v_hsum(v64 acc) {
    __m256i y = _mm256_add_epi64(_mm512_castsi512_si256(acc), _mm512_extracti64x4_epi64(acc, 1));
    __m128i x = _mm_add_epi64(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    x = _mm_add_epi64(x, _mm_unpackhi_epi64(x, x));
    return (unsigned)_mm_cvtsi128_si32(x);
}

VINLINE v64 v_swap(v64 v, uint8_t b) {
    const v64 x = v_set1(b);
    const __mmask64 is_zero = _mm512_testn_epi8_mask(v, v), is_b = _mm512_cmpeq_epi8_mask(v, x);
    return _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(~is_b, v), is_zero, x);
}

/* A compare of its own is cheaper than moving masks to general registers and back. */
#define v_both(p0, p1, d, three)  v_ge(d, three)
#define v_none(p0, p1, p2, codes) _mm512_testn_epi8_mask(codes, codes)

VINLINE void v_compact(uint8_t *out, v64 v, v64 codes, v64 code, uint64_t mask) {
    (void)codes;
    (void)code;
    /* Whole unaligned stores cross a line each; mostly half of one is enough. */
    const v64 packed = _mm512_maskz_compress_epi8(mask, v);
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_castsi512_si256(packed));
    if (__builtin_expect(__builtin_popcountll(mask) > 32, 0))
        _mm256_storeu_si256((__m256i *)(void *)(out + 32), _mm512_extracti64x4_epi64(packed, 1));
}

VINLINE v64 v_untier(uint64_t p0, uint64_t p1, const uint8_t *in) {
    const v64 v = _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(p0, v_set1(1)), p1, v_set1(2));
    return _mm512_mask_expand_epi8(v, p0 & p1, v_load(in));
}

VINLINE v64 v_untop7(uint64_t p0, uint64_t p1, uint64_t p2, v64 top, bool zero, uint8_t swapped, const uint8_t *in) {
    v64 v = _mm512_mask_sub_epi8(top, p0, top, v_set1(1));
    v = _mm512_mask_sub_epi8(v, p1, v, v_set1(2));
    v = _mm512_mask_sub_epi8(v, p2, v, v_set1(4));
    if (zero)
        v = v_swap(v, swapped);
    return _mm512_mask_expand_epi8(v, ~(p0 | p1 | p2), v_load(in));
}

/* Bytes rotated left by one; words for 16-bit values, so that the sign reaches the low byte. */
VINLINE v64 rotate_bytes(v64 v) {
    return _mm512_ternarylogic_epi64(_mm512_add_epi8(v, v), _mm512_srli_epi16(v, 7), v_set1(1), 0xf8); /* a | b & c */
}

VINLINE v64 rotate_bytes_back(v64 v) {
    /* (v >> 1 & 0x7f) | (v << 7 & 0x80) */
    return _mm512_ternarylogic_epi64(v_set1(0x7f), _mm512_srli_epi16(v, 1), _mm512_slli_epi16(v, 7), 0xca);
}

VINLINE void v_split(enum layout_kind kind, const uint8_t *src, struct v_parts *x) {
    const unsigned bits = layout_bit_planes(kind);
    v64 high;
    if (kind == KIND_FP32) {
        const v64 a = _mm512_rol_epi32(v_load(src), 1), b = _mm512_rol_epi32(v_load(src + 64), 1);
        const v64 c = _mm512_rol_epi32(v_load(src + 128), 1), d = _mm512_rol_epi32(v_load(src + 192), 1);
        const v64 i01 = v_load(g_pick4[0]), i23 = v_load(g_pick4[1]);
        const v64 ab01 = _mm512_permutex2var_epi8(a, i01, b), cd01 = _mm512_permutex2var_epi8(c, i01, d);
        const v64 ab23 = _mm512_permutex2var_epi8(a, i23, b), cd23 = _mm512_permutex2var_epi8(c, i23, d);
        x->bytes[0] = _mm512_shuffle_i64x2(ab01, cd01, 0x44);
        x->bytes[1] = _mm512_shuffle_i64x2(ab01, cd01, 0xee);
        x->bytes[2] = _mm512_shuffle_i64x2(ab23, cd23, 0x44);
        x->e = _mm512_shuffle_i64x2(ab23, cd23, 0xee);
        return;
    }
    if (kind == KIND_BF16 || kind == KIND_FP16) {
        v64 a = v_load(src), b = v_load(src + 64);
        a = _mm512_shldi_epi16(a, a, 1);
        b = _mm512_shldi_epi16(b, b, 1);
        x->bytes[0] = _mm512_permutex2var_epi8(a, v_load(g_pick2[0]), b);
        high = _mm512_permutex2var_epi8(a, v_load(g_pick2[1]), b);
    } else {
        high = rotate_bytes(v_load(src));
    }
    x->e = bits ? _mm512_and_si512(_mm512_srli_epi16(high, bits), v_set1((uint8_t)(0xff >> bits))) : high;
    for (unsigned p = 0; p < bits; p++)
        x->bits[p] = v_bit(high, (uint8_t)(1u << p));
}

VINLINE void v_join(enum layout_kind kind, const struct v_parts *x, v64 out[4]) {
    const unsigned bits = layout_bit_planes(kind);
    const v64 low = v_load(g_weave[0]), upper = v_load(g_weave[1]);
    if (kind == KIND_FP32) {
        const v64 lo0 = _mm512_permutex2var_epi8(x->bytes[0], low, x->bytes[1]);
        const v64 lo1 = _mm512_permutex2var_epi8(x->bytes[0], upper, x->bytes[1]);
        const v64 hi0 = _mm512_permutex2var_epi8(x->bytes[2], low, x->e);
        const v64 hi1 = _mm512_permutex2var_epi8(x->bytes[2], upper, x->e);
        const v64 first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
        const v64 second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
        out[0] = _mm512_ror_epi32(_mm512_permutex2var_epi16(lo0, first, hi0), 1);
        out[1] = _mm512_ror_epi32(_mm512_permutex2var_epi16(lo0, second, hi0), 1);
        out[2] = _mm512_ror_epi32(_mm512_permutex2var_epi16(lo1, first, hi1), 1);
        out[3] = _mm512_ror_epi32(_mm512_permutex2var_epi16(lo1, second, hi1), 1);
        return;
    }
    v64 high = bits ? _mm512_and_si512(_mm512_slli_epi16(x->e, bits), v_set1((uint8_t)(0xff << bits))) : x->e;
    for (unsigned p = 0; p < bits; p++)
        high = _mm512_mask_add_epi8(high, x->bits[p], high, v_set1((uint8_t)(1u << p)));
    if (kind == KIND_BF16 || kind == KIND_FP16) {
        const v64 a = _mm512_permutex2var_epi8(x->bytes[0], low, high);
        const v64 b = _mm512_permutex2var_epi8(x->bytes[0], upper, high);
        out[0] = _mm512_shldi_epi16(a, a, 15);
        out[1] = _mm512_shldi_epi16(b, b, 15);
    } else {
        out[0] = rotate_bytes_back(high);
    }
}

#define LOOPS_UNROLL
#define LOOPS_OWN_PASSES
#include "kernels/cpu/loops.h"

/* BF16 has loops of its own; so has the work on escapes, for every dtype. */
static size_t tier_encode(enum layout_kind kind, const uint8_t *src, unsigned blocks, struct zfmt_block *heads,
                          uint8_t *body, uint8_t *escapes, unsigned *n1, bool stream) {
    return kind == KIND_BF16 ? avx512_bf16_tier_encode(src, blocks, heads, body, escapes, n1, stream)
                             : tier_encode_loop(kind, src, blocks, heads, body, escapes, n1, stream);
}

static unsigned tier_decode(enum layout_kind kind, const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                            const uint8_t *escapes, uint8_t *dst, bool stream) {
    return kind == KIND_BF16 ? avx512_bf16_tier_decode(heads, blocks, body, escapes, dst, stream)
                             : tier_decode_loop(kind, heads, blocks, body, escapes, dst, stream);
}

static size_t top7_encode(enum layout_kind kind, const uint8_t *src, unsigned blocks, struct zfmt_block *heads,
                          uint8_t *body, uint8_t *escapes, unsigned *n1, bool stream, struct model_window w) {
    return kind == KIND_BF16 && avx512_bf16_window_ok(w)
               ? avx512_bf16_top7_encode(src, blocks, heads, body, escapes, n1, stream, w)
               : top7_encode_loop(kind, src, blocks, heads, body, escapes, n1, stream, w);
}

static unsigned top7_decode(enum layout_kind kind, const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                            const uint8_t *escapes, uint8_t *dst, bool stream, struct model_window w) {
    return kind == KIND_BF16 && avx512_bf16_window_ok(w)
               ? avx512_bf16_top7_decode(heads, blocks, body, escapes, dst, stream, w)
               : top7_decode_loop(kind, heads, blocks, body, escapes, dst, stream, w);
}

const struct cpu_ops cpu_ops_avx512 = {tier_encode, top7_encode,    tier_decode,
                                       top7_decode, avx512_compact, avx512_expand};
