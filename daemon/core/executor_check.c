/* SPDX-License-Identifier: Apache-2.0
 *
 * What a peer sends must be what this node expects. Where the ranks called different operations, the text names both
 * sides, for this is the user's mistake and he must find it.
 */
#include "daemon/core/executor_impl.h"

#include <stdio.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define FLAG_REDOP_SHIFT 1u /* flags: bit 0 hash, 3 bits reduction, 2 bits arm */
#define FLAG_ARM_SHIFT   4u

static uint8_t flags_of(const struct exec_item *item) {
    return (uint8_t)(item->redop << FLAG_REDOP_SHIFT | item->arm << FLAG_ARM_SHIFT);
}

/* Other transfers beside an all-to-all may meet an operation of another time over there. */
static bool has_report(const struct exec_item *item) {
    return !op_exchanges((zipcclOp_t)item->op) || item->op == zipcclOpAllToAll || item->op == zipcclOpAllToAllv ||
           item->op == zipcclOpAllToAllCapped;
}

struct fabric_header exec_header(const struct exec_op *op, const struct plan_step *step) {
    const struct exec_item *item = &op->items[step->item];
    return (struct fabric_header){.comm = op->comm->key,
                                  .node = op->comm->node,
                                  .seq = item->seq,
                                  .tag = step->tag,
                                  .channel = item->channel,
                                  .op = item->op,
                                  .dtype = item->dtype,
                                  .codec = step->codec,
                                  .flags = flags_of(item),
                                  .root = item->root,
                                  .report = has_report(item) ? op->args.report : 0,
                                  .op_count = item->op_count,
                                  .count = item->capped ? item->actual : step->count};
}

static bool has_counts(unsigned op) {
    return op == zipcclOpAllGatherv || op == zipcclOpReduceScatterv;
}

/* "100 bf16 values a rank", "barrier" ... */
static void describe(char *text, size_t size, const struct fabric_header *h, bool with_op, bool with_codec,
                     bool with_call) {
    const struct dtype_info *info = dtype_get(h->dtype);
    const char *coding = codec_name((zipcclCodec_t)h->codec), *dtype = info ? info->name : "unknown";
    char op[32] = "", from[32] = "", by[32] = "", how[48] = "", count[32];
    if (with_op)
        snprintf(op, sizeof(op), "%s%s", op_name(h->op), h->op == zipcclOpBarrier ? "" : " of ");
    if (h->op == zipcclOpBarrier) {
        snprintf(text, size, "%s", op);
        return;
    }
    if (op_has_root((zipcclOp_t)h->op) && !op_exchanges((zipcclOp_t)h->op))
        snprintf(from, sizeof(from), " %s rank %u", h->op == zipcclOpBroadcast ? "from" : "to", h->root);
    else if (h->op == zipcclOpAllGather || h->op == zipcclOpReduceScatter)
        snprintf(from, sizeof(from), " a rank");
    else if (with_call && op_exchanges((zipcclOp_t)h->op) && h->root)
        snprintf(from, sizeof(from), " in operation #%u", h->root);
    if (with_codec)
        snprintf(by, sizeof(by), " coded %s", coding ? coding : "unknown");
    if (op_reduces((zipcclOp_t)h->op))
        snprintf(how, sizeof(how), " (%s, %s)", redop_name(h->flags >> FLAG_REDOP_SHIFT & 7),
                 arm_name(h->flags >> FLAG_ARM_SHIFT & 3));
    if (has_counts(h->op))
        snprintf(count, sizeof(count), "other counts of");
    else
        snprintf(count, sizeof(count), "%s%llu", h->op == zipcclOpAllToAllCapped ? "at most " : "",
                 (unsigned long long)h->op_count);
    snprintf(text, size, "%s%s %s values%s%s%s", op, count, dtype, from, how, by);
}

static void fail_other_call(struct exec_op *op, const struct plan_step *step, const struct fabric_header *theirs,
                            const struct fabric_header *ours) {
    const struct exec_item *item = &op->items[step->item];
    char their_text[128], our_text[128];
    bool op_differs = theirs->op != ours->op, codec_differs = theirs->codec != ours->codec;
    bool call_differs = theirs->root != ours->root;
    describe(their_text, sizeof(their_text), theirs, op_differs, codec_differs, call_differs);
    describe(our_text, sizeof(our_text), ours, op_differs, codec_differs, call_differs);
    if (op->entry->nops > 0) /* a channel of rank 0 to itself is 0 too */
        exec_op_failf(op, zipcclInvalidArgument, (int)step->peer, "%s #%llu: node %u sends %s, this node expects %s",
                      op_name(item->op), (unsigned long long)item->number, step->peer, their_text, our_text);
    else
        exec_op_failf(op, zipcclInvalidArgument, (int)step->peer,
                      "%s #%llu: rank %u sends %s to rank %u, which expects %s", op_name(item->op),
                      (unsigned long long)item->number, item->peer, their_text, op->entry->rank, our_text);
}

void exec_check_call(struct exec_op *op, const struct fabric_header *theirs) {
    const struct plan_step whole = {.peer = theirs->node, .codec = op->items[0].codec};
    const struct fabric_header ours = exec_header(op, &whole);
    fail_other_call(op, &whole, theirs, &ours);
}

/* Whether a message of these bytes can be `count` values of the step, or the named part of a coded slot. */
static bool is_right_size(const struct plan_step *step, const struct exec_item *item, const struct fabric_header *h,
                          uint64_t count, size_t bytes) {
    if (!item->capped && h->count != count)
        return false;
    if (count == 0 || step->codec == zipcclCodecRaw || step->dst.space != PLAN_SLOT)
        return bytes == count * item->value_bytes;
    if (step->part == PLAN_DYNAMIC)
        return h->static_bytes == 0;
    return h->static_bytes > 0 && (step->part == PLAN_STATIC ? h->static_bytes == bytes : h->static_bytes <= bytes);
}

bool exec_check_message(struct exec_op *op, const struct plan_step *step, const struct fabric_header *h, size_t bytes) {
    const struct exec_item *item = &op->items[step->item];
    struct fabric_header ours = exec_header(op, step);
    if (!fabric_same_call(h, &ours)) {
        fail_other_call(op, step, h, &ours);
        return false;
    }
    if (item->capped && !exec_capped_check(op, step, h))
        return false;
    uint64_t count = item->capped ? plan_capped_count(&op->plan->items[step->item], step, h->count) : step->count;
    if (!is_right_size(step, item, h, count, bytes)) {
        exec_op_failf(op, zipcclCorruptData, (int)step->peer,
                      "%s #%llu: chunk %u of rank %u from node %u has %llu values in %zu bytes, expected %llu values",
                      op_name(item->op), (unsigned long long)item->number, step->tag, step->rank, step->peer,
                      (unsigned long long)h->count, bytes, (unsigned long long)count);
        return false;
    }
    return true;
}
