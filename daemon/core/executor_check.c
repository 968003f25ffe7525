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

/* "100 bf16 values a rank", "barrier" ... */
static void describe(char *text, size_t size, unsigned op, unsigned dtype, unsigned codec, uint64_t count,
                     uint32_t root, bool with_op, bool with_codec) {
    const struct dtype_info *info = dtype_get(dtype);
    const char *name = op_name(op), *coding = codec_name((zipcclCodec_t)codec);
    int n = 0;
    text[0] = '\0';
    if (with_op)
        n = snprintf(text, size, "%s%s", name, op == zipcclOpBarrier ? "" : " of ");
    if (n < 0 || (size_t)n >= size || op == zipcclOpBarrier)
        return;
    char from[32] = " a rank", by[32] = "";
    if (op == zipcclOpBroadcast)
        snprintf(from, sizeof(from), " from rank %u", root);
    if (with_codec)
        snprintf(by, sizeof(by), " coded %s", coding ? coding : "unknown");
    snprintf(text + n, size - (size_t)n, "%llu %s values%s%s", (unsigned long long)count, info ? info->name : "unknown",
             op == zipcclOpAllGather || op == zipcclOpBroadcast ? from : "", by);
}

bool exec_check_message(struct exec_op *op, const struct plan_step *step, const struct fabric_header *h, size_t bytes) {
    const struct exec_args *a = &op->args;
    const char *name = op_name(a->op);
    unsigned long long seq = a->seq;
    if (h->op != a->op || h->dtype != a->dtype || h->op_count != a->count || h->root != a->root ||
        h->codec != step->codec) {
        char theirs[96], ours[96];
        bool op_differs = h->op != a->op, codec_differs = h->codec != step->codec;
        describe(theirs, sizeof(theirs), h->op, h->dtype, h->codec, h->op_count, h->root, op_differs, codec_differs);
        describe(ours, sizeof(ours), a->op, a->dtype, step->codec, a->count, a->root, op_differs, codec_differs);
        exec_op_failf(op, zipcclInvalidArgument, (int)step->peer, "%s #%llu: node %u sends %s, this node expects %s",
                      name, seq, step->peer, theirs, ours);
        return false;
    }
    uint64_t whole = step->count * dtype_get(a->dtype)->bytes;
    bool raw = step->codec == zipcclCodecRaw;
    if (h->count != step->count || (raw ? bytes != whole : h->static_bytes == 0 || h->static_bytes > bytes)) {
        exec_op_failf(op, zipcclCorruptData, (int)step->peer,
                      "%s #%llu: chunk %u of rank %u from node %u has %llu values in %zu bytes, expected %llu values",
                      name, seq, step->tag, step->rank, step->peer, (unsigned long long)h->count, bytes,
                      (unsigned long long)step->count);
        return false;
    }
    return true;
}
