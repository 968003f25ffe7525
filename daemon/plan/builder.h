/* SPDX-License-Identifier: Apache-2.0
 *
 * What the builders of single operations share: a growing list of steps and edges, and who lives where.
 * Errors stick: after the first failed allocation every call does nothing, and builder_finish reports it.
 */
#ifndef ZIPCCL_DAEMON_PLAN_BUILDER_H
#define ZIPCCL_DAEMON_PLAN_BUILDER_H

#include "daemon/plan/plan.h"

#define BUILDER_NONE UINT32_MAX /* no step: an edge from it is none */

struct builder_edge {
    uint32_t from, to;
};

struct builder {
    const struct plan_args *args; /* exchange: topology and node alone */
    uint32_t nnodes, node;        /* as in args */
    zipcclResult_t error;

    /* The operation that is being built; steps get its number. */
    const struct plan_op *op;
    uint32_t item;
    uint64_t value_bytes;
    uint32_t buffers;       /* index of its first buffer: local rank i has buffers + i */
    uint32_t slots, values; /* its first slot and scratch */
    struct plan_item *items;

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

/* Values of rank r, and of all ranks before it: of the v operations too. */
uint64_t builder_count_of(const struct builder *b, uint32_t rank);
uint64_t builder_offset_of(const struct builder *b, uint32_t rank);

/* The arrivals are always steps 0 to nlocal - 1, in order of the local index. */
void plan_all_gather(struct builder *b);
void plan_broadcast(struct builder *b);
void plan_barrier(struct builder *b);

#endif
