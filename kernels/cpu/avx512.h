/* SPDX-License-Identifier: Apache-2.0
 *
 * The AVX-512 loops that are written by hand (avx512_bf16_encode.c, avx512_bf16_decode.c); ops.h tells what each does.
 */
#ifndef ZIPCCL_KERNELS_CPU_AVX512_H
#define ZIPCCL_KERNELS_CPU_AVX512_H

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

#endif
