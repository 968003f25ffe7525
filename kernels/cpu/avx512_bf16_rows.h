/* SPDX-License-Identifier: Apache-2.0
 *
 * What the BF16 encoder on AVX-512 does with a block's rows in tier: the guess of the base, codes as planes, escapes
 * moved together, and the loop's body that does all of it side by side. For avx512_bf16_encode.c alone.
 */
#ifndef ZIPCCL_KERNELS_CPU_AVX512_BF16_ROWS_H
#define ZIPCCL_KERNELS_CPU_AVX512_BF16_ROWS_H

#include "kernels/cpu/avx512_bf16.h"

/* Planes and codes are bit matrices, transposed 8 by 8. Tier packs the codes of four rows into bytes, two bits a row; a
 * qword of the transpose then has byte p of row r at 2 * r + p. g_plane gathers plane p of eight rows from two of
 * them. */
static const uint8_t g_plane[2][64] __attribute__((aligned(64))) = {
    {0,  8,   16,  24,  32, 40, 48, 56, 2,   10,  18,  26,  34, 42, 50, 58,  4,   12,  20,  28, 36, 44,
     52, 60,  6,   14,  22, 30, 38, 46, 54,  62,  64,  72,  80, 88, 96, 104, 112, 120, 66,  74, 82, 90,
     98, 106, 114, 122, 68, 76, 84, 92, 100, 108, 116, 124, 70, 78, 86, 94,  102, 110, 118, 126},
    {1,  9,   17,  25,  33, 41, 49, 57, 3,   11,  19,  27,  35, 43, 51, 59,  5,   13,  21,  29, 37, 45,
     53, 61,  7,   15,  23, 31, 39, 47, 55,  63,  65,  73,  81, 89, 97, 105, 113, 121, 67,  75, 83, 91,
     99, 107, 115, 123, 69, 77, 85, 93, 101, 109, 117, 125, 71, 79, 87, 95,  103, 111, 119, 127}};
/* The low bytes of eight qwords, and the bytes above. */
static const uint8_t g_sums[64]
    __attribute__((aligned(64))) = {0, 8, 16, 24, 32, 40, 48, 56, 1, 9, 17, 25, 33, 41, 49, 57};

INLINE unsigned count(__mmask64 m) {
    return (unsigned)__builtin_popcountll(_cvtmask64_u64(m));
}

/* Step 2 of the rule, on the way from the rows r to the guess in every byte. */
struct guess {
    v64 r[4], most[2], least, over[4], sum, base;
    __m128i x;
};

INLINE void guess_step(struct guess *g, unsigned step) {
    const v64 none = _mm512_setzero_si512();
    switch (step) {
    case 0:
    case 1:
        g->most[step] = here(_mm512_max_epu8(g->r[2 * step], g->r[2 * step + 1]));
        break;
    case 2:
        g->most[0] = here(_mm512_max_epu8(g->most[0], g->most[1]));
        break;
    case 3:
        g->least = here(_mm512_subs_epu8(g->most[0], set1(MODEL_FLOOR)));
        break;
    case 4: /* max(e, least) - least is at most MODEL_FLOOR, so four of them fit a byte. */
        for (unsigned k = 0; k < 4; k++)
            g->over[k] = here(_mm512_subs_epu8(g->r[k], g->least));
        break;
    case 5:
        g->over[0] = here(_mm512_add_epi8(g->over[0], g->over[1]));
        g->over[2] = here(_mm512_add_epi8(g->over[2], g->over[3]));
        g->sum = here(_mm512_sad_epu8(g->least, none));
        break;
    case 6:
        g->over[0] = here(_mm512_add_epi8(g->over[0], g->over[2]));
        g->sum = here(_mm512_slli_epi64(g->sum, 2));
        break;
    case 7:
        g->over[0] = here(_mm512_sad_epu8(g->over[0], none));
        break;
    case 8:
        g->sum = here(_mm512_add_epi64(g->sum, g->over[0]));
        break;
    case 9: /* The eight sums fit 16 bits: their low bytes and their high bytes are added up apart. */
        g->sum = here(_mm512_permutexvar_epi8(load(g_sums), g->sum));
        break;
    case 10:
        g->x = _mm_sad_epu8(_mm512_castsi512_si128(g->sum), _mm_setzero_si128());
        __asm__ volatile("" : "+v"(g->x));
        break;
    case 11:
        g->x = _mm_add_epi64(g->x, _mm_cvtsi32_si128(MODEL_BIAS));
        __asm__ volatile("" : "+v"(g->x));
        break;
    case 12: /* Byte 1 carries into byte 8; as the sum of both is at most 255 or means 255, this is the rule's
              * division. */
        g->x = _mm_adds_epu8(g->x, _mm_bsrli_si128(g->x, 7));
        __asm__ volatile("" : "+v"(g->x));
        break;
    default:
        g->base = here(_mm512_permutexvar_epi8(set1(1), _mm512_castsi128_si512(g->x)));
    }
}

