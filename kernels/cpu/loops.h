/* SPDX-License-Identifier: Apache-2.0
 *
 * The hot loops, once, over a vector of 64 bytes. An instruction set's file defines the type v64 and the primitives
 * listed below, includes this header and fills its cpu_ops with LOOPS_TABLE. No include guard on purpose.
 *
 *  v_load(p) v_store(p, v) v_stream(p, v)      64 bytes, any alignment; v_stream wants 64 and bypasses the caches
 *  v_fence()                                   orders streamed stores before later ones
 *  v_set1(b) v_add v_sub v_subs v_max v_min    per byte; v_subs saturates at 0
 *  v_bit(v, m)                                 a 64-bit mask: byte & m is not 0 (m has one bit)
 *  v_eq(a, b) v_ge(a, b)                       the same: equal; greater or equal, unsigned
 *  v_keep_le(v, limit)                         v where it is at most limit, else 0
 *  v_same(a, b)                                true where all 64 bytes are equal
 *  v_sad(acc, v) v_hsum(acc)                   sums of bytes in an accumulator; its total
 *  v_swap(v, b)                                the bytes 0 and b change places
 *  v_both(p0, p1, d, three)                    p0 & p1, which is where d is at least three
 *  v_none(p0, p1, p2, c)                       ~(p0 | p1 | p2), which is where c is 0
 *  v_compact(out, v, codes, code, mask)        the bytes of v where codes == code (mask says the same); writes 64
 *  v_untier(p0, p1, in)                        d from two plane words: 0, 1, 2, and the next byte of in for 3
 *  v_recode(p0, p1, l0, l1, l2, in)            the same with other values for the codes 0, 1, 2
 *  v_untop7(p0, p1, p2, top, zero, b, in)      top - code (with zero, v_swap by b), the next byte of in for code 0
 *  v_split(kind, src, &parts) v_join(kind, &parts, out)    64 values to and from exponents and remainder planes
 */
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(LOOPS_UNROLL)
/* By hand, so that arrays of vectors stay in registers. */
#    define EACH8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#else
#    define EACH8(X)                                                                                                   \
        for (unsigned step = 0; step < 8; step++)                                                                      \
        X(step)
#endif

INLINE void put_word(uint8_t *p, uint64_t w) {
    memcpy(p, &w, 8);
}

INLINE uint64_t get_word(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}

INLINE void put(uint8_t *p, v64 v, bool stream) {
    if (stream)
        v_stream(p, v);
    else
        v_store(p, v);
}

/* The remainder planes of 64 values; `planes` is the body's first byte plane, i counts the 64s of the block. */
INLINE void put_remainder(enum layout_kind kind, const struct v_parts *x, uint8_t *planes, unsigned i, bool stream) {
    const unsigned bytes = layout_byte_planes(kind), bits = layout_bit_planes(kind);
    for (unsigned p = 0; p < bytes; p++)
        put(planes + p * ZFMT_BLOCK + 64 * i, x->bytes[p], stream);
    for (unsigned p = 0; p < bits; p++)
        put_word(planes + bytes * ZFMT_BLOCK + p * ZFMT_PLANE + 8 * i, x->bits[p]);
}

INLINE void get_remainder(enum layout_kind kind, struct v_parts *x, const uint8_t *planes, unsigned i) {
    const unsigned bytes = layout_byte_planes(kind), bits = layout_bit_planes(kind);
    for (unsigned p = 0; p < bytes; p++)
        x->bytes[p] = v_load(planes + p * ZFMT_BLOCK + 64 * i);
    for (unsigned p = 0; p < bits; p++)
        x->bits[p] = get_word(planes + bytes * ZFMT_BLOCK + p * ZFMT_PLANE + 8 * i);
}

INLINE void join(enum layout_kind kind, v64 e, const uint8_t *planes, unsigned i, uint8_t *dst, bool stream) {
    struct v_parts x;
    v64 out[4];
    const unsigned vectors = layout_bytes(kind);
    x.e = e;
    get_remainder(kind, &x, planes, i);
    v_join(kind, &x, out);
    for (unsigned j = 0; j < vectors; j++)
        put(dst + 64 * (vectors * i + j), out[j], stream);
}

