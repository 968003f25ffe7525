/* SPDX-License-Identifier: Apache-2.0
 *
 * Reduce-scatter, all-reduce and reduce by direct exchange between nodes: the hierarchical and the flat arm.
 *
 * Every node owns a part of the values, cut into tiles. Tile t of a node goes there from each other node: one
 * contribution of the node's ranks (hierarchical), or one of each rank (flat). The owner reduces what came and its own
 * ranks' values in one step, in the order that zipcclRedOp_t tells. Reduce-scatter ends there. In an all-reduce the
 * owner sends the result to all nodes, in a reduce to the root's node.
 *
 * Why nodes cannot wait for each other in a circle: give every step the number t of its tile. Steps of tile t wait for
 * memory that steps of lower tiles hold, on this node (slots and scratch are taken in turn), and for messages of tile t
 * only in this order: contribution, result. A contribution waits for nothing but local ranks and lower tiles. So the
 * lowest tile that is not done can always go on. Two things are taken in turn inside one tile as well, scratch by all
 * contributions of a node and send slots by those of its ranks (flat): there the turn is by step number on one node,
 * and what the earlier one waits for (its send) needs at the receiver lower tiles alone.
 *
 * In place: a result is written to the receive buffer where the contribution of this node was read from, so it waits
 * until that is done (by rights it cannot come earlier, but that is the other node's word). The owner's reduction reads
 * and writes element by element; other ranks of its node get copies when it is done.
 */
#include <stdlib.h>

#include "daemon/plan/builder.h"

#define PEER_SLOTS      64u /* under way with all peers together, if that leaves two for each */
#define SCRATCH_WINDOWS 4u  /* sums that wait for their encoder, times window */
#define RAW_SENDS_AHEAD 2u
#define RAW_RECVS_AHEAD 4u

/* What is used in turn: n entries from `first` of the slots or scratch of the plan, with the last step that needs
 * each. */
struct turn {
    uint32_t n, first;
    uint32_t *busy;
};

struct reduction {
    struct builder *b;
    struct builder_tiles tiles;
    bool coded, flat, scaled, to_all, to_root;
    uint32_t root_node, root_local;
    uint32_t here;       /* all local ranks have arrived */
    uint32_t *order;     /* nodes by their lowest rank */
    uint64_t *base;      /* reduce-scatter: by local rank, values of the ranks before it */
    uint32_t per_tile;   /* messages for each tile of another node: 1, flat: nlocal */
    uint32_t sources;    /* messages that come for each tile of this one */
    struct turn out;     /* per peer: slots (coded), scratch (raw and summed), or nothing */
    struct turn scratch; /* coded and summed: scratch of all peers */
    struct turn in;      /* per source: slots or scratch */
    struct turn result;  /* coded: slots; raw: bound or, to the root, scratch */
    struct turn sum;     /* coded, to the root: scratch */
    struct turn back;    /* results, per peer: slots, raw: bound */
    uint32_t nsums;
    uint32_t *reads; /* [peer][per_tile]: of the tile that is being built, what reads the send buffers */
    uint32_t *come;  /* [source]: the receives of the tile that is being built */
};

static const struct builder_tile *tile_of(const struct reduction *r, uint32_t node, uint32_t t) {
    return &r->tiles.list[r->tiles.first[node] + t];
}

/* Peers without this node, counted from 0. */
static uint32_t peer_index(const struct reduction *r, uint32_t node) {
    return node - (node > r->b->node);
}

/* Whether the contribution of a node, or its group in a sum of ranks, is more than one rank's own values. */
static bool is_sum(const struct reduction *r, uint32_t members) {
    return members > 1 || r->scaled;
}

/* The values of the ranks of this node, as one group. */
static void add_local_inputs(struct reduction *r, const struct builder_tile *tile, bool round) {
    struct builder *b = r->b;
    for (uint32_t i = 0; i < b->nlocal; i++) {
        struct plan_input in = {.ref = builder_values_at(r->b, PLAN_SENDBUF, i, tile->offset),
                                .codec = zipcclCodecRaw,
                                .scaled = r->scaled,
                                .ends_group = i + 1 == b->nlocal,
                                .local = (uint16_t)i,
                                .rank = b->members[b->first[b->node] + i]};
        in.round_group = in.ends_group && round;
        builder_input(b, &in);
    }
}

