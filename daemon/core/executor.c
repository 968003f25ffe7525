/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor's frame: communicators and the life of an operation.
 *
 * A repeated operation allocates nothing: its plan and its exec_op come from the communicator's cache, the contexts of
 * its steps and its slots from pools.
 */
#include "daemon/core/executor_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

zipcclResult_t executor_new(const struct executor_config *config, struct executor **executor) {
    *executor = NULL;
    if (config->window == 0 || config->chunk_bytes == 0)
        return zipcclInvalidArgument;
    struct executor *e = calloc(1, sizeof(*e));
    if (!e)
        return zipcclOutOfMemory;
    e->config = *config;
    *executor = e;
    return zipcclSuccess;
}

void executor_free(struct executor *e) {
    if (!e)
        return;
    exec_probe_free_all(e);
    while (e->slabs) {
        struct exec_slab *slab = e->slabs;
        e->slabs = slab->next;
        free(slab);
    }
    free(e);
}

struct exec_work *exec_work_get(struct executor *e) {
    if (!e->idle) {
        struct exec_slab *slab = calloc(1, sizeof(*slab));
        if (!slab)
            return NULL;
        slab->next = e->slabs;
        e->slabs = slab;
        for (size_t i = sizeof(slab->work) / sizeof(slab->work[0]); i-- > 0;)
            exec_work_put(e, &slab->work[i]);
    }
    struct exec_work *work = e->idle;
    e->idle = work->next;
    return work;
}

void exec_work_put(struct executor *e, struct exec_work *work) {
    work->op = NULL; /* exec_op_where tells by it what is under way */
    work->next = e->idle;
    e->idle = work;
}

zipcclResult_t exec_comm_new(struct executor *executor, uint64_t key, uint32_t node,
                             const struct plan_topology *topology, struct fabric_peer *const *peers,
                             uint64_t chunk_bytes, const uint8_t *gpus, uint32_t split, struct exec_comm **comm) {
    *comm = NULL;
    if (topology->nnodes == 0 || node >= topology->nnodes ||
        (topology->nnodes > 1 && (!executor->config.fabric_ops || !peers)))
        return zipcclInvalidArgument;
    struct exec_comm *c = calloc(1, sizeof(*c));
    if (!c)
        return zipcclOutOfMemory;
    c->executor = executor;
    c->key = key;
    c->node = node;
    c->chunk_bytes = chunk_bytes ? chunk_bytes : executor->config.chunk_bytes;
    c->rank_node = calloc(topology->nranks, sizeof(*c->rank_node));
    c->peers = calloc(topology->nnodes, sizeof(struct fabric_peer *));
    c->local_rank = calloc(topology->nranks, sizeof(*c->local_rank));
    c->rank_gpu = malloc(topology->nranks * sizeof(*c->rank_gpu));
    if (!c->rank_node || !c->peers || !c->local_rank || !c->rank_gpu) {
        exec_comm_free(c);
        return zipcclOutOfMemory;
    }
    for (uint32_t i = 0; i < topology->nranks; i++) {
        c->rank_node[i] = topology->rank_node[i];
        c->rank_gpu[i] = -1;
        if (topology->rank_node[i] == node)
            c->local_rank[c->nlocal++] = i;
    }
    for (uint32_t i = 0; peers && i < topology->nnodes; i++)
        c->peers[i] = peers[i];
    c->topology = (struct plan_topology){topology->nranks, topology->nnodes, c->rank_node};
    const struct fabric_ops *fabric = topology->nnodes > 1 ? executor->config.fabric_ops : NULL;
    struct fabric_join join = {.comm = key,
                               .node = node,
                               .nnodes = topology->nnodes,
                               .peers = peers,
                               .splits = split & EXEC_SPLITS,
                               .split = split & EXEC_SPLIT,
                               .nranks = topology->nranks,
                               .rank_node = c->rank_node,
                               .rank_gpus = gpus};
    for (uint32_t i = 0; gpus && i < c->nlocal; i++)
        join.gpus |= gpus[i] < 32 ? 1u << gpus[i] : 0;
    bool all = gpus != NULL;
    for (uint32_t i = 0; all && i < c->nlocal; i++)
        all = gpus[i] != EXEC_NO_GPU;
    /* Another node may not want it, or not be able to: then the fabric says so, on all nodes. */
    c->native = all && fabric && fabric->collective && executor->config.native && !executor->config.verify;
    join.native = c->native;
    zipcclResult_t result = fabric && fabric->join ? fabric->join(executor->config.fabric, &join) : zipcclSuccess;
    if (result) {
        exec_comm_free(c);
        return result;
    }
    *comm = c;
    return zipcclSuccess;
}

void exec_comm_set_flow(struct exec_comm *c, struct fabric_flow *link, struct device_flow *workers) {
    c->link = link;
    c->workers = workers;
}