INLINE void copy_block(enum layout_kind kind, uint8_t *dst, const uint8_t *src, bool stream) {
    for (size_t i = 0; i < layout_raw_body(kind); i += 64)
        put(dst + i, v_load(src + i), stream);
}

/* 64 bytes made of one value. */
INLINE v64 pattern_of(enum layout_kind kind, const uint8_t *value) {
    uint8_t line[64];
    for (unsigned i = 0; i < 64; i += layout_bytes(kind))
        memcpy(line + i, value, layout_bytes(kind));
    return v_load(line);
}

/* A block read ahead: exponents and the sum of step 2 of the rule. */
struct ahead {
    v64 e[8];
    unsigned sum;
};

INLINE void look(enum layout_kind kind, const uint8_t *src, uint8_t *body, bool stream, struct ahead *a) {
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        struct v_parts x;                                                                                              \
        v_split(kind, src + (size_t)64 * layout_bytes(kind) * i, &x);                                                  \
        put_remainder(kind, &x, body + 2 * ZFMT_PLANE, i, stream);                                                     \
        a->e[i] = x.e;                                                                                                 \
    }
    EACH8(STEP)
#undef STEP
    const v64 max = v_max(v_max(a->e[0], a->e[2]), v_max(a->e[4], a->e[6]));
    const v64 least = v_subs(max, v_set1(MODEL_FLOOR));
    v64 acc = v_sad(v_set1(0), v_max(a->e[0], least));
    acc = v_sad(acc, v_max(a->e[2], least));
    acc = v_sad(acc, v_max(a->e[4], least));
    acc = v_sad(acc, v_max(a->e[6], least));
    a->sum = v_hsum(acc);
}

/* Tier 1 of a block. With zero, the exponents 0 and base + 1 change places. Returns the count of escapes. */
INLINE unsigned code_tier(const v64 e[8], unsigned base, bool zero, uint8_t *body, uint8_t *escapes, bool stream) {
    _Alignas(64) uint8_t planes[2 * ZFMT_PLANE];
    uint8_t *const at = stream ? planes : body;
    const v64 three = v_set1(3), top = v_set1((uint8_t)(base + zero));
    unsigned n = 0;
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        const v64 d = v_sub(top, zero ? v_swap(e[i], (uint8_t)(base + 1)) : e[i]), c = v_min(d, three);                \
        const uint64_t p0 = v_bit(c, 1), p1 = v_bit(c, 2), escape = v_both(p0, p1, d, three);                          \
        put_word(at + 8 * i, p0);                                                                                      \
        put_word(at + ZFMT_PLANE + 8 * i, p1);                                                                         \
        v_compact(escapes + n, d, c, three, escape);                                                                   \
        n += (unsigned)__builtin_popcountll(escape);                                                                   \
    }
    EACH8(STEP)
#undef STEP
    if (stream) {
        v_stream(body, v_load(planes));
        v_stream(body + ZFMT_PLANE, v_load(planes + ZFMT_PLANE));
    }
    return n;
}

/* Step 4: whether the guess is good enough to skip the counts. */
INLINE bool good_guess(const v64 e[8], unsigned base, unsigned n1, unsigned budget) {
    const v64 none = v_set1(0), top1 = v_set1((uint8_t)(base + 1)), top2 = v_set1((uint8_t)(base + 2));
    const v64 six = v_set1(6), nine = v_set1(9);
    unsigned z = 0, n2 = 0, n3 = 0;
    v64 least = e[0];
    for (unsigned i = 1; i < 8; i++)
        least = v_min(least, e[i]);
    for (unsigned i = 0; i < 8 && v_eq(least, none); i++)
        z += (unsigned)__builtin_popcountll(v_eq(e[i], none));
    if (z > MODEL_FEW_ZEROS)
        return false;
    if (n1 <= budget * 2 / 3) /* the price is at most 6 * n1 */
        return true;
    for (unsigned i = 0; i < 8; i++) {
        n2 += (unsigned)__builtin_popcountll(v_ge(v_sub(top1, e[i]), six));
        n3 += (unsigned)__builtin_popcountll(v_ge(v_sub(top2, e[i]), nine));
    }
    return model_price(n1, n2, n3) <= 4 * budget;
}

