/* SPDX-License-Identifier: Apache-2.0
 *
 * How sends and receives start and end.
 *
 * Coded chunks lie in scratch, which the fabric can use. Values where the fabric cannot get them, as in a GPU's memory,
 * pass through a piece of scratch of their own (a bounce): copied there before they are sent, and from there when they
 * have come.
 */
#include "daemon/core/executor_impl.h"

#include <string.h>

#include "daemon/core/report.h"

#define HEADER_HAS_HASH 1u

/* What the fabric knows of a failure, as the end of a text. */
static const char *reason(const struct exec_op *op, const char **colon) {
    const char *why = exec_comm_why(op->comm);
    *colon = why ? ": " : "";
    return why ? why : "";
}

static void send_done(struct fabric_send *send, zipcclResult_t result) {
    struct exec_work *work = send->arg;
    struct exec_op *op = work->op;
    uint32_t peer = exec_step_of(work)->peer;
    const char *colon, *why = result ? reason(op, &colon) : "";
    char name[64];
    if (result)
        exec_op_failf(op, result, *why ? -1 : (int)peer, "%s: sending to node %u fails%s%s", exec_step_name(work, name),
                      peer, colon, why);
    else
        op->result.wire_bytes += send->iov[0].bytes + send->iov[1].bytes;
    exec_work_end(work, result == zipcclSuccess);
    exec_op_run(op);
}

/* The bytes of a coded slot that this message carries. */
static void point_to_slot(struct fabric_send *send, const struct exec_slot *slot, enum plan_part part) {
    struct fabric_iov first = {slot->memory.base, slot->static_bytes}, second = {slot->dynamic, slot->dynamic_bytes};
    if (part != PLAN_DYNAMIC) {
        send->header.static_bytes = (uint32_t)slot->static_bytes;
        send->iov[send->niov++] = first;
    }
    if (part == PLAN_STATIC || slot->dynamic_bytes == 0)
        return;
    if (send->niov == 1 && slot->memory.base + slot->static_bytes == slot->dynamic)
        send->iov[0].bytes += slot->dynamic_bytes; /* received and passed on: one piece */
    else
        send->iov[send->niov++] = second;
}

static void post_send(struct exec_work *work, uint64_t hash, bool has_hash) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    const struct executor_config *config = &op->comm->executor->config;
    struct fabric_send *send = &work->send;
    uint64_t count = exec_count(op, st);
    memset(send, 0, sizeof(*send));
    send->peer = op->comm->peers[st->peer];
    send->flow = op->comm->link;
    send->header = exec_header(op, st);
    send->header.flags |= has_hash ? HEADER_HAS_HASH : 0;
    send->header.hash = hash;
    if (st->src.space == PLAN_SLOT && count > 0) {
        point_to_slot(send, &op->slots[st->src.index], (enum plan_part)st->part);
    } else if (count > 0) {
        const void *values = work->bounce ? work->bounce : exec_values(op, st->src);
        send->iov[0] = (struct fabric_iov){values, count * exec_item_of(work)->value_bytes};
        send->niov = 1;
    }
    send->done = send_done;
    send->arg = work;
    config->fabric_ops->send(config->fabric, send);
}

/* Values are hashed, or in the bounce, or both. */
static void finish_to_send(struct exec_work *work) {
    struct exec_op *op = work->op;
    struct device_job *job = &work->job;
    char name[64];
    if (job->result)
        exec_op_failf(op, job->result, -1, "%s: values for node %u cannot be read%s%s", exec_step_name(work, name),
                      exec_step_of(work)->peer, exec_why_mark(job), exec_why(job));
    if (op->failed)
        exec_work_end(work, false);
    else
        post_send(work, job->hash, job->verify);
}
EXEC_JOB_DONE(to_send_done, finish_to_send)

static bool is_on_gpu(const struct exec_op *op, const void *memory) {
    const struct executor_config *config = &op->comm->executor->config;
    return config->device_ops->on_gpu && config->device_ops->on_gpu(config->device, memory);
}

/* Whether values have to pass through a bounce: the fabric does not take them from where they lie, or they lie in a
 * GPU's memory and are hashed. */
static bool needs_bounce(const struct exec_op *op, const void *values) {
    const struct executor_config *config = &op->comm->executor->config;
    bool on_gpu = is_on_gpu(op, values);
    if (!config->fabric_ops->takes || (on_gpu && config->verify))
        return on_gpu;
    return !config->fabric_ops->takes(config->fabric, op->comm->key, values);
}

/* False, with the operation failed: no memory. */
static bool take_bounce(struct exec_work *work, size_t bytes) {
    const struct executor_config *config = &work->op->comm->executor->config;
    work->bounce = config->device_ops->alloc(config->device, bytes);
    work->bounce_bytes = bytes;
    if (!work->bounce)
        exec_op_failf(work->op, zipcclOutOfMemory, -1, "no memory for values on their way to or from a GPU");
    return work->bounce != NULL;
}

