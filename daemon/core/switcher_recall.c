/* SPDX-License-Identifier: Apache-2.0
 *
 * What the switcher of an earlier communicator of the same nodes learned: given out, and taken up by a new one. It
 * decides where a kind begins, nothing more: from there on the clock decides as ever, and an alarm forgets it.
 */
#include "daemon/core/switcher_impl.h"

#define RECALL_LOSER_TIMES 2u /* so much slower than the chosen one: not measured again without cause */

static bool is_kind(const struct switch_prior *p, const struct switch_kind *k) {
    return p->op == k->want.op && p->dtype == k->want.dtype && p->size == k->size && p->codec == k->want.codec &&
           p->arm == k->want.arm && p->flat == k->want.flat;
}

static const struct switch_prior *recall_find(const struct switcher *s, const struct switch_kind *k) {
    for (uint32_t i = 0; i < s->npriors; i++) {
        if (is_kind(&s->priors[i], k))
            return &s->priors[i];
    }
    return NULL;
}

static bool is_loser(const struct switch_prior *p, const struct switch_candidate *c) {
    for (uint32_t i = 0; p != NULL && i < p->nlosers; i++) {
        if (p->losers[i].arm == c->arm && p->losers[i].codec == c->codec)
            return true;
    }
    return false;
}

void switcher_recall(struct switcher *s, const struct switch_prior *priors, uint32_t n) {
    s->priors = priors;
    s->npriors = n;
}

void switcher_recall_kind(const struct switcher *s, struct switch_kind *k) {
    const struct switch_prior *p = recall_find(s, k);
    uint32_t chosen = k->ncandidates;
    for (uint32_t i = 0; p != NULL && i < k->ncandidates; i++) {
        if (k->candidates[i].arm == p->chosen_arm && k->candidates[i].codec == p->chosen_codec && k->candidates[i].kept)
            chosen = i;
    }
    if (p == NULL || chosen == k->ncandidates)
        return; /* the model does not think of it any more: things have changed */
    k->chosen = chosen;
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        if (i != chosen && is_loser(p, &k->candidates[i]))
            k->candidates[i].kept = false;
    }
}

uint32_t switcher_learned(const struct switcher *s, struct switch_prior *out, uint32_t max) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->nkinds && n < max; i++) {
        const struct switch_kind *k = &s->kinds[i];
        const struct switch_candidate *chosen = &k->candidates[k->chosen];
        const struct switch_prior *before = recall_find(s, k);
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
            bool slow = c->agreed_ns > 0
                            ? chosen->agreed_ns > 0 && c->agreed_ns / RECALL_LOSER_TIMES > chosen->agreed_ns
                            : is_loser(before, c);
            if (j != k->chosen && slow && p->nlosers < SWITCH_CANDIDATES - 1) {
                p->losers[p->nlosers].arm = c->arm;
                p->losers[p->nlosers++].codec = c->codec;
            }
        }
    }
    return n;
}
