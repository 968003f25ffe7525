/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec's loops for BF16 on AVX-512, by hand, and the passes over escapes. What loops.h does in steps is one
 * pipeline here: while a block's codes are made, the next one is split into its exponents and remainders, so that the
 * sums that its base needs are ready in time. A block's eight rows of 64 exponents stay in registers.
 */
#include "kernels/cpu/avx512.h"

#include <immintrin.h>
#include <string.h>

#define INLINE   static inline __attribute__((always_inline))
#define RARE(c)  __builtin_expect(!!(c), 0)
#define EACH8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

typedef __m512i v64;

enum {
    STEP = 2 * ZFMT_BLOCK,                   /* bytes of a block's values */
    TIER_BODY = 2 * ZFMT_PLANE + ZFMT_BLOCK, /* of its coded body */
    TOP7_BODY = 3 * ZFMT_PLANE + ZFMT_BLOCK,
    TIER_BUDGET = STEP - TIER_BODY - ZFMT_TIER_MARGIN,
    TOP7_BUDGET = STEP - TOP7_BODY - ZFMT_TIER_MARGIN
};

/* Every other byte of two registers, even or odd. */
static const uint8_t g_pick[2][64] __attribute__((aligned(64))) = {
    {0,  2,  4,  6,  8,  10, 12,  14,  16,  18,  20,  22,  24,  26,  28,  30,  32,  34,  36,  38, 40, 42,
     44, 46, 48, 50, 52, 54, 56,  58,  60,  62,  64,  66,  68,  70,  72,  74,  76,  78,  80,  82, 84, 86,
     88, 90, 92, 94, 96, 98, 100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 120, 122, 124, 126},
    {1,  3,  5,  7,  9,  11, 13,  15,  17,  19,  21,  23,  25,  27,  29,  31,  33,  35,  37,  39, 41, 43,
     45, 47, 49, 51, 53, 55, 57,  59,  61,  63,  65,  67,  69,  71,  73,  75,  77,  79,  81,  83, 85, 87,
     89, 91, 93, 95, 97, 99, 101, 103, 105, 107, 109, 111, 113, 115, 117, 119, 121, 123, 125, 127}};
/* Bytes of two registers in turn, the first 32 and the last 32 of each. */
static const uint8_t g_weave[2][64] __attribute__((aligned(64))) = {
    {0,  64, 1,  65, 2,  66, 3,  67, 4,  68, 5,  69, 6,  70, 7,  71, 8,  72, 9,  73, 10, 74,
     11, 75, 12, 76, 13, 77, 14, 78, 15, 79, 16, 80, 17, 81, 18, 82, 19, 83, 20, 84, 21, 85,
     22, 86, 23, 87, 24, 88, 25, 89, 26, 90, 27, 91, 28, 92, 29, 93, 30, 94, 31, 95},
    {32, 96,  33, 97,  34, 98,  35, 99,  36, 100, 37, 101, 38, 102, 39, 103, 40, 104, 41, 105, 42, 106,
     43, 107, 44, 108, 45, 109, 46, 110, 47, 111, 48, 112, 49, 113, 50, 114, 51, 115, 52, 116, 53, 117,
     54, 118, 55, 119, 56, 120, 57, 121, 58, 122, 59, 123, 60, 124, 61, 125, 62, 126, 63, 127}};

INLINE v64 set1(unsigned b) {
    return _mm512_set1_epi8((char)b);
}

INLINE v64 load(const void *p) {
    return _mm512_loadu_si512(p);
}

INLINE void put(void *p, v64 v, bool stream) {
    if (stream)
        _mm512_stream_si512(p, v);
    else
        _mm512_storeu_si512(p, v);
}

INLINE unsigned count(__mmask64 m) {
    return (unsigned)__builtin_popcountll(_cvtmask64_u64(m));
}

INLINE uint64_t get_word(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}

INLINE void copy_block(uint8_t *dst, const uint8_t *src, bool stream) {
    for (unsigned i = 0; i < STEP; i += 64)
        put(dst + i, load(src + i), stream);
}

