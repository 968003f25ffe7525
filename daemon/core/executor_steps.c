/* SPDX-License-Identifier: Apache-2.0
 *
 * How each kind of step starts and ends.
 */
#include "daemon/core/executor_impl.h"

#include <string.h>

#include "daemon/core/trial.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define HEADER_HAS_HASH 1u

static const struct plan_step *step_of(const struct exec_work *work) {
    return &work->op->plan->steps[work->step];
}

static size_t value_bytes(const struct exec_op *op) {
    return dtype_get(op->args.dtype)->bytes;
}

/* The address that a reference to values means. */
static uint8_t *values(const struct exec_op *op, struct plan_ref ref) {
    if (ref.space == PLAN_SENDBUF)
        return (uint8_t *)(uintptr_t)op->send[ref.index] + ref.offset;
    if (ref.space == PLAN_RECVBUF)
        return (uint8_t *)op->recv[ref.index] + ref.offset;
    return NULL;
}

/* The slot that dst names, with memory. NULL where there is none. */
static struct exec_slot *slot_to_write(struct exec_op *op, struct plan_ref ref) {
    struct exec_slot *slot = &op->slots[ref.index];
    const struct executor_config *config = &op->comm->executor->config;
    if (!slot->memory)
        slot->memory = config->device_ops->alloc(config->device, op->entry->slot_bytes);
    slot->has_hash = false;
    return slot->memory ? slot : NULL;
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

/* The step is over, well or not. The caller runs the operation on. */
static void end_work(struct exec_work *work, bool success) {
    struct exec_op *op = work->op;
    uint32_t step = work->step;
    exec_work_put(op->comm->executor, work);
    op->nactive--;
    if (success)
        exec_step_complete(op, step);
}

/* Runs the job; true where it is over already. */
static bool submit(struct exec_work *work, void (*done)(struct device_job *)) {
    const struct executor_config *config = &work->op->comm->executor->config;
    work->job.done = done;
    work->job.arg = work;
    return config->device_ops->submit(config->device, &work->job);
}

static void finish_encode(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    struct device_job *job = &work->job;
    struct exec_slot *slot = &op->slots[st->dst.index];
    if (job->result) {
        exec_op_failf(op, job->result, -1, "%s #%llu: chunk %u of rank %u cannot be coded", op_name(op->args.op),
                      (unsigned long long)op->args.seq, st->tag, st->rank);
    } else {
        slot->static_bytes = job->out_static;
        slot->dynamic_bytes = job->out_dynamic;
        slot->dynamic = job->dst_dynamic;
        slot->hash = job->hash;
        slot->has_hash = job->verify;
        op->result.coded_from_bytes += job->count * value_bytes(op);
        op->result.coded_to_bytes += job->out_static + job->out_dynamic;
        op->result.encode_ns += job->ns;
    }
    end_work(work, job->result == zipcclSuccess);
}

static void finish_decode(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    struct device_job *job = &work->job;
    op->result.decode_ns += job->ns;
    if (job->result)
        exec_op_failf(op, job->result, (int)st->peer, "%s #%llu: chunk %u of rank %u from node %u is corrupt",
                      op_name(op->args.op), (unsigned long long)op->args.seq, st->tag, st->rank, st->peer);
    end_work(work, job->result == zipcclSuccess);
}

static void finish_copy(struct exec_work *work) {
    if (work->job.result)
        exec_op_failf(work->op, work->job.result, -1, "%s #%llu: copy to local rank %u fails",
                      op_name(work->op->args.op), (unsigned long long)work->op->args.seq, step_of(work)->local);
    end_work(work, work->job.result == zipcclSuccess);
}

/* The end of a job that ran elsewhere: as inline, then run on. */
#define JOB_DONE(name, finish)                                                                                         \
    static void name(struct device_job *job) {                                                                         \
        struct exec_work *work = job->arg;                                                                             \
        struct exec_op *op = work->op;                                                                                 \
        finish(work);                                                                                                  \
        exec_op_run(op);                                                                                               \
    }
JOB_DONE(encode_done, finish_encode)
JOB_DONE(decode_done, finish_decode)
JOB_DONE(copy_done, finish_copy)

static void send_done(struct fabric_send *send, zipcclResult_t result) {
    struct exec_work *work = send->arg;
    struct exec_op *op = work->op;
    uint32_t peer = step_of(work)->peer;
    if (result)
        exec_op_failf(op, result, (int)peer, "%s #%llu: sending to node %u fails", op_name(op->args.op),
                      (unsigned long long)op->args.seq, peer);
    else
        op->result.wire_bytes += send->iov[0].bytes + send->iov[1].bytes;
    end_work(work, result == zipcclSuccess);
    exec_op_run(op);
}

static void post_send(struct exec_work *work, uint64_t hash, bool has_hash) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    const struct executor_config *config = &op->comm->executor->config;
    struct fabric_send *send = &work->send;
    memset(send, 0, sizeof(*send));
    send->peer = op->comm->peers[st->peer];
    send->header = (struct fabric_header){.comm = op->comm->key,
                                          .node = op->comm->node,
                                          .seq = (uint32_t)op->args.seq,
                                          .tag = st->tag,
                                          .op = (uint8_t)op->args.op,
                                          .dtype = (uint8_t)op->args.dtype,
                                          .codec = st->codec,
                                          .flags = has_hash ? HEADER_HAS_HASH : 0,
                                          .root = op->args.root,
                                          .report = op->args.report,
                                          .op_count = op->args.count,
                                          .count = st->count,
                                          .hash = hash};
    if (st->src.space == PLAN_SLOT) {
        const struct exec_slot *slot = &op->slots[st->src.index];
        send->header.static_bytes = (uint32_t)slot->static_bytes;
        send->iov[0] = (struct fabric_iov){slot->memory, slot->static_bytes};
        send->iov[1] = (struct fabric_iov){slot->dynamic, slot->dynamic_bytes};
        send->niov = slot->dynamic_bytes ? 2 : 1;
        if (send->niov == 2 && slot->memory + slot->static_bytes == slot->dynamic) {
            send->iov[0].bytes += slot->dynamic_bytes; /* received and passed on: one piece */
            send->iov[1] = (struct fabric_iov){0};
            send->niov = 1;
        }
    } else if (st->count > 0) {
        send->iov[0] = (struct fabric_iov){values(op, st->src), st->count * value_bytes(op)};
        send->niov = 1;
    }
    send->done = send_done;
    send->arg = work;
    config->fabric_ops->send(config->fabric, send);
}

