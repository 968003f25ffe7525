/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator: runs the very plans that the executor runs, of all nodes, under the cost model of cost.h. It finds
 * sends without a receive and plans that wait for each other for ever, and says how long all takes.
 *
 * As in the executor, steps start in the order in which they become ready; a send ends when its last byte has left and
 * its receive is posted (so a plan that leans on the fabric's buffers for small messages is found out); steps of work
 * wait for a worker, codec and reductions before copies. Deterministic: the clock counts picoseconds, and what happens
 * at one time happens in the order of the steps' numbers.
 *
 * Folding: where the plans of all nodes are those of node 0, seen from each node's place in the circle of nodes, and
 * all ranks arrive together, then all nodes do the same at the same time, and one is simulated for all: what it sends
 * to the node k places on, it receives from the node k places back. That the plans are alike is checked, not assumed:
 * on all nodes, or on some spread over the circle where building all would take minutes (nodes_checked says how many).
 */
#ifndef ZIPCCL_DAEMON_SIMULATE_H
#define ZIPCCL_DAEMON_SIMULATE_H

#include "daemon/plan/cost.h"
#include "daemon/plan/plan.h"

#define SIMULATE_WHY 512

/* One plan of a node. */
struct simulate_plan {
    struct plan *plan;               /* the simulator frees it by plan_free */
    struct plan_transfer *transfers; /* of an exchange; freed by free(). NULL: a collective plan, of the whole node */
    uint32_t ntransfers;
    uint32_t rank; /* exchange: whose */
};

/* Where the plans come from: those of operations, or a test's own. */
struct simulate_source {
    uint32_t nnodes, nranks;
    uint32_t plans_per_node; /* 1, or of an exchange the ranks of each node */
    bool may_fold;           /* ranks are spread evenly and in order */
    /* Plan `index` of node. May be called again for the same one. */
    zipcclResult_t (*build)(void *arg, uint32_t node, uint32_t index, struct simulate_plan *out);
    void *arg;
};

enum simulate_fold { SIMULATE_FOLD_AUTO, SIMULATE_FOLD_NEVER, SIMULATE_FOLD_ALWAYS };

struct simulate_options {
    const struct cost *cost;
    const double *arrive;                      /* seconds, by rank; NULL: all at 0 */
    enum simulate_fold fold;                   /* auto: where simulating all nodes would take long */
    uint64_t max_steps;                        /* 0: SIMULATE_MAX_STEPS */
    void (*progress)(double share, void *arg); /* may be NULL */
    void *progress_arg;
};

/* Steps held at once: about 30 bytes each. */
#define SIMULATE_MAX_STEPS 110000000u

enum simulate_link { SIMULATE_INSIDE, SIMULATE_BETWEEN, SIMULATE_NUM_LINKS };

struct simulate_result {
    double seconds;                           /* from the first arrival to the end of the last step */
    uint64_t bytes[SIMULATE_NUM_LINKS];       /* all nodes; headers not counted */
    uint64_t messages;                        /* between nodes, all nodes */
    uint64_t busiest_bytes;                   /* what the node that sends most sends to others */
    uint64_t steps;                           /* of all plans */
    uint64_t events;                          /* that were simulated */
    double link_busy, loop_busy, worker_busy; /* shares of the time, of the node that is busiest in this way */
    uint32_t nodes_checked;                   /* folded: nodes whose plans were compared; 0: not folded */
};

enum simulate_end {
    SIMULATE_OK,
    SIMULATE_UNMATCHED, /* a send without a receive, or the reverse, or two that differ */
    SIMULATE_DEADLOCK,
    SIMULATE_TOO_LARGE,
    SIMULATE_NO_PLAN, /* the source failed */
    SIMULATE_NO_MEMORY
};

/* Runs all; why gets a text for people where the end is not OK: which node, step, peer and tag. */
enum simulate_end simulate_run(const struct simulate_source *source, const struct simulate_options *options,
                               struct simulate_result *result, char why[SIMULATE_WHY]);

/* The plans of operations that all ranks call. */
struct simulate_ops {
    const struct plan_op *ops; /* of a group; exchanges: one, of a kind that is not pairwise */
    uint32_t nops;
    const struct plan_topology *topology;
    uint64_t chunk_bytes;
    uint32_t window;
    enum plan_phases phases; /* exchanges */
};

/* ops stays the caller's and must outlive the source. zipcclInvalidArgument for send, receive and all-to-all-v. */
ZIPCCL_MUST_CHECK zipcclResult_t simulate_source_of_ops(struct simulate_ops *ops, struct simulate_source *source);

/* About how many steps the plan of one node has, to refuse before memory is gone. */
uint64_t simulate_steps_per_node(const struct simulate_ops *ops);

#endif