/* Row i of a block: its exponents; the remainders go to the body's byte plane. */
INLINE v64 split(const uint8_t *src, unsigned i, uint8_t *plane, bool stream) {
    v64 a = load(src + 128 * i), b = load(src + 128 * i + 64);
    a = _mm512_shldi_epi16(a, a, 1);
    b = _mm512_shldi_epi16(b, b, 1);
    if (plane)
        put(plane + 64 * i, _mm512_permutex2var_epi8(a, load(g_pick[0]), b), stream);
    return _mm512_permutex2var_epi8(a, load(g_pick[1]), b);
}

INLINE void join(v64 e, const uint8_t *plane, unsigned i, uint8_t *dst, bool stream) {
    const v64 r = load(plane + 64 * i);
    const v64 a = _mm512_permutex2var_epi8(r, load(g_weave[0]), e),
              b = _mm512_permutex2var_epi8(r, load(g_weave[1]), e);
    put(dst + 128 * i, _mm512_shldi_epi16(a, a, 15), stream);
    put(dst + 128 * i + 64, _mm512_shldi_epi16(b, b, 15), stream);
}

/* Step 2 of the rule: the guess in every byte. */
INLINE v64 guess(v64 r0, v64 r2, v64 r4, v64 r6) {
    const v64 max = _mm512_max_epu8(_mm512_max_epu8(r0, r2), _mm512_max_epu8(r4, r6));
    const v64 least = _mm512_subs_epu8(max, set1(MODEL_FLOOR)), none = _mm512_setzero_si512();
    /* max(e, least) - least is at most MODEL_FLOOR, so four of them fit a byte. */
    const v64 over = _mm512_add_epi8(_mm512_add_epi8(_mm512_subs_epu8(r0, least), _mm512_subs_epu8(r2, least)),
                                     _mm512_add_epi8(_mm512_subs_epu8(r4, least), _mm512_subs_epu8(r6, least)));
    const v64 sum = _mm512_add_epi64(_mm512_slli_epi64(_mm512_sad_epu8(least, none), 2), _mm512_sad_epu8(over, none));
    const __m256i y = _mm256_add_epi64(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    __m128i x = _mm_add_epi64(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    x = _mm_add_epi64(x, _mm_unpackhi_epi64(x, x));
    x = _mm_srli_epi64(_mm_add_epi64(x, _mm_cvtsi32_si128(MODEL_BIAS)), 8);
    return _mm512_broadcastb_epi8(_mm_packus_epi16(x, x)); /* which is min(255, x) */
}

INLINE unsigned first_byte(v64 v) {
    return (unsigned)_mm_cvtsi128_si32(_mm512_castsi512_si128(v)) & 0xff;
}

INLINE v64 swap(v64 v, v64 b) {
    const __mmask64 is_zero = _mm512_testn_epi8_mask(v, v), is_b = _mm512_cmpeq_epi8_mask(v, b);
    return _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(~is_b, v), is_zero, b);
}

/* The bytes of v in mask to out; returns their count. Mostly half a store is enough. */
INLINE unsigned compact(uint8_t *out, v64 v, __mmask64 mask) {
    const v64 packed = _mm512_maskz_compress_epi8(mask, v);
    const unsigned n = count(mask);
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_castsi512_si256(packed));
    if (RARE(n > 32))
        _mm256_storeu_si256((__m256i *)(void *)(out + 32), _mm512_extracti64x4_epi64(packed, 1));
    return n;
}

/* Tier 1 of a row; at: where its plane words go. Returns the count of escapes. */
INLINE unsigned code_row(v64 d, uint8_t *at, unsigned i, uint8_t *escapes) {
    const v64 c = _mm512_min_epu8(d, set1(3));
    const __mmask64 p0 = _mm512_test_epi8_mask(c, set1(1)), p1 = _mm512_test_epi8_mask(c, set1(2));
    _store_mask64((__mmask64 *)(void *)(at + 8 * i), p0);
    _store_mask64((__mmask64 *)(void *)(at + ZFMT_PLANE + 8 * i), p1);
    return compact(escapes, d, _kand_mask64(p0, p1));
}

