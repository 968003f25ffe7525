/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions round a ring, in NCCL's manner: raw, from rank to rank, rounded whenever a node is left.
 *
 * The ring is the ranks ordered by node (nodes by their lowest rank), so that a node's ranks are neighbours, and its
 * places are the nodes. A tile has an owner, a rank; it starts at the rank after the owner and ends there. So it visits
 * every node once, but the owner's twice where the owner is not the last rank of its node. Owners: of a reduce-scatter,
 * each rank of its part; of a reduce, the root of everything; of an all-reduce, the last rank of each node of the
 * node's part, and then the results go round as they are.
 *
 * No circle of waiting: visit (t, k) of a node is that of tile t of the owner k places back; all visits are numbered in
 * this order, alike on all nodes. A visit takes one of W entries of scratch in turn: the one of an earlier visit, at
 * least W numbers back, whose send needs the next node to have taken scratch for the number after that. So everything
 * waits for lower numbers alone as long as W >= 2. The results, in the second round, wait for each other in the same
 * manner, and no visit waits for a result.
 */
#include <stdlib.h>

#include "daemon/plan/builder.h"

#define VISITS  2u /* scratch, times window */
#define RESULTS 4u /* messages of results under way, times window */

struct ring {
    struct builder *b;
    struct builder_tiles tiles;
    bool scaled, to_all, to_root;
    uint32_t place, next, prev; /* of this node in the ring; the nodes beside it */
    uint32_t root_local;
    uint32_t here;   /* all local ranks have arrived */
    uint32_t made;   /* what makes the result of this node's tile that is being built */
    uint32_t *order; /* node at a place */
    uint64_t *base;
    uint32_t scratch, nscratch, nvisits;
    uint32_t *busy; /* by entry of scratch: the last step that needs it */
    uint32_t nresults, nsent, ncome;
    uint32_t *sent, *come; /* results: the sends and receives before */
    uint32_t *reads;       /* by node: of the tile that is being built, what reads the send buffers */
};

/* The local index of a tile's owner. */
static uint32_t owner_of(const struct ring *r, uint32_t node, const struct builder_tile *tile) {
    if (r->to_root)
        return r->root_local;
    return r->to_all ? builder_members(r->b, node) - 1 : tile->local;
}

/* Adds the values of local ranks [from, to) to the last step. */
static void add_inputs(struct ring *r, const struct builder_tile *tile, uint32_t from, uint32_t to) {
    struct builder *b = r->b;
    for (uint32_t i = from; i < to; i++) {
        struct plan_input in = {.ref = builder_values_at(r->b, PLAN_SENDBUF, i, tile->offset),
                                .scaled = r->scaled,
                                .ends_group = true,
                                .round_group = true,
                                .local = (uint16_t)i,
                                .rank = b->members[b->first[b->node] + i]};
        builder_input(b, &in);
    }
}

/* Receives into scratch what comes from the node before, once scratch is free. */
static uint32_t add_receive(struct ring *r, struct plan_step step, struct plan_ref scratch, uint32_t busy) {
    step.kind = PLAN_RECV;
    step.peer = r->prev;
    step.dst = scratch;
    uint32_t id = builder_step(r->b, &step);
    builder_edge(r->b, 0, id);
    builder_edge(r->b, busy, id);
    return id;
}

/* Local ranks [from, to) are added to what has come (before, if not PLAN_NONE), one by one. */
static uint32_t add_reduce(struct ring *r, struct plan_step step, const struct builder_tile *tile,
                           struct plan_ref before, uint32_t from, uint32_t to) {
    struct builder *b = r->b;
    step.kind = PLAN_REDUCE;
    uint32_t id = builder_step(b, &step);
    builder_edge(b, r->here, id);
    if (before.space != PLAN_NONE) {
        struct plan_input in = {.ref = before, .ends_group = true, .round_group = true, .rank = tile->rank};
        builder_input(b, &in);
    }
    add_inputs(r, tile, from, to);
    return id;
}