/* Step 5. */
INLINE struct zfmt_block choose(const v64 e[8], unsigned budget) {
    struct model_counts c = {0, 0, {0}};
    const v64 none = v_set1(0), width = v_set1(MODEL_COUNTS);
    _Alignas(64) uint8_t sample[64] = {0}, row[64];
    for (unsigned i = 0; i < 8; i++) {
        c.zeros += (unsigned)__builtin_popcountll(v_eq(e[i], none));
        v_store(row, e[i]);
        memcpy(sample + 8 * i, row + 8 * i, 8);
    }
    const v64 s = v_load(sample);
    const unsigned rank = (64 - (unsigned)__builtin_popcountll(v_eq(s, none)) + 1) / 2;
    for (unsigned bit = 128; bit && rank; bit >>= 1) {
        if ((unsigned)__builtin_popcountll(v_ge(s, v_set1((uint8_t)(c.median | bit)))) >= rank)
            c.median |= bit;
    }
    const v64 low = v_set1((uint8_t)(c.median - MODEL_COUNTS_LOW));
    unsigned far = 0;
    for (unsigned i = 0; i < 8; i++)
        far += (unsigned)__builtin_popcountll(v_ge(v_sub(e[i], low), width));
    if (!model_hopeful(ZFMT_BLOCK - far, c.zeros, budget))
        return (struct zfmt_block){ZFMT_RAW, 0};
    for (unsigned k = 0; k < MODEL_COUNTS; k++) {
        const int x = (int)c.median - (int)MODEL_COUNTS_LOW + (int)k;
        if (x < 1 || x > 255)
            continue;
        const v64 v = v_set1((uint8_t)x);
        unsigned n = 0;
        for (unsigned i = 0; i < 8; i++)
            n += (unsigned)__builtin_popcountll(v_eq(e[i], v));
        c.hits[k] = (uint16_t)n;
    }
    return model_choose(&c, budget);
}

/* Step 1, for a block whose exponents are all equal. */
INLINE bool all_same(enum layout_kind kind, const uint8_t *src) {
    const v64 v = pattern_of(kind, src);
    for (size_t i = 0; i < layout_raw_body(kind); i += 64) {
        if (!v_same(v, v_load(src + i)))
            return false;
    }
    return true;
}

INLINE size_t put_same(enum layout_kind kind, const uint8_t *src, struct zfmt_block *head, uint8_t *body) {
    uint8_t line[ZFMT_BODY_ALIGN] = {0};
    memcpy(line, src, layout_bytes(kind));
    *head = (struct zfmt_block){ZFMT_ZERO, 0};
    if (v_same(v_load(line), v_set1(0)))
        return 0;
    head->mode = ZFMT_CONST;
    memcpy(body, line, sizeof(line));
    return sizeof(line);
}

/* Steps 4 and 5 for a block whose tier 1 is coded with base and has n escapes; codes it anew where another is better.
 * Out of line: the common path stays small. Returns the escapes that stay. */
static __attribute__((noinline)) unsigned settle(enum layout_kind kind, const uint8_t *src, const struct ahead *a,
                                                 unsigned base, unsigned n, struct zfmt_block *head, uint8_t *body,
                                                 uint8_t *escapes, bool stream) {
    const unsigned budget = layout_budget(kind, 2);
    *head = (struct zfmt_block){ZFMT_TIER, (uint8_t)base};
    if (good_guess(a->e, base, n, budget))
        return n;
    *head = choose(a->e, budget);
    if (head->mode == ZFMT_TIER)
        return code_tier(a->e, head->base, false, body, escapes, stream);
    if (head->mode == ZFMT_TIER_ZERO)
        return code_tier(a->e, head->base, true, body, escapes, stream);
    copy_block(kind, body, src, stream);
    return 0;
}

