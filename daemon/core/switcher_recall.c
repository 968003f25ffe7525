/* SPDX-License-Identifier: Apache-2.0
 *
 * What the switcher of an earlier communicator of the same nodes learned: given out, and taken up by a new one. It
 * decides where a kind begins, nothing more: from there on the clock decides as ever, and an alarm forgets it.
 */
#include "daemon/core/switcher_impl.h"

#define NEAR  3u                   /* size classes */
#define DOUBT (RACE_ONE * 8 / 100) /* of what was measured in another run */

/* Size classes between both; over NEAR: it is of another kind. */
static uint32_t apart(const struct switch_prior *p, const struct switch_kind *k) {
    if (p->op != k->want.op || p->dtype != k->want.dtype || p->codec != k->want.codec || p->arm != k->want.arm ||
        p->flat != k->want.flat || (p->size != k->size && (p->size == SWITCH_NO_SIZE || k->size == SWITCH_NO_SIZE)))
        return NEAR + 1;
    return p->size > k->size ? p->size - k->size : k->size - p->size;
}

void switcher_recall(struct switcher *s, const struct switch_prior *priors, uint32_t n) {
    s->priors = priors;
    s->npriors = n;
}

bool switcher_recall_near(const struct switcher *s, const struct switch_kind *k, struct switch_source *out) {
    const struct switch_prior *p = NULL;
    uint32_t least = NEAR + 1;
    for (uint32_t i = 0; i < s->npriors && s->epoch == 0; i++) { /* after an alarm the link is another */
        if (apart(&s->priors[i], k) < least) {
            p = &s->priors[i];
            least = apart(p, k);
        }
    }
    if (p == NULL)
        return false;
    *out = (struct switch_source){.apart = least, .size = p->size, .n = 1};
    out->of[0].arm = p->chosen_arm;
    out->of[0].codec = p->chosen_codec;
    out->of[0].ratio = out->of[0].low = RACE_ONE;
    for (uint32_t i = 0; i < p->nothers; i++) {
        uint32_t ratio = p->others[i].ratio, n = out->n++;
        out->of[n].arm = p->others[i].arm;
        out->of[n].codec = p->others[i].codec;
        out->of[n].ratio = ratio;
        out->of[n].low = ratio > DOUBT ? ratio - DOUBT : 1;
    }
    return true;
}

uint32_t switcher_learned(const struct switcher *s, struct switch_prior *out, uint32_t max) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->nkinds && n < max; i++) {
        const struct switch_kind *k = &s->kinds[i];
        const struct switch_candidate *chosen = &k->candidates[k->chosen];
        if (!k->decided || k->ncandidates < 2)
            continue;
        struct switch_prior *p = &out[n++];
        *p = (struct switch_prior){.op = (uint8_t)k->want.op,
                                   .dtype = (uint8_t)k->want.dtype,
                                   .size = k->size,
                                   .codec = (uint8_t)k->want.codec,
                                   .arm = (uint8_t)k->want.arm,
                                   .flat = k->want.flat,
                                   .chosen_arm = chosen->arm,
                                   .chosen_codec = chosen->codec};
        for (uint32_t j = 0; j < k->ncandidates; j++) {
            const struct switch_candidate *c = &k->candidates[j];
            if (j == k->chosen || (c->nsamples == 0 && !c->known))
                continue;
            p->others[p->nothers].arm = c->arm;
            p->others[p->nothers].codec = c->codec;
            p->others[p->nothers++].ratio = (uint16_t)race_ratio(k, j);
        }
    }
    return n;
}
