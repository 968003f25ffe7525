/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder's loops for BF16 on AVX-512, by hand, and its passes over escapes. Codes come from their planes as bit
 * matrices of 8 by 8 that are transposed.
 */
#include "kernels/cpu/avx512_bf16.h"

/* The opposite of the encoder's g_plane: planes 0 and 1 of eight rows as bit matrices of four rows each, two bits a row
 * (with the bytes in the order that the transposing instruction wants). */
static const uint8_t g_unplane[2][64] __attribute__((aligned(64))) = {
    {88, 24, 80, 16, 72, 8,  64, 0,  89, 25, 81, 17, 73, 9,  65, 1,  90, 26, 82, 18, 74, 10,
     66, 2,  91, 27, 83, 19, 75, 11, 67, 3,  92, 28, 84, 20, 76, 12, 68, 4,  93, 29, 85, 21,
     77, 13, 69, 5,  94, 30, 86, 22, 78, 14, 70, 6,  95, 31, 87, 23, 79, 15, 71, 7},
    {120, 56, 112, 48, 104, 40, 96,  32, 121, 57, 113, 49, 105, 41, 97,  33, 122, 58, 114, 50, 106, 42,
     98,  34, 123, 59, 115, 51, 107, 43, 99,  35, 124, 60, 116, 52, 108, 44, 100, 36, 125, 61, 117, 53,
     109, 45, 101, 37, 126, 62, 118, 54, 110, 46, 102, 38, 127, 63, 119, 55, 111, 47, 103, 39}};
/* For top7, from g_unplane's result and plane 2: four bits a row (bit 3 is a copy of bit 2). */
static const uint8_t g_unplane3[4][64] __attribute__((aligned(64))) = {
    {72, 72, 4,  5,  64, 64, 6,  7,  73, 73, 12, 13, 65, 65, 14, 15, 74, 74, 20, 21, 66, 66,
     22, 23, 75, 75, 28, 29, 67, 67, 30, 31, 76, 76, 36, 37, 68, 68, 38, 39, 77, 77, 44, 45,
     69, 69, 46, 47, 78, 78, 52, 53, 70, 70, 54, 55, 79, 79, 60, 61, 71, 71, 62, 63},
    {88, 88, 0,  1,  80, 80, 2,  3,  89, 89, 8,  9,  81, 81, 10, 11, 90, 90, 16, 17, 82, 82,
     18, 19, 91, 91, 24, 25, 83, 83, 26, 27, 92, 92, 32, 33, 84, 84, 34, 35, 93, 93, 40, 41,
     85, 85, 42, 43, 94, 94, 48, 49, 86, 86, 50, 51, 95, 95, 56, 57, 87, 87, 58, 59},
    {104, 104, 4,   5,   96,  96,  6,  7,  105, 105, 12,  13,  97,  97,  14,  15,  106, 106, 20,  21,  98, 98,
     22,  23,  107, 107, 28,  29,  99, 99, 30,  31,  108, 108, 36,  37,  100, 100, 38,  39,  109, 109, 44, 45,
     101, 101, 46,  47,  110, 110, 52, 53, 102, 102, 54,  55,  111, 111, 60,  61,  103, 103, 62,  63},
    {120, 120, 0,   1,   112, 112, 2,   3,   121, 121, 8,   9,   113, 113, 10,  11,  122, 122, 16,  17,  114, 114,
     18,  19,  123, 123, 24,  25,  115, 115, 26,  27,  124, 124, 32,  33,  116, 116, 34,  35,  125, 125, 40,  41,
     117, 117, 42,  43,  126, 126, 48,  49,  118, 118, 50,  51,  127, 127, 56,  57,  119, 119, 58,  59}};

INLINE uint64_t get_word(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}

/* A load that stays one: the compiler would make it an operand of each instruction that wants it. */
INLINE v64 load_once(const void *p) {
    v64 v = load(p);
    __asm__("" : "+v"(v));
    return v;
}

INLINE void join(v64 e, const uint8_t *plane, unsigned i, uint8_t *dst, bool stream) {
    const v64 r = load_once(plane + 64 * i);
    const v64 a = _mm512_permutex2var_epi8(r, load(g_weave[0]), e),
              b = _mm512_permutex2var_epi8(r, load(g_weave[1]), e);
    put(dst + 128 * i, _mm512_shldi_epi16(a, a, 15), stream);
    put(dst + 128 * i + 64, _mm512_shldi_epi16(b, b, 15), stream);
}

