/* SPDX-License-Identifier: Apache-2.0
 *
 * How steps that work on values start and end: encode, decode, copy, reduce. Messages: executor_messages.c.
 */
#include "daemon/core/executor_impl.h"

#include <stdio.h>
#include <string.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

const struct plan_step *exec_step_of(const struct exec_work *work) {
    return &work->op->plan->steps[work->step];
}

const struct exec_item *exec_item_of(const struct exec_work *work) {
    return &work->op->items[exec_step_of(work)->item];
}

const char *exec_step_name(const struct exec_work *work, char text[64]) {
    const struct exec_item *item = exec_item_of(work);
    snprintf(text, 64, "%s #%llu", op_name(item->op), (unsigned long long)item->number);
    return text;
}

uint8_t *exec_values(struct exec_op *op, struct plan_ref ref) {
    switch ((enum plan_space)ref.space) {
    case PLAN_SENDBUF:
        return (uint8_t *)(uintptr_t)op->buffers[ref.index].send + ref.offset;
    case PLAN_RECVBUF:
        return (uint8_t *)op->buffers[ref.index].recv + ref.offset;
    case PLAN_VALUES:
        return op->scratch[ref.index].base; /* a step has written it */
    default:
        return NULL;
    }
}

uint8_t *exec_values_to_write(struct exec_op *op, const struct plan_step *st) {
    if (st->dst.space == PLAN_VALUES && !exec_place(op, st, &op->scratch[st->dst.index], op->entry->value_bytes))
        exec_op_failf(op, zipcclOutOfMemory, -1, "no memory for partial results");
    return exec_values(op, st->dst);
}

struct exec_slot *exec_slot_to_write(struct exec_op *op, const struct plan_step *st) {
    struct exec_slot *slot = &op->slots[st->dst.index];
    bool placed = exec_place(op, st, &slot->memory, op->entry->slot_bytes);
    if (!placed)
        exec_op_failf(op, zipcclOutOfMemory, -1, "no memory for coded chunks");
    slot->has_hash = false;
    return placed ? slot : NULL;
}

void exec_step_complete(struct exec_op *op, uint32_t step) {
    const struct plan_step *st = &op->plan->steps[step];
    op->ndone++;
    for (uint32_t i = 0; i < st->nnext; i++) {
        uint32_t next = op->plan->next[st->first_next + i];
        if (--op->waiting[next] > 0)
            continue;
        op->ready_next[next] = EXEC_NO_STEP;
        if (op->ready_tail == EXEC_NO_STEP)
            op->ready_head = next;
        else
            op->ready_next[op->ready_tail] = next;
        op->ready_tail = next;
    }
}

void exec_work_end(struct exec_work *work, bool success) {
    struct exec_op *op = work->op;
    uint32_t step = work->step;
    const struct executor_config *config = &op->comm->executor->config;
    if (work->bounce)
        config->device_ops->free(config->device, work->bounce, work->bounce_bytes);
    exec_work_put(op->comm->executor, work);
    op->nactive--;
    if (success)
        exec_step_complete(op, step);
}

bool exec_work_submit(struct exec_work *work, void (*done)(struct device_job *)) {
    const struct executor_config *config = &work->op->comm->executor->config;
    work->job.done = done;
    work->job.arg = work;
    work->job.flow = work->op->comm->workers;
    return config->device_ops->submit(config->device, &work->job);
}

static void finish_encode(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    struct device_job *job = &work->job;
    struct exec_slot *slot = &op->slots[st->dst.index];
    char name[64];
    if (job->result) {
        exec_op_failf(op, job->result, -1, "%s: chunk %u of rank %u cannot be coded%s%s", exec_step_name(work, name),
                      st->tag, st->rank, exec_why_mark(job), exec_why(job));
    } else {
        slot->static_bytes = job->out_static;
        slot->dynamic_bytes = job->out_dynamic;
        slot->dynamic = job->dst_dynamic;
        slot->hash = job->hash;
        slot->has_hash = job->verify;
        op->result.coded_from_bytes += job->count * exec_item_of(work)->value_bytes;
        op->result.coded_to_bytes += job->out_static + job->out_dynamic;
        op->result.encode_ns += job->ns;
    }
    exec_work_end(work, job->result == zipcclSuccess);
}
EXEC_JOB_DONE(encode_done, finish_encode)

