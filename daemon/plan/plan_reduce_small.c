/* SPDX-License-Identifier: Apache-2.0
 *
 * A small all-reduce between few nodes: every node sends what it would contribute to all others, and each reduces
 * everything itself. One exchange instead of two, the same order and roundings, so the same bits.
 */
#include <stdlib.h>

#include "daemon/plan/builder.h"

struct small {
    struct builder *b;
    bool coded, flat, scaled;
    uint32_t here;           /* all local ranks have arrived */
    uint32_t sent, received; /* their first slots (coded) or scratch */
    uint32_t nout;           /* contributions of this node */
    uint32_t *order;         /* nodes by their lowest rank */
    uint32_t *wait, nwait;   /* what the final reduction waits for */
    struct plan_ref sum;     /* of this node, where it makes one */
};

static struct plan_ref values_of(const struct small *s, enum plan_space space, uint32_t local) {
    return (struct plan_ref){(uint8_t)space, s->b->buffers + local, 0};
}

static void add_local_inputs(struct small *s, bool round) {
    struct builder *b = s->b;
    for (uint32_t i = 0; i < b->nlocal; i++) {
        bool last = i + 1 == b->nlocal;
        struct plan_input in = {.ref = values_of(s, PLAN_SENDBUF, i),
                                .scaled = s->scaled,
                                .ends_group = last,
                                .round_group = last && round,
                                .local = (uint16_t)i,
                                .rank = b->members[b->first[b->node] + i]};
        builder_input(b, &in);
    }
}

/* Sends the values in src to all other nodes. In place, they may not be overwritten before they are read. */
static void add_sends(struct small *s, struct plan_ref src, uint32_t i, uint32_t ready) {
    struct builder *b = s->b;
    bool own = src.space == PLAN_SENDBUF;
    struct plan_step step = {.codec = (uint8_t)b->op->codec,
                             .local = (uint16_t)i,
                             .rank = b->members[b->first[b->node] + i],
                             .tag = i,
                             .count = b->op->count,
                             .src = src};
    if (s->coded) {
        step.kind = PLAN_ENCODE;
        step.dst = (struct plan_ref){PLAN_SLOT, s->sent + i, 0};
        uint32_t id = builder_step(b, &step);
        builder_edge(b, ready, id);
        ready = id;
        if (own)
            s->wait[s->nwait++] = id;
        own = false;
        step.src = step.dst;
        step.dst = (struct plan_ref){0};
    }
    step.kind = PLAN_SEND;
    for (uint32_t k = 1; k < b->nnodes; k++) {
        step.peer = (b->node + k) % b->nnodes;
        uint32_t id = builder_step(b, &step);
        builder_edge(b, ready, id);
        if (own)
            s->wait[s->nwait++] = id;
    }
}

static void add_contributions(struct small *s) {
    struct builder *b = s->b;
    if (s->flat || (b->nlocal == 1 && !s->scaled)) {
        for (uint32_t i = 0; i < b->nlocal; i++)
            add_sends(s, values_of(s, PLAN_SENDBUF, i), i, i);
        return;
    }
    s->sum = (struct plan_ref){PLAN_VALUES, builder_values(b, 1, b->op->count), 0};
    struct plan_step step = {
        .kind = PLAN_REDUCE, .rank = b->members[b->first[b->node]], .count = b->op->count, .dst = s->sum};
    uint32_t id = builder_step(b, &step);
    add_local_inputs(s, false);
    builder_edge(b, s->here, id);
    s->wait[s->nwait++] = id;
    add_sends(s, s->sum, 0, id);
}

/* Where contribution i of another node comes to. */
static struct plan_ref source_ref(const struct small *s, uint32_t node, uint32_t i) {
    const struct builder *b = s->b;
    uint32_t before = s->flat ? b->first[node] - (node > b->node ? b->nlocal : 0) : node - (node > b->node);
    return (struct plan_ref){s->coded ? PLAN_SLOT : PLAN_VALUES, s->received + before + i, 0};
}

static void add_receives(struct small *s) {
    struct builder *b = s->b;
    for (uint32_t k = 1; k < b->nnodes; k++) {
        uint32_t peer = (b->node + b->nnodes - k) % b->nnodes, n = s->flat ? builder_members(b, peer) : 1;
        for (uint32_t i = 0; i < n; i++) {
            struct plan_step step = {.kind = PLAN_RECV,
                                     .codec = (uint8_t)b->op->codec,
                                     .peer = peer,
                                     .tag = i,
                                     .rank = b->members[b->first[peer] + i],
                                     .count = b->op->count,
                                     .dst = source_ref(s, peer, i)};
            uint32_t id = builder_step(b, &step);
            builder_edge(b, 0, id);
            s->wait[s->nwait++] = id;
        }
    }
}

static void add_inputs(struct small *s) {
    struct builder *b = s->b;
    for (uint32_t k = 0; k < b->nnodes; k++) {
        uint32_t node = s->order[k], members = builder_members(b, node), n = s->flat ? members : 1;
        bool own = node == b->node;
        if (own && s->sum.space == PLAN_NONE) {
            add_local_inputs(s, members > 1);
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            struct plan_input in = {.ref = own ? s->sum : source_ref(s, node, i),
                                    .codec = own ? zipcclCodecRaw : (uint8_t)b->op->codec,
                                    .ends_group = i + 1 == n,
                                    .round_group = i + 1 == n && n > 1,
                                    .rank = b->members[b->first[node] + i]};
            builder_input(b, &in);
        }
    }
}

static void add_result(struct small *s) {
    struct builder *b = s->b;
    uint32_t rank = b->members[b->first[b->node]];
    struct plan_step step = {
        .kind = PLAN_REDUCE, .final = true, .rank = rank, .count = b->op->count, .dst = values_of(s, PLAN_RECVBUF, 0)};
    uint32_t id = builder_step(b, &step);
    add_inputs(s);
    builder_edge(b, s->here, id);
    for (uint32_t i = 0; i < s->nwait; i++)
        builder_edge(b, s->wait[i], id);
    step.kind = PLAN_COPY;
    step.final = false;
    step.src = step.dst;
    for (uint32_t i = 1; i < b->nlocal; i++) {
        step.local = (uint16_t)i;
        step.dst = values_of(s, PLAN_RECVBUF, i);
        builder_edge(b, id, builder_step(b, &step));
    }
}

void plan_reduce_small(struct builder *b) {
    struct small s = {.b = b,
                      .coded = b->op->codec != zipcclCodecRaw,
                      .flat = b->op->arm == zipcclArmFlat,
                      .scaled = b->op->redop == zipcclPreMulSum};
    uint32_t others = s.flat ? b->args->topology->nranks - b->nlocal : b->nnodes - 1;
    s.nout = s.flat ? b->nlocal : 1;
    if (s.coded)
        s.sent = builder_slots(b, (uint64_t)s.nout + others, b->op->count);
    s.received = s.coded ? s.sent + s.nout : builder_values(b, others, b->op->count);
    s.order = builder_order(b);
    s.wait = builder_array(b, (size_t)others + (size_t)s.nout * b->nnodes + 1);
    s.here = builder_all_arrived(b);
    if (!b->error) {
        add_contributions(&s);
        add_receives(&s);
        add_result(&s);
    }
    free(s.order);
    free(s.wait);
}
