/* SPDX-License-Identifier: Apache-2.0
 *
 * What the builders of single operations share: a growing list of steps and edges, and who lives where.
 * Errors stick: after the first failed allocation every call does nothing, and builder_finish reports it.
 */
#ifndef ZIPCCL_DAEMON_PLAN_BUILDER_H
#define ZIPCCL_DAEMON_PLAN_BUILDER_H

#include "daemon/plan/plan.h"

#define BUILDER_NONE UINT32_MAX /* no step: an edge from it is none */

#define BUILDER_MAX_RANKS 65536u

struct builder_edge {
    uint32_t from, to;
};

struct builder {
    const struct plan_args *args; /* exchange: NULL */
    uint32_t nnodes, node;        /* as in args */
    zipcclResult_t error;

    /* The operation that is being built; steps get its number. */
    const struct plan_op *op;
    uint32_t item;
    uint64_t value_bytes;
    uint32_t buffers;       /* index of its first buffer: local rank i has buffers + i */
    uint32_t slots, values; /* its first slot and scratch */
    struct plan_item *items;
    uint32_t nitems;

    struct plan_step *steps;
    uint32_t nsteps, steps_cap;
    struct builder_edge *edges;
    uint32_t nedges, edges_cap;
    struct plan_input *inputs;
    uint32_t ninputs, inputs_cap;
    uint32_t nslots, nvalues; /* so far */
    uint64_t raw_send_bytes;

    /* Ranks by node: members[first[n] .. first[n + 1]) are the global ranks of node n in ascending order. */
    uint32_t *first, *members;
    uint32_t nlocal; /* ranks of this node */
};

/* Appends a step; its number, or BUILDER_NONE after an error. */
uint32_t builder_step(struct builder *b, const struct plan_step *step);
/* Appends an input to the last step, a reduction. */
void builder_input(struct builder *b, const struct plan_input *input);
/* The operation takes n slots, or n values of scratch, of `count` values each; the index of the first. */
uint32_t builder_slots(struct builder *b, uint64_t n, uint64_t count);
uint32_t builder_values(struct builder *b, uint64_t n, uint64_t count);
/* `to` waits for `from`. Nothing to do where either is BUILDER_NONE. */
void builder_edge(struct builder *b, uint32_t from, uint32_t to);
/* Array of n times BUILDER_NONE; NULL after an error. Freed by the caller. */
uint32_t *builder_array(struct builder *b, size_t n);

static inline uint32_t builder_members(const struct builder *b, uint32_t node) {
    return b->first[node + 1] - b->first[node];
}

/* Ends the work: the plan (result of the build), or why there is none. Frees what the builder holds. */
ZIPCCL_MUST_CHECK zipcclResult_t builder_finish(struct builder *b, struct plan **plan);

/* The last arrival of the ranks of this node, as one step to wait for. */
uint32_t builder_all_arrived(struct builder *b);

/* A piece of a part: what one message carries, or one reduction makes. */
struct builder_tile {
    uint64_t offset, count; /* values, in the buffer that holds all parts */
    uint32_t rank; /* whose part it is, and its local index: in a part of a node, the rank that does the work */
    uint16_t local;
};

/* The tiles of all nodes, in the order in which all nodes number them. */
struct builder_tiles {
    struct builder_tile *list;
    uint32_t *first;  /* [nnodes + 1]: tiles of node n are list[first[n] .. first[n + 1]) */
    uint32_t longest; /* tiles of the node that has most */
    uint64_t most;    /* values of the greatest tile */
};

/* Every rank has a part, of its count. Tile c of each rank of a node comes before tile c + 1 of any. */
void builder_tiles_of_ranks(struct builder *b, struct builder_tiles *tiles, uint64_t chunk);
/* The count is cut into a part for each node, about equal; its tiles go to the ranks of the node in turn.
 * only_node, if not BUILDER_NONE: that node gets all of it. */
void builder_tiles_of_nodes(struct builder *b, struct builder_tiles *tiles, uint32_t only_node);
/* builder_tiles_of_ranks with the chunk for an exchange of the parts of whole nodes. */
void builder_tiles_of_parts(struct builder *b, struct builder_tiles *tiles);
void builder_tiles_free(struct builder_tiles *tiles);

/* Values of a local rank's buffer of this operation, from value `offset` on. */
static inline struct plan_ref builder_values_at(const struct builder *b, enum plan_space space, uint32_t local,
                                                uint64_t offset) {
    return (struct plan_ref){(uint8_t)space, b->buffers + local, offset * b->value_bytes};
}
/* Copies a tile from the receive buffer of local rank `from`, where step `have` left it, to the other local ranks'. */
void builder_spread(struct builder *b, const struct builder_tile *tile, uint32_t from, uint32_t have);

static inline uint32_t builder_ntiles(const struct builder_tiles *tiles, uint32_t node) {
    return tiles->first[node + 1] - tiles->first[node];
}

/* Values of rank r, of the v operations too; of all ranks together. */
static inline uint64_t builder_count_of(const struct builder *b, uint32_t rank) {
    return b->op->counts ? b->op->counts[rank] : b->op->count;
}
uint64_t builder_total(const struct builder *b);

/* Whether an operation between nodes is so small that messages count more than bytes. */
bool builder_is_small(const struct builder *b);
/* The index of a rank of some node there. */
uint32_t builder_local(const struct builder *b, uint32_t rank);
/* The nodes in ascending order of their lowest rank; NULL after an error. Freed by the caller. */
uint32_t *builder_order(struct builder *b);
/* By local rank: the values of all ranks before it. NULL after an error. Freed by the caller. */
uint64_t *builder_bases(struct builder *b);

/* The arrivals are always steps 0 to nlocal - 1, in order of the local index. The operations are not empty. */
void plan_all_gather(struct builder *b);
void plan_broadcast(struct builder *b);
void plan_barrier(struct builder *b);
/* Reduce-scatter(-v), all-reduce, reduce: direct exchange between nodes, flat and hierarchical; the ring; and a small
 * all-reduce between few nodes. */
void plan_reduce(struct builder *b);
void plan_reduce_ring(struct builder *b);
void plan_reduce_small(struct builder *b);

#endif