static void finish_decode(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    struct device_job *job = &work->job;
    char name[64];
    op->result.decode_ns += job->ns;
    if (job->result && job->result != zipcclCorruptData)
        exec_op_failf(op, job->result, -1, "%s: chunk %u of rank %u cannot be decoded%s%s", exec_step_name(work, name),
                      st->tag, st->rank, exec_why_mark(job), exec_why(job));
    else if (job->result)
        exec_op_failf(op, job->result, (int)st->peer, "%s: chunk %u of rank %u from node %u is corrupt",
                      exec_step_name(work, name), st->tag, st->rank, st->peer);
    exec_work_end(work, job->result == zipcclSuccess);
}
EXEC_JOB_DONE(decode_done, finish_decode)

static void finish_copy(struct exec_work *work) {
    char name[64];
    if (work->job.result)
        exec_op_failf(work->op, work->job.result, -1, "%s: copy to local rank %u fails%s%s", exec_step_name(work, name),
                      exec_step_of(work)->local, exec_why_mark(&work->job), exec_why(&work->job));
    exec_work_end(work, work->job.result == zipcclSuccess);
}
EXEC_JOB_DONE(copy_done, finish_copy)

static void finish_reduce(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    struct device_job *job = &work->job;
    char name[64];
    op->result.decode_ns += job->ns;
    if (job->result == zipcclCorruptData && job->bad_input < st->ninputs) {
        uint32_t rank = op->plan->inputs[st->first_input + job->bad_input].rank;
        uint32_t node = op->comm->rank_node[rank];
        exec_op_failf(op, job->result, (int)node, "%s: a chunk of rank %u from node %u is corrupt",
                      exec_step_name(work, name), rank, node);
    } else if (job->result) {
        exec_op_failf(op, job->result, -1, "%s: the reduction of %u inputs fails%s%s", exec_step_name(work, name),
                      st->ninputs, exec_why_mark(job), exec_why(job));
    }
    exec_work_end(work, job->result == zipcclSuccess);
}
EXEC_JOB_DONE(reduce_done, finish_reduce)

static void start_encode(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    struct exec_slot *slot = exec_slot_to_write(op, st);
    const uint8_t *src = exec_values(op, st->src);
    if (!slot || op->failed) {
        exec_work_end(work, false);
        return;
    }
    work->job = (struct device_job){.work = DEVICE_ENCODE,
                                    .codec = (zipcclCodec_t)st->codec,
                                    .dtype = (zipcclDataType_t)exec_item_of(work)->dtype,
                                    .src = src,
                                    .dst = slot->memory.base,
                                    .dst_dynamic = slot->memory.base + op->entry->slot_static[st->item],
                                    .count = exec_count(op, st),
                                    .verify = op->comm->executor->config.verify};
    if (exec_work_submit(work, encode_done))
        finish_encode(work);
}

static void start_decode(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    const struct exec_slot *slot = &op->slots[st->src.index];
    uint8_t *dst = exec_values(op, st->dst);
    if (op->failed) {
        exec_work_end(work, false);
        return;
    }
    work->job = (struct device_job){.work = DEVICE_DECODE,
                                    .codec = (zipcclCodec_t)st->codec,
                                    .dtype = (zipcclDataType_t)exec_item_of(work)->dtype,
                                    .flags = op->entry->streaming ? CODEC_STREAMING : 0,
                                    .src = slot->memory.base,
                                    .src_static = slot->static_bytes,
                                    .src_dynamic = slot->dynamic,
                                    .src_dynamic_bytes = slot->dynamic_bytes,
                                    .dst = dst,
                                    .count = exec_count(op, st),
                                    .verify = slot->has_hash,
                                    .hash = slot->hash};
    if (exec_work_submit(work, decode_done))
        finish_decode(work);
}

