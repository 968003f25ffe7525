/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec as a whole: bit-exact round trips, one coded form on every instruction set, bounds, and hostile chunks.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/ops.h"
#include "kernels/format.h"
#include "kernels/model.h"
#include "tests/unit/kernels/chunks.h"

struct coded {
    uint8_t *s, *d; /* guarded, of exactly the bounds */
    struct codec_sizes bound, sizes;
};

static struct coded encode(zipcclCodec_t codec, zipcclDataType_t t, const uint8_t *src, size_t count, unsigned flags) {
    struct coded c;
    c.bound = codec_bound(codec, t, count);
    c.s = guarded(c.bound.static_bytes, 64);
    c.d = guarded(c.bound.dynamic_bytes, 64);
    memset(c.s, 0xa5, c.bound.static_bytes);
    memset(c.d, 0xa5, c.bound.dynamic_bytes);
    assert_int_equal(codec_encode(codec, t, src, count, c.s, c.d, flags, &c.sizes), zipcclSuccess);
    assert_true(c.sizes.static_bytes <= c.bound.static_bytes && c.sizes.dynamic_bytes <= c.bound.dynamic_bytes);
    return c;
}

static void drop(struct coded *c) {
    release(c->s, c->bound.static_bytes, 64);
    release(c->d, c->bound.dynamic_bytes, 64);
}

/* Decodes from parts that end at guard pages, at any alignment, into a guarded buffer. */
static void check_decode(zipcclCodec_t codec, zipcclDataType_t t, const struct coded *c, const uint8_t *src,
                         size_t count, unsigned flags) {
    const size_t n = count * dtype_get(t)->bytes;
    uint8_t *s = guarded(c->sizes.static_bytes, 1), *d = guarded(c->sizes.dynamic_bytes, 1), *dst = guarded(n, 1);
    memcpy(s, c->s, c->sizes.static_bytes);
    memcpy(d, c->d, c->sizes.dynamic_bytes);
    assert_int_equal(codec_decode(codec, t, s, c->sizes.static_bytes, d, c->sizes.dynamic_bytes, dst, count, flags),
                     zipcclSuccess);
    assert_true(n == 0 || memcmp(dst, src, n) == 0);
    release(s, c->sizes.static_bytes, 1);
    release(d, c->sizes.dynamic_bytes, 1);
    release(dst, n, 1);
}

/* Every instruction set: the same bytes, and a bit-exact return. */
static size_t round_trip(zipcclCodec_t codec, zipcclDataType_t t, const uint8_t *src, size_t count) {
    struct coded first = {0};
    for (unsigned isa = 0; isa < CODEC_NUM_ISAS; isa++) {
        if (!codec_isa_force((enum codec_isa)isa))
            continue;
        for (unsigned flags = 0; flags <= CODEC_STREAMING; flags++) {
            struct coded c = encode(codec, t, src, count, flags);
            check_decode(codec, t, &c, src, count, flags);
            if (!first.s) {
                first = c;
                continue;
            }
            assert_int_equal(c.sizes.static_bytes, first.sizes.static_bytes);
            assert_int_equal(c.sizes.dynamic_bytes, first.sizes.dynamic_bytes);
            assert_memory_equal(c.s, first.s, c.sizes.static_bytes);
            assert_true(c.sizes.dynamic_bytes == 0 || memcmp(c.d, first.d, c.sizes.dynamic_bytes) == 0);
            drop(&c);
        }
    }
    const size_t total = first.sizes.static_bytes + first.sizes.dynamic_bytes;
    drop(&first);
    return total;
}

static void test_inputs(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 2, 511, 512, 513, 1023, 32767, 32768, 32769, 70001};
    for (unsigned t = 0; t < NUM_FLOATS; t++) {
        for (unsigned k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
            for (unsigned in = 0; in < NUM_INPUTS; in++) {
                const size_t n = counts[k] * dtype_get(g_floats[t])->bytes;
                uint8_t *src = guarded(n, 1); /* unaligned where n is odd */
                fill(src, g_floats[t], counts[k], (enum input)in, k + 1);
                for (unsigned codec = 0; codec < zipcclNumCodecs; codec++) {
                    const size_t coded = round_trip((zipcclCodec_t)codec, g_floats[t], src, counts[k]);
                    assert_true(coded <= n + n / 200 + 640);
                }
                release(src, n, 1);
            }
        }
    }
}

