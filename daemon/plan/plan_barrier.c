/* SPDX-License-Identifier: Apache-2.0
 *
 * Barrier: dissemination. In round k a node tells node + 2^k that all it has heard of have arrived, so after ceil(log2
 * n) rounds every node has heard of all. Messages are empty.
 */
#include "daemon/plan/builder.h"

void plan_barrier(struct builder *b) {
    uint32_t sent = BUILDER_NONE, heard = BUILDER_NONE;
    for (uint32_t k = 0; k < 31 && (1u << k) < b->nnodes; k++) {
        uint32_t distance = 1u << k;
        struct plan_step step = {.kind = PLAN_SEND, .peer = (b->node + distance) % b->nnodes, .tag = k};
        uint32_t id = builder_step(b, &step);
        if (k == 0) {
            for (uint32_t i = 0; i < b->nlocal; i++)
                builder_edge(b, i, id);
        }
        builder_edge(b, sent, id);
        builder_edge(b, heard, id);
        sent = id;
        step.kind = PLAN_RECV;
        step.peer = (b->node + b->nnodes - distance) % b->nnodes;
        heard = builder_step(b, &step);
        builder_edge(b, 0, heard);
    }
}
