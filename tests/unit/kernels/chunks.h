/* SPDX-License-Identifier: Apache-2.0
 *
 * What the codec's tests share: random numbers, kinds of input values, buffers that end at a page without access.
 */
#ifndef ZIPCCL_TESTS_CHUNKS_H
#define ZIPCCL_TESTS_CHUNKS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"

static const zipcclDataType_t g_floats[] = {zipcclBfloat16, zipcclFloat16, zipcclFloat32, zipcclFloat8e4m3,
                                            zipcclFloat8e5m2};
#define NUM_FLOATS 5

static inline uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* n bytes whose last one is followed by a page without access. */
static inline uint8_t *guarded(size_t n, size_t align) {
    const size_t room = (n + align + 4095) & ~(size_t)4095;
    uint8_t *p = mmap(NULL, room + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + room, 4096, PROT_NONE) != 0)
        abort();
    return p + (room - n) / align * align;
}

static inline void release(uint8_t *p, size_t n, size_t align) {
    const size_t room = (n + align + 4095) & ~(size_t)4095;
    (void)munmap(p - (room - n) / align * align, room + 4096);
}

enum input {
    IN_RANDOM,
    IN_NARROW,
    IN_ZERO,
    IN_CONST,
    IN_MANY_ZEROS,
    IN_ALTERNATING,
    IN_COUNTER,
    IN_SPECIAL,
    IN_WIDE,
    NUM_INPUTS
};

/* A value with about the given exponent (of an 8-bit one), random elsewhere. */
static inline uint64_t value_near(zipcclDataType_t t, unsigned spread, unsigned centre, uint64_t *s) {
    const struct dtype_info *d = dtype_get(t);
    const unsigned bits = 8u * d->bytes, r = bits - d->exponent_bits - 1;
    uint64_t v = next_random(s);
    unsigned down = (unsigned)__builtin_ctzll(next_random(s) | 1ull << spread);
    unsigned e = d->exponent_bits == 8 ? centre - down : (1u << (d->exponent_bits - 1)) - down % 6;
    return (v & ((1ull << r) - 1)) | (uint64_t)(e & ((1u << d->exponent_bits) - 1)) << r | (v >> 63) << (bits - 1);
}

static inline void fill(uint8_t *p, zipcclDataType_t t, size_t count, enum input in, uint64_t seed) {
    static const uint64_t special[] = {0,      1,           0x80,        0x8000, 0x80000000u, 0x7f80,     0xff80,
                                       0x7fc1, 0x7f800000u, 0xff800001u, 0x7c00, 0x7e01,      0xfc00,     0x7f,
                                       0xff,   0x7c,        0x7ffe,      0x007f, 0x8001,      0xffffffffu};
    const size_t bytes = dtype_get(t)->bytes;
    uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < count; i++) {
        uint64_t v = 0;
        switch (in) {
        case IN_RANDOM:
            v = next_random(&s);
            break;
        case IN_NARROW:
            v = value_near(t, 8, 120, &s);
            break;
        case IN_ZERO:
            v = 0;
            break;
        case IN_CONST:
            v = 0x3f803c41 + seed;
            break;
        case IN_MANY_ZEROS:
            v = next_random(&s) % 2 ? 0 : value_near(t, 6, 110, &s);
            break;
        case IN_ALTERNATING:
            v = value_near(t, 5, i / (1 + seed % 700) % 2 ? 200 : 40, &s);
            break;
        case IN_COUNTER:
            v = i;
            break;
        case IN_SPECIAL:
            v = special[next_random(&s) % (sizeof(special) / sizeof(special[0]))];
            break;
        case IN_WIDE: /* escapes of every tier, on both sides */
            v = next_random(&s);
            v = value_near(t, v % 3 ? 3 : 1, v % 3 ? 120 : 109 + (unsigned)(v >> 8) % 16, &s);
            break;
        default:
            break;
        }
        memcpy(p + i * bytes, &v, bytes);
    }
}

#endif