/* One message for tile t of node `peer`: of local rank i (flat), or of all of them. */
static void add_contribution(struct reduction *r, uint32_t peer, uint32_t t, uint32_t i) {
    struct builder *b = r->b;
    const struct builder_tile *tile = tile_of(r, peer, t);
    uint32_t number = t * r->per_tile + i, slot = peer_index(r, peer) * r->out.n + number % r->out.n;
    uint32_t *busy = &r->out.busy[slot], *scratch_busy = NULL;
    bool sums = !r->flat && is_sum(r, b->nlocal);
    uint32_t ready = r->flat ? i : r->here;
    struct plan_step step = {.local = (uint16_t)i,
                             .rank = b->members[b->first[b->node] + i],
                             .tag = number,
                             .count = tile->count,
                             .src = builder_values_at(r->b, PLAN_SENDBUF, i, tile->offset)};
    uint32_t *reads = &r->reads[(size_t)peer * r->per_tile + i];
    *reads = BUILDER_NONE;
    if (sums) {
        uint32_t scratch = r->coded ? r->nsums++ % r->scratch.n : slot;
        scratch_busy = r->coded ? &r->scratch.busy[scratch] : busy;
        struct plan_step reduce = step;
        reduce.kind = PLAN_REDUCE;
        reduce.src = (struct plan_ref){0};
        reduce.dst = (struct plan_ref){PLAN_VALUES, (r->coded ? r->scratch.first : r->out.first) + scratch, 0};
        uint32_t id = builder_step(b, &reduce);
        add_local_inputs(r, tile, false);
        builder_edge(b, ready, id);
        builder_edge(b, *scratch_busy, id);
        *reads = ready = id;
        step.src = reduce.dst;
    }
    step.codec = (uint8_t)b->op->codec;
    if (r->coded) {
        step.kind = PLAN_ENCODE;
        step.dst = (struct plan_ref){PLAN_SLOT, r->out.first + slot, 0};
        uint32_t id = builder_step(b, &step);
        builder_edge(b, ready, id);
        builder_edge(b, *busy, id);
        if (sums)
            *scratch_busy = id;
        ready = id;
        step.src = step.dst;
        step.dst = (struct plan_ref){0};
        if (*reads == BUILDER_NONE)
            *reads = id;
    }
    step.kind = PLAN_SEND;
    step.peer = peer;
    uint32_t id = builder_step(b, &step);
    builder_edge(b, ready, id);
    if (!r->coded && !sums)
        builder_edge(b, *busy, id); /* bounds what is under way */
    *busy = id;
    if (*reads == BUILDER_NONE)
        *reads = id;
}

static struct plan_ref source_ref(const struct reduction *r, uint32_t source, uint32_t t) {
    return (struct plan_ref){r->coded ? PLAN_SLOT : PLAN_VALUES, r->in.first + source * r->in.n + t % r->in.n, 0};
}

/* The first message that comes from a node, of those for one tile. */
static uint32_t first_source(const struct reduction *r, uint32_t node) {
    const struct builder *b = r->b;
    if (!r->flat)
        return peer_index(r, node);
    return b->first[node] - (node > b->node ? b->nlocal : 0);
}

static void add_receives(struct reduction *r, uint32_t t) {
    struct builder *b = r->b;
    const struct builder_tile *tile = tile_of(r, b->node, t);
    for (uint32_t k = 1; k < b->nnodes; k++) {
        uint32_t peer = (b->node + b->nnodes - k) % b->nnodes, n = r->flat ? builder_members(b, peer) : 1;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t source = first_source(r, peer) + i;
            struct plan_step step = {.kind = PLAN_RECV,
                                     .codec = (uint8_t)b->op->codec,
                                     .local = tile->local,
                                     .peer = peer,
                                     .tag = t * n + i,
                                     .rank = b->members[b->first[peer] + i],
                                     .count = tile->count,
                                     .dst = source_ref(r, source, t)};
            uint32_t id = builder_step(b, &step);
            builder_edge(b, 0, id);
            builder_edge(b, r->in.busy[t % r->in.n], id);
            r->come[source] = id;
        }
    }
}

