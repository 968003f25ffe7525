/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of BF16, FP16 and FP32 (and of FP8, where the primitives know it) with all accumulators in registers: a step of
 * four vectors of floats goes through all inputs before the next. An instruction set's file defines the type vf and the
 * primitives below, includes this header after kernels/cpu/reduce_passes.h, and puts SUM_OF's functions into its table.
 * No include guard on purpose.
 *
 *  VF_LANES                                    floats of a vector
 *  vf_load(p) vf_store(p, v) vf_set1(f)        any alignment
 *  vf_add vf_mul vf_div                        rounded to nearest even, never fused
 *  vf_get(kind, p, v[4])                       4 * VF_LANES values to floats, in an order of its own
 *  vf_rounded(kind, v)                         to the precision of the kind; NaN stays one
 *  vf_put(kind, p, v[4], stream)               the inverse of vf_get, rounding; stream: 64-byte aligned, past the
 * caches vf_fence()                                  orders streamed stores before later ones
 */
#include "kernels/codec.h"
#include "kernels/layout.h"

#define SUM_STEP ((size_t)4 * VF_LANES)
#define EACH4(X) X(0) X(1) X(2) X(3)

/* What happens to a total before it is rounded. A division by a power of two is a product: the same bits, sooner. */
enum sum_end { END_NONE, END_MUL, END_DIV };

struct sum_ending {
    enum sum_end how;
    vf by;
};

INLINE struct sum_ending sum_ending_of(const struct reduce *r) {
    struct sum_ending e = {END_NONE, vf_set1(1)};
    if (r->op != zipcclAvg || r->divisor <= 1)
        return e;
    const bool power = (r->divisor & (r->divisor - 1)) == 0;
    e.how = power ? END_MUL : END_DIV;
    e.by = vf_set1(power ? 1 / (float)r->divisor : (float)r->divisor);
    return e;
}

INLINE void sum_put(enum layout_kind kind, const struct sum_ending *end, uint8_t *dst, vf v[4], bool stream) {
    if (end->how == END_MUL) {
#define X(i) v[i] = vf_mul(v[i], end->by);
        EACH4(X)
#undef X
    } else if (end->how == END_DIV) {
#define X(i) v[i] = vf_div(v[i], end->by);
        EACH4(X)
#undef X
    }
    vf_put(kind, dst, v, stream);
}

INLINE void sum_add(vf to[4], const vf v[4], bool first) {
    if (first) {
#define X(i) to[i] = v[i];
        EACH4(X)
#undef X
    } else {
#define X(i) to[i] = vf_add(to[i], v[i]);
        EACH4(X)
#undef X
    }
}

/* True where the inputs are simply added one after another and rounded once: groups of one input, whose rounding
 * changes nothing (but infinities of E5M2, which become finite), or one group, whose rounding is the end's. */
static bool sum_is_plain(const struct reduce *r) {
    const bool alone = r->ninputs == 1 || r->inputs[0].ends_group;
    if (r->carry)
        return false;
    for (uint32_t k = 0; k < r->ninputs; k++) {
        const struct reduce_input *in = &r->inputs[k];
        const bool last = k + 1 == r->ninputs;
        if (in->scaled || (!last && in->ends_group != alone))
            return false;
        if (alone && r->dtype == zipcclFloat8e5m2 && in->ends_group && in->round_group)
            return false;
        if (last && !alone && in->ends_group && in->round_group && sum_ending_of(r).how != END_NONE)
            return false;
    }
    return true;
}

INLINE size_t sum_plain(enum layout_kind kind, const struct reduce *r, uint8_t *dst, size_t count, bool stream) {
    const size_t bytes = layout_bytes(kind), size = count / SUM_STEP * SUM_STEP * bytes;
    const struct sum_ending end = sum_ending_of(r);
    const struct reduce_input *const in = r->inputs;
    const uint8_t *const first = in[0].values;
    for (size_t at = 0; at < size; at += SUM_STEP * bytes) {
        vf acc[4];
        vf_get(kind, first + at, acc);
        for (uint32_t k = 1; k < r->ninputs; k++) {
            vf v[4];
            vf_get(kind, (const uint8_t *)in[k].values + at, v);
            sum_add(acc, v, false);
        }
        sum_put(kind, &end, dst + at, acc, stream);
    }
    if (stream)
        vf_fence();
    return size / bytes;
}

