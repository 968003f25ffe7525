/* SPDX-License-Identifier: Apache-2.0
 *
 * What a reduction must give, by the rule of zipcclRedOp_t in zipccl_types.h and nothing else: one value at a time, in
 * plain C, with none of the code under test. Slow, and meant to be read.
 */
#ifndef ZIPCCL_TESTS_E2E_REFERENCE_H
#define ZIPCCL_TESTS_E2E_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#define REFERENCE_RANKS 16

struct reference {
    zipcclDataType_t dtype;
    zipcclRedOp_t redop; /* zipcclPreMulSum: with the scalars */
    int nranks;
    const int *node;                        /* by rank */
    const uint8_t *inputs[REFERENCE_RANKS]; /* by rank; any alignment */
    uint64_t scalars[REFERENCE_RANKS];      /* bits of the dtype, from the lowest */
};

/* The result of value i, as the bits of the dtype. */
uint64_t reference_value(const struct reference *r, size_t i);

/* The value nearest to x, ties to even; FP8 saturates; NaN is all ones but the sign. */
uint64_t reference_round(zipcclDataType_t dtype, double x);
double reference_decode(zipcclDataType_t dtype, uint64_t bits);

#endif