/* The inputs of the last step, the owner's reduction of tile t. */
static void add_all_inputs(struct reduction *r, uint32_t t) {
    struct builder *b = r->b;
    for (uint32_t k = 0; k < b->nnodes; k++) {
        uint32_t node = r->order[k], members = builder_members(b, node), n = r->flat ? members : 1;
        if (node == b->node) {
            add_local_inputs(r, tile_of(r, node, t), b->nnodes > 1 && is_sum(r, members));
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            struct plan_input in = {.ref = source_ref(r, first_source(r, node) + i, t),
                                    .codec = (uint8_t)b->op->codec,
                                    .ends_group = i + 1 == n,
                                    .rank = b->members[b->first[node] + i]};
            in.round_group = in.ends_group && r->flat && is_sum(r, members);
            builder_input(b, &in);
        }
    }
}

/* Tags of results come after those of contributions between the same nodes. */
static uint32_t result_tag(const struct reduction *r, uint32_t from, uint32_t to, uint32_t t) {
    return builder_ntiles(&r->tiles, to) * (r->flat ? builder_members(r->b, from) : 1) + t;
}

/* Sends the result in src, ready after step `ready`, to those that want it. Returns the last step that reads src. */
static void send_result(struct reduction *r, uint32_t t, struct plan_ref src, uint32_t ready) {
    struct builder *b = r->b;
    const struct builder_tile *tile = tile_of(r, b->node, t);
    uint32_t slot = t % r->result.n;
    uint32_t *busy = &r->result.busy[(size_t)slot * b->nnodes]; /* by peer */
    struct plan_step step = {.codec = (uint8_t)b->op->codec,
                             .local = tile->local,
                             .rank = tile->rank,
                             .tag = t,
                             .count = tile->count,
                             .src = src};
    if (r->coded) {
        step.kind = PLAN_ENCODE;
        step.dst = (struct plan_ref){PLAN_SLOT, r->result.first + slot, 0};
        uint32_t id = builder_step(b, &step);
        builder_edge(b, ready, id);
        for (uint32_t n = 0; n < b->nnodes; n++)
            builder_edge(b, busy[n], id);
        if (r->to_root)
            r->sum.busy[t % r->sum.n] = id;
        ready = id;
        step.src = step.dst;
        step.dst = (struct plan_ref){0};
    }
    step.kind = PLAN_SEND;
    for (uint32_t k = 1; k < b->nnodes; k++) {
        step.peer = (b->node + k) % b->nnodes;
        if (r->to_root && step.peer != r->root_node)
            continue;
        step.tag = result_tag(r, b->node, step.peer, t);
        uint32_t id = builder_step(b, &step);
        builder_edge(b, ready, id);
        if (!r->coded)
            builder_edge(b, busy[step.peer], id);
        busy[step.peer] = id;
    }
}

/* Reduces tile t of this node, and passes the result on. */
static void add_own_tile(struct reduction *r, uint32_t t) {
    struct builder *b = r->b;
    const struct builder_tile *tile = tile_of(r, b->node, t);
    bool away = r->to_root && r->root_node != b->node;
    add_receives(r, t);
    struct plan_step step = {
        .kind = PLAN_REDUCE, .final = true, .local = tile->local, .rank = tile->rank, .tag = t, .count = tile->count};
    uint32_t scratch_free = BUILDER_NONE;
    if (away) {
        const struct turn *turn = r->coded ? &r->sum : &r->result;
        uint32_t scratch = t % turn->n;
        step.dst = (struct plan_ref){PLAN_VALUES, turn->first + scratch, 0};
        scratch_free = r->coded ? turn->busy[scratch] : turn->busy[(size_t)scratch * b->nnodes + r->root_node];
    } else if (r->to_root) {
        step.dst = builder_values_at(r->b, PLAN_RECVBUF, r->root_local, tile->offset);
    } else {
        step.dst =
            builder_values_at(r->b, PLAN_RECVBUF, tile->local, tile->offset - (r->to_all ? 0 : r->base[tile->local]));
    }
    uint32_t id = builder_step(b, &step);
    add_all_inputs(r, t);
    builder_edge(b, r->here, id);
    builder_edge(b, scratch_free, id);
    for (uint32_t i = 0; i < r->sources; i++)
        builder_edge(b, r->come[i], id);
    if (r->sources > 0)
        r->in.busy[t % r->in.n] = id;
    if (r->to_all)
        builder_spread(r->b, tile, tile->local, id);
    if (b->nnodes > 1 && (r->to_all || away))
        send_result(r, t, step.dst, id);
}

