/* SPDX-License-Identifier: Apache-2.0
 *
 * The time of one step by the cost model.
 */
#include "daemon/plan/cost.h"

#include <string.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"

#define PS_PER_SECOND 1e12
#define MOST_PS       1e18 /* eleven days: anything longer is as bad */

/* What weights come to, in BF16, and Gaussian values; 1 where the codec leaves the dtype raw. */
static const struct {
    zipcclDataType_t dtype;
    double top7, tier;
} g_ratios[] = {
    {zipcclBfloat16, 1.42, CODEC_USUAL_RATIO},
    {zipcclFloat16, 1.12, 1.16},
    {zipcclFloat32, 1.17, 1.19},
    {zipcclFloat8e4m3, 1.13, 1.31},
    {zipcclFloat8e5m2, 1.28, 1.37},
};

void cost_defaults(struct cost *cost) {
    *cost = (struct cost){
        .latency_s = 5e-6,
        .overhead_s = 1e-6,
        .gap_s = 0.2e-6,
        .handshake_s = 5e-6,
        .link_bps = 400e9 / 8,
        .copy_bps = 3600e9 / 8,
        .reduce_bps = 3600e9 / 8,
        .encode_bps = 2400e9 / 8,
        .decode_bps = 4000e9 / 8,
        .step_s = 3e-6,
        .workers = 8,
        .header_bytes = 64,
        .eager_bytes = 16 << 10,
    };
    for (unsigned c = 0; c < zipcclNumCodecs; c++) {
        for (unsigned d = 0; d < zipcclNumTypes; d++)
            cost->ratio[c][d] = 1;
    }
    for (size_t i = 0; i < sizeof(g_ratios) / sizeof(g_ratios[0]); i++) {
        cost->ratio[zipcclCodecTop7][g_ratios[i].dtype] = g_ratios[i].top7;
        cost->ratio[zipcclCodecTier][g_ratios[i].dtype] = g_ratios[i].tier;
    }
}

uint64_t cost_ps(double seconds) {
    double ps = seconds * PS_PER_SECOND;
    if (!(ps > 0))
        return 0;
    return ps < MOST_PS ? (uint64_t)(ps + 0.5) : (uint64_t)MOST_PS;
}

uint64_t cost_coded_bytes(const struct cost *cost, zipcclCodec_t codec, zipcclDataType_t dtype, uint64_t count,
                          enum plan_part part) {
    const struct dtype_info *info = dtype_get(dtype);
    uint64_t raw = count * (info ? info->bytes : 1);
    if (codec == zipcclCodecRaw || (unsigned)codec >= zipcclNumCodecs || (unsigned)dtype >= zipcclNumTypes)
        return part == PLAN_DYNAMIC ? 0 : raw;
    uint64_t all = (uint64_t)((double)raw / cost->ratio[codec][dtype] + 0.5);
    if (part == PLAN_WHOLE)
        return all;
    /* The static part's size is the codec's; the ratio says what is left for the dynamic one. */
    uint64_t fixed = codec_bound(codec, dtype, count).static_bytes;
    if (fixed > all)
        fixed = all;
    return part == PLAN_STATIC ? fixed : all - fixed;
}

static uint64_t at_rate(double bytes, double bps) {
    return cost_ps(bps > 0 ? bytes / bps : 0);
}

bool cost_is_far(const struct plan *plan, const struct plan_step *step, const struct plan_input *in) {
    bool buffer = in->ref.space == PLAN_SENDBUF || in->ref.space == PLAN_RECVBUF;
    return buffer && plan->nlocal > 0 && in->ref.index % plan->nlocal != step->local;
}

static struct cost_step cost_of_reduce(const struct cost *cost, const struct plan *plan, const struct plan_step *step,
                                       uint64_t bytes) {
    struct cost_step c = {0};
    double plain = 0, coded = 0;
    for (uint32_t i = 0; i < step->ninputs; i++) {
        const struct plan_input *in = &plan->inputs[step->first_input + i];
        bool slot = in->ref.space == PLAN_SLOT && in->codec != zipcclCodecRaw;
        *(slot ? &coded : &plain) += (double)bytes;
        if (cost_is_far(plan, step, in))
            c.local_bytes += bytes;
    }
    c.busy_ps = at_rate(plain, cost->reduce_bps) + at_rate(coded, cost->decode_bps) + cost_ps(cost->step_s);
    return c;
}

static bool same_ref(const struct plan_ref *a, const struct plan_ref *b) {
    return a->space == b->space && a->index == b->index && a->offset == b->offset;
}

struct cost_step cost_of_step(const struct cost *cost, const struct plan *plan, const struct plan_step *step,
                              uint32_t node) {
    struct cost_step c = {0};
    zipcclDataType_t dtype = step->item < plan->nitems ? plan->items[step->item].dtype : zipcclUint8;
    const struct dtype_info *info = dtype_get(dtype);
    uint64_t bytes = step->count * (info ? info->bytes : 1);
    switch ((enum plan_kind)step->kind) {
    case PLAN_ENCODE:
        c.busy_ps = at_rate((double)bytes, cost->encode_bps) + cost_ps(cost->step_s);
        break;
    case PLAN_DECODE:
        c.busy_ps = at_rate((double)bytes, cost->decode_bps) + cost_ps(cost->step_s);
        break;
    case PLAN_COPY:
        c.nothing = same_ref(&step->src, &step->dst) || bytes == 0;
        if (!c.nothing) {
            c.local_bytes = bytes;
            c.busy_ps = at_rate((double)bytes, cost->copy_bps) + cost_ps(cost->step_s);
        }
        break;
    case PLAN_REDUCE:
        c = cost_of_reduce(cost, plan, step, bytes);
        break;
    case PLAN_SEND:
    case PLAN_RECV:
        c.wire_bytes = cost_coded_bytes(cost, (zipcclCodec_t)step->codec, dtype, step->count, step->part);
        c.local = step->peer == node;
        c.eager = c.wire_bytes <= cost->eager_bytes;
        if (c.local) {
            c.local_bytes = c.wire_bytes;
            c.busy_ps = at_rate((double)c.wire_bytes, cost->copy_bps) + cost_ps(cost->step_s);
        } else {
            c.busy_ps = at_rate((double)c.wire_bytes + cost->header_bytes, cost->link_bps);
        }
        break;
    default:
        break;
    }
    return c;
}
