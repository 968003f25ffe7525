/* SPDX-License-Identifier: Apache-2.0
 *
 * The passes that a reduction is made of, per instruction set: loops over a few hundred values in the first-level
 * cache. kernels/cpu/reduce_passes.h holds them once, in plain C that compilers vectorise; kernels/cpu/reduce_sum.h the
 * sums that pay to be written by hand.
 */
#ifndef ZIPCCL_KERNELS_CPU_REDUCE_OPS_H
#define ZIPCCL_KERNELS_CPU_REDUCE_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/reduce.h"

enum reduce_combine { REDUCE_SUM, REDUCE_PROD, REDUCE_MAX, REDUCE_MIN, REDUCE_NUM_COMBINES };

/* How values of a dtype are worked on. Accumulators are FP32 for floats of 32 bits or less, else the dtype itself.
 * Pointers to values have any alignment; no two arguments overlap. */
struct reduce_passes {
    uint8_t acc_bytes;
    /* Values to accumulators; NULL where they are the same. */
    void (*widen)(void *acc, const void *values, size_t n);
    /* The end result's rounding, with NaN in its one form; NULL: none, the bytes are the values. */
    void (*narrow)(void *values, const void *acc, size_t n);
    /* acc = acc op v, v being accumulators of any alignment. */
    void (*combine[REDUCE_NUM_COMBINES])(void *acc, const void *v, size_t n);
    /* acc = acc * the accumulator at scalar. */
    void (*scale)(void *acc, const void *scalar, size_t n);
    void (*divide)(void *acc, uint32_t divisor, size_t n);
    /* The sum of all inputs in registers, or NULL. Works on whole steps from the start; returns how many values it did.
     * Leaves the flags of carry alone. */
    size_t (*sum)(const struct reduce *r, uint8_t *dst, size_t count);
};

extern const struct reduce_passes reduce_passes_scalar[zipcclNumTypes];
#if defined(__x86_64__)
extern const struct reduce_passes reduce_passes_avx2[zipcclNumTypes];
extern const struct reduce_passes reduce_passes_avx512[zipcclNumTypes];
#endif

#endif