/* Takes the result of tile t of another node. */
static void take_result(struct reduction *r, uint32_t peer, uint32_t t) {
    struct builder *b = r->b;
    const struct builder_tile *tile = tile_of(r, peer, t);
    uint32_t local = r->to_root ? r->root_local : (t + peer) % b->nlocal;
    uint32_t slot = peer_index(r, peer) * r->back.n + t % r->back.n;
    uint32_t *busy = &r->back.busy[slot];
    struct plan_ref dst = builder_values_at(r->b, PLAN_RECVBUF, local, tile->offset);
    struct plan_ref coded = {PLAN_SLOT, r->back.first + slot, 0};
    struct plan_step step = {.kind = PLAN_RECV,
                             .codec = (uint8_t)b->op->codec,
                             .local = (uint16_t)local,
                             .peer = peer,
                             .tag = result_tag(r, peer, b->node, t),
                             .rank = tile->rank,
                             .count = tile->count,
                             .dst = r->coded ? coded : dst};
    uint32_t have = builder_step(b, &step);
    builder_edge(b, 0, have);
    builder_edge(b, *busy, have);
    if (r->coded) {
        uint32_t received = have;
        step.kind = PLAN_DECODE;
        step.src = coded;
        step.dst = dst;
        have = builder_step(b, &step);
        builder_edge(b, received, have);
    }
    for (uint32_t i = 0; i < r->per_tile; i++)
        builder_edge(b, r->reads[(size_t)peer * r->per_tile + i], have);
    *busy = have;
    if (r->to_all)
        builder_spread(r->b, tile, local, have);
}

static uint32_t least(uint64_t a, uint64_t b) {
    return (uint32_t)(a < b ? a : b);
}

/* entries: of each of `users`; space: what they are, PLAN_NONE: a bound alone. */
static void open_turn(struct reduction *r, struct turn *turn, enum plan_space space, uint64_t entries, uint64_t users,
                      uint64_t busy) {
    turn->n = (uint32_t)entries;
    turn->busy = builder_array(r->b, busy);
    if (space == PLAN_SLOT)
        turn->first = builder_slots(r->b, entries * users, r->tiles.most);
    else if (space == PLAN_VALUES)
        turn->first = builder_values(r->b, entries * users, r->tiles.most);
}

