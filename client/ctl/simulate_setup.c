/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of the simulator for zipcclctl simulate: which arms and codecs there are, and one of them run.
 */
#include "client/ctl/simulate_setup.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define MAX_NODE_STEPS 10000000u /* a plan in full takes some 130 bytes a step while it is built */

size_t simulate_variants(const struct simulate_setup *setup, struct simulate_variant out[SIMULATE_MAX_VARIANTS]) {
    size_t n = 0;
    bool arms = op_reduces(setup->op);
    for (unsigned c = 0; c < zipcclNumCodecs; c++) {
        bool wanted = setup->codec == zipcclCodecAuto || setup->codec == (zipcclCodec_t)c || c == zipcclCodecRaw;
        if (!wanted || !codec_supports((zipcclCodec_t)c, setup->dtype) ||
            (c != zipcclCodecRaw && setup->op == zipcclOpBarrier))
            continue;
        for (unsigned a = 0; a < (arms ? zipcclNumArms : 1u); a++) {
            if (arms && ((a == zipcclArmRing && c != zipcclCodecRaw) ||
                         (setup->arm != zipcclArmAuto && setup->arm != (zipcclArm_t)a)))
                continue;
            out[n++] = (struct simulate_variant){.arm = arms ? (zipcclArm_t)a : zipcclArmAuto,
                                                 .codec = (zipcclCodec_t)c,
                                                 .ratio = setup->cost.ratio[c][setup->dtype]};
        }
    }
    return n;
}

uint64_t simulate_count(const struct simulate_setup *setup) {
    uint64_t values = setup->bytes / dtype_get(setup->dtype)->bytes;
    bool shares = setup->op == zipcclOpReduceScatter || setup->op == zipcclOpAllToAll;
    return shares ? values / ((uint64_t)setup->nodes * setup->per_node) : values;
}

static void too_large(struct simulate_variant *v, uint64_t steps) {
    v->end = SIMULATE_TOO_LARGE;
    (void)snprintf(v->why, sizeof v->why,
                   "the plan of one node would have some %llu million steps; take a smaller --size, fewer nodes or a "
                   "larger --chunk",
                   (unsigned long long)(steps / 1000000));
}

void simulate_variant_run(const struct simulate_setup *setup, struct simulate_variant *v) {
    uint32_t nranks = setup->nodes * setup->per_node;
    uint32_t *rank_node = calloc(nranks, sizeof *rank_node);
    struct plan_topology topology = {nranks, setup->nodes, rank_node};
    struct plan_op op = {.op = setup->op,
                         .dtype = setup->dtype,
                         .codec = v->codec,
                         .arm = v->arm == zipcclArmAuto ? zipcclArmHierarchical : v->arm,
                         .redop = zipcclSum,
                         .count = simulate_count(setup),
                         .root = setup->root};
    struct simulate_ops ops = {.ops = &op,
                               .nops = 1,
                               .topology = &topology,
                               .chunk_bytes = setup->chunk_bytes,
                               .window = setup->window,
                               .phases = setup->phases};
    struct cost cost = setup->cost;
    struct simulate_options options = {
        .cost = &cost, .arrive = setup->arrive, .progress = setup->progress, .progress_arg = setup->progress_arg};
    struct simulate_source source;
    if (!setup->workers_given)
        cost.workers = setup->per_node;
    v->why[0] = 0;
    v->result = (struct simulate_result){0};
    if (!rank_node) {
        v->end = SIMULATE_NO_MEMORY;
        (void)snprintf(v->why, sizeof v->why, "out of memory");
        return;
    }
    for (uint32_t r = 0; r < nranks; r++)
        rank_node[r] = r / setup->per_node;
    uint64_t steps = simulate_steps_per_node(&ops);
    if (steps > MAX_NODE_STEPS) {
        too_large(v, steps);
    } else if (simulate_source_of_ops(&ops, &source)) {
        v->end = SIMULATE_NO_PLAN;
        (void)snprintf(v->why, sizeof v->why, "%s is not simulated", op_name((unsigned)setup->op));
    } else {
        v->end = simulate_run(&source, &options, &v->result, v->why);
    }
    free(rank_node);
}

const struct simulate_variant *simulate_fastest(const struct simulate_variant *v, size_t n, bool raw_alone) {
    const struct simulate_variant *best = NULL;
    for (size_t i = 0; i < n; i++) {
        if (v[i].end != SIMULATE_OK || (raw_alone && v[i].codec != zipcclCodecRaw))
            continue;
        if (!best || v[i].result.seconds < best->result.seconds)
            best = &v[i];
    }
    return best;
}
