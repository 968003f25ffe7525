/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of a reduction: inputs, groups, roundings, the end. The arithmetic is in kernels/cpu.
 */
#include "kernels/reduce.h"

#include <string.h>

#include "kernels/codec.h"
#include "kernels/cpu/reduce_ops.h"
#include "kernels/dtype.h"

#define BLOCK     512u /* values; three blocks of accumulators lie in the first-level cache */
#define ACC_BYTES 8u   /* the widest */

static const struct reduce_passes *passes_of(zipcclDataType_t dtype) {
    switch (codec_isa_current()) {
#if defined(__x86_64__)
    case CODEC_ISA_AVX512:
        return &reduce_passes_avx512[dtype];
    case CODEC_ISA_AVX2:
        return &reduce_passes_avx2[dtype];
#endif
    default:
        return &reduce_passes_scalar[dtype];
    }
}

static enum reduce_combine combine_of(zipcclRedOp_t op) {
    switch (op) {
    case zipcclProd:
        return REDUCE_PROD;
    case zipcclMax:
        return REDUCE_MAX;
    case zipcclMin:
        return REDUCE_MIN;
    default:
        return REDUCE_SUM;
    }
}

bool reduce_supports(zipcclRedOp_t op, zipcclDataType_t dtype) {
    return (unsigned)op < zipcclNumRedOps && dtype_get(dtype) != NULL;
}

size_t reduce_carry_bytes(zipcclDataType_t dtype) {
    return dtype_get(dtype) ? reduce_passes_scalar[dtype].acc_bytes : 0;
}

/* A block's accumulators. */
struct block {
    const struct reduce_passes *passes;
    enum reduce_combine combine;
    size_t at, n, width; /* first value, values, bytes of a value */
    uint8_t *group, *total, *extra;
};

/* Combines an input's values with the group, or starts it with them. */
static void add_input(const struct block *b, const struct reduce_input *in, bool in_group) {
    const struct reduce_passes *p = b->passes;
    const size_t bytes = b->n * p->acc_bytes;
    const uint8_t *values = (const uint8_t *)in->values + b->at * b->width;
    uint8_t *const to = in_group ? b->extra : b->group;
    if (p->widen)
        p->widen(to, values, b->n);
    else if (in->scaled || !in_group)
        memcpy(to, values, bytes);
    if (in->scaled) {
        uint64_t scalar = in->scalar;
        if (p->widen)
            p->widen(&scalar, &in->scalar, 1);
        p->scale(to, &scalar, b->n);
    }
    if (in_group)
        p->combine[b->combine](b->group, p->widen || in->scaled ? to : values, b->n);
}

static void round_group(const struct block *b) {
    if (!b->passes->widen)
        return;
    b->passes->narrow(b->extra, b->group, b->n);
    b->passes->widen(b->group, b->extra, b->n);
}

static void finish(const struct reduce *r, const struct block *b, uint8_t *acc, uint8_t *dst) {
    const struct reduce_passes *p = b->passes;
    if (r->op == zipcclAvg && r->divisor > 1)
        p->divide(acc, r->divisor, b->n);
    if (p->narrow)
        p->narrow(dst + b->at * b->width, acc, b->n);
    else
        memcpy(dst + b->at * b->width, acc, b->n * b->width);
}

static void reduce_block(const struct reduce *r, const struct block *b, uint8_t *dst) {
    bool in_group = r->carry && r->carry->in_group, in_total = r->carry && r->carry->in_total;
    for (uint32_t k = 0; k < r->ninputs; k++) {
        const struct reduce_input *in = &r->inputs[k];
        const bool last = k + 1 == r->ninputs && !r->more;
        add_input(b, in, in_group);
        in_group = true;
        if (in->ends_group && in->round_group)
            round_group(b);
        if (!in->ends_group && !last)
            continue;
        if (last && !in_total) {
            finish(r, b, b->group, dst);
            return;
        }
        if (in_total)
            b->passes->combine[b->combine](b->total, b->group, b->n);
        else
            memcpy(b->total, b->group, b->n * b->passes->acc_bytes);
        in_total = true;
        in_group = false;
    }
    if (!r->more)
        finish(r, b, b->total, dst);
}

zipcclResult_t reduce_values(const struct reduce *r, void *dst, size_t count) {
    if (!reduce_supports(r->op, r->dtype) || r->ninputs == 0 || (r->more && !r->carry))
        return zipcclInvalidArgument;
    _Alignas(64) uint8_t room[3][BLOCK * ACC_BYTES];
    struct block b = {.passes = passes_of(r->dtype),
                      .combine = combine_of(r->op),
                      .width = dtype_get(r->dtype)->bytes,
                      .group = room[0],
                      .total = room[1],
                      .extra = room[2]};
    if (b.combine == REDUCE_SUM && b.passes->sum)
        b.at = b.passes->sum(r, dst, count);
    for (; b.at < count; b.at += b.n) {
        b.n = count - b.at < BLOCK ? count - b.at : BLOCK;
        if (r->carry) {
            b.group = (uint8_t *)r->carry->group + b.at * b.passes->acc_bytes;
            b.total = (uint8_t *)r->carry->total + b.at * b.passes->acc_bytes;
        }
        reduce_block(r, &b, dst);
    }
    for (uint32_t k = 0; r->carry && k < r->ninputs; k++) {
        r->carry->in_group = !r->inputs[k].ends_group;
        r->carry->in_total |= r->inputs[k].ends_group;
    }
    return zipcclSuccess;
}
