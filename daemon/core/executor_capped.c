/* SPDX-License-Identifier: Apache-2.0
 *
 * Capped transfers: the plan is made for the greatest count, and here it is cut down to the actual one, which the
 * sender's memory says when the rank arrives, and chunk 0 tells the receiver. Every message of such a transfer has the
 * actual count of the whole transfer in its header.
 */
#include "daemon/core/executor_impl.h"
#include "proto/op.h"

bool exec_capped_arrive(struct exec_op *op) {
    const struct exec_entry *entry = op->entry;
    if (!entry->capped)
        return true;
    for (uint32_t i = 0; i < entry->ntransfers; i++) {
        const struct plan_transfer *t = &entry->transfers[i];
        struct exec_item *item = &op->items[i];
        if (!t->capped || !t->send)
            continue;
        /* Read once: the client can write there at any time. */
        uint64_t actual = ((const volatile uint64_t *)op->buffers[t->buffer].send_counts)[t->peer];
        if (actual > t->count) {
            exec_op_failf(op, zipcclInvalidArgument, (int)op->comm->node,
                          "%s #%llu: sendcounts[%u] of rank %u is %llu, above max_count, %llu: rank %u has no room for "
                          "it",
                          op_name(item->op), (unsigned long long)item->number, t->peer, entry->rank,
                          (unsigned long long)actual, (unsigned long long)t->count, t->peer);
            return false;
        }
        item->actual = actual;
        if (op->comm->rank_node[t->peer] != op->comm->node)
            op->result.raw_bytes += actual * item->value_bytes;
    }
    return true;
}

bool exec_capped_skips(const struct exec_op *op, const struct plan_step *step) {
    bool message = step->kind == PLAN_SEND || step->kind == PLAN_RECV;
    return op->items[step->item].capped && !(message && step->tag == 0) && exec_count(op, step) == 0;
}

bool exec_capped_check(struct exec_op *op, const struct plan_step *step, const struct fabric_header *h) {
    const struct exec_item *item = &op->items[step->item];
    if (step->tag == 0 ? h->count <= item->op_count : h->count == item->actual)
        return true;
    exec_op_failf(op, zipcclCorruptData, (int)step->peer,
                  "%s #%llu: chunk %u of rank %u from node %u speaks of %llu values, expected %s%llu",
                  op_name(item->op), (unsigned long long)item->number, step->tag, step->rank, step->peer,
                  (unsigned long long)h->count, step->tag == 0 ? "at most " : "",
                  (unsigned long long)(step->tag == 0 ? item->op_count : item->actual));
    return false;
}

void exec_capped_received(struct exec_op *op, const struct plan_step *step, const struct fabric_header *h) {
    struct exec_item *item = &op->items[step->item];
    if (!item->capped || step->tag > 0)
        return;
    const struct plan_transfer *t = &op->entry->transfers[step->item];
    item->actual = h->count;
    op->buffers[t->buffer].recv_counts[t->peer] = h->count;
}
