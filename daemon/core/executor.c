/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor's frame: communicators, their cache of plans, and the life of an operation.
 *
 * A repeated operation allocates nothing: its plan and its exec_op come from the communicator's cache, the contexts of
 * its steps and its slots from pools.
 */
#include "daemon/core/executor_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"

#define MAX_ENTRIES     8u
#define MAX_SPARE       2u
#define STREAMING_BYTES (16u << 20) /* received: more than caches hold */

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
    work->next = e->idle;
    e->idle = work;
}

zipcclResult_t exec_comm_new(struct executor *executor, uint64_t key, uint32_t node,
                             const struct plan_topology *topology, struct fabric_peer *const *peers,
                             uint64_t chunk_bytes, struct exec_comm **comm) {
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
    if (!c->rank_node || !c->peers) {
        exec_comm_free(c);
        return zipcclOutOfMemory;
    }
    for (uint32_t i = 0; i < topology->nranks; i++) {
        c->rank_node[i] = topology->rank_node[i];
        c->nlocal += topology->rank_node[i] == node;
    }
    for (uint32_t i = 0; peers && i < topology->nnodes; i++)
        c->peers[i] = peers[i];
    c->topology = (struct plan_topology){topology->nranks, topology->nnodes, c->rank_node};
    *comm = c;
    return zipcclSuccess;
}

static void free_entry(struct exec_entry *entry) {
    while (entry->spare) {
        struct exec_op *op = entry->spare;
        entry->spare = op->next;
        free(op);
    }
    plan_free(entry->plan);
    free(entry);
}

void exec_comm_free(struct exec_comm *comm) {
    if (!comm)
        return;
    struct executor *e = comm->executor;
    if (comm->probe)
        exec_probe_orphan(comm);
    if (e->config.fabric_ops && comm->topology.nnodes > 1)
        e->config.fabric_ops->forget(e->config.fabric, comm->key);
    while (comm->entries) {
        struct exec_entry *entry = comm->entries;
        comm->entries = entry->next;
        free_entry(entry);
    }
    free(comm->rank_node);
    free(comm->peers);
    free(comm);
}

/* Drops the entry that was not used for the longest time, if there are too many. */
static void evict(struct exec_comm *comm) {
    struct exec_entry **last = NULL;
    for (struct exec_entry **p = &comm->entries; *p; p = &(*p)->next) {
        if ((*p)->users == 0)
            last = p;
    }
    if (comm->nentries < MAX_ENTRIES || !last)
        return;
    struct exec_entry *entry = *last;
    *last = entry->next;
    comm->nentries--;
    free_entry(entry);
}

static zipcclResult_t new_entry(struct exec_comm *comm, const struct exec_args *args, struct exec_entry **out) {
    struct exec_entry *entry = calloc(1, sizeof(*entry));
    if (!entry)
        return zipcclOutOfMemory;
    entry->op = args->op;
    entry->dtype = args->dtype;
    entry->codec = args->codec;
    entry->count = args->count;
    entry->root = args->root;
    struct plan_op po = {
        .op = args->op, .dtype = args->dtype, .codec = args->codec, .count = args->count, .root = args->root};
    struct plan_args pa = {.ops = &po,
                           .nops = 1,
                           .node = comm->node,
                           .topology = &comm->topology,
                           .chunk_bytes = comm->chunk_bytes,
                           .window = comm->executor->config.window};
    zipcclResult_t result = plan_build(&pa, &entry->plan);
    if (!result && entry->plan->nslots > 0) {
        struct codec_sizes bound = codec_bound(args->codec, args->dtype, entry->plan->items[0].slot_count);
        entry->slot_static = bound.static_bytes;
        entry->slot_bytes = bound.static_bytes + bound.dynamic_bytes;
        if (entry->slot_bytes == 0)
            result = zipcclInvalidArgument; /* the codec does not support the dtype */
    }
    if (result) {
        free_entry(entry);
        return result;
    }
    evict(comm);
    entry->next = comm->entries;
    comm->entries = entry;
    comm->nentries++;
    *out = entry;
    return zipcclSuccess;
}

static zipcclResult_t get_entry(struct exec_comm *comm, const struct exec_args *args, struct exec_entry **out) {
    for (struct exec_entry **p = &comm->entries; *p; p = &(*p)->next) {
        struct exec_entry *e = *p;
        if (e->op == args->op && e->dtype == args->dtype && e->codec == args->codec && e->count == args->count &&
            e->root == args->root) {
            *p = e->next;
            e->next = comm->entries;
            comm->entries = e;
            *out = e;
            return zipcclSuccess;
        }
    }
    return new_entry(comm, args, out);
}