/* A visit of tile t of `node` on its way; local ranks [from, nlocal) add to it. */
static void pass_on(struct ring *r, uint32_t node, uint32_t t, uint32_t from, bool comes) {
    struct builder *b = r->b;
    const struct builder_tile *tile = &r->tiles.list[r->tiles.first[node] + t];
    uint32_t entry = r->nvisits++ % r->nscratch, *busy = &r->busy[entry];
    struct plan_ref scratch = {PLAN_VALUES, r->scratch + entry, 0};
    struct plan_step step = {
        .local = (uint16_t)from, .rank = tile->rank, .tag = r->tiles.first[node] + t, .count = tile->count};
    uint32_t ready = comes ? add_receive(r, step, scratch, *busy) : *busy, reduce = BUILDER_NONE;
    struct plan_ref src = builder_values_at(r->b, PLAN_SENDBUF, from, tile->offset);
    if (comes || r->scaled || b->nlocal - from > 1) {
        step.dst = scratch;
        reduce = add_reduce(r, step, tile, comes ? scratch : (struct plan_ref){0}, from, b->nlocal);
        builder_edge(b, ready, reduce);
        src = scratch;
        ready = reduce;
    }
    step.kind = PLAN_SEND;
    step.peer = r->next;
    step.src = src;
    step.dst = (struct plan_ref){0};
    *busy = builder_step(b, &step);
    builder_edge(b, ready, *busy);
    if (reduce == BUILDER_NONE)
        builder_edge(b, r->here, *busy);
    r->reads[node] = reduce == BUILDER_NONE ? *busy : reduce;
}

/* The last visit of tile t of this node: at its owner. */
static void finish(struct ring *r, uint32_t t) {
    struct builder *b = r->b;
    const struct builder_tile *tile = &r->tiles.list[r->tiles.first[b->node] + t];
    uint32_t owner = owner_of(r, b->node, tile), dst = r->to_root ? owner : tile->local;
    bool comes = b->nnodes > 1;
    struct plan_ref scratch = {0};
    struct plan_step step = {
        .local = (uint16_t)dst, .rank = tile->rank, .tag = r->tiles.first[b->node] + t, .count = tile->count};
    uint32_t ready = BUILDER_NONE, *busy = NULL;
    if (comes) {
        uint32_t entry = r->nvisits++ % r->nscratch;
        busy = &r->busy[entry];
        scratch = (struct plan_ref){PLAN_VALUES, r->scratch + entry, 0};
        ready = add_receive(r, step, scratch, *busy);
    }
    step.final = true;
    step.dst = builder_values_at(r->b, PLAN_RECVBUF, dst, tile->offset - (r->base ? r->base[dst] : 0));
    uint32_t reduce = add_reduce(r, step, tile, scratch, comes ? 0 : owner + 1, comes ? owner + 1 : b->nlocal);
    if (!comes)
        add_inputs(r, tile, 0, owner + 1);
    builder_edge(b, ready, reduce);
    if (comes)
        *busy = reduce;
    r->made = reduce;
}

/* All-reduce: the result of tile t of the owner `back` places back passes this node. */
static void pass_result(struct ring *r, uint32_t back, uint32_t t) {
    struct builder *b = r->b;
    uint32_t node = r->order[(r->place + b->nnodes - back) % b->nnodes];
    if (t >= builder_ntiles(&r->tiles, node))
        return;
    const struct builder_tile *tile = &r->tiles.list[r->tiles.first[node] + t];
    uint32_t local = back == 0 ? tile->local : (t + node) % b->nlocal, have = r->made;
    struct plan_ref values = builder_values_at(r->b, PLAN_RECVBUF, local, tile->offset);
    struct plan_step step = {.local = (uint16_t)local,
                             .rank = tile->rank,
                             .tag = r->tiles.first[b->nnodes] + r->tiles.first[node] + t,
                             .count = tile->count};
    if (back > 0) {
        uint32_t *before = &r->come[r->ncome++ % r->nresults];
        step.kind = PLAN_RECV;
        step.peer = r->prev;
        step.dst = values;
        have = builder_step(b, &step);
        builder_edge(b, *before, have);
        builder_edge(b, r->reads[node], have);
        *before = have;
    }
    if (back + 1 < b->nnodes) {
        uint32_t *before = &r->sent[r->nsent++ % r->nresults];
        step.kind = PLAN_SEND;
        step.peer = r->next;
        step.src = values;
        step.dst = (struct plan_ref){0};
        uint32_t id = builder_step(b, &step);
        builder_edge(b, have, id);
        builder_edge(b, *before, id);
        *before = id;
    }
    builder_spread(r->b, tile, local, have);
}