INLINE size_t tier_encode_kind(enum layout_kind kind, const uint8_t *src, unsigned blocks, struct zfmt_block *heads,
                               uint8_t *body, uint8_t *escapes, unsigned *n1, bool stream) {
    const size_t step = layout_raw_body(kind), coded = layout_coded_body(kind, 2);
    const unsigned accept = model_accept(layout_budget(kind, 2));
    uint8_t *const first = body;
    struct ahead now, next;
    unsigned n = 0;
    look(kind, src, body, stream, &now);
    for (unsigned b = 0; b < blocks; b++, src += step) {
        const bool more = b + 1 < blocks;
        /* The next block's statistics run beside this one's codes; its planes go where they belong if this one
         * stays in tier. */
        if (more)
            look(kind, src + step, body + coded, stream, &next);
        const unsigned base = model_guess(now.sum);
        unsigned met = code_tier(now.e, base, false, body, escapes + n, stream);
        heads[b] = (struct zfmt_block){ZFMT_TIER, (uint8_t)base};
        if (__builtin_expect(met == 0, 0) && all_same(kind, src)) {
            body += put_same(kind, src, &heads[b], body);
            if (more)
                look(kind, src + step, body, stream, &now);
            continue;
        }
        if (__builtin_expect(met > accept, 0)) {
            const struct ahead copy = now;
            met = settle(kind, src, &copy, base, met, &heads[b], body, escapes + n, stream);
            if (heads[b].mode == ZFMT_RAW) {
                body += step;
                if (more)
                    look(kind, src + step, body, stream, &now);
                continue;
            }
        }
        n += met;
        body += coded;
        if (more)
            now = next;
    }
    *n1 = n;
    return (size_t)(body - first);
}

INLINE size_t top7_encode_kind(enum layout_kind kind, const uint8_t *src, unsigned blocks, struct zfmt_block *heads,
                               uint8_t *body, uint8_t *escapes, unsigned *n1, bool stream, struct model_window w) {
    const size_t step = layout_raw_body(kind), coded = layout_coded_body(kind, 3);
    const unsigned budget = layout_budget(kind, 3);
    const v64 top = v_set1((uint8_t)(w.base + w.zero + 1)), none = v_set1(0), seven = v_set1(7);
    uint8_t *const first = body;
    unsigned n = 0;
    for (unsigned b = 0; b < blocks; b++, src += step) {
        _Alignas(64) uint8_t planes[3 * ZFMT_PLANE];
        uint8_t *const at = stream ? planes : body;
        unsigned met = 0;
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        struct v_parts x;                                                                                              \
        v_split(kind, src + (size_t)64 * layout_bytes(kind) * i, &x);                                                  \
        put_remainder(kind, &x, body + 3 * ZFMT_PLANE, i, stream);                                                     \
        /* d + 1 up to 7; a difference that wrapped or is 0 or over 7 is an escape, code 0 */                          \
        const v64 d1 = v_sub(top, w.zero ? v_swap(x.e, (uint8_t)(w.base + 1)) : x.e);                                  \
        const v64 c = v_keep_le(d1, seven);                                                                            \
        const uint64_t p0 = v_bit(c, 1), p1 = v_bit(c, 2), p2 = v_bit(c, 4), escape = v_none(p0, p1, p2, c);           \
        put_word(at + 8 * i, p0);                                                                                      \
        put_word(at + ZFMT_PLANE + 8 * i, p1);                                                                         \
        put_word(at + 2 * ZFMT_PLANE + 8 * i, p2);                                                                     \
        v_compact(escapes + n + met, x.e, c, none, escape);                                                            \
        met += (unsigned)__builtin_popcountll(escape);                                                                 \
    }
        EACH8(STEP)
#undef STEP
        if (__builtin_expect(met > budget, 0)) {
            heads[b] = (struct zfmt_block){ZFMT_RAW, 0};
            copy_block(kind, body, src, stream);
            body += step;
            continue;
        }
        if (stream) {
            for (unsigned p = 0; p < 3; p++)
                v_stream(body + p * ZFMT_PLANE, v_load(planes + p * ZFMT_PLANE));
        }
        heads[b] = (struct zfmt_block){ZFMT_TOP7, 0};
        n += met;
        body += coded;
    }
    *n1 = n;
    return (size_t)(body - first);
}

INLINE unsigned decode_tier(enum layout_kind kind, unsigned base, bool zero, const uint8_t *body,
                            const uint8_t *escapes, uint8_t *dst, bool stream) {
    const v64 top = v_set1((uint8_t)(base + zero));
    unsigned n = 0;
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        const uint64_t p0 = get_word(body + 8 * i), p1 = get_word(body + ZFMT_PLANE + 8 * i);                          \
        v64 e = v_sub(top, v_untier(p0, p1, escapes + n));                                                             \
        if (zero)                                                                                                      \
            e = v_swap(e, (uint8_t)(base + 1));                                                                        \
        join(kind, e, body + 2 * ZFMT_PLANE, i, dst, stream);                                                          \
        n += (unsigned)__builtin_popcountll(p0 & p1);                                                                  \
    }
    EACH8(STEP)
