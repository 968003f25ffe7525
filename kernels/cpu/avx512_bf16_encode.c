/* SPDX-License-Identifier: Apache-2.0
 *
 * The encoder's loops for BF16 on AVX-512, by hand, and its passes over escapes. What loops.h does in steps is one
 * pipeline here: while a block's codes are made, the next one is split into its exponents and remainders, so that the
 * sums that its base needs are ready in time. A block's eight rows of 64 exponents stay in registers.
 */
#include "kernels/cpu/avx512_bf16_rows.h"

enum {
    TIER_BUDGET = STEP - TIER_BODY - ZFMT_TIER_MARGIN,
    TIER_SURE = TIER_BUDGET * 2 / 3, /* so many escapes never cost more than the budget */
    MANY =
        MODEL_ACCEPT + 16, /* a block with more escapes is likely followed by such, until one accepted by its count */
    TOP7_BUDGET = STEP - TOP7_BODY - ZFMT_TIER_MARGIN
};

/* top7 packs two rows, four bits a row: planes 0 and 1, then twice plane 2, of four rows. */
static const uint8_t g_plane3[2][64] __attribute__((aligned(64))) = {
    {0,   8,   16, 24, 32, 40, 48,  56,  4,   12,  20,  28,  36, 44, 52, 60, 64,  72,  80,  88, 96, 104,
     112, 120, 68, 76, 84, 92, 100, 108, 116, 124, 1,   9,   17, 25, 33, 41, 49,  57,  5,   13, 21, 29,
     37,  45,  53, 61, 65, 73, 81,  89,  97,  105, 113, 121, 69, 77, 85, 93, 101, 109, 117, 125},
    {2,   10,  18, 26, 34, 42, 50,  58,  6,   14,  22,  30,  38, 46, 54, 62, 66,  74,  82,  90, 98, 106,
     114, 122, 70, 78, 86, 94, 102, 110, 118, 126, 2,   10,  18, 26, 34, 42, 50,  58,  6,   14, 22, 30,
     38,  46,  54, 62, 66, 74, 82,  90,  98,  106, 114, 122, 70, 78, 86, 94, 102, 110, 118, 126}};

INLINE unsigned first_byte(v64 v) {
    return (unsigned)_mm_cvtsi128_si32(_mm512_castsi512_si128(v)) & 0xff;
}

/* The exponents of row i of a block. */
INLINE v64 exponents(const uint8_t *src, unsigned i) {
    const v64 a = load(src + 128 * i), b = load(src + 128 * i + 64);
    return _mm512_permutex2var_epi8(_mm512_shldi_epi16(a, a, 1), load(g_pick2[1]), _mm512_shldi_epi16(b, b, 1));
}

/* The same; the remainders go to the body's byte plane. */
INLINE v64 split(const uint8_t *src, unsigned i, uint8_t *plane, bool stream) {
    v64 a = load(src + 128 * i), b = load(src + 128 * i + 64);
    a = _mm512_shldi_epi16(a, a, 1);
    b = _mm512_shldi_epi16(b, b, 1);
    put(plane + 64 * i, _mm512_permutex2var_epi8(a, load(g_pick2[0]), b), stream);
    return _mm512_permutex2var_epi8(a, load(g_pick2[1]), b);
}

/* The code of row i among those of the four rows, two bits each. */
INLINE v64 pack(v64 packed, v64 c, unsigned i) {
    return i % 4 ? _mm512_or_si512(packed, _mm512_slli_epi16(c, 2 * (i % 4))) : c;
}

/* Tier 1 of row i; packed gets its code. Returns the count of escapes. */
INLINE unsigned code_row(v64 d, v64 code, unsigned i, v64 packed[2], uint8_t *escapes, bool many) {
    packed[i / 4] = pack(packed[i / 4], code, i);
    return compact_row(escapes, d, _mm512_cmpeq_epi8_mask(code, set1(3)), many);
}

/* ---- tier, the rule's steps for blocks that are not as most ---- */

