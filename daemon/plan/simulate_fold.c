/* SPDX-License-Identifier: Apache-2.0
 *
 * The ends of messages as the simulator numbers them, and whether all nodes' plans are one plan, turned round the
 * circle of nodes.
 */
#include <stdlib.h>

#include "daemon/plan/simulate_impl.h"

#define FULL_STEPS  2000000u  /* up to here all nodes are simulated: it takes a second */
#define CHECK_STEPS 60000000u /* up to here all nodes' plans are compared: it takes some seconds */
#define CHECK_NODES 16u

uint32_t *sim_ordinals(const struct sim *s, const struct simulate_plan *p) {
    if (!p->transfers)
        return NULL;
    uint32_t *seen = calloc((size_t)s->source->nranks * 2, sizeof(*seen));
    uint32_t *ordinals = calloc((size_t)p->ntransfers + 1, sizeof(*ordinals));
    if (!seen || !ordinals) {
        free(seen);
        free(ordinals);
        return NULL;
    }
    for (uint32_t i = 0; i < p->ntransfers; i++) {
        const struct plan_transfer *t = &p->transfers[i];
        if (t->peer < s->source->nranks)
            ordinals[i] = seen[t->peer * 2 + t->send]++;
    }
    free(seen);
    return ordinals;
}

void sim_end_of(const struct sim *s, uint32_t node, const struct simulate_plan *p, const uint32_t *ordinals,
                const struct plan_step *step, struct sim_end *end) {
    uint32_t here = node, there = step->peer, around = s->source->nnodes, a_node = 1;
    *end = (struct sim_end){.item = step->item,
                            .tag = step->tag,
                            .count = step->count,
                            .codec = step->codec,
                            .part = step->part,
                            .send = step->kind == PLAN_SEND};
    if (ordinals && step->item < p->ntransfers) {
        here = p->rank;
        there = p->transfers[step->item].peer;
        around = s->source->nranks;
        a_node = around / s->source->nnodes;
        end->item = ordinals[step->item];
        end->exchange = true;
    }
    end->from = end->send ? here : there;
    end->to = end->send ? there : here;
    if (s->folded) { /* the sender's node becomes node 0 */
        uint32_t turn = end->from / a_node * a_node;
        end->from -= turn;
        end->to = (uint32_t)(((uint64_t)end->to + around - turn) % around);
    }
}

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 32;
}

/* Their order is by rank, so it turns with the circle; their cost does not. */
static uint64_t mix_inputs(uint64_t h, const struct plan *plan, const struct plan_step *st) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < st->ninputs; i++) {
        const struct plan_input *in = &plan->inputs[st->first_input + i];
        bool far = cost_is_far(plan, st, in);
        sum += mix(1, in->ref.space | (uint64_t)in->codec << 8 | (uint64_t)far << 16);
    }
    return mix(h, sum);
}

/* Of all that the simulator reads in a plan. */
static uint64_t hash_plan(const struct sim *s, uint32_t node, const struct simulate_plan *p, const uint32_t *ordinals) {
    const struct plan *plan = p->plan;
    uint64_t h = mix(plan->nsteps, plan->ninputs);
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct plan_step *st = &plan->steps[i];
        h = mix(h, st->kind | (uint64_t)st->codec << 8 | (uint64_t)st->part << 16 | (uint64_t)st->ninputs << 32);
        h = mix(h, st->count);
        h = mix(h, (uint64_t)st->ndeps << 32 | st->nnext);
        for (uint32_t k = 0; k < st->nnext; k++)
            h = mix(h, plan->next[st->first_next + k]);
        h = mix_inputs(h, plan, st);
        if (st->kind == PLAN_COPY)
            h = mix(h, cost_of_step(s->options->cost, plan, st, node).nothing);
        if (st->kind == PLAN_SEND || st->kind == PLAN_RECV) {
            struct sim_end end;
            sim_end_of(s, node, p, ordinals, st, &end);
            h = mix(h, (uint64_t)end.from << 32 | end.to);
            h = mix(h, (uint64_t)end.item << 32 | end.tag);
            h = mix(h, st->peer == node);
        }
    }
    return h;
}

static enum simulate_end hash_node(const struct sim *s, uint32_t node, uint64_t *hash, uint64_t *steps) {
    *hash = *steps = 0;
    for (uint32_t i = 0; i < s->source->plans_per_node; i++) {
        struct simulate_plan p = {0};
        if (s->source->build(s->source->arg, node, i, &p))
            return SIMULATE_NO_PLAN;
        uint32_t *ordinals = sim_ordinals(s, &p);
        bool ok = ordinals || !p.transfers;
        if (ok)
            *hash = mix(*hash, hash_plan(s, node, &p, ordinals));
        *steps += p.plan->nsteps;
        free(ordinals);
        sim_plan_free(&p);
        if (!ok)
            return SIMULATE_NO_MEMORY;
    }
    return SIMULATE_OK;
}

enum simulate_end sim_fold(struct sim *s, bool *folded) {
    const struct simulate_options *o = s->options;
    uint32_t n = s->source->nnodes;
    uint64_t first, hash, steps;
    *folded = false;
    if (!s->source->may_fold || o->arrive || o->fold == SIMULATE_FOLD_NEVER || n < 2)
        return SIMULATE_OK;
    s->folded = true; /* so that ends are numbered as they will be */
    enum simulate_end end = hash_node(s, 0, &first, &steps);
    bool wanted = o->fold == SIMULATE_FOLD_ALWAYS || steps * n > FULL_STEPS, alike = wanted;
    uint32_t check = steps * n > CHECK_STEPS && n > CHECK_NODES ? CHECK_NODES : n;
    for (uint32_t i = 1; i < check && alike && end == SIMULATE_OK; i++) {
        /* Spread evenly, node 1 and the last one included. */
        uint32_t node = 1 + (uint32_t)((uint64_t)(i - 1) * (n - 2) / (check > 2 ? check - 2 : 1));
        end = hash_node(s, node, &hash, &steps);
        alike = hash == first;
    }
    s->folded = end == SIMULATE_OK && alike;
    *folded = s->folded;
    s->result->nodes_checked = s->folded ? check : 0;
    return end;
}