/* Slots, scratch and bounds. */
static void open_turns(struct reduction *r) {
    struct builder *b = r->b;
    uint32_t peers = b->nnodes - 1, window = b->args->window, mine = builder_ntiles(&r->tiles, b->node);
    uint64_t out = (uint64_t)r->tiles.longest * r->per_tile;
    bool sums = !r->flat && is_sum(r, b->nlocal);
    if (window > 2 && window > PEER_SLOTS / peers)
        window = PEER_SLOTS / peers > 2 ? PEER_SLOTS / peers : 2;
    uint64_t ahead = (uint64_t)window * (r->coded ? 1 : RAW_SENDS_AHEAD);
    enum plan_space held = r->coded ? PLAN_SLOT : PLAN_VALUES, none = r->coded ? PLAN_SLOT : PLAN_NONE;

    uint32_t n = least(out, r->coded || sums ? window : ahead);
    open_turn(r, &r->out, r->coded || sums ? held : PLAN_NONE, n, peers, (uint64_t)n * peers);
    if (r->coded && sums) {
        n = least(r->tiles.first[b->nnodes], (uint64_t)b->args->window * SCRATCH_WINDOWS);
        open_turn(r, &r->scratch, PLAN_VALUES, n, 1, n);
    }
    n = least(mine, window);
    open_turn(r, &r->in, held, n, r->sources, n);
    if (r->to_all || (r->to_root && r->root_node != b->node)) {
        n = least(mine, r->coded || r->to_root ? window : ahead);
        open_turn(r, &r->result, r->to_root ? held : none, n, 1, (uint64_t)n * b->nnodes);
        if (r->coded && r->to_root)
            open_turn(r, &r->sum, PLAN_VALUES, n, 1, n);
    }
    if (r->to_all || (r->to_root && r->root_node == b->node)) {
        n = least(r->tiles.longest, (uint64_t)window * (r->coded ? 1 : RAW_RECVS_AHEAD));
        open_turn(r, &r->back, none, n, peers, (uint64_t)n * peers);
    }
    r->reads = builder_array(b, (size_t)b->nnodes * r->per_tile);
    r->come = builder_array(b, r->sources);
}

static bool set_up(struct reduction *r) {
    struct builder *b = r->b;
    const struct plan_op *op = b->op;
    const struct plan_topology *t = b->args->topology;
    r->to_all = op->op == zipcclOpAllReduce;
    r->to_root = op->op == zipcclOpReduce;
    r->order = builder_order(b);
    r->per_tile = r->flat ? b->nlocal : 1;
    r->sources = r->flat ? t->nranks - b->nlocal : b->nnodes - 1;
    if (r->to_root) {
        r->root_node = t->rank_node[op->root];
        r->root_local = builder_local(b, op->root);
    }
    if (r->to_all || r->to_root) {
        bool direct = r->to_root && builder_is_small(b);
        builder_tiles_of_nodes(b, &r->tiles, direct ? r->root_node : BUILDER_NONE);
    } else {
        r->base = builder_bases(b);
        builder_tiles_of_parts(b, &r->tiles);
    }
    if (!b->error && (uint64_t)r->tiles.longest * (r->per_tile + 1) > UINT32_MAX / 2)
        b->error = zipcclInvalidArgument; /* tags */
    if (!b->error && b->nnodes > 1)
        open_turns(r);
    r->here = builder_all_arrived(b);
    return !b->error;
}

static void exchange(struct builder *b) {
    struct reduction r = {.b = b,
                          .coded = b->op->codec != zipcclCodecRaw,
                          .flat = b->op->arm == zipcclArmFlat,
                          .scaled = b->op->redop == zipcclPreMulSum};
    if (!set_up(&r))
        goto out;
    for (uint32_t t = 0; t < r.tiles.longest && !b->error; t++) {
        for (uint32_t k = 1; k < b->nnodes; k++) {
            uint32_t peer = (b->node + k) % b->nnodes;
            for (uint32_t i = 0; i < r.per_tile && t < builder_ntiles(&r.tiles, peer); i++)
                add_contribution(&r, peer, t, i);
        }
        if (t < builder_ntiles(&r.tiles, b->node))
            add_own_tile(&r, t);
        bool takes = r.to_all || (r.to_root && r.root_node == b->node);
        for (uint32_t k = 1; k < b->nnodes && takes; k++) {
            uint32_t peer = (b->node + b->nnodes - k) % b->nnodes;
            if (t < builder_ntiles(&r.tiles, peer))
                take_result(&r, peer, t);
        }
    }
out:
    builder_tiles_free(&r.tiles);
    free(r.order);
    free(r.base);
    free(r.out.busy);
    free(r.scratch.busy);
    free(r.in.busy);
    free(r.result.busy);
    free(r.sum.busy);
    free(r.back.busy);
    free(r.reads);
    free(r.come);
}

void plan_reduce(struct builder *b) {
    if (b->op->arm == zipcclArmRing)
        plan_reduce_ring(b);
    else if (b->op->op == zipcclOpAllReduce && b->nnodes > 1 && builder_is_small(b))
        plan_reduce_small(b);
    else
        exchange(b);
}
