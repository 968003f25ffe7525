/* SPDX-License-Identifier: Apache-2.0
 *
 * Explains the switcher's choices to people.
 */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/core/switcher_impl.h"
#include "kernels/codec.h"
#include "proto/op.h"

#define NAME_TEXT 40
#define TIME_TEXT 24

static const char *name_of(char text[NAME_TEXT], const struct switch_kind *k, const struct switch_candidate *c) {
    if (op_reduces(k->want.op))
        snprintf(text, NAME_TEXT, "%s %s", arm_name(c->arm), codec_name((zipcclCodec_t)c->codec));
    else
        snprintf(text, NAME_TEXT, "%s", codec_name((zipcclCodec_t)c->codec));
    return text;
}

static const char *time_of(char text[TIME_TEXT], uint64_t ns) {
    if (ns < 1000000)
        snprintf(text, TIME_TEXT, "%.3g us", (double)ns / 1e3);
    else if (ns < 1000000000)
        snprintf(text, TIME_TEXT, "%.3g ms", (double)ns / 1e6);
    else
        snprintf(text, TIME_TEXT, "%.4g s", (double)ns / 1e9);
    return text;
}

/* The fastest other candidate, by what was measured or (predicted) by the model. */
static const struct switch_candidate *runner_up(const struct switch_kind *k, bool predicted) {
    const struct switch_candidate *best = NULL;
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        const struct switch_candidate *c = &k->candidates[i];
        uint64_t ns = predicted ? c->predicted_ns : c->agreed_ns;
        if (i != k->chosen && ns > 0 && (best == NULL || ns < (predicted ? best->predicted_ns : best->agreed_ns)))
            best = c;
    }
    return best;
}

static void why_single(const struct switcher *s, const struct switch_kind *k, char *text, size_t size) {
    const struct switch_candidate *c = &k->candidates[k->chosen];
    struct model_op op = switcher_model_op(&k->want, c, k->want.bytes);
    const char *codec = codec_name((zipcclCodec_t)c->codec);
    if (s->shape.nnodes < 2)
        snprintf(text, size, "raw: one node, nothing crosses a link");
    else if (op_reduces(k->want.op) && k->want.arm == zipcclArmRing)
        snprintf(text, size, "ring: pinned, and it is never coded");
    else if (!codec_supports(zipcclCodecTier, k->want.dtype))
        snprintf(text, size, "raw: values of this type are not coded");
    else if (k->want.codec != zipcclCodecAuto)
        snprintf(text, size, "%s: pinned by the ranks or the configuration", codec);
    else if (model_wire(&s->shape, &op) < MODEL_MIN_BYTES)
        snprintf(text, size, "raw: under %u KiB between nodes, too little to code", MODEL_MIN_BYTES >> 10);
    else
        snprintf(text, size, "%s: nothing else comes into question", codec);
}

void switcher_why(const struct switcher *s, const struct switch_kind *k, char *text, size_t size) {
    const struct switch_candidate *c = &k->candidates[k->chosen], *other = runner_up(k, false);
    char mine[NAME_TEXT], theirs[NAME_TEXT], a[TIME_TEXT], b[TIME_TEXT];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < k->ncandidates; i++)
        kept += k->candidates[i].kept;
    if (k->ncandidates == 1) {
        why_single(s, k, text, size);
    } else if (kept > 1 && c->agreed_ns > 0 && other != NULL) {
        snprintf(text, size, "%s: %s measured against %s %s%s", name_of(mine, k, c), time_of(a, c->agreed_ns),
                 name_of(theirs, k, other), time_of(b, other->agreed_ns),
                 k->phase == SWITCH_TRIAL ? "; being measured anew" : "");
    } else if ((other = runner_up(k, true)) != NULL) {
        snprintf(text, size, "%s: the model says %s against %s %s%s", name_of(mine, k, c), time_of(a, c->predicted_ns),
                 name_of(theirs, k, other), time_of(b, other->predicted_ns), kept > 1 ? "; being measured" : "");
    } else {
        why_single(s, k, text, size);
    }
}

void switcher_phase_text(const struct switch_kind *k, char *text, size_t size) {
    uint32_t others, seen;
    race_seen(k, &others, &seen);
    if (k->phase == SWITCH_TRIAL)
        snprintf(text, size, "measuring, %u of %u others seen", seen, others);
    else
        snprintf(text, size, "in force since operation %" PRIu64, k->chosen_at + 1);
}
