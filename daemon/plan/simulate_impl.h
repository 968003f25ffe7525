/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the simulator: plans become one compact graph (simulate_load.c), whose sends and receives are paired
 * (simulate_match.c), whose symmetry is looked for (simulate_fold.c), and which is run (simulate.c, simulate_heap.c).
 */
#ifndef ZIPCCL_DAEMON_SIMULATE_IMPL_H
#define ZIPCCL_DAEMON_SIMULATE_IMPL_H

#include "daemon/plan/simulate.h"

#define SIM_NONE UINT32_MAX

enum sim_state {
    SIM_WAITING, /* for other steps */
    SIM_POSTED,  /* send, receive: can go as soon as the other end is posted */
    SIM_MOVING,  /* send: on its way; receive: its message has come */
    SIM_LEFT,    /* send: its last byte has left, and its receive is not posted */
    SIM_DONE
};

/* 16 bytes, for there may be a hundred million. */
struct sim_step {
    uint32_t first_next; /* in sim.next, up to the next step's first_next */
    uint32_t waiting;    /* steps before it; afterwards the link of the queue that it is in */
    uint32_t partner;    /* send, receive: the other end */
    uint32_t shape : 24;
    uint32_t state : 8;
};

/* What steps have in common. */
struct sim_shape {
    uint64_t busy_ps, wire_bytes, local_bytes;
    uint8_t kind;
    bool eager, local, nothing;
};

struct sim_queue {
    uint32_t head, tail;
};

struct sim_node {
    uint32_t first_step;                        /* up to the next node's */
    uint32_t idle;                              /* workers */
    uint32_t codec_run;                         /* codec steps in a row while a copy waits */
    bool sending;                               /* the link out is busy */
    struct sim_queue codec, copy, egress, loop; /* loop: the head is being served */
    uint64_t egress_free_ps, ingress_free_ps;
    uint64_t sent_bytes, link_busy_ps, loop_busy_ps, worker_busy_ps;
};

/* Where each plan begins. */
struct sim_part {
    uint32_t first_step, node, index;
};

struct sim_event {
    uint64_t at_ps, order;
    uint32_t step, type;
};

struct sim_heap {
    struct sim_event *events;
    uint32_t n, cap;
};

/* An end of a message that has not met the other one. */
struct sim_end {
    uint32_t from, to, item, tag; /* nodes and operation, or ranks and which transfer of the two */
    uint32_t step, next;
    uint64_t count;
    uint8_t codec, part;
    bool send, exchange;
};

struct sim_match {
    struct sim_end *ends;
    uint32_t nends, cap, free;
    uint32_t *buckets, nbuckets, open;
};

struct sim {
    const struct simulate_source *source;
    const struct simulate_options *options;
    struct simulate_result *result;
    char *why;

    uint32_t nodes_held; /* 1 where folded */
    bool folded;
    struct sim_step *steps; /* one more, the end */
    uint32_t nsteps, steps_cap;
    uint32_t *next;
    uint32_t nnext, next_cap;
    struct sim_shape *shapes;
    uint32_t nshapes, shapes_cap;
    uint32_t *shape_buckets; /* index + 1, by hash */
    struct sim_node *nodes;
    struct sim_part *parts;
    uint32_t nparts;
    uint32_t *node_of_block; /* the node of every 256th step */
    struct sim_match match;

    struct sim_heap heap;
    struct sim_queue ready;
    uint64_t now_ps, ndone;
    uint64_t overhead_ps, gap_ps, latency_ps, handshake_ps;
    uint64_t bytes[SIMULATE_NUM_LINKS], messages;
};

/* simulate_load.c */
enum simulate_end sim_load(struct sim *s);
void sim_unload(struct sim *s);
uint32_t sim_node_of(const struct sim *s, uint32_t step);
/* Writes "node 3, step 17: send to node 5, tag 2, operation 0" by building the step's plan again. */
void sim_describe(const struct sim *s, uint32_t step, char *text, size_t size);
void sim_plan_free(struct simulate_plan *p);

/* simulate_match.c. sim_match_add: the other end's step or SIM_NONE; *clash is set where two ends differ or are there
 * twice, with s->why. False on no memory. */
bool sim_match_add(struct sim *s, const struct sim_end *end, uint32_t *partner, bool *clash);
/* The lowest step whose other end never came; SIM_NONE: all have met. */
uint32_t sim_match_left(const struct sim *s);
void sim_match_free(struct sim *s);

/* simulate_fold.c. Whether one node can stand for all. */
enum simulate_end sim_fold(struct sim *s, bool *folded);
/* Numbers of a step's message ends: from the sender's place in the circle where folded. ordinals: see
 * sim_ordinals. */
void sim_end_of(const struct sim *s, uint32_t node, const struct simulate_plan *p, const uint32_t *ordinals,
                const struct plan_step *step, struct sim_end *end);
/* By transfer: which one it is of those between its two ranks and in its direction. NULL: no memory, or p is no
 * exchange. */
uint32_t *sim_ordinals(const struct sim *s, const struct simulate_plan *p);

/* simulate_heap.c */
bool sim_heap_push(struct sim_heap *h, const struct sim_event *event);
struct sim_event sim_heap_pop(struct sim_heap *h);

#endif