#undef STEP
    return n;
}

INLINE unsigned tier_decode_kind(enum layout_kind kind, const struct zfmt_block *heads, unsigned blocks,
                                 const uint8_t *body, const uint8_t *escapes, uint8_t *dst, bool stream) {
    unsigned n = 0;
    for (unsigned b = 0; b < blocks; b++, dst += layout_raw_body(kind)) {
        const unsigned mode = heads[b].mode;
        if (__builtin_expect(mode == ZFMT_TIER, 1)) {
            n += decode_tier(kind, heads[b].base, false, body, escapes + n, dst, stream);
        } else if (mode == ZFMT_TIER_ZERO) {
            n += decode_tier(kind, heads[b].base, true, body, escapes + n, dst, stream);
        } else if (mode == ZFMT_RAW) {
            copy_block(kind, dst, body, stream);
        } else {
            const v64 v = mode == ZFMT_CONST ? pattern_of(kind, body) : v_set1(0);
            for (size_t i = 0; i < layout_raw_body(kind); i += 64)
                put(dst + i, v, stream);
        }
        body += layout_body(kind, mode);
    }
    return n;
}

INLINE unsigned top7_decode_kind(enum layout_kind kind, const struct zfmt_block *heads, unsigned blocks,
                                 const uint8_t *body, const uint8_t *escapes, uint8_t *dst, bool stream,
                                 struct model_window w) {
    const v64 top = v_set1((uint8_t)(w.base + w.zero + 1));
    unsigned n = 0;
    for (unsigned b = 0; b < blocks; b++, dst += layout_raw_body(kind)) {
        if (heads[b].mode == ZFMT_RAW) {
            copy_block(kind, dst, body, stream);
            body += layout_raw_body(kind);
            continue;
        }
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        const uint64_t p0 = get_word(body + 8 * i), p1 = get_word(body + ZFMT_PLANE + 8 * i);                          \
        const uint64_t p2 = get_word(body + 2 * ZFMT_PLANE + 8 * i), escape = ~(p0 | p1 | p2);                         \
        v64 e = v_untop7(p0, p1, p2, top, w.zero, (uint8_t)(w.base + 1), escapes + n);                                 \
        join(kind, e, body + 3 * ZFMT_PLANE, i, dst, stream);                                                          \
        n += (unsigned)__builtin_popcountll(escape);                                                                   \
    }
        EACH8(STEP)
#undef STEP
        body += layout_coded_body(kind, 3);
    }
    return n;
}

#if !defined(LOOPS_OWN_PASSES)
/* What differs between tiers 2, 3 and 4 (docs/format.md section 3), on d itself: code = min(subs(d + add, less), 3). */
static const uint8_t g_tier_add[ZFMT_TIERS + 1] = {0, 0, 1, 2, 3}, g_tier_less[ZFMT_TIERS + 1] = {0, 0, 3, 6, 9};
static const uint8_t g_tier_value[ZFMT_TIERS + 1][3] = {{0}, {0}, {255, 3, 4}, {254, 5, 6}, {253, 7, 8}};

static unsigned compact_loop(unsigned tier, const uint8_t *in, unsigned n, uint8_t *plane0, uint8_t *plane1,
                             uint8_t *out) {
    const v64 add = v_set1(g_tier_add[tier]), less = v_set1(g_tier_less[tier]), three = v_set1(3);
    const unsigned padded = (unsigned)layout_align((n + 7) / 8, ZFMT_ARRAY_ALIGN);
    unsigned met = 0, i = 0;
    for (; i < n; i += 64) {
        const v64 d = v_load(in + i), c = v_min(v_subs(v_add(d, add), less), three);
        uint64_t p0 = v_bit(c, 1), p1 = v_bit(c, 2);
        if (__builtin_expect(n - i < 64, 0)) {
            p0 &= (1ull << (n - i)) - 1;
            p1 &= (1ull << (n - i)) - 1;
        }
        put_word(plane0 + i / 8, p0);
        put_word(plane1 + i / 8, p1);
        v_compact(out + met, d, c, three, p0 & p1);
        met += (unsigned)__builtin_popcountll(p0 & p1);
    }
    if (i / 8 < padded) {
        put_word(plane0 + i / 8, 0);
        put_word(plane1 + i / 8, 0);
    }
    return met;
}