/* Step 1. Without a branch for each row: the rows mostly are the same, all of them. */
static __attribute__((noinline)) bool all_same(const uint8_t *src) {
    uint16_t value;
    memcpy(&value, src, 2);
    const v64 v = _mm512_set1_epi16((short)value);
    v64 odd[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (unsigned i = 0; i < STEP; i += 128) {
        odd[0] = _mm512_ternarylogic_epi64(odd[0], v, load(src + i), 0xf6); /* a | b ^ c */
        odd[1] = _mm512_ternarylogic_epi64(odd[1], v, load(src + i + 64), 0xf6);
    }
    const v64 any = _mm512_or_si512(odd[0], odd[1]);
    return _mm512_test_epi64_mask(any, any) == 0;
}

/* The first value. */
INLINE bool is_zero(const uint8_t *src) {
    return src[0] == 0 && src[1] == 0;
}

static void put_same(const uint8_t *src, struct zfmt_block *head, uint8_t *body) {
    const bool zero = is_zero(src);
    *head = (struct zfmt_block){zero ? ZFMT_ZERO : ZFMT_CONST, 0};
    if (zero)
        return;
    memset(body, 0, ZFMT_BODY_ALIGN);
    memcpy(body, src, 2);
}

/* Steps 4 and 5, and with first also 3, for exponents e and the guess in head. Counts add up in vectors: moving each
 * mask to a general register costs more. */
INLINE void judge(const v64 e[8], struct zfmt_block *head, bool first, unsigned *n1) {
    const v64 one = set1(1), none = _mm512_setzero_si512();
    const v64 top0 = set1(head->base), top1 = set1(head->base + 1u), top2 = set1(head->base + 2u);
    v64 counts[4] = {none, none, none, none}, sample = none;
    for (unsigned i = 0; i < 8; i++) {
        const __mmask64 m[4] = {_mm512_cmpge_epu8_mask(_mm512_sub_epi8(top0, e[i]), set1(3)),
                                _mm512_cmpge_epu8_mask(_mm512_sub_epi8(top1, e[i]), set1(6)),
                                _mm512_cmpge_epu8_mask(_mm512_sub_epi8(top2, e[i]), set1(9)),
                                _mm512_testn_epi8_mask(e[i], e[i])};
        for (unsigned k = 0; k < 4; k++)
            counts[k] = _mm512_mask_add_epi8(counts[k], m[k], counts[k], one);
        sample = _mm512_mask_mov_epi64(sample, (__mmask8)(1u << i), e[i]);
    }
    v64 sums = none; /* 16 bits hold a total */
    for (unsigned k = 0; k < 4; k++)
        sums = _mm512_add_epi64(sums, _mm512_slli_epi64(_mm512_sad_epu8(counts[k], none), 16 * k));
    const uint64_t totals = (uint64_t)_mm512_reduce_add_epi64(sums);
    const unsigned n[4] = {(uint16_t)totals, (uint16_t)(totals >> 16), (uint16_t)(totals >> 32),
                           (uint16_t)(totals >> 48)};
    *n1 = n[0];
    if ((first && n[0] <= MODEL_ACCEPT) ||
        (n[3] <= MODEL_FEW_ZEROS && model_price(n[0], n[1], n[2]) <= 4 * TIER_BUDGET))
        return;
    struct model_counts c = {.zeros = n[3]};
    const unsigned rank = (64 - count(_mm512_testn_epi8_mask(sample, sample)) + 1) / 2;
    for (unsigned bit = 64; bit && rank; bit >>= 2) { /* two bits a round */
        const unsigned t = c.median;
        const unsigned a = count(_mm512_cmpge_epu8_mask(sample, set1(t + bit)));
        const unsigned b = count(_mm512_cmpge_epu8_mask(sample, set1(t + 2 * bit)));
        const unsigned d = count(_mm512_cmpge_epu8_mask(sample, set1(t + 3 * bit)));
        c.median += bit * ((unsigned)(a >= rank) + (b >= rank) + (d >= rank));
    }
    const v64 low = set1(c.median - MODEL_COUNTS_LOW), width = set1(MODEL_COUNTS);
    v64 near = none;
    for (unsigned i = 0; i < 8; i++)
        near = _mm512_mask_add_epi8(near, _mm512_cmplt_epu8_mask(_mm512_sub_epi8(e[i], low), width), near, one);
    *head = (struct zfmt_block){ZFMT_RAW, 0};
    if (!model_hopeful((unsigned)_mm512_reduce_add_epi64(_mm512_sad_epu8(near, none)), c.zeros, TIER_BUDGET))
        return;
    for (unsigned k = 0; k < MODEL_COUNTS; k++) {
        const unsigned x = c.median - MODEL_COUNTS_LOW + k;
        if (x - 1 > 254)
            continue;
        v64 hits = none;
        for (unsigned i = 0; i < 8; i++)
            hits = _mm512_mask_add_epi8(hits, _mm512_cmpeq_epi8_mask(e[i], set1(x)), hits, one);
        c.hits[k] = (uint16_t)_mm512_reduce_add_epi64(_mm512_sad_epu8(hits, none));
    }
    *head = model_choose(&c, TIER_BUDGET);
}

/* ---- tier, encode ---- */

/* A block by itself. Returns the count of escapes. */
static __attribute__((noinline)) unsigned code_block(const uint8_t *src, struct zfmt_block head, uint8_t *body,
                                                     uint8_t *escapes, bool stream) {
    const bool zero = head.mode == ZFMT_TIER_ZERO;
    const v64 top = set1(head.base + (unsigned)zero), three = set1(3);
    v64 packed[2];
    unsigned n = 0;
#define ROW(i)                                                                                                         \
    {                                                                                                                  \
        const v64 e = split(src, i, body + 2 * ZFMT_PLANE, stream);                                                    \
        const v64 d = _mm512_sub_epi8(top, zero ? swap(e, top) : e);                                                   \
        n += code_row(d, _mm512_min_epu8(d, three), i, packed, escapes + n, true);                                     \
    }
    EACH8(ROW)
#undef ROW
    put_codes(packed[0], packed[1], body, body + ZFMT_PLANE, stream);
    return n;
}

/* Of n escapes of tier 1 with this base, those of tier 3. no_zeros: all e > 0, of which the escapes tell where base is
 * no less than 3; else it may be false though they are. */
INLINE unsigned far_of(const uint8_t *escapes, unsigned n, unsigned base, bool *no_zeros) {
    const v64 zero = set1(base);
    unsigned far = 0;
    uint64_t zeros = 0;
    for (unsigned i = 0; i < n; i += 64) {
        const v64 d = load(escapes + i);
        const uint64_t valid = n - i < 64 ? (1ull << (n - i)) - 1 : ~0ull;
        far += count(_mm512_mask_cmpge_epu8_mask(valid, _mm512_add_epi8(d, set1(2)), set1(9)));
        zeros |= _mm512_mask_cmpeq_epi8_mask(valid, d, zero);
    }
    *no_zeros = base > 2 && zeros == 0;
    return far;
}

/* A block that is not as most; its tier 1 is coded with the guess and has n escapes. Returns the escapes that stay. */
static __attribute__((noinline)) unsigned settle(const uint8_t *src, unsigned n, struct zfmt_block *head, uint8_t *body,
                                                 uint8_t *escapes, bool stream) {
    if (n == 0) {
        if (all_same(src))
            put_same(src, head, body);
        return 0;
    }
    /* Mostly tier 3 alone says that the guess pays. */
    bool no_zeros;
    const unsigned n3 = far_of(escapes, n, head->base, &no_zeros);
    if (no_zeros && (n <= TIER_SURE || model_price(n, n, n3) <= 4 * TIER_BUDGET))
        return n;
    v64 e[8];
    for (unsigned i = 0; i < 8; i++)
        e[i] = exponents(src, i);
    const struct zfmt_block guess = *head;
    judge(e, head, false, &n);
    if (head->mode == guess.mode && head->base == guess.base)
        return n;
    if (head->mode != ZFMT_RAW)
        return code_block(src, *head, body, escapes, stream);
    copy_block(body, src, stream);
    return 0;
}

/* A block after a raw one: likely raw, so it is judged before it is coded. False, with nothing done, where it is not.
 */
static __attribute__((noinline)) bool still_raw(const uint8_t *src, uint8_t *body, bool stream) {
    v64 e[8];
    unsigned n;
#define ROW(i) e[i] = exponents(src, i);
    EACH8(ROW)
#undef ROW
    struct zfmt_block head = {ZFMT_TIER, (uint8_t)first_byte(guess(e[0], e[2], e[4], e[6]))};
    judge(e, &head, true, &n);
    if (head.mode != ZFMT_RAW)
        return false;
    copy_block(body, src, stream);
    return true;
}

/* Per column the bits that all exponents have in common. */
INLINE v64 common(const v64 e[8]) {
    v64 v = _mm512_ternarylogic_epi64(e[0], e[1], e[2], 0x80); /* a & b & c */
    v = _mm512_ternarylogic_epi64(v, e[3], e[4], 0x80);
    v = _mm512_ternarylogic_epi64(v, e[5], e[6], 0x80);
    return _mm512_and_si512(v, e[7]);
}

/* Where an encoder is, and what the last block was. */
struct run {
    const uint8_t *src;
    uint8_t *body;
    unsigned b, n; /* blocks and escapes so far */
    bool same, raw, many;
};

/* Blocks in tier, up to one that is not, or whose count of escapes is for the other value of many. */
INLINE void run_tier(struct run *r, unsigned blocks, struct zfmt_block *heads, uint8_t *escapes, bool stream,
                     bool many) {
    _Alignas(64) uint8_t unused[ZFMT_BLOCK];
    const uint8_t *src = r->src;
    uint8_t *body = r->body;
    unsigned b = r->b, n = r->n;
    bool go = true;
    r->same = r->raw = false;
    v64 e[8], top;
#define ROW(i) e[i] = split(src, i, body + 2 * ZFMT_PLANE, stream);
    EACH8(ROW)
#undef ROW
    top = guess(e[0], e[2], e[4], e[6]);
    const bool exact = any_zero(common(e)); /* likely in the other blocks too */
    for (; go && b < blocks; b++, src += STEP) {
        const bool more = b + 1 < blocks;
        const uint8_t *const next = more ? src + STEP : src;
        uint8_t *const plane = more ? body + TIER_BODY + 2 * ZFMT_PLANE : unused;
        struct zfmt_block *const head = &heads[b];
        *head = (struct zfmt_block){ZFMT_TIER, (uint8_t)first_byte(top)};
        bool no_zeros = false;
        unsigned met = code_and_split(next, plane, e, &top, body, escapes + n, stream, many, exact, &no_zeros);
        const unsigned sure = no_zeros ? TIER_SURE : MODEL_ACCEPT;
        /* Also where there are none: then all values can be the same. */
        if (RARE(met - 1 >= (many ? sure : no_zeros ? MANY : MODEL_ACCEPT))) {
            go = r->many = met >= MANY;
            if (met - 1 >= sure) {
                met = settle(src, met, head, body, escapes + n, stream);
                go = head->mode == ZFMT_TIER || head->mode == ZFMT_TIER_ZERO;
                r->same = head->mode == ZFMT_ZERO || head->mode == ZFMT_CONST;
                r->raw = head->mode == ZFMT_RAW;
            }
            go = go && r->many == many;
            body += layout_body(KIND_BF16, head->mode);
        } else {
            if (many && met <= MODEL_ACCEPT)
                go = r->many = false;
            body += TIER_BODY;
        }
        n += met;
    }
    r->src = src;
    r->body = body;
    r->b = b;
    r->n = n;
}

INLINE size_t tier_encode(const uint8_t *src, unsigned blocks, struct zfmt_block *heads, uint8_t *body,
                          uint8_t *escapes, unsigned *n1, bool stream) {
    struct run r = {.src = src, .body = body};
    while (r.b < blocks) {
        struct zfmt_block *const head = &heads[r.b];
        if (r.same && all_same(r.src)) { /* runs of them are common */
            put_same(r.src, head, r.body);
        } else if (r.raw && still_raw(r.src, r.body, stream)) {
            *head = (struct zfmt_block){ZFMT_RAW, 0};
        } else {
            if (r.many)
                run_tier(&r, blocks, heads, escapes, stream, true);
            else
                run_tier(&r, blocks, heads, escapes, stream, false);
            continue;
        }
        r.b++;
        r.src += STEP;
        r.body += layout_body(KIND_BF16, head->mode);
    }
    *n1 = r.n;
    return (size_t)(r.body - body);
}

size_t avx512_bf16_tier_encode(const uint8_t *src, unsigned blocks, struct zfmt_block *heads, uint8_t *body,
                               uint8_t *escapes, unsigned *n1, bool stream) {
    if (!stream)
        return tier_encode(src, blocks, heads, body, escapes, n1, false);
    const size_t r = tier_encode(src, blocks, heads, body, escapes, n1, true);
    _mm_sfence();
    return r;
}

/* ---- top7 ---- */

/* The codes of eight rows, packed in pairs, as planes; they are turned by 1, or with zero by 2, modulo 8, which is
 * cheaper on planes. */
INLINE void put_codes3(v64 t[4], bool zero, uint8_t *planes, bool stream) {
    for (unsigned i = 0; i < 4; i++)
        t[i] = transpose(t[i]);
    const v64 i01 = load(g_plane3[0]), i2 = load(g_plane3[1]);
    const v64 a = _mm512_permutex2var_epi8(t[0], i01, t[1]), b = _mm512_permutex2var_epi8(t[2], i01, t[3]);
    const v64 c0 = _mm512_shuffle_i64x2(a, b, 0x44), c1 = _mm512_shuffle_i64x2(a, b, 0xee), ones = set1(0xff);
    const v64 c2 = _mm512_mask_blend_epi64(0xf0, _mm512_permutex2var_epi8(t[0], i2, t[1]),
                                           _mm512_permutex2var_epi8(t[2], i2, t[3]));
    put(planes, zero ? c0 : _mm512_xor_si512(c0, ones), stream);
    put(planes + ZFMT_PLANE, _mm512_xor_si512(c1, zero ? ones : c0), stream);
    /* a ^ (b & c) */
    put(planes + 2 * ZFMT_PLANE, _mm512_ternarylogic_epi64(c2, c1, zero ? ones : c0, 0x78), stream);
}

/* A block of zeros, where the window has them: code 1 and remainder 0 everywhere. False, with nothing done, where it is
 * not one. */
static __attribute__((noinline)) bool put_zeros(const uint8_t *src, uint8_t *body, bool stream) {
    if (!is_zero(src) || !all_same(src))
        return false;
    put(body, set1(0xff), stream);
    for (unsigned i = ZFMT_PLANE; i < TOP7_BODY; i += 64)
        put(body + i, _mm512_setzero_si512(), stream);
    return true;
}

INLINE size_t top7_encode(const uint8_t *src, unsigned blocks, struct zfmt_block *heads, uint8_t *body,
                          uint8_t *escapes, unsigned *n1, bool stream, unsigned base, bool zero) {
    /* Without compares, which are dear: d = base - e, but at most the first that is an escape; the code is that, turned
     * by 1 so that the escape becomes 0. With zero, code 1 is exponent 0 and the codes from 2 on are base and below:
     * turned by 2, and an exponent of 0, which is an escape by its d as base >= 6, goes one further (base + 1, which
     * changes places with zero, is always an escape). */
    const v64 low = set1(base), one = set1(1), escape = set1(7u - zero);
    uint8_t *const first = body;
    unsigned n = 0;
    bool zeros = false;
    for (unsigned b = 0; b < blocks; b++, src += STEP) {
        if (zeros && put_zeros(src, body, stream)) { /* runs of them are common */
            heads[b] = (struct zfmt_block){ZFMT_TOP7, 0};
            body += TOP7_BODY;
            continue;
        }
        v64 pairs[4];
        unsigned met = 0;
#define ROW(i)                                                                                                         \
    {                                                                                                                  \
        const v64 e = split(src, i, body + 3 * ZFMT_PLANE, stream);                                                    \
        v64 c = _mm512_min_epu8(_mm512_sub_epi8(low, e), escape);                                                      \
        if (zero)                                                                                                      \
            c = _mm512_add_epi8(c, _mm512_subs_epu8(one, e));                                                          \
        met += compact_row(escapes + n + met, e, _mm512_cmpeq_epi8_mask(c, escape), false);                            \
        pairs[(i) / 2] = (i) % 2 ? _mm512_or_si512(pairs[(i) / 2], _mm512_slli_epi16(c, 4)) : c;                       \
    }
        EACH8(ROW)
#undef ROW
        put_codes3(pairs, zero, body, stream);
        if (RARE(met > TOP7_BUDGET)) {
            heads[b] = (struct zfmt_block){ZFMT_RAW, 0};
            copy_block(body, src, stream);
            body += STEP;
            continue;
        }
        heads[b] = (struct zfmt_block){ZFMT_TOP7, 0};
        zeros = zero && met == 0 && is_zero(src);
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

/* ---- the passes over escapes, for every dtype ---- */

/* On d itself, as in loops.h: code = min(subs(d + add, less), 3). */
INLINE unsigned compact_pass(const uint8_t *in, unsigned n, uint8_t *plane0, uint8_t *plane1, uint8_t *out,
                             unsigned add, unsigned less) {
    const v64 step = set1(add), below = set1(less), three = set1(3);
    const unsigned padded = (unsigned)layout_align((n + 7) / 8, ZFMT_ARRAY_ALIGN);
    unsigned met = 0, i = 0;
    for (; i + ZFMT_BLOCK <= n; i += ZFMT_BLOCK) {
        v64 packed[2];
#define ROW(k)                                                                                                         \
    {                                                                                                                  \
        const v64 d = load(in + i + 64 * (k)), s = _mm512_subs_epu8(_mm512_add_epi8(d, step), below);                  \
        met += code_row(d, _mm512_min_epu8(s, three), k, packed, out + met, false);                                    \
    }
        EACH8(ROW)
#undef ROW
        put_codes(packed[0], packed[1], plane0 + i / 8, plane1 + i / 8, false);
    }
    for (; i < n; i += 64) {
        const v64 d = load(in + i);
        const v64 c = _mm512_min_epu8(_mm512_subs_epu8(_mm512_add_epi8(d, step), below), three);
        const __mmask64 valid = n - i < 64 ? (1ull << (n - i)) - 1 : ~0ull;
        const uint64_t p0 = _mm512_mask_test_epi8_mask(valid, c, set1(1));
        const uint64_t p1 = _mm512_mask_test_epi8_mask(valid, c, set1(2));
        memcpy(plane0 + i / 8, &p0, 8);
        memcpy(plane1 + i / 8, &p1, 8);
        met += compact_row(out + met, d, p0 & p1, false);
    }
    if (i / 8 < padded) {
        memset(plane0 + i / 8, 0, 8);
        memset(plane1 + i / 8, 0, 8);
    }
    return met;
}

unsigned avx512_compact(unsigned tier, const uint8_t *in, unsigned n, uint8_t *plane0, uint8_t *plane1, uint8_t *out) {
    return tier == 2   ? compact_pass(in, n, plane0, plane1, out, 1, 3)
           : tier == 3 ? compact_pass(in, n, plane0, plane1, out, 2, 6)
                       : compact_pass(in, n, plane0, plane1, out, 3, 9);
}