static void start_copy(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    const uint8_t *src = exec_values(op, st->src);
    uint8_t *dst = exec_values(op, st->dst);
    if (op->failed) {
        exec_work_end(work, false);
        return;
    }
    work->job = (struct device_job){
        .work = DEVICE_COPY, .src = src, .dst = dst, .count = st->count * exec_item_of(work)->value_bytes};
    if (exec_work_submit(work, copy_done))
        finish_copy(work);
}

static void fill_input(struct exec_op *op, const struct plan_step *st, const struct plan_input *in,
                       struct device_input *out) {
    *out = (struct device_input){
        .codec = (zipcclCodec_t)in->codec, .ends_group = in->ends_group, .round_group = in->round_group};
    if (in->ref.space == PLAN_SLOT) {
        const struct exec_slot *slot = &op->slots[in->ref.index];
        out->src = slot->memory.base;
        out->src_static = slot->static_bytes;
        out->src_dynamic = slot->dynamic;
        out->src_dynamic_bytes = slot->dynamic_bytes;
        out->verify = slot->has_hash;
        out->hash = slot->hash;
    } else {
        out->src = exec_values(op, in->ref);
    }
    if (in->scaled && op->items[st->item].redop == zipcclPreMulSum) {
        uint32_t first = op->entry->nops ? st->item * op->plan->nlocal : 0;
        out->scaled = true;
        out->scalar = op->buffers[first + in->local].scalar;
    }
}

static void start_reduce(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    const struct exec_item *item = exec_item_of(work);
    struct device_input *inputs = &op->inputs[st->first_input];
    uint8_t *dst = exec_values_to_write(op, st); /* which may be an input */
    for (uint32_t i = 0; i < st->ninputs; i++)
        fill_input(op, st, &op->plan->inputs[st->first_input + i], &inputs[i]);
    if (op->failed) {
        exec_work_end(work, false);
        return;
    }
    work->job = (struct device_job){.work = DEVICE_REDUCE,
                                    .dtype = (zipcclDataType_t)item->dtype,
                                    .inputs = inputs,
                                    .ninputs = st->ninputs,
                                    .redop = (zipcclRedOp_t)item->redop,
                                    .divisor = st->final && item->redop == zipcclAvg ? op->comm->topology.nranks : 0,
                                    .dst = dst,
                                    .count = st->count};
    if (exec_work_submit(work, reduce_done))
        finish_reduce(work);
}

void exec_step_start(struct exec_op *op, uint32_t step) {
    const struct plan_step *st = &op->plan->steps[step];
    if (st->kind == PLAN_COPY && exec_values(op, st->src) == exec_values(op, st->dst)) {
        exec_step_complete(op, step); /* in place, or ranks that share a buffer */
        return;
    }
    if (exec_capped_skips(op, st)) {
        exec_step_complete(op, step);
        return;
    }
    struct exec_work *work = exec_work_get(op->comm->executor);
    if (!work) {
        exec_op_failf(op, zipcclOutOfMemory, -1, "no memory for a step");
        return;
    }
    work->op = op;
    work->step = step;
    work->bounce = NULL;
    op->nactive++;
    switch ((enum plan_kind)st->kind) {
    case PLAN_ENCODE:
        start_encode(work);
        break;
    case PLAN_SEND:
        exec_send_start(work);
        break;
    case PLAN_RECV:
        exec_recv_start(work);
        break;
    case PLAN_DECODE:
        start_decode(work);
        break;
    case PLAN_COPY:
        start_copy(work);
        break;
    case PLAN_REDUCE:
        start_reduce(work);
        break;
    default:
        exec_op_failf(op, zipcclInternalError, -1, "unexpected step %u", step);
        exec_work_end(work, false);
    }
}