static void hash_to_send_done(struct device_job *job) {
    struct exec_work *work = job->arg;
    struct exec_op *op = work->op;
    if (op->failed) {
        end_work(work, false);
        exec_op_run(op);
        return;
    }
    post_send(work, job->hash, true);
}

/* A job that reads the values and gives their hash. */
static void set_hash_job(struct exec_work *work, const void *src) {
    work->job = (struct device_job){.work = DEVICE_COPY,
                                    .src = src,
                                    .dst = (void *)(uintptr_t)src,
                                    .count = step_of(work)->count * value_bytes(work->op),
                                    .verify = true};
}

static void start_send(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    if (st->src.space == PLAN_SLOT) {
        const struct exec_slot *slot = &op->slots[st->src.index];
        post_send(work, slot->hash, slot->has_hash);
    } else if (op->comm->executor->config.verify && st->count > 0) {
        set_hash_job(work, values(op, st->src));
        if (submit(work, hash_to_send_done))
            post_send(work, work->job.hash, true);
    } else {
        post_send(work, 0, false);
    }
}

/* Compares the hash of raw values that have come. */
static void finish_recv_hash(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    bool good = work->job.result == zipcclSuccess && work->job.hash == work->expected_hash;
    if (!good)
        exec_op_failf(op, zipcclCorruptData, (int)st->peer, "%s #%llu: chunk %u of rank %u from node %u: wrong hash",
                      op_name(op->args.op), (unsigned long long)op->args.seq, st->tag, st->rank, st->peer);
    end_work(work, good);
}
JOB_DONE(recv_hash_done, finish_recv_hash)

/* A message has come; false where the step is not over yet. */
static bool finish_recv(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    const struct fabric_header header = work->recv.header;
    size_t bytes = work->recv.bytes;
    bool good = !op->failed && exec_check_message(op, st, &header, bytes);
    op->result.worst_report = trial_worst(op->result.worst_report, header.report);
    if (good && st->dst.space == PLAN_SLOT) {
        struct exec_slot *slot = &op->slots[st->dst.index];
        slot->static_bytes = header.static_bytes;
        slot->dynamic_bytes = bytes - header.static_bytes;
        slot->dynamic = slot->memory + header.static_bytes;
        slot->hash = header.hash;
        slot->has_hash = header.flags & HEADER_HAS_HASH;
    } else if (good && (header.flags & HEADER_HAS_HASH)) {
        work->expected_hash = header.hash;
        set_hash_job(work, values(op, st->dst));
        if (submit(work, recv_hash_done))
            finish_recv_hash(work);
        else
            return false;
        return true;
    }
    end_work(work, good);
    return true;
}