INLINE v64 guess(v64 r0, v64 r2, v64 r4, v64 r6) {
    struct guess g = {.r = {r0, r2, r4, r6}};
#define STEP(i) guess_step(&g, i);
    EACH8(STEP)
    STEP(8)
    STEP(9)
    STEP(10)
    STEP(11)
    STEP(12)
    STEP(13)
#undef STEP
    return g.base;
}

/* Bit matrices of 8 by 8 transposed: byte k of a qword gets bit k of its bytes, the first byte's lowest. */
INLINE v64 transpose(v64 v) {
    const v64 back = _mm512_set_epi64(0x08090a0b0c0d0e0f, 0x0001020304050607, 0x08090a0b0c0d0e0f, 0x0001020304050607,
                                      0x08090a0b0c0d0e0f, 0x0001020304050607, 0x08090a0b0c0d0e0f, 0x0001020304050607);
    return _mm512_gf2p8affine_epi64_epi8(_mm512_set1_epi64((long long)0x8040201008040201ull),
                                         _mm512_shuffle_epi8(v, back), 0);
}

/* The bytes of v in mask, together. */
INLINE v64 squeeze(v64 v, __mmask64 mask) {
    return _mm512_mask_compress_epi8(v, mask, v); /* zeroing would wait for the register's last value */
}

/* Squeezed bytes to out; returns their count. Where mostly more than 32 are to be had (many), the store is a whole one;
 * else its upper half is left to a branch, as most stores cross a line. */
INLINE unsigned keep(uint8_t *out, v64 packed, __mmask64 mask, bool many) {
    const unsigned n = count(mask);
    if (many) {
        _mm512_storeu_si512(out, packed);
        return n;
    }
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_castsi512_si256(packed));
    if (RARE(n > 32))
        _mm256_storeu_si256((__m256i *)(void *)(out + 32), _mm512_extracti64x4_epi64(packed, 1));
    return n;
}

INLINE unsigned compact_row(uint8_t *out, v64 v, __mmask64 mask, bool many) {
    return keep(out, squeeze(v, mask), mask, many);
}

/* The packed codes of eight rows as planes. */
INLINE void put_codes(v64 low, v64 high, uint8_t *plane0, uint8_t *plane1, bool stream) {
    const v64 a = transpose(low), b = transpose(high);
    put(plane0, _mm512_permutex2var_epi8(a, load(g_plane[0]), b), stream);
    put(plane1, _mm512_permutex2var_epi8(a, load(g_plane[1]), b), stream);
}

INLINE bool any_zero(v64 v) {
    return _mm512_testn_epi8_mask(v, v) != 0;
}

/* A block's codes while the next block is split; e and top change from this block's to the next's. Returns the count of
 * escapes. no_zeros tells whether all e > 0; without exact, which is half the price, it may be false though they are.
 *
 * The order below is that of the instructions. The processor looks ahead over hardly more than a block, and what waits
 * long for its inputs holds up all that comes after it. So rows are at different steps side by side, and the steps to
 * the next block's base, which is the longest way, are spread over the others:
 *  LOAD TURN PART PLANE  row i of the next block: read, rotated, exponents f and remainders apart, remainders stored
 *  CODE PACK SQUEEZE KEEP  row i of this block: its code, in its place among four rows', escapes together and stored
 *  ZERO  rows i and i + 1 of this block in the test for e = 0 */
