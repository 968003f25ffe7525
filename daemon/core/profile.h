/* SPDX-License-Identifier: Apache-2.0
 *
 * Profiles: what was learned of a set of nodes, for the next communicator of the same ones. One block of bytes, the
 * same in memory, in a file and in the root's "go": all nodes of a communicator take the one that the root sends, so
 * all begin alike. Pure; little endian as all of the wire.
 */
#ifndef ZIPCCL_DAEMON_PROFILE_H
#define ZIPCCL_DAEMON_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/model.h"
#include "daemon/core/switcher.h"

#define PROFILE_MAGIC   0x4652505au /* "ZPRF" */
#define PROFILE_VERSION 2u
#define PROFILE_PRIORS  (SWITCH_NODE_KINDS + SWITCH_RANK_KINDS)
#define PROFILE_CODECS  8u
#define PROFILE_TYPES   32u

struct profile {
    uint32_t magic, version, bytes, npriors;
    uint64_t key;      /* of the nodes */
    uint64_t link_bps; /* as measured when it was learned: another link, another profile */
    uint16_t fraction[PROFILE_CODECS][PROFILE_TYPES]; /* of the model; 0: not known */
    struct switch_prior priors[PROFILE_PRIORS];       /* the last learned first */
    uint64_t hash;                                    /* of all before */
};
_Static_assert(sizeof(struct profile) == 4 * 4 + 2 * 8 + 2 * PROFILE_CODECS * PROFILE_TYPES +
                                             sizeof(struct switch_prior) * PROFILE_PRIORS + 8,
               "profile layout");
_Static_assert((int)zipcclNumCodecs <= (int)PROFILE_CODECS && (int)zipcclNumTypes <= (int)PROFILE_TYPES,
               "room for what there is");

/* Copies what is a sound profile; else *why says what is wrong. */
ZIPCCL_MUST_CHECK bool profile_read(const void *bytes, size_t n, struct profile *out, const char **why);
/* Whether it was learned on a link like this one. */
bool profile_fits(const struct profile *p, uint64_t link_bps);
/* Adds what was learned to what was known (before: NULL, or of the same nodes). */
void profile_make(struct profile *p, const struct profile *before, uint64_t key, uint64_t link_bps,
                  const struct model *model, const struct switch_prior *learned, uint32_t n);
/* Takes over the ratios. */
void profile_apply(const struct profile *p, struct model *model);

#endif