/* Visits of tile t of every node, in the order of the ring. */
static void add_round(struct ring *r, uint32_t t) {
    struct builder *b = r->b;
    for (uint32_t k = 0; k < b->nnodes && b->nnodes > 1; k++) {
        uint32_t node = r->order[(r->place + b->nnodes - k) % b->nnodes];
        if (t >= builder_ntiles(&r->tiles, node))
            continue;
        const struct builder_tile *tile = &r->tiles.list[r->tiles.first[node] + t];
        uint32_t owner = owner_of(r, node, tile);
        bool twice = owner + 1 < builder_members(b, node); /* it starts on its owner's node */
        if (k == 0)
            r->reads[node] = BUILDER_NONE;
        if (k > 0 || twice)
            pass_on(r, node, t, k == 0 ? owner + 1 : 0, k > 1 || (k == 1 && twice));
    }
    if (t < builder_ntiles(&r->tiles, b->node))
        finish(r, t);
    for (uint32_t k = 0; k < b->nnodes && r->to_all; k++)
        pass_result(r, k, t);
}

static bool set_up(struct ring *r) {
    struct builder *b = r->b;
    r->order = builder_order(b);
    if (r->to_all || r->to_root) {
        uint32_t root_node = b->args->topology->rank_node[b->op->root];
        r->root_local = builder_local(b, b->op->root);
        builder_tiles_of_nodes(b, &r->tiles, r->to_root ? root_node : BUILDER_NONE);
    } else {
        r->base = builder_bases(b);
        builder_tiles_of_parts(b, &r->tiles);
    }
    if (b->error)
        return false;
    while (r->order[r->place] != b->node)
        r->place++;
    r->next = r->order[(r->place + 1) % b->nnodes];
    r->prev = r->order[(r->place + b->nnodes - 1) % b->nnodes];
    uint64_t visits = (uint64_t)r->tiles.longest * (b->nnodes + 1), most = (uint64_t)VISITS * b->args->window;
    if (b->nnodes > 1) {
        r->nscratch = (uint32_t)(visits < most ? visits : most);
        r->scratch = builder_values(b, r->nscratch, r->tiles.most);
    }
    r->nresults = RESULTS * b->args->window;
    r->busy = builder_array(b, r->nscratch);
    r->sent = builder_array(b, r->nresults);
    r->come = builder_array(b, r->nresults);
    r->reads = builder_array(b, b->nnodes);
    r->here = builder_all_arrived(b);
    return !b->error;
}

void plan_reduce_ring(struct builder *b) {
    struct ring r = {.b = b,
                     .scaled = b->op->redop == zipcclPreMulSum,
                     .to_all = b->op->op == zipcclOpAllReduce,
                     .to_root = b->op->op == zipcclOpReduce};
    b->items[b->item].codec = zipcclCodecRaw; /* whatever is pinned */
    if (set_up(&r)) {
        for (uint32_t t = 0; t < r.tiles.longest && !b->error; t++)
            add_round(&r, t);
    }
    builder_tiles_free(&r.tiles);
    free(r.order);
    free(r.base);
    free(r.busy);
    free(r.sent);
    free(r.come);
    free(r.reads);
}
