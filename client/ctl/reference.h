/* SPDX-License-Identifier: Apache-2.0
 *
 * What a reduction must give, bit for bit: zipcclRedOp_t's rule in plain scalar code, written apart from the daemon's.
 */
#ifndef ZIPCCL_CTL_REFERENCE_H
#define ZIPCCL_CTL_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

struct reference {
    zipcclDataType_t dtype;
    zipcclRedOp_t redop;
    unsigned nodes, per_node; /* rank r is on node r / per_node */
    const uint8_t *values;    /* rank r's at r * stride bytes */
    size_t stride;
};

/* The scalar that every rank multiplies by under PreMulSum: 0.5, 2 for integers, as bytes of the dtype. */
uint64_t reference_scalar(zipcclDataType_t dtype);
/* Values [first, first + count) of the result. */
void reference_reduce(const struct reference *r, size_t first, size_t count, void *out);
/* Whether `count` values lie near each other: within n roundings of the dtype at the size of the inputs. For an arm
 * whose order of summing is its own. */
bool reference_near(const struct reference *r, size_t first, size_t count, const void *got);

#endif
