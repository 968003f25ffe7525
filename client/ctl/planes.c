/* SPDX-License-Identifier: Apache-2.0
 *
 * BF16 values as two planes of bytes. Plain loops that compilers turn into vector code, built once more for AVX-512 and
 * AVX2, so that peers are not held back by this step.
 */
#include "client/ctl/planes.h"

#include <string.h>

static inline __attribute__((always_inline)) void split(const void *values, uint8_t *restrict exponents,
                                                        uint8_t *restrict rest, size_t n) {
    const uint8_t *from = values;
    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, from + 2 * i, 2);
        exponents[i] = (uint8_t)(v >> 7);
        rest[i] = (uint8_t)(v << 1 | v >> 15);
    }
}

static inline __attribute__((always_inline)) void merge(const uint8_t *restrict exponents, const uint8_t *restrict rest,
                                                        void *values, size_t n) {
    uint8_t *to = values;
    for (size_t i = 0; i < n; i++) {
        uint16_t v = (uint16_t)((unsigned)exponents[i] << 7 | rest[i] >> 1 | (unsigned)rest[i] << 15);
        memcpy(to + 2 * i, &v, 2);
    }
}

#ifdef __x86_64__
#    define PLANES_FOR(isa, features)                                                                                  \
        __attribute__((target(features))) static void split_##isa(const void *values, uint8_t *restrict exponents,     \
                                                                  uint8_t *restrict rest, size_t n) {                  \
            split(values, exponents, rest, n);                                                                         \
        }                                                                                                              \
        __attribute__((target(features))) static void merge_##isa(                                                     \
            const uint8_t *restrict exponents, const uint8_t *restrict rest, void *values, size_t n) {                 \
            merge(exponents, rest, values, n);                                                                         \
        }
PLANES_FOR(avx512, "avx512f,avx512bw,avx512vl")
PLANES_FOR(avx2, "avx2")
#endif

void planes_split(const void *values, uint8_t *restrict exponents, uint8_t *restrict rest, size_t n) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        split_avx512(values, exponents, rest, n);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        split_avx2(values, exponents, rest, n);
        return;
    }
#endif
    split(values, exponents, rest, n);
}

void planes_merge(const uint8_t *restrict exponents, const uint8_t *restrict rest, void *values, size_t n) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        merge_avx512(exponents, rest, values, n);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        merge_avx2(exponents, rest, values, n);
        return;
    }
#endif
    merge(exponents, rest, values, n);
}