INLINE void sum_move(float *memory, vf v[4], bool store) {
    if (store) {
#define X(i) vf_store(memory + (size_t)(i)*VF_LANES, v[i]);
        EACH4(X)
#undef X
    } else {
#define X(i) v[i] = vf_load(memory + (size_t)(i)*VF_LANES);
        EACH4(X)
#undef X
    }
}

INLINE size_t sum_groups(enum layout_kind kind, const struct reduce *r, uint8_t *dst, size_t count) {
    const size_t bytes = layout_bytes(kind), done = count / SUM_STEP * SUM_STEP;
    const struct sum_ending end = sum_ending_of(r);
    for (size_t at = 0; at < done; at += SUM_STEP) {
        bool in_group = false, in_total = false;
        vf group[4], total[4];
#define X(i) group[i] = total[i] = vf_set1(0);
        EACH4(X)
#undef X
        if (r->carry) {
            in_group = r->carry->in_group;
            in_total = r->carry->in_total;
            if (in_group)
                sum_move((float *)r->carry->group + at, group, false);
            if (in_total)
                sum_move((float *)r->carry->total + at, total, false);
        }
        for (uint32_t k = 0; k < r->ninputs; k++) {
            const struct reduce_input *const in = &r->inputs[k];
            vf v[4];
            vf_get(kind, (const uint8_t *)in->values + at * bytes, v);
            if (in->scaled) {
                float scalar;
                const uint64_t bits = in->scalar;
                if (kind == KIND_BF16)
                    widen_bf16(&scalar, &bits, 1);
                else if (kind == KIND_FP16)
                    widen_fp16(&scalar, &bits, 1);
                else if (kind == KIND_E4M3)
                    widen_e4m3(&scalar, &bits, 1);
                else if (kind == KIND_E5M2)
                    widen_e5m2(&scalar, &bits, 1);
                else
                    memcpy(&scalar, &bits, sizeof(scalar));
                const vf s = vf_set1(scalar);
#define X(i) v[i] = vf_mul(v[i], s);
                EACH4(X)
#undef X
            }
            sum_add(group, v, !in_group);
            in_group = true;
            if (!in->ends_group && (k + 1 < r->ninputs || r->more))
                continue;
            if (in->ends_group && in->round_group) {
#define X(i) group[i] = vf_rounded(kind, group[i]);
                EACH4(X)
#undef X
            }
            sum_add(total, group, !in_total);
            in_total = true;
            in_group = false;
        }
        if (!r->more) {
            sum_put(kind, &end, dst + at * bytes, total, false);
            continue;
        }
        if (in_group)
            sum_move((float *)r->carry->group + at, group, true);
        if (in_total)
            sum_move((float *)r->carry->total + at, total, true);
    }
    return done;
}

/* Streamed stores want whole lines that nobody reads: not where the result takes an input's place. */
static bool sum_streams(const struct reduce *r, const uint8_t *dst) {
    if (!(r->flags & CODEC_STREAMING) || (uintptr_t)dst % 64 != 0)
        return false;
    for (uint32_t k = 0; k < r->ninputs; k++) {
        if (r->inputs[k].values == dst)
            return false;
    }
    return true;
}

#define SUM_OF(name, kind)                                                                                             \
    static size_t name(const struct reduce *r, uint8_t *dst, size_t count) {                                           \
        if (!sum_is_plain(r))                                                                                          \
            return sum_groups(kind, r, dst, count);                                                                    \
        return sum_streams(r, dst) ? sum_plain(kind, r, dst, count, true) : sum_plain(kind, r, dst, count, false);     \
    }
SUM_OF(sum_bf16, KIND_BF16)
SUM_OF(sum_fp16, KIND_FP16)
SUM_OF(sum_fp32, KIND_FP32)