static unsigned expand_loop(unsigned tier, const uint8_t *plane0, const uint8_t *plane1, unsigned n, const uint8_t *in,
                            uint8_t *out) {
    const v64 l0 = v_set1(g_tier_value[tier][0]), l1 = v_set1(g_tier_value[tier][1]);
    const v64 l2 = v_set1(g_tier_value[tier][2]);
    unsigned met = 0;
    for (unsigned i = 0; i < n; i += 64) {
        uint64_t p0 = get_word(plane0 + i / 8), p1 = get_word(plane1 + i / 8);
        if (__builtin_expect(n - i < 64, 0)) {
            p0 &= (1ull << (n - i)) - 1;
            p1 &= (1ull << (n - i)) - 1;
        }
        v_store(out + i, v_recode(p0, p1, l0, l1, l2, in + met));
        met += (unsigned)__builtin_popcountll(p0 & p1);
    }
    return met;
}

#endif

/* One specialised copy per dtype and kind of store. */
#define LOOPS_DISPATCH(call)                                                                                           \
    switch (kind) {                                                                                                    \
    case KIND_BF16:                                                                                                    \
        call(KIND_BF16) case KIND_FP16 : call(KIND_FP16) case KIND_FP32 : call(KIND_FP32) case KIND_E4M3               \
            : call(KIND_E4M3) case KIND_E5M2 : call(KIND_E5M2) default : break;                                        \
    }

static size_t tier_encode_loop(enum layout_kind kind, const uint8_t *src, unsigned blocks, struct zfmt_block *heads,
                               uint8_t *body, uint8_t *escapes, unsigned *n1, bool stream) {
    size_t r = 0;
#define CALL(k)                                                                                                        \
    r = stream ? tier_encode_kind(k, src, blocks, heads, body, escapes, n1, true)                                      \
               : tier_encode_kind(k, src, blocks, heads, body, escapes, n1, false);                                    \
    break;
    LOOPS_DISPATCH(CALL)
#undef CALL
    if (stream)
        v_fence();
    return r;
}

static size_t top7_encode_loop(enum layout_kind kind, const uint8_t *src, unsigned blocks, struct zfmt_block *heads,
                               uint8_t *body, uint8_t *escapes, unsigned *n1, bool stream, struct model_window w) {
    size_t r = 0;
#define CALL(k)                                                                                                        \
    r = stream ? top7_encode_kind(k, src, blocks, heads, body, escapes, n1, true, w)                                   \
               : top7_encode_kind(k, src, blocks, heads, body, escapes, n1, false, w);                                 \
    break;
    LOOPS_DISPATCH(CALL)
#undef CALL
    if (stream)
        v_fence();
    return r;
}

static unsigned tier_decode_loop(enum layout_kind kind, const struct zfmt_block *heads, unsigned blocks,
                                 const uint8_t *body, const uint8_t *escapes, uint8_t *dst, bool stream) {
    unsigned r = 0;
#define CALL(k)                                                                                                        \
    r = stream ? tier_decode_kind(k, heads, blocks, body, escapes, dst, true)                                          \
               : tier_decode_kind(k, heads, blocks, body, escapes, dst, false);                                        \
    break;
    LOOPS_DISPATCH(CALL)
#undef CALL
    if (stream)
        v_fence();
    return r;
}

static unsigned top7_decode_loop(enum layout_kind kind, const struct zfmt_block *heads, unsigned blocks,
                                 const uint8_t *body, const uint8_t *escapes, uint8_t *dst, bool stream,
                                 struct model_window w) {
    unsigned r = 0;
#define CALL(k)                                                                                                        \
    r = stream ? top7_decode_kind(k, heads, blocks, body, escapes, dst, true, w)                                       \
               : top7_decode_kind(k, heads, blocks, body, escapes, dst, false, w);                                     \
    break;
    LOOPS_DISPATCH(CALL)
#undef CALL
    if (stream)
        v_fence();
    return r;
}

#define LOOPS_TABLE                                                                                                    \
    { tier_encode_loop, top7_encode_loop, tier_decode_loop, top7_decode_loop, compact_loop, expand_loop }
