/* SPDX-License-Identifier: Apache-2.0
 *
 * Profiles of communicators: the root finds one of the same nodes and sends it with its "go", all nodes begin by it,
 * and the root keeps what they learned since. A profile never chooses what the model would not consider, and is not
 * used where the link was another.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/session.h"
#include "zipccl.h"

/* Which nodes, and which rank on which, for which version of the code. Known to the root alone. */
static uint64_t profile_key_of(const struct comm *c) {
    char version[32];
    uint64_t key = XXH3_64bits(version, (size_t)snprintf(version, sizeof version, "%d.%d.%d %u", ZIPCCL_MAJOR,
                                                         ZIPCCL_MINOR, ZIPCCL_PATCH, c->nranks));
    for (uint32_t i = 0; i < c->nnodes; i++)
        key = XXH3_64bits_withSeed(c->nodes[i].name, strlen(c->nodes[i].name) + 1, key);
    for (uint32_t r = 0; r < c->nranks; r++)
        key = XXH3_64bits_withSeed(&c->ranks[r].node, sizeof c->ranks[r].node, key);
    return key != 0 ? key : 1;
}

void comm_profile_offer(struct comm *c, uint64_t link_bps, ProtobufCBinaryData *bytes) {
    if (c->nnodes < 2)
        return;
    const struct profile *p = profile_store_find(&c->daemon->profiles, profile_key_of(c));
    if (p != NULL && profile_fits(p, link_bps))
        *bytes = (ProtobufCBinaryData){.len = sizeof *p, .data = (uint8_t *)(uintptr_t)p};
}

bool comm_profile_take(struct comm *c, const ProtobufCBinaryData *bytes, const char **why) {
    if (bytes->len == 0)
        return true;
    c->profile = malloc(sizeof *c->profile);
    *why = "out of memory";
    if (c->profile == NULL || !profile_read(bytes->data, bytes->len, c->profile, why))
        return false;
    profile_apply(c->profile, &c->model);
    c->daemon->stats.counters[STATS_profiles_used]++;
    log_info("begins with what an earlier communicator of these nodes learned (comm=%016" PRIx64 " job=%s choices=%u)",
             c->key, c->job->name, c->profile->npriors);
    return true;
}

void comm_profile_recall(const struct comm *c, struct switcher *s) {
    if (c->profile != NULL)
        switcher_recall(s, c->profile->priors, c->profile->npriors);
}

void comm_profile_learn(struct comm *c) {
    struct switch_prior learned[PROFILE_PRIORS];
    struct profile p;
    if (!c->is_root || c->nnodes < 2 || c->switcher.capacity == 0 || c->daemon->profiles.dir < 0)
        return;
    uint32_t n = switcher_learned(&c->switcher, learned, SWITCH_NODE_KINDS);
    /* All ranks have learned the same: one tells. */
    if (c->nmembers > 0)
        n += switcher_learned(&c->members[0]->switcher, learned + n, SWITCH_RANK_KINDS);
    if (n == 0)
        return;
    uint64_t key = profile_key_of(c);
    const struct profile *before = profile_store_find(&c->daemon->profiles, key);
    if (before != NULL && !profile_fits(before, c->model.link_bps))
        before = NULL;
    profile_make(&p, before, key, c->model.link_bps, &c->switcher.model, learned, n);
    profile_store_put(&c->daemon->profiles, &p);
}
