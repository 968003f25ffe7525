/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes that run operations of the switcher on a simulated link: each has a switcher of its own and its own idea of how
 * long an operation took.
 */
#ifndef ZIPCCL_TESTS_SWITCHER_SIM_H
#define ZIPCCL_TESTS_SWITCHER_SIM_H

#include "daemon/core/switcher.h"

#define SIM_NODES 4u

/* The truth, which the model does not know. */
struct sim_world {
    double link_bps, latency_ns;
    double encode_bps, decode_bps;
    double overlap;   /* share of the codec's work that hides behind the link */
    double noise;     /* times vary by so much, evenly */
    double node_skew; /* and by so much from node to node */
    double outliers;  /* share of operations that take three times as long */
    double ratio[zipcclNumCodecs];
};

struct sim {
    struct switcher nodes[SIM_NODES];
    struct model model;
    struct model_shape shape;
    struct sim_world world;
    uint64_t random;
    uint32_t report; /* combined, of the last operation */
};

void sim_init(struct sim *s, double gbits, uint32_t nodes, uint32_t ranks_per_node);
void sim_free(struct sim *s);
double sim_uniform(struct sim *s); /* 0 to 1 */
/* How long it takes, without noise. */
double sim_true_ns(const struct sim *s, const struct switch_want *want, zipcclArm_t arm, zipcclCodec_t codec);
/* Runs one operation on all nodes; fails where they choose differently. Returns what it took, without noise. */
double sim_run(struct sim *s, const struct switch_want *want, struct switch_choice *choice);
/* The least over what may be chosen. */
double sim_best_ns(const struct sim *s, const struct switch_want *want);
/* An operation of bf16 that takes part. */
struct switch_want sim_want(zipcclOp_t op, uint64_t bytes);

#endif
