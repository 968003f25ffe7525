/* SPDX-License-Identifier: Apache-2.0
 *
 * The encoder rule's arithmetic on counts, the sampled window of top7, histograms and their entropy.
 */
#include "kernels/model.h"

#include <math.h>
#include <string.h>

/* Hits around the 16 counted exponents: 8 zeros on both sides make every look-up valid. */
#define PAD 8

/* Places of a sample that are fetched before they are read. */
#define AHEAD 24

struct zfmt_block model_choose(const struct model_counts *c, unsigned budget) {
    uint16_t h[MODEL_COUNTS + 2 * PAD] = {0};
    uint16_t price[2][MODEL_COUNTS];
    memcpy(h + PAD, c->hits, sizeof(c->hits));
    for (unsigned k = 0; k < MODEL_COUNTS; k++) {
        const uint16_t *x = h + PAD + k; /* x[0]: base */
        unsigned n1 = ZFMT_BLOCK - x[0] - x[-1] - x[-2];
        unsigned n2 = n1 - x[1] - x[-3] - x[-4];
        unsigned n3 = n2 - x[2] - x[-5] - x[-6];
        price[0][k] = (uint16_t)model_price(n1, n2, n3);
    }
    for (unsigned k = 0; k < MODEL_COUNTS; k++) {
        const uint16_t *x = h + PAD + k; /* base + 1, which gave its place to zero, stays an escape */
        unsigned n1 = ZFMT_BLOCK - c->zeros - x[0] - x[-1];
        unsigned n2 = n1 - x[2] - x[-2] - x[-3];
        unsigned n3 = n2 - x[3] - x[-4] - x[-5];
        price[1][k] = (uint16_t)model_price(n1, n2, n3);
    }
    unsigned best = 4 * budget + 1;
    struct zfmt_block choice = {ZFMT_RAW, 0};
    for (unsigned zero = 0; zero < 2; zero++) {
        for (unsigned k = 0; k < MODEL_COUNTS; k++) {
            int base = (int)c->median - (int)MODEL_COUNTS_LOW + (int)k;
            if (base < 0 || base > 255 || price[zero][k] >= best)
                continue;
            best = price[zero][k];
            choice.mode = zero ? ZFMT_TIER_ZERO : ZFMT_TIER;
            choice.base = (uint8_t)base;
        }
    }
    return choice;
}

static inline unsigned exponent_of(enum layout_kind kind, const uint8_t *p) {
    switch (kind) {
    case KIND_BF16:
        return (unsigned)(p[1] & 0x7f) << 1 | p[0] >> 7;
    case KIND_FP16:
        return p[1] >> 2 & 0x1f;
    case KIND_FP32:
        return (unsigned)(p[3] & 0x7f) << 1 | p[2] >> 7;
    case KIND_E4M3:
        return p[0] >> 3 & 0xf;
    case KIND_E5M2:
        return p[0] >> 2 & 0x1f;
    default:
        return 0;
    }
}

/* The value at which place i of a sample begins; q = count / MODEL_PLACES. */
static inline uint64_t place(uint64_t i, uint64_t q) {
    return i * q + ((i * 40503 % 65536) * q >> 16);
}

/* Neighbours are often equal, and adding to what was just stored would wait for it: each value of a place has a
 * histogram of its own. */
static inline __attribute__((always_inline)) void sample_of(enum layout_kind kind, const uint8_t *src, size_t count,
                                                            uint32_t h[256]) {
    const unsigned bytes = layout_bytes(kind);
    if (count < (size_t)MODEL_PLACES * MODEL_PLACE) {
        for (size_t i = 0; i < count; i++)
            h[exponent_of(kind, src + i * bytes)]++;
        return;
    }
    uint16_t part[MODEL_PLACE][256] = {{0}};
    const uint64_t q = count / MODEL_PLACES;
    for (uint64_t i = 0; i < MODEL_PLACES; i++) {
        const uint64_t at = place(i, q);
        /* The places are far apart: each would wait for its cache line. */
        __builtin_prefetch(src + place(i + AHEAD < MODEL_PLACES ? i + AHEAD : i, q) * bytes);
        if (kind == KIND_BF16 && at + MODEL_PLACE <= count) {
            uint64_t w;
            memcpy(&w, src + at * bytes, sizeof(w));
            for (unsigned j = 0; j < MODEL_PLACE; j++)
                part[j][w >> (16 * j + 7) & 0xff]++;
        } else if (at + MODEL_PLACE <= count) {
            for (unsigned j = 0; j < MODEL_PLACE; j++)
                part[j][exponent_of(kind, src + (at + j) * bytes)]++;
        } else {
            for (uint64_t j = at; j < count; j++)
                h[exponent_of(kind, src + j * bytes)]++;
        }
    }
    for (unsigned e = 0; e < 256; e++) {
        for (unsigned j = 0; j < MODEL_PLACE; j++)
            h[e] += part[j][e];
    }
}

static void sample(enum layout_kind kind, const uint8_t *src, size_t count, uint32_t h[256]) {
    if (kind == KIND_BF16)
        sample_of(KIND_BF16, src, count, h);
    else
        sample_of(kind, src, count, h);
}

struct model_window model_window_of(enum layout_kind kind, const void *src, size_t count) {
    uint32_t h[256] = {0};
    sample(kind, src, count, h);
    uint32_t size = 0;
    for (unsigned e = 0; e < 256; e++)
        size += h[e];
    struct model_window w = {0, 0};
    w.zero = h[0] > 0 && h[0] * MODEL_ZERO_SHARE >= size && h[0] < size;
    if (w.zero)
        h[0] = 0;
    unsigned width = w.zero ? MODEL_WINDOW - 1 : MODEL_WINDOW;
    uint32_t hits = 0, best = 0;
    for (unsigned e = 0; e < width - 1; e++)
        hits += h[e];
    w.base = (uint8_t)(width - 1);
    for (unsigned base = width - 1; base < 255; base++) {
        hits += h[base];
        if (hits > best) {
            best = hits;
            w.base = (uint8_t)base;
        }
        hits -= h[base - (width - 1)];
    }
    return w;
}

uint8_t model_window_of_sigma(int log2_sigma_256) {
    /* floor(log2 sigma) + 1, one higher where its fraction is 0.72 or more. */
    int base = (log2_sigma_256 - (log2_sigma_256 & 255)) / 256 + 1 + ((log2_sigma_256 & 255) >= 184);
    base += 127;
    return (uint8_t)(base < 6 ? 6 : base > 254 ? 254 : base);
}

void model_histogram(enum layout_kind kind, const void *src, size_t count, uint64_t histogram[256]) {
    const uint8_t *p = src;
    unsigned bytes = layout_bytes(kind);
    for (size_t i = 0; i < count; i++)
        histogram[exponent_of(kind, p + i * bytes)]++;
}

double model_exponent_entropy(const uint64_t histogram[256]) {
    double total = 0, bits = 0;
    for (unsigned e = 0; e < 256; e++)
        total += (double)histogram[e];
    for (unsigned e = 0; e < 256; e++) {
        if (histogram[e])
            bits -= (double)histogram[e] * log2((double)histogram[e] / total);
    }
    return total > 0 ? bits / total : 0;
}

double model_limit_ratio(enum layout_kind kind, double entropy) {
    unsigned total = 8 * layout_bytes(kind);
    unsigned remainder = 8 * layout_byte_planes(kind) + layout_bit_planes(kind);
    return total / (remainder + entropy);
}