static void test_every_pattern(void **state) {
    (void)state;
    for (unsigned t = 0; t < NUM_FLOATS; t++) {
        const size_t count = 65536 + 17, n = count * dtype_get(g_floats[t])->bytes;
        uint8_t *src = guarded(n, 1);
        fill(src, g_floats[t], count, IN_COUNTER, 1);
        (void)round_trip(zipcclCodecTier, g_floats[t], src, count);
        (void)round_trip(zipcclCodecTop7, g_floats[t], src, count);
        release(src, n, 1);
    }
}

/* Blocks whose zeros are in one of their eighths alone, or begin there, 4 to all of them: however a
 * block is looked through for zeros, none of them is passed over, and all instruction sets decide alike. */
static void test_zeros_apart(void **state) {
    (void)state;
    enum { BLOCK = 512, EIGHTHS = 8, MOST = 128 };
    const size_t count = (size_t)BLOCK * EIGHTHS * MOST;
    for (unsigned t = 0; t < NUM_FLOATS; t++) {
        const size_t bytes = dtype_get(g_floats[t])->bytes, n = count * bytes;
        uint8_t *src = guarded(n, 1);
        uint64_t rng = 99;
        for (size_t i = 0; i < count; i++) {
            const size_t b = i / BLOCK, from = b % EIGHTHS * (BLOCK / EIGHTHS), at = (i % BLOCK + BLOCK - from) % BLOCK;
            for (size_t k = 0; k < bytes; k++)
                src[i * bytes + k] = (uint8_t)next_random(&rng);
            src[i * bytes + bytes - 1] = (uint8_t)(0x3c | (next_random(&rng) & 0x80)); /* close to each other */
            if (b % 64 != 0 && at < 4 * (b / EIGHTHS)) /* the first block of a chunk has none */
                memset(src + i * bytes, 0, bytes);
        }
        (void)round_trip(zipcclCodecTier, g_floats[t], src, count);
        for (size_t at = 0; at < count; at += (size_t)64 * BLOCK)
            (void)round_trip(zipcclCodecTier, g_floats[t], src + at * bytes, (size_t)64 * BLOCK);
        release(src, n, 1);
    }
}

/* A full block of BF16 from its exponents, random elsewhere. */
static void put_block(uint8_t *at, const uint8_t e[512], uint64_t *rng) {
    for (unsigned i = 0; i < 512; i++) {
        const uint64_t v = next_random(rng);
        const uint16_t w = (uint16_t)((v & 0x7f) | (unsigned)e[i] << 7 | (v >> 7 & 1) << 15);
        memcpy(at + 2 * (size_t)i, &w, 2);
    }
}

/* Zeros in row `row` alone, n1 escapes with them; the others are far on both sides, so the guess stays. */
static void zeros_in_row(uint8_t e[512], unsigned row, unsigned zeros, unsigned n1) {
    memset(e, 0x78, 512);
    memset(e + 64 * (size_t)row, 0, zeros);
    for (unsigned k = 0, n = zeros; n < n1; k = (k + 5) % 512, n++)
        for (;; k = (k + 1) % 512)
            if (e[k] == 0x78) {
                e[k] = n % 2 ? 0x7e : 0x72;
                break;
            }
}

/* Blocks whose escapes alone would let the guess pass, but whose zeros, in one row or none of them an escape, ask for
 * another choice: an encoder that looks for zeros with less than all its eyes would code them otherwise. Each after
 * blocks with few escapes and after one with many, as encoders may go by what was before. */