/* ---- tier, decode ---- */

/* Planes 0 and 1 of eight rows as bit matrices of four rows each. */
INLINE void get_planes(const uint8_t *plane0, const uint8_t *plane1, v64 matrix[2]) {
    const v64 p0 = load(plane0), p1 = load(plane1);
    matrix[0] = _mm512_permutex2var_epi8(p0, load(g_unplane[0]), p1);
    matrix[1] = _mm512_permutex2var_epi8(p0, load(g_unplane[1]), p1);
}

/* Codes of four rows in bytes, two bits a row. */
INLINE void get_codes(const uint8_t *plane0, const uint8_t *plane1, v64 packed[2]) {
    get_planes(plane0, plane1, packed);
    packed[0] = transpose_reversed(packed[0]);
    packed[1] = transpose_reversed(packed[1]);
}

INLINE v64 code_of(const v64 packed[2], unsigned i) {
    return _mm512_and_si512(_mm512_srli_epi16(packed[i / 4], 2 * (i % 4)), set1(3));
}

INLINE size_t escapes_of(const uint8_t *plane0, const uint8_t *plane1, unsigned i) {
    return (size_t)__builtin_popcountll(get_word(plane0 + 8 * i) & get_word(plane1 + 8 * i));
}

/* v with the next n bytes of in, where the mask is. More than 32 are rare, and a load of 64 bytes nearly always crosses
 * a line. */
INLINE v64 expand(v64 v, __mmask64 mask, const uint8_t *in, size_t n) {
    v64 bytes = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)in));
    if (RARE(n > 32)) /* the asm keeps this a branch: a choice between both would wait for n */
        bytes = load_once(in);
    return _mm512_mask_expand_epi8(v, mask, bytes);
}

INLINE const uint8_t *decode_block(unsigned base, bool zero, const uint8_t *body, const uint8_t *escapes, uint8_t *dst,
                                   bool stream) {
    const v64 top = set1(base + (unsigned)zero);
    v64 packed[2];
    get_codes(body, body + ZFMT_PLANE, packed);
#define ROW(i)                                                                                                         \
    {                                                                                                                  \
        const size_t m = escapes_of(body, body + ZFMT_PLANE, i);                                                       \
        const v64 c = code_of(packed, i);                                                                              \
        const v64 e = _mm512_sub_epi8(top, expand(c, _mm512_cmpeq_epi8_mask(c, set1(3)), escapes, m));                 \
        join(zero ? swap(e, top) : e, body + 2 * ZFMT_PLANE, i, dst, stream);                                          \
        escapes += m;                                                                                                  \
    }
    EACH8(ROW)
#undef ROW
    return escapes;
}