/* ---- tier, the rule's steps for blocks that are not as most ---- */

/* Step 1. */
static __attribute__((noinline)) bool all_same(const uint8_t *src) {
    uint16_t value;
    memcpy(&value, src, 2);
    const v64 v = _mm512_set1_epi16((short)value);
    for (unsigned i = 0; i < STEP; i += 64) {
        if (_mm512_cmpneq_epi16_mask(v, load(src + i)))
            return false;
    }
    return true;
}

static size_t put_same(const uint8_t *src, struct zfmt_block *head, uint8_t *body) {
    const bool zero = src[0] == 0 && src[1] == 0;
    *head = (struct zfmt_block){zero ? ZFMT_ZERO : ZFMT_CONST, 0};
    if (zero)
        return 0;
    memset(body, 0, ZFMT_BODY_ALIGN);
    memcpy(body, src, 2);
    return ZFMT_BODY_ALIGN;
}

/* Step 4, from the n escapes that base leaves. */
static __attribute__((noinline)) bool good_guess(const uint8_t *src, unsigned base, const uint8_t *escapes,
                                                 unsigned n) {
    unsigned z = 0, n2 = 0, n3 = 0;
    const v64 b = set1(base), one = set1(1), two = set1(2), six = set1(6), nine = set1(9);
    for (unsigned i = 0; i < n; i += 64) {
        const v64 d = load(escapes + i);
        const __mmask64 in = n - i < 64 ? (1ull << (n - i)) - 1 : ~0ull;
        z += count(_mm512_mask_cmpeq_epi8_mask(in, d, b));
        n2 += count(_mm512_mask_cmpge_epu8_mask(in, _mm512_add_epi8(d, one), six));
        n3 += count(_mm512_mask_cmpge_epu8_mask(in, _mm512_add_epi8(d, two), nine));
    }
    if (RARE(base < 3)) { /* zeros have codes */
        z = 0;
        for (unsigned i = 0; i < STEP; i += 64)
            z += (unsigned)__builtin_popcount(_mm512_testn_epi16_mask(load(src + i), _mm512_set1_epi16(0x7f80)));
    }
    return z <= MODEL_FEW_ZEROS && model_price(n, n2, n3) <= 4 * TIER_BUDGET;
}

/* Step 5. */
static __attribute__((noinline)) struct zfmt_block choose(const uint8_t *src) {
    v64 e[8];
    struct model_counts c = {0, 0, {0}};
    v64 sample = _mm512_setzero_si512();
    for (unsigned i = 0; i < 8; i++) {
        e[i] = split(src, i, NULL, false);
        c.zeros += count(_mm512_testn_epi8_mask(e[i], e[i]));
        sample = _mm512_mask_mov_epi64(sample, (__mmask8)(1u << i), e[i]);
    }
    const unsigned rank = (64 - count(_mm512_testn_epi8_mask(sample, sample)) + 1) / 2;
    for (unsigned bit = 64; bit && rank; bit >>= 2) { /* two bits a round */
        const unsigned t = c.median;
        const unsigned a = count(_mm512_cmpge_epu8_mask(sample, set1(t + bit)));
        const unsigned b = count(_mm512_cmpge_epu8_mask(sample, set1(t + 2 * bit)));
        const unsigned d = count(_mm512_cmpge_epu8_mask(sample, set1(t + 3 * bit)));
        c.median += bit * ((a >= rank) + (b >= rank) + (d >= rank));
    }
    const v64 low = set1(c.median - MODEL_COUNTS_LOW), width = set1(MODEL_COUNTS);
    unsigned near = 0;
    for (unsigned i = 0; i < 8; i++)
        near += count(_mm512_cmplt_epu8_mask(_mm512_sub_epi8(e[i], low), width));
    if (!model_hopeful(near, c.zeros, TIER_BUDGET))
        return (struct zfmt_block){ZFMT_RAW, 0};
    for (unsigned k = 0; k < MODEL_COUNTS; k++) {
        const unsigned x = c.median - MODEL_COUNTS_LOW + k;
        if (x - 1 > 254)
            continue;
        const v64 v = set1(x);
        unsigned n = 0;
        for (unsigned i = 0; i < 8; i++)
            n += count(_mm512_cmpeq_epi8_mask(e[i], v));
        c.hits[k] = (uint16_t)n;
    }
    return model_choose(&c, TIER_BUDGET);
}