/* A job that reads the values and gives their hash. */
static void set_hash_job(struct exec_work *work, const void *src) {
    work->job = (struct device_job){.work = DEVICE_COPY,
                                    .src = src,
                                    .dst = (void *)(uintptr_t)src,
                                    .count = exec_count(work->op, exec_step_of(work)) * exec_item_of(work)->value_bytes,
                                    .verify = true};
}

static void send_values(struct exec_work *work, const uint8_t *values) {
    struct exec_op *op = work->op;
    bool verify = op->comm->executor->config.verify;
    size_t bytes = exec_count(op, exec_step_of(work)) * exec_item_of(work)->value_bytes;
    if (needs_bounce(op, values)) {
        if (!take_bounce(work, bytes)) {
            exec_work_end(work, false);
            return;
        }
        work->job = (struct device_job){
            .work = DEVICE_COPY, .src = values, .dst = work->bounce, .count = bytes, .verify = verify};
    } else if (verify && !op->failed) {
        set_hash_job(work, values);
    } else {
        post_send(work, 0, false);
        return;
    }
    if (exec_work_submit(work, to_send_done))
        finish_to_send(work);
}

void exec_send_start(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    if (st->peer == op->comm->node) {
        exec_local_start(work);
    } else if (exec_count(op, st) == 0) {
        post_send(work, 0, false);
    } else if (st->src.space == PLAN_SLOT) {
        const struct exec_slot *slot = &op->slots[st->src.index];
        post_send(work, slot->hash, slot->has_hash);
    } else {
        send_values(work, exec_values(op, st->src));
    }
}

/* Raw values have come, and are where they belong; compares their hash, where there is one. */
static void finish_recv_values(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    const struct device_job *job = &work->job;
    bool good = job->result == zipcclSuccess && (!job->verify || job->hash == work->expected_hash);
    char name[64];
    if (job->result)
        exec_op_failf(op, job->result, -1, "%s: values from node %u cannot be written%s%s", exec_step_name(work, name),
                      st->peer, exec_why_mark(job), exec_why(job));
    else if (!good)
        exec_op_failf(op, zipcclCorruptData, (int)st->peer, "%s: chunk %u of rank %u from node %u: wrong hash",
                      exec_step_name(work, name), st->tag, st->rank, st->peer);
    exec_work_end(work, good);
}
EXEC_JOB_DONE(recv_values_done, finish_recv_values)

/* Raw values whose hash is to be checked have come to a GPU's memory: the processor has a look at a copy. False: the
 * step is not over yet. */
static bool check_on_gpu(struct exec_work *work, size_t bytes) {
    if (!take_bounce(work, bytes)) {
        exec_work_end(work, false);
        return true;
    }
    work->job = (struct device_job){.work = DEVICE_COPY,
                                    .src = exec_values(work->op, exec_step_of(work)->dst),
                                    .dst = work->bounce,
                                    .count = bytes,
                                    .verify = true};
    if (!exec_work_submit(work, recv_values_done))
        return false;
    finish_recv_values(work);
    return true;
}

/* A coded chunk that is to be checked lies where the processor reads it now. */
static void finish_move(struct exec_work *work) {
    struct exec_op *op = work->op;
    struct exec_slot *slot = &op->slots[exec_step_of(work)->dst.index];
    const struct device_job *job = &work->job;
    char name[64];
    if (job->result) {
        exec_op_failf(op, job->result, -1, "%s: a chunk of node %u cannot be read%s%s", exec_step_name(work, name),
                      exec_step_of(work)->peer, exec_why_mark(job), exec_why(job));
    } else {
        slot->dynamic = work->bounce + (slot->dynamic - slot->memory.base);
        exec_place_free(op->comm, &slot->memory, op->entry->slot_bytes);
        slot->memory.base = work->bounce;
        work->bounce = NULL;
    }
    exec_work_end(work, job->result == zipcclSuccess);
}
EXEC_JOB_DONE(move_done, finish_move)

/* The sender verifies and this node does not: where the chunk came to a GPU's memory, it goes on to the host's. False:
 * the step is not over yet. */
static bool move_slot(struct exec_work *work, size_t bytes) {
    const struct exec_slot *slot = &work->op->slots[exec_step_of(work)->dst.index];
    if (!take_bounce(work, work->op->entry->slot_bytes)) {
        exec_work_end(work, false);
        return true;
    }
    work->job = (struct device_job){.work = DEVICE_COPY, .src = slot->memory.base, .dst = work->bounce, .count = bytes};
    if (!exec_work_submit(work, move_done))
        return false;
    finish_move(work);
    return true;
}

/* Notes what a coded slot now holds. */
static void fill_slot(struct exec_op *op, const struct plan_step *st, const struct fabric_header *header,
                      size_t bytes) {
    struct exec_slot *slot = &op->slots[st->dst.index];
    if (st->part == PLAN_DYNAMIC) {
        slot->dynamic_bytes = bytes;
        slot->dynamic = slot->memory.base + op->entry->slot_static[st->item];
        return;
    }
    slot->static_bytes = header->static_bytes;
    slot->dynamic_bytes = bytes - header->static_bytes;
    slot->dynamic = slot->memory.base + header->static_bytes;
    slot->hash = header->hash;
    slot->has_hash = header->flags & HEADER_HAS_HASH;
}

