/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans become the simulator's graph: built one by one, copied in compact form, freed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/plan/simulate_impl.h"

#define BLOCK         256u /* steps */
#define SHAPE_BUCKETS 65536u
#define MAX_SHAPES    (1u << 24)

void sim_plan_free(struct simulate_plan *p) {
    plan_free(p->plan);
    free(p->transfers);
    *p = (struct simulate_plan){0};
}

/* Room for n more. */
static bool room(void **array, uint32_t used, uint32_t *cap, uint32_t n, size_t item) {
    uint64_t want = (uint64_t)used + n, next = *cap;
    if (want <= *cap)
        return true;
    next = next + next / 2 > want ? next + next / 2 : want;
    if (next > UINT32_MAX)
        next = UINT32_MAX;
    void *bigger = want <= UINT32_MAX ? realloc(*array, next * item) : NULL;
    if (!bigger)
        return false;
    *array = bigger;
    *cap = (uint32_t)next;
    return true;
}

static bool same_shape(const struct sim_shape *a, const struct sim_shape *b) {
    return a->kind == b->kind && a->busy_ps == b->busy_ps && a->wire_bytes == b->wire_bytes &&
           a->local_bytes == b->local_bytes && a->eager == b->eager && a->local == b->local && a->nothing == b->nothing;
}

/* The number of the step's shape; SIM_NONE: no memory. */
static uint32_t shape_of(struct sim *s, const struct plan *plan, const struct plan_step *step, uint32_t node) {
    struct cost_step c = cost_of_step(s->options->cost, plan, step, node);
    struct sim_shape shape = {c.busy_ps, c.wire_bytes, c.local_bytes, step->kind, c.eager, c.local, c.nothing};
    uint64_t h = (c.busy_ps * 31 + c.wire_bytes * 7 + c.local_bytes * 3 + step->kind) * 0x9e3779b97f4a7c15ull;
    uint32_t at = (uint32_t)(h >> 48);
    /* Buckets may be full of others: then the search ends, and the shape is there twice, which does no harm. */
    for (unsigned tries = 0; tries < 64 && s->shape_buckets[at]; tries++) {
        uint32_t found = s->shape_buckets[at] - 1;
        if (same_shape(&s->shapes[found], &shape))
            return found;
        at = (at + 1) % SHAPE_BUCKETS;
    }
    if (s->nshapes == MAX_SHAPES || !room((void **)&s->shapes, s->nshapes, &s->shapes_cap, 1, sizeof(shape)))
        return SIM_NONE;
    s->shapes[s->nshapes] = shape;
    s->shape_buckets[at] = ++s->nshapes;
    return s->nshapes - 1;
}

/* Sends and receives find their other ends. */
static enum simulate_end pair_up(struct sim *s, uint32_t node, const struct simulate_plan *p, uint32_t base) {
    enum simulate_end rc = SIMULATE_OK;
    uint32_t *ordinals = sim_ordinals(s, p);
    if (p->transfers && !ordinals)
        return SIMULATE_NO_MEMORY;
    for (uint32_t i = 0; i < p->plan->nsteps && rc == SIMULATE_OK; i++) {
        const struct plan_step *st = &p->plan->steps[i];
        struct sim_end end;
        uint32_t partner;
        bool clash;
        if (st->kind != PLAN_SEND && st->kind != PLAN_RECV)
            continue;
        sim_end_of(s, node, p, ordinals, st, &end);
        end.step = base + i;
        if (!sim_match_add(s, &end, &partner, &clash))
            rc = SIMULATE_NO_MEMORY;
        else if (clash)
            rc = SIMULATE_UNMATCHED;
        s->steps[base + i].partner = partner;
        if (partner != SIM_NONE)
            s->steps[partner].partner = base + i;
    }
    free(ordinals);
    return rc;
}

static uint64_t most_steps(const struct sim *s) {
    return s->options->max_steps ? s->options->max_steps : SIMULATE_MAX_STEPS;
}

static enum simulate_end too_large(struct sim *s) {
    (void)snprintf(s->why, SIMULATE_WHY, "over %llu steps to hold; take fewer nodes, a smaller size or larger chunks%s",
                   (unsigned long long)most_steps(s),
                   s->source->may_fold && s->options->arrive
                       ? ", or let all ranks arrive together: then one node can stand for all"
                       : "");
    return SIMULATE_TOO_LARGE;
}

static enum simulate_end add_plan(struct sim *s, uint32_t node, const struct simulate_plan *p) {
    const struct plan *plan = p->plan;
    uint32_t base = s->nsteps;
    bool all_there = !s->options->arrive; /* then edges from arrivals need not be kept */
    if (base + (uint64_t)plan->nsteps > most_steps(s))
        return too_large(s);
    if (!room((void **)&s->steps, base, &s->steps_cap, plan->nsteps + 1, sizeof(*s->steps)))
        return SIMULATE_NO_MEMORY;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        uint32_t shape = shape_of(s, plan, &plan->steps[i], node);
        if (shape == SIM_NONE)
            return SIMULATE_NO_MEMORY;
        s->steps[base + i] = (struct sim_step){.waiting = plan->steps[i].ndeps,
                                               .partner = SIM_NONE,
                                               .shape = shape & (MAX_SHAPES - 1),
                                               .state = SIM_WAITING};
    }
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct plan_step *st = &plan->steps[i];
        struct sim_step *to = &s->steps[base + i];
        bool drop = st->kind == PLAN_ARRIVE && all_there;
        to->first_next = s->nnext;
        if (st->kind == PLAN_ARRIVE)
            to->partner = st->rank;
        if (!drop && !room((void **)&s->next, s->nnext, &s->next_cap, st->nnext, sizeof(*s->next)))
            return SIMULATE_NO_MEMORY;
        for (uint32_t k = 0; k < st->nnext; k++) {
            uint32_t next = plan->next[st->first_next + k];
            if (drop)
                s->steps[base + next].waiting--;
            else
                s->next[s->nnext++] = base + next;
        }
    }
    s->nsteps += plan->nsteps;
    s->steps[s->nsteps] = (struct sim_step){.first_next = s->nnext};
    return pair_up(s, node, p, base);
}