/* A whole block in tier with the given head, from src. */
static __attribute__((noinline)) unsigned code_again(const uint8_t *src, struct zfmt_block head, uint8_t *body,
                                                     uint8_t *escapes, bool stream) {
    _Alignas(64) uint8_t planes[2 * ZFMT_PLANE];
    const bool zero = head.mode == ZFMT_TIER_ZERO;
    const v64 top = set1(head.base + (unsigned)zero);
    unsigned n = 0;
    for (unsigned i = 0; i < 8; i++) {
        const v64 e = split(src, i, body + 2 * ZFMT_PLANE, stream);
        n += code_row(_mm512_sub_epi8(top, zero ? swap(e, top) : e), planes, i, escapes + n);
    }
    put(body, load(planes), stream);
    put(body + ZFMT_PLANE, load(planes + ZFMT_PLANE), stream);
    return n;
}

/* ---- tier, encode ---- */

/* A block's codes while the next block, if there is more, is split; e and top change from this block's to the next's.
 * Returns the count of escapes. */
INLINE unsigned code_block(const uint8_t *next, bool more, v64 e[8], v64 *top, uint8_t *body, uint8_t *escapes,
                           bool stream) {
    _Alignas(64) uint8_t planes[2 * ZFMT_PLANE];
    uint8_t *const at = stream ? planes : body, *const plane = body + TIER_BODY + 2 * ZFMT_PLANE;
    const v64 base = *top;
    v64 even[4];
    unsigned n = 0;
    if (more) {
        even[0] = split(next, 0, plane, stream);
        even[1] = split(next, 2, plane, stream);
        even[2] = split(next, 4, plane, stream);
        even[3] = split(next, 6, plane, stream);
        *top = guess(even[0], even[1], even[2], even[3]);
    }
#define ROW(i)                                                                                                         \
    n += code_row(_mm512_sub_epi8(base, e[i]), at, i, escapes + n);                                                    \
    if (more)                                                                                                          \
        e[i] = (i) % 2 ? split(next, i, plane, stream) : even[(i) / 2];
    EACH8(ROW)
#undef ROW
    if (stream) {
        put(body, load(planes), true);
        put(body + ZFMT_PLANE, load(planes + ZFMT_PLANE), true);
    }
    return n;
}

INLINE size_t tier_encode(const uint8_t *src, unsigned blocks, struct zfmt_block *heads, uint8_t *body,
                          uint8_t *escapes, unsigned *n1, bool stream) {
    uint8_t *const first = body;
    unsigned n = 0, b = 0;
    while (b < blocks) {
        v64 e[8], top;
#define ROW(i) e[i] = split(src, i, body + 2 * ZFMT_PLANE, stream);
        EACH8(ROW)
#undef ROW
        top = guess(e[0], e[2], e[4], e[6]);
        for (bool usual = true; usual && b < blocks; b++, src += STEP) {
            const unsigned base = first_byte(top);
            const unsigned met = b + 1 < blocks ? code_block(src + STEP, true, e, &top, body, escapes + n, stream)
                                                : code_block(src, false, e, &top, body, escapes + n, stream);
            struct zfmt_block head = {ZFMT_TIER, (uint8_t)base};
            unsigned size = TIER_BODY, kept = met;
            if (RARE(met - 1 >= MODEL_ACCEPT)) { /* also none: then all values can be the same */
                if (met == 0) {
                    if (all_same(src)) {
                        size = (unsigned)put_same(src, &head, body);
                        usual = false;
                    }
                } else if (!good_guess(src, base, escapes + n, met)) {
                    head = choose(src);
                    usual = head.mode != ZFMT_RAW;
                    if (usual) {
                        kept = code_again(src, head, body, escapes + n, stream);
                    } else {
                        copy_block(body, src, stream);
                        size = STEP;
                        kept = 0;
                    }
                }
            }
            heads[b] = head;
            n += kept;
            body += size;
        }
    }
    *n1 = n;
    return (size_t)(body - first);
}