/* A message has come; false where the step is not over yet. */
static bool finish_recv(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    const struct fabric_header header = work->recv.header;
    size_t bytes = work->recv.bytes;
    bool good = !op->failed && exec_check_message(op, st, &header, bytes);
    if (good)
        exec_capped_received(op, st, &header);
    bool values = good && exec_count(op, st) > 0;
    op->result.worst_report = report_combine(op->result.worst_report, header.report);
    if (values && st->dst.space == PLAN_SLOT) {
        const struct exec_slot *slot = &op->slots[st->dst.index];
        fill_slot(op, st, &header, bytes);
        if (st->part != PLAN_DYNAMIC && slot->has_hash && is_on_gpu(op, slot->memory.base))
            return move_slot(work, bytes);
    } else if (values && (work->bounce || (header.flags & HEADER_HAS_HASH))) {
        work->expected_hash = header.hash;
        if (work->bounce)
            work->job = (struct device_job){.work = DEVICE_COPY,
                                            .src = work->bounce,
                                            .dst = exec_values(op, st->dst),
                                            .count = bytes,
                                            .verify = header.flags & HEADER_HAS_HASH};
        else if (is_on_gpu(op, exec_values(op, st->dst))) /* the sender verifies, and this node does not */
            return check_on_gpu(work, bytes);
        else
            set_hash_job(work, exec_values(op, st->dst));
        if (exec_work_submit(work, recv_values_done))
            finish_recv_values(work);
        else
            return false;
        return true;
    }
    exec_work_end(work, good);
    return true;
}

static void recv_done(struct fabric_recv *recv, zipcclResult_t result) {
    struct exec_work *work = recv->arg;
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    const char *colon, *why;
    char name[64];
    if (result == zipcclSuccess) {
        if (finish_recv(work))
            exec_op_run(op);
        return;
    }
    why = reason(op, &colon);
    /* Too long: most likely another operation. */
    if (result != zipcclLimitExceeded || exec_check_message(op, st, &recv->header, recv->bytes))
        exec_op_failf(op, result == zipcclLimitExceeded ? zipcclCorruptData : result, *why ? -1 : (int)st->peer,
                      result == zipcclRemoteError ? "%s: node %u is gone (chunk %u of rank %u)%s%s"
                      : result == zipcclAborted   ? "%s: aborted while waiting for node %u (chunk %u of rank %u)%s%s"
                                                  : "%s: receiving from node %u fails (chunk %u of rank %u)%s%s",
                      exec_step_name(work, name), st->peer, st->tag, st->rank, colon, why);
    exec_work_end(work, false);
    exec_op_run(op);
}

/* Where the message goes; false, with the operation failed: no memory. */
static bool set_target(struct exec_work *work, struct fabric_recv *recv) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    size_t slot_static = op->entry->slot_static[st->item];
    if (st->dst.space == PLAN_SLOT) {
        struct exec_slot *slot = st->part == PLAN_DYNAMIC ? &op->slots[st->dst.index] : exec_slot_to_write(op, st);
        if (!slot)
            return false;
        recv->buffer = slot->memory.base;
        recv->capacity = op->entry->slot_bytes;
        if (st->part == PLAN_STATIC)
            recv->capacity = slot_static;
        if (st->part == PLAN_DYNAMIC) {
            recv->buffer = slot->memory.base + slot_static;
            recv->capacity = op->entry->slot_bytes - slot_static;
        }
    } else if (st->count > 0) {
        recv->buffer = exec_values_to_write(op, st);
        recv->capacity = st->count * op->items[st->item].value_bytes;
        if (!op->failed && needs_bounce(op, recv->buffer)) {
            if (!take_bounce(work, recv->capacity))
                return false;
            recv->buffer = work->bounce;
        }
    }
    return !op->failed;
}

void exec_recv_start(struct exec_work *work) {
    struct exec_op *op = work->op;
    const struct plan_step *st = exec_step_of(work);
    const struct exec_item *item = exec_item_of(work);
    const struct executor_config *config = &op->comm->executor->config;
    struct fabric_recv *recv = &work->recv;
    if (st->peer == op->comm->node) {
        exec_local_start(work);
        return;
    }
    memset(recv, 0, sizeof(*recv));
    if (!set_target(work, recv)) {
        exec_work_end(work, false);
        return;
    }
    recv->peer = op->comm->peers[st->peer];
    recv->comm = op->comm->key;
    recv->node = st->peer;
    recv->channel = item->channel;
    recv->seq = item->seq;
    recv->tag = st->tag;
    recv->done = recv_done;
    recv->arg = work;
    config->fabric_ops->recv(config->fabric, recv);
}