void exec_comm_free(struct exec_comm *comm) {
    if (!comm)
        return;
    struct executor *e = comm->executor;
    if (comm->probe)
        exec_probe_orphan(comm);
    if (e->config.fabric_ops && comm->topology.nnodes > 1)
        e->config.fabric_ops->forget(e->config.fabric, comm->key);
    exec_cache_free(comm);
    free(comm->rank_node);
    free(comm->local_rank);
    free(comm->rank_gpu);
    free(comm->peers);
    free(comm);
}

zipcclResult_t exec_op_start(struct exec_comm *comm, const struct exec_args *args, struct exec_op **out) {
    struct exec_op *op;
    zipcclResult_t result = exec_cache_get(comm, args, &op);
    *out = NULL;
    if (result)
        return result;
    op->ndone = op->nactive = 0;
    op->ready_head = op->ready_tail = EXEC_NO_STEP;
    op->running = op->failed = false;
    op->narrived = 0;
    op->result = (struct exec_result){
        .failed_node = -1, .text = op->text, .raw_bytes = op->plan->raw_send_bytes, .worst_report = args->report};
    op->text[0] = '\0';
    for (uint32_t i = 0; i < op->plan->nsteps; i++)
        op->waiting[i] = op->plan->steps[i].ndeps;
    op->native = exec_native_choose(op);
    exec_place_start(op);
    *out = op;
    return zipcclSuccess;
}

/* Gives the operation back before done runs, so that done may start the next one or free the communicator. */
static void finish(struct exec_op *op) {
    struct exec_result result = op->result;
    char text[EXEC_TEXT_BYTES];
    memcpy(text, op->text, sizeof(text));
    result.text = text;
    void (*done)(void *, const struct exec_result *) = op->args.done;
    void *arg = op->args.arg;
    for (uint32_t i = 0; i < op->plan->nslots; i++) {
        exec_place_free(op->comm, &op->slots[i].memory, op->entry->slot_bytes);
        op->slots[i] = (struct exec_slot){0};
    }
    for (uint32_t i = 0; i < op->plan->nvalues; i++)
        exec_place_free(op->comm, &op->scratch[i], op->entry->value_bytes);
    exec_cache_put(op);
    done(arg, &result);
}

void exec_op_run(struct exec_op *op) {
    if (op->running)
        return;
    op->running = true;
    while (op->ready_head != EXEC_NO_STEP && !op->failed) {
        uint32_t step = op->ready_head;
        op->ready_head = op->ready_next[step];
        if (op->ready_head == EXEC_NO_STEP)
            op->ready_tail = EXEC_NO_STEP;
        exec_step_start(op, step);
    }
    op->running = false;
    if (op->nactive == 0 && (op->failed || op->ndone == op->plan->nsteps))
        finish(op);
}

void exec_op_arrive(struct exec_op *op, uint32_t local, const struct exec_buffers *buffers) {
    /* Arrivals are the plan's first steps. */
    if (local >= op->plan->nlocal || op->failed)
        return;
    uint32_t n = op->entry->nops ? op->entry->nops : op->entry->nbuffers;
    for (uint32_t i = 0; i < n; i++)
        op->buffers[i * op->plan->nlocal + local] = buffers[i];
    exec_place_arrive(op, local, buffers, n);
    if (op->native)
        exec_native_arrive(op);
    else if (exec_capped_arrive(op))
        exec_step_complete(op, local);
    exec_op_run(op);
}

void exec_op_failf(struct exec_op *op, zipcclResult_t result, int node, const char *format, ...) {
    if (op->failed)
        return;
    op->failed = true;
    op->result.result = result;
    op->result.failed_node = node;
    va_list ap;
    va_start(ap, format);
    vsnprintf(op->text, sizeof(op->text), format, ap);
    va_end(ap);
    exec_local_drop(op);
    exec_comm_abort(op->comm);
}

const struct exec_result *exec_op_failing(const struct exec_op *op) {
    return op->failed && op->result.result != zipcclSuccess ? &op->result : NULL;
}

const char *exec_comm_why(const struct exec_comm *comm) {
    const struct executor_config *config = &comm->executor->config;
    const struct fabric_ops *fabric = comm->topology.nnodes > 1 ? config->fabric_ops : NULL;
    return fabric && fabric->why ? fabric->why(config->fabric, comm->key) : NULL;
}

void exec_comm_abort(struct exec_comm *comm) {
    if (comm->topology.nnodes < 2 || comm->aborted)
        return;
    comm->aborted = true;
    comm->executor->config.fabric_ops->abort(comm->executor->config.fabric, comm->key);
}

void exec_op_fail(struct exec_op *op, zipcclResult_t result, const char *text) {
    exec_op_failf(op, result, -1, "%s", text ? text : "");
    exec_op_run(op);
}