static void recv_done(struct fabric_recv *recv, zipcclResult_t result) {
    struct exec_work *work = recv->arg;
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    if (result == zipcclSuccess) {
        if (finish_recv(work))
            exec_op_run(op);
        return;
    }
    /* Too long: most likely another operation. */
    if (result != zipcclLimitExceeded || exec_check_message(op, st, &recv->header, recv->bytes))
        exec_op_failf(op, result == zipcclLimitExceeded ? zipcclCorruptData : result, (int)st->peer,
                      result == zipcclRemoteError ? "%s #%llu: node %u is gone (chunk %u of rank %u)"
                      : result == zipcclAborted   ? "%s #%llu: aborted while waiting for node %u (chunk %u of rank %u)"
                                                  : "%s #%llu: receiving from node %u fails (chunk %u of rank %u)",
                      op_name(op->args.op), (unsigned long long)op->args.seq, st->peer, st->tag, st->rank);
    end_work(work, false);
    exec_op_run(op);
}

static void start_recv(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    const struct executor_config *config = &op->comm->executor->config;
    struct fabric_recv *recv = &work->recv;
    memset(recv, 0, sizeof(*recv));
    if (st->dst.space == PLAN_SLOT) {
        struct exec_slot *slot = slot_to_write(op, st->dst);
        if (!slot) {
            exec_op_failf(op, zipcclOutOfMemory, -1, "no memory for coded chunks");
            end_work(work, false);
            return;
        }
        recv->buffer = slot->memory;
        recv->capacity = op->entry->slot_bytes;
    } else if (st->count > 0) {
        recv->buffer = values(op, st->dst);
        recv->capacity = st->count * value_bytes(op);
    }
    recv->peer = op->comm->peers[st->peer];
    recv->comm = op->comm->key;
    recv->node = st->peer;
    recv->seq = (uint32_t)op->args.seq;
    recv->tag = st->tag;
    recv->done = recv_done;
    recv->arg = work;
    config->fabric_ops->recv(config->fabric, recv);
}

static void start_encode(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    struct exec_slot *slot = slot_to_write(op, st->dst);
    if (!slot) {
        exec_op_failf(op, zipcclOutOfMemory, -1, "no memory for coded chunks");
        end_work(work, false);
        return;
    }
    work->job = (struct device_job){.work = DEVICE_ENCODE,
                                    .codec = (zipcclCodec_t)st->codec,
                                    .dtype = op->args.dtype,
                                    .src = values(op, st->src),
                                    .dst = slot->memory,
                                    .dst_dynamic = slot->memory + op->entry->slot_static,
                                    .count = st->count,
                                    .verify = op->comm->executor->config.verify};
    if (submit(work, encode_done))
        finish_encode(work);
}

static void start_decode(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    const struct exec_slot *slot = &op->slots[st->src.index];
    work->job = (struct device_job){.work = DEVICE_DECODE,
                                    .codec = (zipcclCodec_t)st->codec,
                                    .dtype = op->args.dtype,
                                    .flags = op->streaming ? CODEC_STREAMING : 0,
                                    .src = slot->memory,
                                    .src_static = slot->static_bytes,
                                    .src_dynamic = slot->dynamic,
                                    .src_dynamic_bytes = slot->dynamic_bytes,
                                    .dst = values(op, st->dst),
                                    .count = st->count,
                                    .verify = slot->has_hash,
                                    .hash = slot->hash};
    if (submit(work, decode_done))
        finish_decode(work);
}

static void start_copy(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = step_of(work);
    work->job = (struct device_job){.work = DEVICE_COPY,
                                    .src = values(op, st->src),
                                    .dst = values(op, st->dst),
                                    .count = st->count * value_bytes(op)};
    if (submit(work, copy_done))
        finish_copy(work);
}

void exec_step_start(struct exec_op *op, uint32_t step) {
    const struct plan_step *st = &op->plan->steps[step];
    if (st->kind == PLAN_COPY && values(op, st->src) == values(op, st->dst)) {
        exec_step_complete(op, step); /* in place, or ranks that share a buffer */
        return;
    }
    struct exec_work *work = exec_work_get(op->comm->executor);
    if (!work) {
        exec_op_failf(op, zipcclOutOfMemory, -1, "no memory for a step");
        return;
    }
    work->op = op;
    work->step = step;
    op->nactive++;
    switch ((enum plan_kind)st->kind) {
    case PLAN_ENCODE:
        start_encode(work);
        break;
    case PLAN_SEND:
        start_send(work);
        break;
    case PLAN_RECV:
        start_recv(work);
        break;
    case PLAN_DECODE:
        start_decode(work);
        break;
    case PLAN_COPY:
        start_copy(work);
        break;
    default:
        exec_op_failf(op, zipcclInternalError, -1, "unexpected step %u", step);
        end_work(work, false);
    }
}
