/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the plans of all nodes, or of all ranks of an exchange, together: symbolically, in a random order, under
 * rendezvous semantics.
 */
#ifndef ZIPCCL_TESTS_PLAN_SIMULATOR_H
#define ZIPCCL_TESTS_PLAN_SIMULATOR_H

#include "daemon/plan/plan.h"

#define SIM_NOBODY UINT32_MAX

struct sim_options {
    unsigned seed;
    bool in_place;
    uint32_t late; /* this rank arrives when nothing else moves any more; SIM_NOBODY: none */
};

struct sim_result {
    uint64_t sent_bytes[64]; /* values sent to other nodes, by node */
    uint32_t messages;
};

/* The group of calls of every rank: rank r's are calls[r * ncalls .. + ncalls); op zipcclNumOps: none. An
 * all-to-all-capped has its actual counts in send_counts. */
struct sim_exchange {
    const struct plan_topology *topology;
    const struct plan_call *calls;
    uint32_t ncalls;
    zipcclCodec_t codec; /* between nodes */
    uint64_t chunk_bytes;
    uint32_t window;
    enum plan_phases phases;
};

/* Builds and runs; NULL where all is well, else what is wrong (static storage). args->node is ignored. */
const char *simulate(const struct plan_args *args, const struct sim_options *options, struct sim_result *result);
const char *simulate_exchange(const struct sim_exchange *exchange, const struct sim_options *options,
                              struct sim_result *result);

#endif
