/* SPDX-License-Identifier: Apache-2.0
 *
 * BF16 values as two planes of bytes, exponents and the rest: what a byte-wise coder needs before it can code.
 */
#ifndef ZIPCCL_CTL_PLANES_H
#define ZIPCCL_CTL_PLANES_H

#include <stddef.h>
#include <stdint.h>

/* exponents[i] and rest[i] (mantissa above, sign lowest) of n values at any alignment. */
void planes_split(const void *values, uint8_t *restrict exponents, uint8_t *restrict rest, size_t n);
void planes_merge(const uint8_t *restrict exponents, const uint8_t *restrict rest, void *values, size_t n);

#endif
