/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec's hot loops as a table of functions, one table per instruction set. codec.c alone calls them, with
 * block headers that it has written or checked; they check nothing and stay inside the ranges named here.
 * kernels/cpu/loops.h holds the loops once; scalar.c, avx2.c and avx512.c give them their vector type.
 */
#ifndef ZIPCCL_KERNELS_CPU_OPS_H
#define ZIPCCL_KERNELS_CPU_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"
#include "kernels/model.h"

/* Stores of 64 bytes may go past the last escape by this many. */
#define OPS_SLOP    128u
#define OPS_ESCAPES (ZFMT_GROUP + OPS_SLOP)

struct cpu_ops {
    /* Codes `blocks` full blocks (at most a group) in tier: writes their headers, their bodies one after another, and
     * the escapes of tier 1 to escapes[OPS_ESCAPES]. body has room for raw bodies. Returns the bytes of the bodies. */
    size_t (*tier_encode)(enum layout_kind kind, const uint8_t *src, unsigned blocks, struct zfmt_block *heads,
                          uint8_t *body, uint8_t *escapes, unsigned *n1, bool stream);
    size_t (*top7_encode)(enum layout_kind kind, const uint8_t *src, unsigned blocks, struct zfmt_block *heads,
                          uint8_t *body, uint8_t *escapes, unsigned *n1, bool stream, struct model_window window);
    /* Restores full blocks to dst. Reads at most 64 bytes past the escapes that the planes announce, so escapes has
     * OPS_ESCAPES bytes. Returns the count of escapes met. */
    unsigned (*tier_decode)(enum layout_kind kind, const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                            const uint8_t *escapes, uint8_t *dst, bool stream);
    unsigned (*top7_decode)(enum layout_kind kind, const struct zfmt_block *heads, unsigned blocks, const uint8_t *body,
                            const uint8_t *escapes, uint8_t *dst, bool stream, struct model_window window);
    /* Tier 2, 3 or 4 over n values d of in[OPS_ESCAPES]: writes ceil(n / 8) bytes of each plane, padded with zeros to
     * 16, and the escapes to out[OPS_ESCAPES]. Returns their count. */
    unsigned (*compact)(unsigned tier, const uint8_t *in, unsigned n, uint8_t *plane0, uint8_t *plane1, uint8_t *out);
    /* The inverse: n values to out[OPS_ESCAPES], escapes from in[OPS_ESCAPES]. Returns the count of escapes met. */
    unsigned (*expand)(unsigned tier, const uint8_t *plane0, const uint8_t *plane1, unsigned n, const uint8_t *in,
                       uint8_t *out);
};

extern const struct cpu_ops cpu_ops_scalar;
#if defined(__x86_64__)
extern const struct cpu_ops cpu_ops_avx2;
extern const struct cpu_ops cpu_ops_avx512;
#endif

/* The table of codec_isa_current. */
const struct cpu_ops *cpu_ops_current(void);

#endif