static void test_zeros_and_escapes(void **state) {
    (void)state;
    enum { CASES = 8 * 2 * 6, BLOCKS = 5 * CASES + 1 };
    static const unsigned zeros[] = {33, 64}, escapes[] = {161, 170, 176, 177, 200, 245};
    const size_t count = (size_t)512 * BLOCKS;
    uint8_t *src = guarded(2 * count, 1), e[512], *at = src;
    uint64_t rng = 17;
    for (unsigned k = 0; k < CASES; k++) {
        const unsigned row = k % 8, z = zeros[k / 8 % 2], n1 = escapes[k / 16];
        const unsigned in_turn[5][2] = {{0, 10}, {0, 10}, {z, n1}, {0, 200}, {z, n1}};
        for (unsigned b = 0; b < 5; b++, at += 1024) {
            zeros_in_row(e, row, in_turn[b][0], in_turn[b][1]);
            put_block(at, e, &rng);
        }
    }
    /* The guess is 2, so zeros are no escapes of it; base 3 with zero has none at all but the ones. */
    for (unsigned i = 0; i < 512; i++)
        e[i] = i / 64 % 2 ? 3 * (i % 64 < 50) : i % 8 == 0;
    put_block(at, e, &rng);
    (void)round_trip(zipcclCodecTier, zipcclBfloat16, src, count);
    release(src, 2 * count, 1);
}

/* Blocks with about as many escapes as pay, one more and one less: top7 takes 304; 245 cost what tier takes. */
static void test_budgets(void **state) {
    (void)state;
    enum { FROM = 232, BLOCKS = 160 };
    const size_t count = (size_t)512 * BLOCKS;
    uint8_t *src = guarded(2 * count, 1), e[512];
    uint64_t rng = 23;
    for (unsigned zero = 0; zero < 2; zero++) {
        for (unsigned b = 0; b < BLOCKS; b++) {
            const unsigned n = b % 2 ? FROM + b / 2 : 0; /* every other one has none, so the window stays */
            for (unsigned i = 0; i < 512; i++)
                e[i] = i * 7 % 512 < n ? (i % 2 ? 0x7f : 0x70) : zero && i % 8 == 0 ? 0 : 0x78 - i % 2;
            put_block(src + 1024 * (size_t)b, e, &rng);
        }
        (void)round_trip(zipcclCodecTop7, zipcclBfloat16, src, count);
        (void)round_trip(zipcclCodecTier, zipcclBfloat16, src, count);
    }
    release(src, 2 * count, 1);
}