static struct exec_op *get_op(struct exec_comm *comm, struct exec_entry *entry) {
    struct exec_op *op = entry->spare;
    if (op) {
        entry->spare = op->next;
        entry->nspare--;
        return op;
    }
    size_t nsteps = entry->plan->nsteps, nslots = entry->plan->nslots, nlocal = comm->nlocal;
    size_t pointers = nlocal * 2 * sizeof(void *), slots = nslots * sizeof(struct exec_slot);
    op = calloc(1, sizeof(*op) + pointers + slots + nsteps * 2 * sizeof(uint32_t));
    if (!op)
        return NULL;
    uint8_t *at = (uint8_t *)(op + 1);
    op->send = (const void **)(void *)at;
    op->recv = (void **)(void *)at + nlocal;
    op->slots = (struct exec_slot *)(void *)(at + pointers);
    op->waiting = (uint32_t *)(void *)(at + pointers + slots);
    op->ready_next = op->waiting + nsteps;
    return op;
}

zipcclResult_t exec_op_start(struct exec_comm *comm, const struct exec_args *args, struct exec_op **out) {
    struct exec_args a = *args;
    struct exec_entry *entry = NULL;
    *out = NULL;
    if (a.op != zipcclOpBroadcast)
        a.root = 0;
    if (a.op == zipcclOpBarrier) {
        a.count = 0;
        a.dtype = zipcclUint8;
    }
    if (a.count == 0 || comm->topology.nnodes == 1)
        a.codec = zipcclCodecRaw;
    zipcclResult_t result = get_entry(comm, &a, &entry);
    if (result)
        return result;
    struct exec_op *op = get_op(comm, entry);
    if (!op)
        return zipcclOutOfMemory;
    entry->users++;
    op->comm = comm;
    op->entry = entry;
    op->plan = entry->plan;
    op->args = a;
    op->ndone = op->nactive = 0;
    op->ready_head = op->ready_tail = EXEC_NO_STEP;
    op->running = op->failed = false;
    const struct dtype_info *dtype = dtype_get(a.dtype);
    op->streaming = comm->nlocal == 1 && /* else copies read the values again at once */
                    a.count * dtype->bytes * (a.op == zipcclOpAllGather ? comm->topology.nranks : 1) >= STREAMING_BYTES;
    op->result = (struct exec_result){
        .failed_node = -1, .text = op->text, .raw_bytes = entry->plan->raw_send_bytes, .worst_report = args->report};
    op->text[0] = '\0';
    for (uint32_t i = 0; i < op->plan->nsteps; i++)
        op->waiting[i] = op->plan->steps[i].ndeps;
    *out = op;
    return zipcclSuccess;
}

/* Gives the operation back before done runs, so that done may start the next one or free the communicator. */
static void finish(struct exec_op *op) {
    struct exec_comm *comm = op->comm;
    struct exec_entry *entry = op->entry;
    const struct executor_config *config = &comm->executor->config;
    struct exec_result result = op->result;
    char text[EXEC_TEXT_BYTES];
    memcpy(text, op->text, sizeof(text));
    result.text = text;
    void (*done)(void *, const struct exec_result *) = op->args.done;
    void *arg = op->args.arg;
    for (uint32_t i = 0; i < op->plan->nslots; i++) {
        if (op->slots[i].memory)
            config->device_ops->free(config->device, op->slots[i].memory, entry->slot_bytes);
        op->slots[i] = (struct exec_slot){0};
    }
    entry->users--;
    if (entry->nspare < MAX_SPARE) {
        op->next = entry->spare;
        entry->spare = op;
        entry->nspare++;
    } else {
        free(op);
    }
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

void exec_op_arrive(struct exec_op *op, uint32_t local, const void *send, void *recv) {
    /* Arrivals are the plan's first steps. */
    if (local >= op->comm->nlocal || op->plan->steps[local].kind != PLAN_ARRIVE || op->failed)
        return;
    op->send[local] = send;
    op->recv[local] = recv;
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
    struct exec_comm *comm = op->comm;
    if (comm->topology.nnodes > 1 && !comm->aborted) {
        comm->aborted = true;
        comm->executor->config.fabric_ops->abort(comm->executor->config.fabric, comm->key);
    }
}

void exec_op_fail(struct exec_op *op, zipcclResult_t result, const char *text) {
    exec_op_failf(op, result, -1, "%s", text ? text : "");
    exec_op_run(op);
}