size_t avx512_bf16_tier_encode(const uint8_t *src, unsigned blocks, struct zfmt_block *heads, uint8_t *body,
                               uint8_t *escapes, unsigned *n1, bool stream) {
    if (!stream)
        return tier_encode(src, blocks, heads, body, escapes, n1, false);
    const size_t r = tier_encode(src, blocks, heads, body, escapes, n1, true);
    _mm_sfence();
    return r;
}

/* ---- tier, decode ---- */

INLINE unsigned decode_block(unsigned base, bool zero, const uint8_t *body, const uint8_t *escapes, uint8_t *dst,
                             bool stream) {
    const v64 top = set1(base + (unsigned)zero), one = set1(1), two = set1(2);
    unsigned n = 0;
#define ROW(i)                                                                                                         \
    {                                                                                                                  \
        const uint64_t p0 = get_word(body + 8 * i), p1 = get_word(body + ZFMT_PLANE + 8 * i);                          \
        v64 d = _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(p0, one), p1, two);                                         \
        d = _mm512_mask_expand_epi8(d, p0 & p1, load(escapes + n));                                                    \
        const v64 e = _mm512_sub_epi8(top, d);                                                                         \
        join(zero ? swap(e, top) : e, body + 2 * ZFMT_PLANE, i, dst, stream);                                          \
        n += (unsigned)__builtin_popcountll(p0 & p1);                                                                  \
    }
    EACH8(ROW)
#undef ROW
    return n;
}

INLINE unsigned tier_decode(const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                            const uint8_t *escapes, uint8_t *dst, bool stream) {
    unsigned n = 0;
    for (unsigned b = 0; b < blocks; b++, dst += STEP) {
        const unsigned mode = heads[b].mode;
        if (__builtin_expect(mode == ZFMT_TIER, 1)) {
            n += decode_block(heads[b].base, false, body, escapes + n, dst, stream);
        } else if (mode == ZFMT_TIER_ZERO) {
            n += decode_block(heads[b].base, true, body, escapes + n, dst, stream);
        } else if (mode == ZFMT_RAW) {
            copy_block(dst, body, stream);
        } else {
            uint16_t value = 0;
            if (mode == ZFMT_CONST)
                memcpy(&value, body, 2);
            const v64 v = _mm512_set1_epi16((short)value);
            for (unsigned i = 0; i < STEP; i += 64)
                put(dst + i, v, stream);
        }
        body += layout_body(KIND_BF16, mode);
    }
    return n;
}

unsigned avx512_bf16_tier_decode(const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                                 const uint8_t *escapes, uint8_t *dst, bool stream) {
    if (!stream)
        return tier_decode(heads, blocks, body, escapes, dst, false);
    const unsigned r = tier_decode(heads, blocks, body, escapes, dst, true);
    _mm_sfence();
    return r;
}

/* ---- top7 ---- */

