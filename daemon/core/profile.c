/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes, checks and applies profiles.
 */
#include "daemon/core/profile.h"

#include <string.h>
#include <xxhash.h>

#define FITS_NUM     5u /* links that differ by less than 5/4 are alike */
#define FITS_DEN     4u
#define MOST_PARTS   (2u * MODEL_WHOLE)
#define MOST_CLASSES 64u

static bool prior_sound(const struct switch_prior *p) {
    bool ok = p->op < zipcclNumOps && p->dtype < zipcclNumTypes &&
              (p->size < MOST_CLASSES || p->size == SWITCH_NO_SIZE) &&
              (p->codec < zipcclNumCodecs || p->codec == zipcclCodecAuto) &&
              (p->arm < zipcclNumArms || p->arm == zipcclArmAuto) && p->flat <= 1 && p->chosen_arm < zipcclNumArms &&
              p->chosen_codec < zipcclNumCodecs && p->nothers < SWITCH_CANDIDATES && p->reserved[0] == 0 &&
              p->reserved[1] == 0 && p->reserved[2] == 0;
    for (uint32_t i = 0; ok && i < p->nothers; i++)
        ok = p->others[i].arm < zipcclNumArms && p->others[i].codec < zipcclNumCodecs && p->others[i].ratio > 0;
    return ok;
}

bool profile_read(const void *bytes, size_t n, struct profile *out, const char **why) {
    *why = NULL;
    if (n != sizeof *out) {
        *why = "it has another size";
        return false;
    }
    memcpy(out, bytes, sizeof *out);
    if (out->magic != PROFILE_MAGIC || out->version != PROFILE_VERSION || out->bytes != sizeof *out)
        *why = "it is no profile, or of another version";
    else if (out->hash != XXH3_64bits(out, offsetof(struct profile, hash)))
        *why = "its hash is wrong";
    else if (out->npriors > PROFILE_PRIORS || out->link_bps == 0)
        *why = "a number in it is out of range";
    for (uint32_t i = 0; *why == NULL && i < out->npriors; i++) {
        if (!prior_sound(&out->priors[i]))
            *why = "a choice in it is none";
    }
    for (unsigned c = 0; *why == NULL && c < PROFILE_CODECS; c++) {
        for (unsigned t = 0; t < PROFILE_TYPES; t++) {
            if (out->fraction[c][t] > MOST_PARTS)
                *why = "a ratio in it is out of range";
        }
    }
    return *why == NULL;
}

bool profile_fits(const struct profile *p, uint64_t link_bps) {
    uint64_t low = p->link_bps < link_bps ? p->link_bps : link_bps, high = p->link_bps ^ link_bps ^ low;
    return low > 0 && high / FITS_NUM <= low / FITS_DEN;
}

static bool same_kind(const struct switch_prior *a, const struct switch_prior *b) {
    return a->op == b->op && a->dtype == b->dtype && a->size == b->size && a->codec == b->codec && a->arm == b->arm &&
           a->flat == b->flat;
}

void profile_make(struct profile *p, const struct profile *before, uint64_t key, uint64_t link_bps,
                  const struct model *model, const struct switch_prior *learned, uint32_t n) {
    struct profile made;
    memset(&made, 0, sizeof made);
    made.magic = PROFILE_MAGIC;
    made.version = PROFILE_VERSION;
    made.bytes = sizeof made;
    made.key = key;
    made.link_bps = link_bps;
    for (unsigned c = 0; c < zipcclNumCodecs; c++) {
        for (unsigned t = 0; t < zipcclNumTypes; t++)
            made.fraction[c][t] = model->fraction[c][t] < MOST_PARTS ? model->fraction[c][t] : MOST_PARTS;
    }
    for (uint32_t i = 0; i < n && made.npriors < PROFILE_PRIORS; i++)
        made.priors[made.npriors++] = learned[i];
    for (uint32_t i = 0; before != NULL && i < before->npriors && made.npriors < PROFILE_PRIORS; i++) {
        bool again = false;
        for (uint32_t j = 0; j < n && !again; j++)
            again = same_kind(&before->priors[i], &learned[j]);
        if (!again)
            made.priors[made.npriors++] = before->priors[i];
    }
    made.hash = XXH3_64bits(&made, offsetof(struct profile, hash));
    *p = made;
}

void profile_apply(const struct profile *p, struct model *model) {
    for (unsigned c = 0; c < zipcclNumCodecs; c++) {
        for (unsigned t = 0; t < zipcclNumTypes; t++) {
            if (p->fraction[c][t] > 0)
                model->fraction[c][t] = p->fraction[c][t];
        }
    }
}
