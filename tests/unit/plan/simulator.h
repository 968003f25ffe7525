/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the plans of all nodes together, symbolically, in a random order under rendezvous semantics.
 */
#ifndef ZIPCCL_TESTS_PLAN_SIMULATOR_H
#define ZIPCCL_TESTS_PLAN_SIMULATOR_H

#include "daemon/plan/plan.h"

struct sim_result {
    uint64_t sent_bytes[64]; /* values, by node */
    uint32_t messages;
};

/* Builds and runs; NULL where all is well, else what is wrong (static storage). args->node is ignored. */
const char *simulate(const struct plan_args *args, unsigned seed, struct sim_result *result);

#endif