INLINE size_t top7_encode(const uint8_t *src, unsigned blocks, struct zfmt_block *heads, uint8_t *body,
                          uint8_t *escapes, unsigned *n1, bool stream, unsigned base, bool zero) {
    /* With zero, code 1 is exponent 0 and the codes from 2 on are base and below; base >= 6 here, so base + 1, which
     * changes places with zero, is always an escape. */
    const v64 low = set1(base), top = set1(base + 1 + zero), last = set1(6u - zero), one = set1(1);
    uint8_t *const first = body;
    unsigned n = 0;
    for (unsigned b = 0; b < blocks; b++, src += STEP) {
        _Alignas(64) uint8_t planes[3 * ZFMT_PLANE];
        uint8_t *const at = stream ? planes : body;
        unsigned met = 0;
#define ROW(i)                                                                                                         \
    {                                                                                                                  \
        const v64 e = split(src, i, body + 3 * ZFMT_PLANE, stream);                                                    \
        v64 c = _mm512_sub_epi8(top, e);                                                                               \
        __mmask64 in = _mm512_cmple_epu8_mask(_mm512_sub_epi8(low, e), last);                                          \
        if (zero) {                                                                                                    \
            const __mmask64 none = _mm512_testn_epi8_mask(e, e);                                                       \
            c = _mm512_mask_mov_epi8(c, none, one);                                                                    \
            in = _kor_mask64(in, none);                                                                                \
        }                                                                                                              \
        _store_mask64((__mmask64 *)(void *)(at + 8 * i), _mm512_mask_test_epi8_mask(in, c, one));                      \
        _store_mask64((__mmask64 *)(void *)(at + ZFMT_PLANE + 8 * i), _mm512_mask_test_epi8_mask(in, c, set1(2)));     \
        _store_mask64((__mmask64 *)(void *)(at + 2 * ZFMT_PLANE + 8 * i), _mm512_mask_test_epi8_mask(in, c, set1(4))); \
        met += compact(escapes + n + met, e, _knot_mask64(in));                                                        \
    }
        EACH8(ROW)
#undef ROW
        if (RARE(met > TOP7_BUDGET)) {
            heads[b] = (struct zfmt_block){ZFMT_RAW, 0};
            copy_block(body, src, stream);
            body += STEP;
            continue;
        }
        for (unsigned p = 0; stream && p < 3; p++)
            put(body + p * ZFMT_PLANE, load(planes + p * ZFMT_PLANE), true);
        heads[b] = (struct zfmt_block){ZFMT_TOP7, 0};
        n += met;
        body += TOP7_BODY;
    }
    *n1 = n;
    return (size_t)(body - first);
}

size_t avx512_bf16_top7_encode(const uint8_t *src, unsigned blocks, struct zfmt_block *heads, uint8_t *body,
                               uint8_t *escapes, unsigned *n1, bool stream, struct model_window w) {
    if (!stream)
        return w.zero ? top7_encode(src, blocks, heads, body, escapes, n1, false, w.base, true)
                      : top7_encode(src, blocks, heads, body, escapes, n1, false, w.base, false);
    const size_t r = w.zero ? top7_encode(src, blocks, heads, body, escapes, n1, true, w.base, true)
                            : top7_encode(src, blocks, heads, body, escapes, n1, true, w.base, false);
    _mm_sfence();
    return r;
}

INLINE unsigned top7_decode(const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                            const uint8_t *escapes, uint8_t *dst, bool stream, unsigned base, bool zero) {
    const v64 top = set1(base + 1 + zero), one = set1(1), two = set1(2), four = set1(4);
    unsigned n = 0;
    for (unsigned b = 0; b < blocks; b++, dst += STEP) {
        if (heads[b].mode == ZFMT_RAW) {
            copy_block(dst, body, stream);
            body += STEP;
            continue;
        }
#define ROW(i)                                                                                                         \
    {                                                                                                                  \
        const uint64_t p0 = get_word(body + 8 * i), p1 = get_word(body + ZFMT_PLANE + 8 * i);                          \
        const uint64_t p2 = get_word(body + 2 * ZFMT_PLANE + 8 * i), escape = ~(p0 | p1 | p2);                         \
        v64 e = _mm512_mask_sub_epi8(top, p0, top, one);                                                               \
        e = _mm512_mask_sub_epi8(e, p1, e, two);                                                                       \
        e = _mm512_mask_sub_epi8(e, p2, e, four);                                                                      \
        if (zero)                                                                                                      \
            e = _mm512_maskz_mov_epi8(~p0 | p1 | p2, e);                                                               \
        e = _mm512_mask_expand_epi8(e, escape, load(escapes + n));                                                     \
        join(e, body + 3 * ZFMT_PLANE, i, dst, stream);                                                                \
        n += (unsigned)__builtin_popcountll(escape);                                                                   \
    }
        EACH8(ROW)
#undef ROW
        body += TOP7_BODY;
    }
    return n;
}

