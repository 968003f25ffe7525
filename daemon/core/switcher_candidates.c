/* SPDX-License-Identifier: Apache-2.0
 *
 * Which arms and codecs come into question for an operation, by the model.
 *
 * Data movement: raw, tier, top7. Reductions: these with the hierarchical arm, and the flat one with tier and raw where
 * it might be as fast. The ring only where it is pinned: it gives other bits.
 */
#include <string.h>

#include "daemon/core/switcher_impl.h"
#include "kernels/codec.h"
#include "proto/op.h"

#define HOPELESS_NUM 2u /* all coded over twice raw: raw alone */
#define HOPELESS_DEN 1u
#define PRUNE_TIMES  2u  /* over twice the best: no part in trials */
#define SURE_NUM     92u /* coded by the model alone: at most this part of raw */
#define SURE_DEN     100u
#define NO_CANDIDATE UINT32_MAX

struct model_op switcher_model_op(const struct switch_want *want, const struct switch_candidate *c, uint64_t bytes) {
    return (struct model_op){.op = want->op,
                             .dtype = want->dtype,
                             .arm = (zipcclArm_t)c->arm,
                             .codec = (zipcclCodec_t)c->codec,
                             .bytes = bytes};
}

uint8_t switcher_class(uint64_t bytes) {
    return (uint8_t)(bytes > 0 ? 63 - __builtin_clzll(bytes) : 0);
}

struct listing {
    const struct model *model;
    const struct model_shape *shape;
    const struct switch_want *want;
    struct switch_candidate *out;
    uint32_t n;
};

static void add(struct listing *l, zipcclArm_t arm, zipcclCodec_t codec) {
    struct switch_candidate *c = &l->out[l->n++];
    memset(c, 0, sizeof *c);
    c->arm = (uint8_t)arm;
    c->codec = (uint8_t)codec;
    c->kept = true;
    struct model_op op = switcher_model_op(l->want, c, l->want->bytes);
    c->predicted_ns = model_predict(l->model, l->shape, &op);
    c->careful_ns = model_predict_apart(l->model, l->shape, &op);
}

static void add_arm(struct listing *l, zipcclArm_t arm, bool all) {
    const struct switch_want *w = l->want;
    struct switch_candidate probe = {.arm = (uint8_t)arm};
    struct model_op op = switcher_model_op(w, &probe, w->bytes);
    bool crosses = l->shape->nnodes > 1 && w->bytes > 0 && w->op != zipcclOpBarrier;
    bool ring = op_reduces(w->op) && arm == zipcclArmRing;
    if (w->codec != zipcclCodecAuto) {
        add(l, arm, crosses && !ring && codec_supports(w->codec, w->dtype) ? w->codec : zipcclCodecRaw);
        return;
    }
    add(l, arm, zipcclCodecRaw);
    if (ring || !model_may_code(l->model, l->shape, &op))
        return;
    add(l, arm, zipcclCodecTier);
    if (all && codec_supports(zipcclCodecTop7, w->dtype))
        add(l, arm, zipcclCodecTop7);
}

/* Least predicted; coded: -1 any, 0 raw, 1 coded. */
static uint32_t least(const struct switch_candidate *c, uint32_t n, int coded) {
    uint32_t best = NO_CANDIDATE;
    for (uint32_t i = 0; i < n; i++) {
        if (!c[i].kept || (coded >= 0 && (c[i].codec != zipcclCodecRaw) != coded))
            continue;
        if (best == NO_CANDIDATE || c[i].predicted_ns < c[best].predicted_ns)
            best = i;
    }
    return best;
}

static void prune(struct switch_candidate *c, uint32_t n) {
    uint32_t raw = least(c, n, 0), coded = least(c, n, 1), best = least(c, n, -1);
    bool hopeless = raw != NO_CANDIDATE && coded != NO_CANDIDATE &&
                    c[coded].predicted_ns / HOPELESS_NUM > c[raw].predicted_ns / HOPELESS_DEN;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].codec != zipcclCodecRaw && hopeless)
            c[i].kept = false;
        else if (i != raw && i != coded && c[i].predicted_ns / PRUNE_TIMES > c[best].predicted_ns)
            c[i].kept = false;
    }
}

uint32_t switcher_candidates(const struct model *model, const struct model_shape *shape, const struct switch_want *want,
                             struct switch_candidate out[SWITCH_CANDIDATES]) {
    struct listing l = {model, shape, want, out, 0};
    bool reduces = op_reduces(want->op);
    if (!reduces || want->arm != zipcclArmAuto) {
        add_arm(&l, reduces ? want->arm : zipcclArmHierarchical, true);
    } else {
        add_arm(&l, zipcclArmHierarchical, true);
        if (want->flat)
            add_arm(&l, zipcclArmFlat, false);
    }
    prune(out, l.n);
    return l.n;
}

uint32_t switcher_predicted(const struct switch_candidate *c, uint32_t n) {
    uint32_t best = NO_CANDIDATE;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].kept && (best == NO_CANDIDATE || c[i].careful_ns < c[best].careful_ns))
            best = i;
    }
    uint32_t raw = least(c, n, 0);
    if (raw != NO_CANDIDATE && c[best].careful_ns / SURE_NUM > c[raw].careful_ns / SURE_DEN)
        best = raw;
    return best;
}