INLINE unsigned tier_decode(const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                            const uint8_t *escapes, uint8_t *dst, bool stream) {
    const uint8_t *const start = escapes;
    for (unsigned b = 0; b < blocks; b++, dst += STEP) {
        const unsigned mode = heads[b].mode;
        if (__builtin_expect(mode == ZFMT_TIER, 1)) {
            escapes = decode_block(heads[b].base, false, body, escapes, dst, stream);
        } else if (mode == ZFMT_TIER_ZERO) {
            escapes = decode_block(heads[b].base, true, body, escapes, dst, stream);
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
    return (unsigned)(escapes - start);
}

unsigned avx512_bf16_tier_decode(const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                                 const uint8_t *escapes, uint8_t *dst, bool stream) {
    if (!stream)
        return tier_decode(heads, blocks, body, escapes, dst, false);
    const unsigned r = tier_decode(heads, blocks, body, escapes, dst, true);
    _mm_sfence();
    return r;
}

INLINE unsigned top7_decode(const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                            const uint8_t *escapes, uint8_t *dst, bool stream, unsigned base, bool zero) {
    /* The exponents of the codes; bit 3 of an index copies bit 2. */
    _Alignas(64) uint8_t values[16];
    for (unsigned i = 0; i < 16; i++)
        values[i] = (uint8_t)(base + 1 + zero - i % 8);
    for (unsigned i = 0; zero && i < 16; i++)
        values[i] = i % 8 == 1 ? 0 : values[i] == 0 ? (uint8_t)(base + 1) : values[i];
    memcpy(values + 12, values + 4, 4);
    const v64 table = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(const void *)values));
    unsigned n = 0;
    for (unsigned b = 0; b < blocks; b++, dst += STEP) {
        if (heads[b].mode == ZFMT_RAW) {
            copy_block(dst, body, stream);
            body += STEP;
            continue;
        }
        const v64 p2 = load(body + 2 * ZFMT_PLANE), nibble = set1(0xf);
        v64 matrix[2];
        get_planes(body, body + ZFMT_PLANE, matrix);
#define PAIR(i) const v64 t##i = transpose_reversed(_mm512_permutex2var_epi8(matrix[(i) / 2], load(g_unplane3[i]), p2));
        PAIR(0)
        PAIR(1)
        PAIR(2)
        PAIR(3)
#undef PAIR
#define ROW(i, t)                                                                                                      \
    {                                                                                                                  \
        const v64 c = _mm512_and_si512((i) % 2 ? _mm512_srli_epi16(t, 4) : t, nibble);                                 \
        const unsigned m =                                                                                             \
            (unsigned)__builtin_popcountll(~(get_word(body + 8 * (i)) | get_word(body + ZFMT_PLANE + 8 * (i)) |        \
                                             get_word(body + 2 * ZFMT_PLANE + 8 * (i))));                              \
        const v64 e = expand(_mm512_shuffle_epi8(table, c), _mm512_testn_epi8_mask(c, c), escapes + n, m);             \
        join(e, body + 3 * ZFMT_PLANE, i, dst, stream);                                                                \
        n += m;                                                                                                        \
    }
        ROW(0, t0)
        ROW(1, t0)
        ROW(2, t1)
        ROW(3, t1)
        ROW(4, t2)
        ROW(5, t2)
        ROW(6, t3)
        ROW(7, t3)
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

INLINE unsigned expand_pass(const uint8_t *plane0, const uint8_t *plane1, unsigned n, const uint8_t *in, uint8_t *out,
                            unsigned value0, unsigned value1, unsigned value2) {
    const v64 table = _mm512_set1_epi32((int)(value0 | value1 << 8 | value2 << 16));
    size_t met = 0;
    unsigned i = 0;
    v64 packed[2], next[2];
    if (n >= ZFMT_BLOCK)
        get_codes(plane0, plane1, packed);
    for (; i + ZFMT_BLOCK <= n; i += ZFMT_BLOCK) {
        /* The next 512 codes are fetched during these: their way to the first store is long. */
        const unsigned ahead = (i + 2 * ZFMT_BLOCK <= n ? i + ZFMT_BLOCK : i) / 8;
#define ROW(k)                                                                                                         \
    {                                                                                                                  \
        const size_t m = escapes_of(plane0 + i / 8, plane1 + i / 8, k);                                                \
        const v64 c = code_of(packed, k);                                                                              \
        const __mmask64 escape = _mm512_cmpeq_epi8_mask(c, set1(3));                                                   \
        _mm512_storeu_si512(out + i + 64 * (k), expand(_mm512_shuffle_epi8(table, c), escape, in + met, m));           \
        met += m;                                                                                                      \
        if ((k) == 1) {                                                                                                \
            get_codes(plane0 + ahead, plane1 + ahead, next);                                                           \
            next[0] = here(next[0]);                                                                                   \
            next[1] = here(next[1]);                                                                                   \
        }                                                                                                              \
    }
        EACH8(ROW)
#undef ROW
        packed[0] = next[0];
        packed[1] = next[1];
    }
    const v64 v0 = set1(value0), v1 = set1(value1), v2 = set1(value2);
    for (; i < n; i += 64) {
        const uint64_t valid = n - i < 64 ? (1ull << (n - i)) - 1 : ~0ull;
        const uint64_t p0 = get_word(plane0 + i / 8), p1 = get_word(plane1 + i / 8), escape = p0 & p1 & valid;
        const v64 v = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(v0, p0, v1), p1, v2);
        const size_t m = (size_t)__builtin_popcountll(escape);
        _mm512_storeu_si512(out + i, expand(v, escape, in + met, m));
        met += m;
    }
    return (unsigned)met;
}

unsigned avx512_expand(unsigned tier, const uint8_t *plane0, const uint8_t *plane1, unsigned n, const uint8_t *in,
                       uint8_t *out) {
    return tier == 2   ? expand_pass(plane0, plane1, n, in, out, 255, 3, 4)
           : tier == 3 ? expand_pass(plane0, plane1, n, in, out, 254, 5, 6)
                       : expand_pass(plane0, plane1, n, in, out, 253, 7, 8);
}
