/* SPDX-License-Identifier: Apache-2.0
 *
 * Transfers between ranks of one node: a send waits here for its receive, or the other way round; the pair is one copy.
 * The two may belong to one exchange (a rank that sends to itself) or to two.
 */
#include <stddef.h>

#include "daemon/core/executor_impl.h"
#include "daemon/core/report.h"
#include "kernels/dtype.h"

struct pair {
    struct exec_work *send, *recv;
};

static bool is_send(const struct exec_work *work) {
    return exec_step_of(work)->kind == PLAN_SEND;
}

static bool is_other_side(const struct exec_work *a, const struct exec_work *b) {
    const struct exec_item *x = exec_item_of(a), *y = exec_item_of(b);
    return is_send(a) != is_send(b) && x->channel == y->channel && x->seq == y->seq &&
           exec_step_of(a)->tag == exec_step_of(b)->tag;
}

/* Groups of thousands wait here at once. Both sides of a transfer have one bucket. */
static struct exec_work **bucket_of(struct exec_comm *comm, const struct exec_work *work) {
    const struct exec_item *item = exec_item_of(work);
    uint64_t h = ((uint64_t)item->channel << 32 | item->seq) * 0x9e3779b97f4a7c15u;
    return &comm->local[(h >> 32) % EXEC_BUCKETS];
}

static struct exec_work *take_other(struct exec_comm *comm, const struct exec_work *work) {
    for (struct exec_work **p = bucket_of(comm, work); *p; p = &(*p)->next) {
        struct exec_work *other = *p;
        if (is_other_side(work, other)) {
            *p = other->next;
            comm->nlocal_waiting--;
            return other;
        }
    }
    return NULL;
}

/* Ends both sides. The receive's work holds the job, and the send's work is its argument. */
static void finish_pair(struct exec_work *recv) {
    struct exec_work *send = recv->job.arg;
    struct exec_op *from = send->op, *to = recv->op;
    zipcclResult_t result = recv->job.result;
    char name[64];
    if (result) {
        exec_op_failf(to, result, -1, "%s: copy from rank %u fails%s%s", exec_step_name(recv, name),
                      exec_item_of(recv)->peer, exec_why_mark(&recv->job), exec_why(&recv->job));
        exec_op_failf(from, result, -1, "%s: copy to rank %u fails%s%s", exec_step_name(send, name),
                      exec_item_of(send)->peer, exec_why_mark(&recv->job), exec_why(&recv->job));
    }
    exec_work_end(send, result == zipcclSuccess);
    exec_work_end(recv, result == zipcclSuccess);
}

static void pair_done(struct device_job *job) {
    struct exec_work *recv = (struct exec_work *)((char *)job - offsetof(struct exec_work, job));
    struct exec_work *send = job->arg;
    struct exec_op *from = send->op, *to = recv->op;
    finish_pair(recv);
    if (from != to) {
        to->running = true; /* the end of one may fail the other: it must not end twice */
        exec_op_run(from);
        to->running = false;
    }
    exec_op_run(to);
}

static void copy_pair(struct pair pair) {
    struct exec_op *to = pair.recv->op;
    const struct plan_step *st = exec_step_of(pair.recv);
    const struct executor_config *config = &to->comm->executor->config;
    size_t bytes = exec_count(to, st) * exec_item_of(pair.recv)->value_bytes;
    const uint8_t *src = bytes ? exec_values(pair.send->op, exec_step_of(pair.send)->src) : NULL;
    uint8_t *dst = bytes ? exec_values(to, st->dst) : NULL;
    pair.recv->job = (struct device_job){
        .work = DEVICE_COPY, .src = src, .dst = dst, .count = bytes, .done = pair_done, .arg = pair.send};
    if (src == dst || config->device_ops->submit(config->device, &pair.recv->job))
        finish_pair(pair.recv);
}

void exec_local_start(struct exec_work *work) {
    struct exec_comm *comm = work->op->comm;
    struct exec_work *other = take_other(comm, work);
    if (!other) {
        struct exec_work **bucket = bucket_of(comm, work);
        work->next = *bucket;
        *bucket = work;
        comm->nlocal_waiting++;
        return;
    }
    struct pair pair = is_send(work) ? (struct pair){work, other} : (struct pair){other, work};
    struct exec_op *mine = work->op, *theirs = other->op;
    struct fabric_header header = exec_header(pair.send->op, exec_step_of(pair.send));
    size_t bytes = exec_count(pair.send->op, exec_step_of(pair.send)) * exec_item_of(pair.send)->value_bytes;
    uint32_t back = exec_header(pair.recv->op, exec_step_of(pair.recv)).report;
    uint32_t worst = report_combine(header.report, back);
    mine->result.worst_report = report_combine(mine->result.worst_report, worst);
    theirs->result.worst_report = report_combine(theirs->result.worst_report, worst);
    if (exec_check_message(pair.recv->op, exec_step_of(pair.recv), &header, bytes)) {
        exec_capped_received(pair.recv->op, exec_step_of(pair.recv), &header);
        copy_pair(pair);
    } else {
        exec_op_failf(pair.send->op, zipcclInvalidArgument, (int)comm->node, "%s", pair.recv->op->text);
        exec_work_end(pair.send, false);
        exec_work_end(pair.recv, false);
    }
    /* This one runs on by its caller. */
    if (theirs != mine)
        exec_op_run(theirs);
}

void exec_local_drop(struct exec_op *op) {
    struct exec_comm *comm = op->comm;
    for (uint32_t i = 0; i < EXEC_BUCKETS && comm->nlocal_waiting > 0; i++) {
        for (struct exec_work **p = &comm->local[i]; *p;) {
            struct exec_work *work = *p;
            if (work->op != op) {
                p = &work->next;
                continue;
            }
            *p = work->next;
            comm->nlocal_waiting--;
            exec_work_end(work, false);
        }
    }
}