unsigned avx512_bf16_top7_decode(const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                                 const uint8_t *escapes, uint8_t *dst, bool stream, struct model_window w) {
    if (!stream)
        return w.zero ? top7_decode(heads, blocks, body, escapes, dst, false, w.base, true)
                      : top7_decode(heads, blocks, body, escapes, dst, false, w.base, false);
    const unsigned r = w.zero ? top7_decode(heads, blocks, body, escapes, dst, true, w.base, true)
                              : top7_decode(heads, blocks, body, escapes, dst, true, w.base, false);
    _mm_sfence();
    return r;
}

/* ---- the passes over escapes, for every dtype ---- */

/* On d itself, as in loops.h: code = min(subs(d + add, less), 3). */
INLINE unsigned compact_pass(const uint8_t *in, unsigned n, uint8_t *plane0, uint8_t *plane1, uint8_t *out,
                             unsigned add, unsigned less) {
    const unsigned padded = (unsigned)layout_align((n + 7) / 8, ZFMT_ARRAY_ALIGN);
    unsigned met = 0, i = 0;
    for (; i < n; i += 64) {
        const v64 d = load(in + i);
        const v64 c = _mm512_min_epu8(_mm512_subs_epu8(_mm512_add_epi8(d, set1(add)), set1(less)), set1(3));
        const __mmask64 valid = n - i < 64 ? (1ull << (n - i)) - 1 : ~0ull;
        const __mmask64 p0 = _mm512_mask_test_epi8_mask(valid, c, set1(1));
        const __mmask64 p1 = _mm512_mask_test_epi8_mask(valid, c, set1(2));
        _store_mask64((__mmask64 *)(void *)(plane0 + i / 8), p0);
        _store_mask64((__mmask64 *)(void *)(plane1 + i / 8), p1);
        met += compact(out + met, d, _kand_mask64(p0, p1));
    }
    if (i / 8 < padded) {
        memset(plane0 + i / 8, 0, 8);
        memset(plane1 + i / 8, 0, 8);
    }
    return met;
}

unsigned avx512_compact(unsigned tier, const uint8_t *in, unsigned n, uint8_t *plane0, uint8_t *plane1, uint8_t *out) {
    return tier == 2 ? compact_pass(in, n, plane0, plane1, out, 1, 3) : compact_pass(in, n, plane0, plane1, out, 2, 6);
}

INLINE unsigned expand_pass(const uint8_t *plane0, const uint8_t *plane1, unsigned n, const uint8_t *in, uint8_t *out,
                            unsigned value0, unsigned value1, unsigned value2) {
    const v64 v0 = set1(value0), v1 = set1(value1), v2 = set1(value2);
    unsigned met = 0;
    for (unsigned i = 0; i < n; i += 64) {
        const uint64_t valid = n - i < 64 ? (1ull << (n - i)) - 1 : ~0ull;
        const uint64_t p0 = get_word(plane0 + i / 8), p1 = get_word(plane1 + i / 8), escape = p0 & p1 & valid;
        const v64 v = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(v0, p0, v1), p1, v2);
        _mm512_storeu_si512(out + i, _mm512_mask_expand_epi8(v, escape, load(in + met)));
        met += (unsigned)__builtin_popcountll(escape);
    }
    return met;
}

unsigned avx512_expand(unsigned tier, const uint8_t *plane0, const uint8_t *plane1, unsigned n, const uint8_t *in,
                       uint8_t *out) {
    return tier == 2 ? expand_pass(plane0, plane1, n, in, out, 255, 3, 4)
                     : expand_pass(plane0, plane1, n, in, out, 254, 5, 6);
}