INLINE unsigned code_and_split(const uint8_t *next, uint8_t *plane, v64 e[8], v64 *top, uint8_t *body, uint8_t *escapes,
                               bool stream, bool many, bool exact, bool *no_zeros) {
    const v64 base = *top, three = set1(3);
    struct guess g;
    v64 a[8], b[8], f[8], d[8], c[8], least = e[0];
    __mmask64 mask[8];
    unsigned n = 0;
#define LOAD(i)                                                                                                        \
    a[i] = here(load(next + 128 * (i)));                                                                               \
    b[i] = here(load(next + 128 * (i) + 64));
#define TURN(i)                                                                                                        \
    a[i] = here(_mm512_shldi_epi16(a[i], a[i], 1));                                                                    \
    b[i] = here(_mm512_shldi_epi16(b[i], b[i], 1));
#define PART(i)                                                                                                        \
    f[i] = here(_mm512_permutex2var_epi8(a[i], load(g_pick2[1]), b[i]));                                               \
    a[i] = here(_mm512_permutex2var_epi8(a[i], load(g_pick2[0]), b[i]));
#define PLANE(i) put(plane + 64 * (i), a[i], stream);
#define CODE(i)                                                                                                        \
    d[i] = here(_mm512_sub_epi8(base, e[i]));                                                                          \
    c[i] = here(_mm512_min_epu8(d[i], three));                                                                         \
    mask[i] = _mm512_cmpeq_epi8_mask(c[i], three);                                                                     \
    __asm__ volatile("" : "+k"(mask[i]));
#define PACK(i)    c[i] = here(_mm512_slli_epi16(c[i], 2 * ((i) % 4)));
#define SQUEEZE(i) d[i] = here(squeeze(d[i], mask[i]));
#define KEEP(i)    n += keep(escapes + n, d[i], mask[i], many);
#define PAIR(i)    c[i] = here(_mm512_or_si512(c[i], c[(i) + 1]));
#define FOUR(i)    c[i] = here(_mm512_ternarylogic_epi64(c[i], c[(i) + 2], c[(i) + 3], 0xfe)); /* a | b | c */
#define ZERO(i)                                                                                                        \
    least = exact ? here(_mm512_min_epu8(least, _mm512_min_epu8(e[i], e[(i) + 1])))                                    \
                  : here(_mm512_ternarylogic_epi64(least, e[i], e[(i) + 1], 0x80)); /* a & b & c */
#define GUESS(i) guess_step(&g, i);
    /* Formatted by hand: a step a line would hide which ones are side by side. */
    /* clang-format off */
    LOAD(0) LOAD(2) TURN(0) LOAD(4) TURN(2) LOAD(6) PART(0) TURN(4) PART(2) TURN(6)
    PLANE(0) PART(4) PLANE(2) PART(6) PLANE(4)
    g.r[0] = f[0], g.r[1] = f[2], g.r[2] = f[4], g.r[3] = f[6];
    CODE(0) GUESS(0) CODE(1) GUESS(1) SQUEEZE(0) GUESS(2) CODE(2) GUESS(3) SQUEEZE(1) KEEP(0) PLANE(6) ZERO(1)
    GUESS(4) PACK(1) CODE(3) SQUEEZE(2) KEEP(1) GUESS(5) PACK(2) PAIR(0) GUESS(6) LOAD(1)
    CODE(4) GUESS(7) SQUEEZE(3) KEEP(2) PACK(3) ZERO(3) GUESS(8) TURN(1) LOAD(3)
    CODE(5) GUESS(9) SQUEEZE(4) KEEP(3) PART(1) FOUR(0) TURN(3) PLANE(1)
    LOAD(5) PART(3) CODE(6) GUESS(10) SQUEEZE(5) KEEP(4) PACK(5) GUESS(11) PLANE(3) ZERO(5)
    TURN(5) LOAD(7) CODE(7) SQUEEZE(6) GUESS(12) KEEP(5) PACK(6) PAIR(4)
    PART(5) TURN(7) PLANE(5) SQUEEZE(7) KEEP(6) PACK(7) GUESS(13)
    PART(7) FOUR(4) PLANE(7) KEEP(7)
    least = exact ? _mm512_min_epu8(least, e[7]) : _mm512_and_si512(least, e[7]);
    /* clang-format on */
    *no_zeros = !any_zero(least);
    put_codes(c[0], c[4], body, body + ZFMT_PLANE, stream);
#undef LOAD
#undef TURN
#undef PART
#undef PLANE
#undef CODE
#undef PACK
#undef SQUEEZE
#undef KEEP
#undef PAIR
#undef FOUR
#undef ZERO
#undef GUESS
#define ROW(i) e[i] = f[i];
    EACH8(ROW)
#undef ROW
    *top = g.base;
    return n;
}

#endif
