/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans for the simulator: those of operations that all ranks call.
 */
#include <stdlib.h>

#include "daemon/plan/simulate.h"
#include "kernels/dtype.h"
#include "proto/op.h"

static zipcclResult_t build_collective(const struct simulate_ops *o, uint32_t node, struct simulate_plan *out) {
    struct plan_args args = {.ops = o->ops,
                             .nops = o->nops,
                             .node = node,
                             .topology = o->topology,
                             .chunk_bytes = o->chunk_bytes,
                             .window = o->window};
    return plan_build(&args, &out->plan);
}

static zipcclResult_t build_exchange(const struct simulate_ops *o, uint32_t rank, struct simulate_plan *out) {
    const struct plan_topology *t = o->topology;
    const struct plan_op *op = o->ops;
    struct plan_call call = {.op = op->op, .dtype = op->dtype, .count = op->count, .root = op->root};
    out->rank = rank;
    out->transfers = calloc((size_t)t->nranks * 2, sizeof(*out->transfers));
    if (!out->transfers)
        return zipcclOutOfMemory;
    out->ntransfers = plan_transfers(&call, rank, t->nranks, 0, out->transfers);
    for (uint32_t i = 0; i < out->ntransfers; i++) {
        struct plan_transfer *x = &out->transfers[i];
        x->codec = t->rank_node[x->peer] == t->rank_node[rank] ? zipcclCodecRaw : op->codec;
    }
    struct plan_exchange_args args = {.transfers = out->transfers,
                                      .ntransfers = out->ntransfers,
                                      .nbuffers = 1,
                                      .rank = rank,
                                      .topology = t,
                                      .chunk_bytes = o->chunk_bytes,
                                      .window = o->window,
                                      .phases = o->phases};
    zipcclResult_t result = plan_build_exchange(&args, &out->plan);
    if (result) {
        free(out->transfers);
        out->transfers = NULL;
    }
    return result;
}

static zipcclResult_t build(void *arg, uint32_t node, uint32_t index, struct simulate_plan *out) {
    const struct simulate_ops *o = arg;
    *out = (struct simulate_plan){0};
    if (!op_exchanges(o->ops->op))
        return build_collective(o, node, out);
    for (uint32_t r = 0; r < o->topology->nranks; r++) {
        if (o->topology->rank_node[r] == node && index-- == 0)
            return build_exchange(o, r, out);
    }
    return zipcclInvalidArgument;
}

zipcclResult_t simulate_source_of_ops(struct simulate_ops *ops, struct simulate_source *source) {
    const struct plan_topology *t = ops->topology;
    if (!t || t->nnodes == 0 || t->nranks == 0 || ops->nops == 0)
        return zipcclInvalidArgument;
    uint32_t per_node = t->nranks / t->nnodes;
    bool even = t->nranks % t->nnodes == 0, exchange = op_exchanges(ops->ops->op);
    for (uint32_t r = 0; r < t->nranks && even; r++)
        even = t->rank_node[r] == r / per_node;
    if (exchange && (!even || ops->nops > 1 || op_is_pairwise(ops->ops->op) || ops->ops->op == zipcclOpAllToAllv))
        return zipcclInvalidArgument;
    bool same = even; /* with a root or counts of their own, nodes differ */
    for (uint32_t i = 0; i < ops->nops; i++)
        same = same && !op_has_root(ops->ops[i].op) && !ops->ops[i].counts;
    *source = (struct simulate_source){.nnodes = t->nnodes,
                                       .nranks = t->nranks,
                                       .plans_per_node = exchange ? per_node : 1,
                                       .may_fold = same,
                                       .build = build,
                                       .arg = ops};
    return zipcclSuccess;
}

uint64_t simulate_steps_per_node(const struct simulate_ops *o) {
    const struct plan_topology *t = o->topology;
    uint64_t steps = 0, local = t->nranks / t->nnodes ? t->nranks / t->nnodes : 1;
    for (uint32_t i = 0; i < o->nops; i++) {
        const struct plan_op *op = &o->ops[i];
        const struct dtype_info *info = dtype_get(op->dtype);
        uint64_t bytes = op->count * (info ? info->bytes : 1);
        uint64_t chunk = plan_chunk_count(op->dtype, bytes, o->chunk_bytes);
        uint64_t chunks = op->count / chunk + 1;
        switch (op->op) {
        case zipcclOpAllGather: /* a send and a receive of each piece, and a copy to each local rank */
            steps += chunks * t->nranks * (local + 2);
            break;
        case zipcclOpReduceScatter: /* count is that of one rank's result */
            steps += chunks * t->nranks * (op->arm == zipcclArmHierarchical ? 4 : local + 3);
            break;
        case zipcclOpAllReduce: /* both, count is the whole */
            steps += (op->count / t->nranks / chunk + 1) * t->nranks * (local + 6);
            break;
        case zipcclOpAllToAll:
            steps += chunks * t->nranks * local * 4;
            break;
        default:
            steps += chunks * (t->nranks + local) * 4;
        }
    }
    return steps;
}