static enum simulate_end add_part(struct sim *s, uint32_t node, uint32_t index) {
    struct simulate_plan p = {0};
    zipcclResult_t result = s->source->build(s->source->arg, node, index, &p);
    if (result) {
        (void)snprintf(s->why, SIMULATE_WHY, "node %u: no plan: %s", node,
                       result == zipcclOutOfMemory ? "out of memory" : "the operation cannot be planned so");
        return result == zipcclOutOfMemory ? SIMULATE_NO_MEMORY : SIMULATE_NO_PLAN;
    }
    s->parts[s->nparts++] = (struct sim_part){s->nsteps, node, index};
    enum simulate_end end = add_plan(s, node, &p);
    sim_plan_free(&p);
    return end;
}

static enum simulate_end index_nodes(struct sim *s) {
    uint32_t blocks = s->nsteps / BLOCK + 1, node = 0;
    s->node_of_block = calloc(blocks, sizeof(*s->node_of_block));
    if (!s->node_of_block)
        return SIMULATE_NO_MEMORY;
    for (uint32_t i = 0; i < blocks; i++) {
        while (node + 1 < s->nodes_held && s->nodes[node + 1].first_step <= i * BLOCK)
            node++;
        s->node_of_block[i] = node;
    }
    return SIMULATE_OK;
}

uint32_t sim_node_of(const struct sim *s, uint32_t step) {
    uint32_t node = s->node_of_block[step / BLOCK];
    while (node + 1 < s->nodes_held && s->nodes[node + 1].first_step <= step)
        node++;
    return node;
}

enum simulate_end sim_load(struct sim *s) {
    const struct simulate_source *source = s->source;
    enum simulate_end end = SIMULATE_OK;
    s->nodes_held = s->folded ? 1 : source->nnodes;
    s->nodes = calloc(s->nodes_held, sizeof(*s->nodes));
    s->parts = calloc((size_t)s->nodes_held * source->plans_per_node, sizeof(*s->parts));
    s->shape_buckets = calloc(SHAPE_BUCKETS, sizeof(*s->shape_buckets));
    if (!s->nodes || !s->parts || !s->shape_buckets)
        return SIMULATE_NO_MEMORY;
    for (uint32_t n = 0; n < s->nodes_held && end == SIMULATE_OK; n++) {
        s->nodes[n].first_step = s->nsteps;
        for (uint32_t i = 0; i < source->plans_per_node && end == SIMULATE_OK; i++)
            end = add_part(s, n, i);
        /* Where nodes are much alike, the first one says how it will end. */
        if (end == SIMULATE_OK && n == 0 && source->may_fold && (uint64_t)s->nsteps * s->nodes_held > most_steps(s))
            end = too_large(s);
        if (s->options->progress)
            s->options->progress(0.3 * n / s->nodes_held, s->options->progress_arg);
    }
    if (end != SIMULATE_OK)
        return end;
    uint32_t left = sim_match_left(s);
    if (left != SIM_NONE) {
        char text[SIMULATE_WHY / 2];
        uint32_t open = s->match.open;
        sim_describe(s, left, text, sizeof(text));
        (void)snprintf(s->why, SIMULATE_WHY, "%s: nothing on the other side matches it (%u such step%s)", text, open,
                       open == 1 ? "" : "s");
        return SIMULATE_UNMATCHED;
    }
    sim_match_free(s);
    return index_nodes(s);
}

void sim_unload(struct sim *s) {
    sim_match_free(s);
    free(s->steps);
    free(s->next);
    free(s->shapes);
    free(s->shape_buckets);
    free(s->nodes);
    free(s->parts);
    free(s->node_of_block);
    free(s->heap.events);
}

void sim_describe(const struct sim *s, uint32_t step, char *text, size_t size) {
    struct simulate_plan p = {0};
    uint32_t at = s->nparts - 1;
    while (at > 0 && s->parts[at].first_step > step)
        at--;
    const struct sim_part *part = &s->parts[at];
    uint32_t local = step - part->first_step;
    if (s->source->build(s->source->arg, part->node, part->index, &p) || local >= p.plan->nsteps) {
        (void)snprintf(text, size, "node %u, step %u", part->node, local);
        sim_plan_free(&p);
        return;
    }
    const struct plan_step *st = &p.plan->steps[local];
    char who[32] = "", whom[64] = "";
    if (p.transfers)
        (void)snprintf(who, sizeof(who), " rank %u", p.rank);
    if (p.transfers && st->item < p.ntransfers)
        (void)snprintf(whom, sizeof(whom), ", with rank %u", p.transfers[st->item].peer);
    if (st->kind == PLAN_SEND || st->kind == PLAN_RECV)
        (void)snprintf(text, size, "node %u%s, step %u: %s %s node %u%s, tag %u, %s %u", part->node, who, local,
                       plan_kind_name(st->kind), st->kind == PLAN_SEND ? "to" : "from", st->peer, whom, st->tag,
                       p.transfers ? "transfer" : "operation", st->item);
    else
        (void)snprintf(text, size, "node %u%s, step %u: %s", part->node, who, local, plan_kind_name(st->kind));
    sim_plan_free(&p);
}