static size_t rounded(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* One group of which n values escape three tiers, all but `far` of them hits of tier 4: its tier 4 is there where it
 * makes the dynamic part smaller, and only there. Returns whether it is. */
static bool fourth_tier(unsigned n, unsigned far) {
    enum { GROUP = 32768, TABLE = 256 };
    uint8_t *src = guarded(2 * (size_t)GROUP, 1), e[512];
    uint64_t rng = 37 + n;
    memset(e, 0x78, sizeof(e)); /* the guess is 0x79 */
    for (unsigned b = 0, k = 0; b < 64; b++) {
        const unsigned end = (b + 1) * n / 64, from = k;
        for (; k < end; k++)
            e[(k - from) * 7 % 512] = k < far ? 0x66 : k % 2 ? 0x71 : 0x72; /* d 19, 8 and 7 */
        put_block(src + 1024 * (size_t)b, e, &rng);
        memset(e, 0x78, sizeof(e));
    }
    (void)round_trip(zipcclCodecTier, zipcclBfloat16, src, GROUP);
    struct coded c = encode(zipcclCodecTier, zipcclBfloat16, src, GROUP, 0);
    const size_t plane = rounded((n + 7) / 8, 16), without = rounded(4 * plane + n, 128);
    const size_t with = rounded(6 * plane + far, 128);
    struct zfmt_header h;
    struct zfmt_group g;
    memcpy(&h, c.s, sizeof(h));
    memcpy(&g, c.s + TABLE, sizeof(g));
    assert_true(g.n[0] == n && g.n[1] == n && g.n[2] == n && g.n[3] == (with < without ? far : n));
    assert_int_equal(h.dynamic_bytes, with < without ? with : without);
    drop(&c);
    release(src, 2 * (size_t)GROUP, 1);
    return with < without;
}

static void test_fourth_tier(void **state) {
    (void)state;
    static const unsigned escapes[] = {1, 41, 127, 128, 129, 192, 193, 300, 500, 640, 800, 1000, 1300};
    unsigned there = 0, all = 0;
    for (unsigned i = 0; i < sizeof(escapes) / sizeof(escapes[0]); i++) {
        const unsigned n = escapes[i], far[] = {0, n / 2, n * 5 / 8, n * 11 / 16, n * 3 / 4, n * 7 / 8, n - 1, n};
        for (unsigned k = 0; k < sizeof(far) / sizeof(far[0]); k++, all++)
            there += fourth_tier(n, far[k]);
    }
    assert_true(there >= 20 && all - there >= 20);
}

static void test_real_tensors(void **state) {
    (void)state;
    static const struct {
        const char *file;
        zipcclDataType_t dtype;
        double ratio;
    } tensors[] = {
        {"act_hidden_s0160.bf16", zipcclBfloat16, 1.484},  {"moe_dispatch_s0160.bf16", zipcclBfloat16, 1.486},
        {"moe_combine_s0160.bf16", zipcclBfloat16, 1.489}, {"grad_qkv_s0010.bf16", zipcclBfloat16, 1.489},
        {"grad_qkv_s0160.bf16", zipcclBfloat16, 1.488},    {"grad_expert_s0160.bf16", zipcclBfloat16, 1.422},
        {"grad_emb_s0160.bf16", zipcclBfloat16, 5.44},     {"weight_qkv_s0160.bf16", zipcclBfloat16, 1.487},
        {"weight_qkv_t0109.bf16", zipcclBfloat16, 1.488},  {"weight_qkv_t0110.bf16", zipcclBfloat16, 1.488},
        {"grad_o_s0160.f32", zipcclFloat32, 1.19}};
    static uint8_t data[3u << 20];
    for (unsigned i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/tensors/%s", ZIPCCL_TEST_DATA, tensors[i].file);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        const size_t n = fread(data, 1, sizeof(data), f), count = n / dtype_get(tensors[i].dtype)->bytes;
        fclose(f);
        const double ratio = (double)n / (double)round_trip(zipcclCodecTier, tensors[i].dtype, data, count);
        assert_true(ratio >= tensors[i].ratio);
        if (strncmp(tensors[i].file, "weight", 6) == 0)
            assert_true(fabs(ratio - CODEC_USUAL_RATIO) < 0.002);
        (void)round_trip(zipcclCodecTop7, tensors[i].dtype, data, count);
    }
}

/* Normal values of any scale, a step being an eighth of an octave: what every tensor is taken for. */
static void test_normal(void **state) {
    (void)state;
    enum { COUNT = 1 << 18, STEPS = 8 };
    uint8_t *src = guarded((size_t)COUNT * 2, 1);
    for (int octave = -100; octave <= 60; octave += 80) {
        for (unsigned step = 0; step < STEPS; step++) {
            uint64_t rng = 31 + step;
            const double sigma = ldexp(exp2((double)step / STEPS), octave);
            for (size_t i = 0; i < COUNT; i++) {
                const double u = (double)((next_random(&rng) >> 11) + 1) * 0x1p-53;
                const double angle = (double)(next_random(&rng) >> 11) * 0x1p-53 * 6.283185307179586;
                const float f = (float)(sigma * sqrt(-2 * log(u)) * cos(angle));
                uint32_t bits;
                memcpy(&bits, &f, sizeof(bits));
                const uint16_t w = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
                memcpy(src + 2 * i, &w, 2);
            }
            const double ratio = 2.0 * COUNT / (double)round_trip(zipcclCodecTier, zipcclBfloat16, src, COUNT);
            assert_true(ratio >= 1.48);
        }
    }
    release(src, (size_t)COUNT * 2, 1);
}

/* The figures that users see: the entropy, the limit and the window for a known sigma. */
static void test_model(void **state) {
    (void)state;
    uint64_t h[256] = {0};
    assert_true(model_exponent_entropy(h) == 0.0);
    h[7] = 5;
    assert_true(model_exponent_entropy(h) == 0.0);
    for (unsigned e = 0; e < 8; e++)
        h[100 + e] = 1000;
    h[7] = 0;
    assert_true(model_exponent_entropy(h) > 2.999 && model_exponent_entropy(h) < 3.001);
    assert_true(model_limit_ratio(KIND_BF16, 8.0) == 1.0 && model_limit_ratio(KIND_FP32, 0.0) == 32.0 / 24.0);
    assert_true(model_limit_ratio(KIND_BF16, 3.0) == 16.0 / 11.0 && model_limit_ratio(KIND_E4M3, 4.0) == 1.0);
    const uint16_t values[4] = {0x3f80, 0xbf80, 0x0000, 0x7f80}; /* exponents 127, 127, 0, 255 */
    uint64_t counts[256] = {0};
    model_histogram(KIND_BF16, values, 4, counts);
    assert_true(counts[127] == 2 && counts[0] == 1 && counts[255] == 1);
    /* sigma 1: exponents up to 128; 0.72 of an octave above: one more; far out: clamped. */
    assert_int_equal(model_window_of_sigma(0), 128);
    assert_int_equal(model_window_of_sigma(183), 128);
    assert_int_equal(model_window_of_sigma(184), 129);
    assert_int_equal(model_window_of_sigma(-256), 127);
    assert_int_equal(model_window_of_sigma(-1), 128);
    assert_int_equal(model_window_of_sigma(-200 * 256), 6);
    assert_int_equal(model_window_of_sigma(200 * 256), 254);
}

static void try_hostile(zipcclCodec_t codec, zipcclDataType_t t, const uint8_t *s, size_t sn, const uint8_t *d,
                        size_t dn, uint8_t *dst, size_t count) {
    zipcclResult_t first = zipcclNumResults;
    for (unsigned isa = 0; isa < CODEC_NUM_ISAS; isa++) {
        if (!codec_isa_force((enum codec_isa)isa))
            continue;
        const zipcclResult_t r = codec_decode(codec, t, s, sn, d, dn, dst, count, 0);
        assert_true(r == zipcclSuccess || r == zipcclCorruptData);
        assert_true(first == zipcclNumResults || first == r);
        first = r;
    }
}

static void test_hostile(void **state) {
    (void)state;
    const size_t count = 34000;
    uint64_t rng = 4711;
    for (unsigned t = 0; t < NUM_FLOATS; t++) {
        for (unsigned codec = zipcclCodecTop7; codec <= zipcclCodecTier; codec++) {
            const size_t n = count * dtype_get(g_floats[t])->bytes;
            uint8_t *src = guarded(n, 1);
            fill(src, g_floats[t], count, IN_NARROW, t + 1);
            struct coded c = encode((zipcclCodec_t)codec, g_floats[t], src, count, 0);
            const size_t sn = c.sizes.static_bytes, dn = c.sizes.dynamic_bytes;
            uint8_t *s = guarded(sn, 1), *d = guarded(dn, 1);
            memcpy(s, c.s, sn);
            memcpy(d, c.d, dn);
            for (size_t i = 0; i < 128; i++) { /* every header byte: all are checked, but the window of top7 */
                s[i] ^= 0x41;
                const zipcclResult_t r = codec_decode((zipcclCodec_t)codec, g_floats[t], s, sn, d, dn, src, count, 0);
                const bool window = codec == zipcclCodecTop7 && i == offsetof(struct zfmt_header, base);
                assert_int_equal(r, window ? zipcclSuccess : zipcclCorruptData);
                s[i] ^= 0x41;
            }
            for (unsigned k = 0; k < 300; k++) {
                const bool tables = k % 2 != 0;
                const size_t at = tables ? 128 + next_random(&rng) % 300 : next_random(&rng) % sn;
                const uint8_t old = s[at];
                const size_t at_d = dn ? next_random(&rng) % dn : 0;
                s[at] = (uint8_t)next_random(&rng);
                if (dn && k % 3 == 0)
                    d[at_d] ^= (uint8_t)next_random(&rng);
                try_hostile((zipcclCodec_t)codec, g_floats[t], s, sn, d, dn, src, count);
                s[at] = old;
            }
            for (unsigned k = 0; k < 60; k++) { /* truncated: the rest is not there at all */
                const size_t cut = next_random(&rng) % sn;
                uint8_t *part = guarded(cut, 1);
                memcpy(part, s, cut);
                assert_int_equal(codec_decode((zipcclCodec_t)codec, g_floats[t], part, cut, d, dn, src, count, 0),
                                 zipcclCorruptData);
                release(part, cut, 1);
            }
            release(s, sn, 1);
            release(d, dn, 1);
            release(src, n, 1);
            drop(&c);
        }
    }
}

/* s and d end at guard pages, and hold what their header says, or nearly. */
static void expect_corrupt(zipcclCodec_t codec, zipcclDataType_t t, const uint8_t *s, const uint8_t *d,
                           const struct zfmt_header *h, size_t count) {
    const size_t n = count * dtype_get(t)->bytes;
    uint8_t *part = guarded(h->static_bytes, 1), *dynamic = guarded(h->dynamic_bytes, 1), *dst = guarded(n, 1);
    memcpy(part, s, h->static_bytes);
    memcpy(part, h, sizeof(*h));
    memcpy(dynamic, d, h->dynamic_bytes);
    for (unsigned isa = 0; isa < CODEC_NUM_ISAS; isa++)
        if (codec_isa_force((enum codec_isa)isa))
            assert_int_equal(codec_decode(codec, t, part, h->static_bytes, dynamic, h->dynamic_bytes, dst, count, 0),
                             zipcclCorruptData);
    release(part, h->static_bytes, 1);
    release(dynamic, h->dynamic_bytes, 1);
    release(dst, n, 1);
}

/* Code planes that announce more escapes than there are, in a group with some of the next one's bytes behind its own.
 */
static void announce(zipcclCodec_t codec, zipcclDataType_t t) {
    enum { COUNT = 32768 + 1024 };
    const size_t bytes = dtype_get(t)->bytes;
    uint8_t *src = guarded(COUNT * bytes, 1);
    fill(src, t, COUNT, IN_WIDE, 3);
    struct coded c = encode(codec, t, src, COUNT, 0);
    const struct layout_tables tables = layout_tables_of(COUNT);
    struct zfmt_header h;
    struct zfmt_group g;
    memcpy(&h, c.s, sizeof(h));
    memcpy(&g, c.s + tables.table, sizeof(g));
    assert_true(g.n[0] > 256);
    for (unsigned tier = 2; tier <= ZFMT_TIERS && codec == zipcclCodecTier; tier++) {
        const struct layout_dynamic l = layout_tier_dynamic(&g);
        const size_t from = l.planes[tier][0], n = 2 * layout_plane(g.n[tier - 2]);
        uint8_t keep[16384];
        if (tier == 4 && !layout_has_tier4(&g))
            break;
        memcpy(keep, c.d + from, n);
        memset(c.d + from, 0xff, n);
        expect_corrupt(codec, t, c.s, c.d, &h, COUNT);
        memcpy(c.d + from, keep, n);
    }
    unsigned coded = 0;
    for (size_t b = 0, at = tables.bodies; b < 64; b++) {
        const uint8_t mode = c.s[tables.heads + 2 * b];
        if (mode != ZFMT_RAW) {
            memset(c.s + at, mode == ZFMT_TIER ? 0xff : 0, mode == ZFMT_TIER ? 128 : 192);
            coded++;
        }
        at += layout_body(layout_kind_of(t), mode);
    }
    assert_true(coded >= 32);
    expect_corrupt(codec, t, c.s, c.d, &h, COUNT);
    drop(&c);
    release(src, COUNT * bytes, 1);
}

static void test_announced(void **state) {
    (void)state;
    announce(zipcclCodecTier, zipcclBfloat16);
    announce(zipcclCodecTier, zipcclFloat32);
    announce(zipcclCodecTop7, zipcclBfloat16);
    announce(zipcclCodecTop7, zipcclFloat32);
}

/* Chunks that are right but for one claim, which a byte turned at random hardly ever makes. */
static void forge(zipcclCodec_t codec, zipcclDataType_t t) {
    enum { BLOCKS = 3, COUNT = 512 * BLOCKS, HEADS = 128, TABLE = 256, MORE = 128 };
    uint8_t *src = guarded((size_t)COUNT * 4, 1);
    fill(src, t, COUNT, IN_NARROW, 5);
    struct coded c = encode(codec, t, src, COUNT, 0);
    struct zfmt_header h, longer;
    struct zfmt_group good, group;
    memcpy(&h, c.s, sizeof(h));
    memcpy(&good, c.s + TABLE, sizeof(good));
    assert_true(h.static_bytes + MORE <= c.bound.static_bytes && h.dynamic_bytes + MORE <= c.bound.dynamic_bytes);
    longer = h; /* more than there is to tell */
    longer.static_bytes += MORE;
    expect_corrupt(codec, t, c.s, c.d, &longer, COUNT);
    longer = h;
    longer.dynamic_bytes += MORE;
    expect_corrupt(codec, t, c.s, c.d, &longer, COUNT);
    uint8_t heads[2 * BLOCKS]; /* bodies that go past the end */
    memcpy(heads, c.s + HEADS, sizeof(heads));
    for (unsigned b = 0; b < BLOCKS; b++) {
        assert_int_not_equal(heads[2 * b], ZFMT_RAW);
        c.s[HEADS + 2 * b] = ZFMT_RAW;
        c.s[HEADS + 2 * b + 1] = 0;
    }
    expect_corrupt(codec, t, c.s, c.d, &h, COUNT);
    memcpy(c.s + HEADS, heads, sizeof(heads));
    for (unsigned k = 0; k < ZFMT_TIERS; k++) { /* a count too many, in the room that is there */
        group = good;
        group.n[k]++;
        memcpy(c.s + TABLE, &group, sizeof(group));
        expect_corrupt(codec, t, c.s, c.d, &h, COUNT);
    }
    /* More escapes than there can be, as many as the greatest dynamic part has room for. */
    for (unsigned k = 0; k < ZFMT_TIERS; k++) {
        const size_t room = c.bound.dynamic_bytes - 256;
        const size_t n = codec == zipcclCodecTier && k + 1 < ZFMT_TIERS ? room * 4 : room;
        const uint16_t most = (uint16_t)(n < 60000 ? n : 60000);
        group = (struct zfmt_group){.n = {most}};
        for (unsigned i = 0; i < k; i++) /* of the tier after those with one */
            group.n[i] = 1, group.n[i + 1] = most;
        longer.dynamic_bytes =
            codec == zipcclCodecTier ? layout_tier_dynamic(&group).size : layout_align(group.n[0], ZFMT_ALIGN);
        memset(c.d, 0, longer.dynamic_bytes);
        memcpy(c.s + TABLE, &group, sizeof(group));
        expect_corrupt(codec, t, c.s, c.d, &longer, COUNT);
    }
    /* Sizes beyond the bound, before there is a chunk. */
    struct codec_sizes sizes;
    assert_int_equal(codec_peek(codec, t, COUNT, &h, sizeof(h), &sizes), zipcclSuccess);
    assert_int_equal(codec_peek(codec, t, COUNT, &h, sizeof(h) - 1, &sizes), zipcclCorruptData);
    longer = h;
    longer.dynamic_bytes = c.bound.dynamic_bytes + MORE;
    assert_int_equal(codec_peek(codec, t, COUNT, &longer, sizeof(h), &sizes), zipcclCorruptData);
    longer = h;
    longer.static_bytes = c.bound.static_bytes + MORE;
    assert_int_equal(codec_peek(codec, t, COUNT, &longer, sizeof(h), &sizes), zipcclCorruptData);
    drop(&c);
    memset(src, 0, (size_t)COUNT * 4); /* a base where the mode has none */
    c = encode(codec, t, src, COUNT, 0);
    memcpy(&h, c.s, sizeof(h));
    c.s[HEADS + 1] ^= 1;
    expect_corrupt(codec, t, c.s, c.d, &h, COUNT);
    drop(&c);
    release(src, (size_t)COUNT * 4, 1);
}

static void test_forged(void **state) {
    (void)state;
    for (unsigned t = 0; t < NUM_FLOATS; t++) {
        forge(zipcclCodecTier, g_floats[t]);
        forge(zipcclCodecTop7, g_floats[t]);
    }
}

static void test_bounds(void **state) {
    (void)state;
    const size_t most = ZFMT_MAX_COUNT;
    const struct codec_sizes b = codec_bound(zipcclCodecTier, zipcclFloat32, most);
    assert_true(b.static_bytes > most * 4 && b.static_bytes < most * 4 + most / 32);
    assert_true(b.static_bytes % 128 == 0 && b.dynamic_bytes % 128 == 0);
    assert_int_equal(codec_bound(zipcclCodecTier, zipcclFloat32, most + 1).static_bytes, 0);
    assert_int_equal(codec_bound(zipcclCodecTier, zipcclFloat32, SIZE_MAX).static_bytes, 0);
    assert_int_equal(codec_bound(zipcclCodecTier, zipcclInt32, 10).static_bytes, 0);
    assert_int_equal(codec_bound(zipcclCodecRaw, zipcclInt64, 10).static_bytes, 80);
    assert_int_equal(codec_bound(zipcclCodecAuto, zipcclInt64, 10).static_bytes, 0);
    struct codec_sizes s;
    assert_int_equal(codec_encode(zipcclCodecTier, zipcclInt8, &s, 1, &s, &s, 0, &s), zipcclInvalidArgument);
}

static void test_names(void **state) {
    (void)state;
    for (unsigned i = 0; i < zipcclNumTypes; i++) {
        zipcclDataType_t t;
        assert_true(dtype_from_name(dtype_get(i)->name, &t) && t == i);
        assert_true(dtype_from_name(dtype_get(i)->safetensors, &t) && t == i);
    }
    zipcclDataType_t t;
    zipcclCodec_t c;
    assert_false(dtype_from_name("bf17", &t) || dtype_from_name("", &t) || dtype_from_name(NULL, &t));
    assert_null(dtype_get(zipcclNumTypes));
    assert_true(codec_from_name("tier", &c) && c == zipcclCodecTier && codec_from_name("AUTO", &c));
    assert_false(codec_from_name("zip", &c) || codec_from_name(NULL, &c));
    assert_null(codec_name((zipcclCodec_t)7));
}

/* What is forced is what runs: else two instruction sets would be compared with themselves. */
static void test_isas(void **state) {
    (void)state;
    const struct cpu_ops *seen[CODEC_NUM_ISAS];
    unsigned n = 0;
    for (unsigned isa = 0; isa < CODEC_NUM_ISAS; isa++) {
        if (!codec_isa_force((enum codec_isa)isa))
            continue;
        assert_int_equal(codec_isa_current(), isa);
        seen[n++] = cpu_ops_current();
        for (unsigned k = 0; k + 1 < n; k++)
            assert_ptr_not_equal(seen[k], seen[n - 1]);
    }
    assert_true(n >= 1 && seen[0] == &cpu_ops_scalar);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs),      cmocka_unit_test(test_every_pattern),
        cmocka_unit_test(test_zeros_apart), cmocka_unit_test(test_zeros_and_escapes),
        cmocka_unit_test(test_budgets),     cmocka_unit_test(test_fourth_tier),
        cmocka_unit_test(test_announced),   cmocka_unit_test(test_real_tensors),
        cmocka_unit_test(test_normal),      cmocka_unit_test(test_model),
        cmocka_unit_test(test_hostile),     cmocka_unit_test(test_forged),
        cmocka_unit_test(test_bounds),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_isas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
