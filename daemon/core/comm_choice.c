/* SPDX-License-Identifier: Apache-2.0
 *
 * With which arm and codec an operation runs: what the ranks and the configuration pin, else the switcher.
 *
 * Which operations take part in its trials must be known alike everywhere, so it follows from the call alone: those
 * in which all nodes (collectives) or ranks (all-to-all) hear from each other, and that are no group's. The others
 * follow a decided kind. A gather or scatter looks at the kinds of the nodes, which change at the end of collectives
 * alone: every rank's earlier units are over then, and none of this number or later is. Sends and receives have no
 * number in common with other ranks: what was agreed at the creation decides.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define LEAST_BYTES (64u << 10) /* of an uneven all-to-all: transfers below it are raw */

bool comm_choices_init(struct comm *c) {
    uint32_t *members = calloc(c->nnodes, sizeof *members);
    if (members == NULL)
        return false;
    struct model_shape shape = model_shape_of(&c->topology, members);
    free(members);
    switcher_init(&c->switcher, &c->model, &shape, SWITCH_NODE_KINDS);
    comm_profile_recall(c, &c->switcher);
    return true;
}

static bool flat_can(const struct comm *c, const struct wire_request *r) {
    return c->nnodes == 1 || (c->most_ranks <= FLAT_MOST_RANKS && r->redop != zipcclPreMulSum);
}

static uint64_t sum_of(const uint64_t *counts, uint32_t n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/* Values that this rank exchanges with other nodes: the more of both directions. */
static uint64_t uneven_values(const struct comm *c, const uint64_t *counts, uint32_t node) {
    uint64_t sent = 0, received = 0;
    for (uint32_t r = 0; r < c->nranks; r++) {
        if (c->rank_node[r] == node)
            continue;
        sent += counts[r];
        received += counts[2 * (size_t)c->nranks + r];
    }
    return sent > received ? sent : received;
}

/* Whether every node, or rank, sends something to every other one. */
static bool all_hear(const struct comm *c, const struct comm_pending *p) {
    const struct wire_request *r = &p->request;
    const struct plan_op op = {
        .op = (zipcclOp_t)r->op, .dtype = (zipcclDataType_t)r->dtype, .count = r->count, .counts = p->counts};
    switch (op.op) {
    case zipcclOpAllToAll:
        return r->count > 0;
    case zipcclOpAllToAllCapped:
        return r->max_count > 0; /* whatever the counts are, a header travels */
    case zipcclOpAllToAllv:
        return true; /* pairs that exchange no values exchange a header */
    default:
        return plan_all_hear(&op, &c->topology);
    }
}

static struct switch_want want_of(const struct comm *c, const struct comm_pending *p, uint32_t node) {
    const struct wire_request *r = &p->request;
    uint64_t size = dtype_get(r->dtype)->bytes, count = r->count;
    struct switch_want w = {.op = (zipcclOp_t)r->op,
                            .dtype = (zipcclDataType_t)r->dtype,
                            .codec = r->codec == zipcclCodecAuto ? c->codec : (zipcclCodec_t)r->codec,
                            .arm = zipcclArmHierarchical};
    if (op_reduces(w.op)) {
        w.arm = r->arm == zipcclArmAuto ? c->arm : (zipcclArm_t)r->arm;
        if (w.arm == zipcclArmFlat && !flat_can(c, r))
            w.arm = zipcclArmHierarchical; /* the configuration's: it is a wish */
        w.flat = w.arm == zipcclArmAuto && c->nnodes > 1 && c->most_ranks == 2 && flat_can(c, r);
    }
    if (w.op == zipcclOpAllGatherv || w.op == zipcclOpReduceScatterv)
        count = sum_of(p->counts, c->nranks) / c->nranks;
    if (w.op == zipcclOpAllToAllCapped)
        count = r->max_count; /* what all ranks know */
    if (w.op == zipcclOpAllToAllv) {
        count = uneven_values(c, p->counts, node);
        w.any_size = true;
    }
    w.bytes = count * size;
    /* Around a ring a node hears from its neighbours alone. */
    w.full = all_hear(c, p) && !(op_reduces(w.op) && w.arm == zipcclArmRing);
    return w;
}

/* Remembers, for people, what was chosen for an operation that took no part. */
static void note(struct comm *c, const struct switch_want *w, const struct switch_choice *choice) {
    struct comm_note *oldest = &c->notes[0], *found = NULL;
    uint8_t size = (uint8_t)(w->bytes > 0 ? 63 - __builtin_clzll(w->bytes) : 0);
    for (uint32_t i = 0; i < COMM_NOTES && found == NULL; i++) {
        struct comm_note *n = &c->notes[i];
        if (n->ops > 0 && n->want.op == w->op && n->want.dtype == w->dtype && n->size == size &&
            n->want.codec == w->codec && n->want.arm == w->arm)
            found = n;
        oldest = n->used < oldest->used ? n : oldest;
    }
    uint64_t ops = found != NULL ? found->ops + 1 : 1;
    *(found != NULL ? found : oldest) =
        (struct comm_note){.want = *w, .choice = *choice, .size = size, .ops = ops, .used = ++c->note_clock};
}

bool comm_choose_collective(struct comm *c, const struct comm_pending *p, bool alone, struct switch_choice *choice) {
    struct switch_want w = want_of(c, p, c->node);
    if (alone && w.full) {
        c->switches = switcher_choose(&c->switcher, &w, choice);
        return c->switches;
    }
    *choice = switcher_follow(&c->switcher, &w, false);
    if (w.op != zipcclOpBarrier)
        note(c, &w, choice);
    return true;
}

bool comm_choose_exchange(struct comm_member *m, const struct comm_pending *p, bool alone,
                          struct switch_choice *choice) {
    struct comm *c = m->comm;
    struct switch_want w = want_of(c, p, c->node);
    if (w.full && c->nnodes > 1) {
        if (m->switcher.capacity == 0) {
            switcher_init(&m->switcher, &c->model, &c->switcher.shape, SWITCH_RANK_KINDS);
            comm_profile_recall(c, &m->switcher);
        }
        if (alone) {
            m->switches = switcher_choose(&m->switcher, &w, choice);
            return m->switches;
        }
        *choice = switcher_follow(&m->switcher, &w, false);
    } else {
        *choice = switcher_follow(&c->switcher, &w, op_is_pairwise(w.op));
    }
    note(c, &w, choice);
    return true;
}

zipcclCodec_t comm_transfer_codec(const struct comm_member *m, const struct wire_request *r,
                                  const struct plan_transfer *t, zipcclCodec_t codec) {
    const struct comm *c = m->comm;
    bool pinned = r->codec != zipcclCodecAuto || c->codec != zipcclCodecAuto;
    if (c->rank_node[t->peer] == c->rank_node[m->rank] || t->count == 0)
        return zipcclCodecRaw;
    if (t->op == zipcclOpAllToAllv && !pinned && t->count * dtype_get(t->dtype)->bytes < LEAST_BYTES)
        return zipcclCodecRaw;
    return codec;
}

void comm_choices_alarm(struct daemon *d) {
    list_for_each(l, &d->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        switcher_alarm(&c->switcher);
        for (uint32_t i = 0; i < c->nmembers; i++)
            switcher_alarm(&c->members[i]->switcher);
    }
}
