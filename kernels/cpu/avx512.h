/* SPDX-License-Identifier: Apache-2.0
 *
 * The AVX-512 loops that are written by hand (avx512_bf16_encode.c, avx512_bf16_decode.c); ops.h tells what each does.
 */
#ifndef ZIPCCL_KERNELS_CPU_AVX512_H
#define ZIPCCL_KERNELS_CPU_AVX512_H

#include <stdint.h>

#include "kernels/cpu/ops.h"

size_t avx512_bf16_tier_encode(const uint8_t *src, unsigned blocks, struct zfmt_block *heads, uint8_t *body,
                               uint8_t *escapes, unsigned *n1, bool stream);
unsigned avx512_bf16_tier_decode(const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                                 const uint8_t *escapes, uint8_t *dst, bool stream);

/* Windows in which a code never stands for the exponent that zero changed places with; the top7 loops want one. */
static inline bool avx512_bf16_window_ok(struct model_window w) {
    return !w.zero || (w.base >= 6 && w.base <= 254);
}

size_t avx512_bf16_top7_encode(const uint8_t *src, unsigned blocks, struct zfmt_block *heads, uint8_t *body,
                               uint8_t *escapes, unsigned *n1, bool stream, struct model_window w);
unsigned avx512_bf16_top7_decode(const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                                 const uint8_t *escapes, uint8_t *dst, bool stream, struct model_window w);

unsigned avx512_compact(unsigned tier, const uint8_t *in, unsigned n, uint8_t *plane0, uint8_t *plane1, uint8_t *out);
unsigned avx512_expand(unsigned tier, const uint8_t *plane0, const uint8_t *plane1, unsigned n, const uint8_t *in,
                       uint8_t *out);

/* Every other byte, even or odd. */
static const uint8_t g_pick2[2][64] __attribute__((aligned(64))) = {
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

#endif
