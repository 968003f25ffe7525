/* SPDX-License-Identifier: Apache-2.0
 *
 * Element-wise reductions: n inputs of one dtype into one result, by the rule of zipcclRedOp_t (zipccl_types.h): order,
 * groups, roundings, NaN and saturation are part of the contract, so the result's bits are a pure function of the
 * inputs. They do not depend on the instruction set.
 *
 * Pure functions: no allocation, no lock, no state; any thread; up to 32 KiB of stack. They want the default floating
 * point environment (to nearest, denormals kept).
 */
#ifndef ZIPCCL_KERNELS_REDUCE_H
#define ZIPCCL_KERNELS_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

/* One input, in the order in which they are combined. */
struct reduce_input {
    const void *values; /* any alignment */
    uint64_t scalar;    /* where scaled: bits of the dtype, from the lowest */
    bool scaled;        /* the values are multiplied by the scalar first */
    bool ends_group;    /* the inputs since the last end are combined, then added to the total. The last one does */
    bool round_group;   /* with ends_group: that result is rounded to the dtype before */
};

/* Accumulators between the calls of a reduction whose inputs do not come all at once: reduce_carry_bytes per value
 * each, 8-byte aligned. Their form is reduce_values' own; all calls are of one count, on one instruction set. */
struct reduce_carry {
    void *group, *total;
    bool in_group, in_total; /* at first: false */
};

struct reduce {
    zipcclRedOp_t op;
    zipcclDataType_t dtype;
    uint32_t divisor; /* avg: what the end result is divided by; 0: not at all */
    const struct reduce_input *inputs;
    uint32_t ninputs;           /* at least 1 */
    unsigned flags;             /* CODEC_STREAMING */
    struct reduce_carry *carry; /* NULL: all inputs are here */
    bool more;                  /* with carry: other inputs follow; dst is not touched */
};

/* False for values outside the enums. */
bool reduce_supports(zipcclRedOp_t op, zipcclDataType_t dtype);

/* Bytes of an accumulator. */
size_t reduce_carry_bytes(zipcclDataType_t dtype);

/* Reduces count values to dst (any alignment), which may be the memory of an input's values, from its start.
 * zipcclInvalidArgument: not supported, or no input. */
ZIPCCL_MUST_CHECK zipcclResult_t reduce_values(const struct reduce *r, void *dst, size_t count);

#endif
