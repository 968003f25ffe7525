/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of a communicator: plans by what they were made for, and operations with memory for their steps, so that a
 * repeated operation allocates nothing.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/core/executor_impl.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define MAX_ENTRIES     16u
#define MAX_SPARE       2u
#define STREAMING_BYTES ((uint64_t)16 << 20) /* received: more than caches hold */

static void free_entry(struct exec_entry *entry) {
    while (entry->spare) {
        struct exec_op *op = entry->spare;
        entry->spare = op->next;
        free(op);
    }
    plan_free(entry->plan);
    free(entry->ops);
    free(entry->transfers);
    free(entry->slot_static);
    free(entry);
}

void exec_cache_free(struct exec_comm *comm) {
    while (comm->entries) {
        struct exec_entry *entry = comm->entries;
        comm->entries = entry->next;
        free_entry(entry);
    }
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

/* What an operation does not use must not keep it from finding its plan. */
static struct plan_op plain_op(const struct exec_comm *comm, const struct plan_op *op) {
    struct plan_op p = *op;
    bool is_v = p.op == zipcclOpAllGatherv || p.op == zipcclOpReduceScatterv;
    if (!op_has_root(p.op))
        p.root = 0;
    if (!op_reduces(p.op)) {
        p.redop = zipcclSum;
        p.arm = zipcclArmHierarchical;
    }
    if (p.op == zipcclOpBarrier) {
        p.count = 0;
        p.dtype = zipcclUint8;
    }
    if (is_v)
        p.count = 0;
    else
        p.counts = NULL;
    if ((p.count == 0 && !is_v) || comm->topology.nnodes == 1)
        p.codec = zipcclCodecRaw;
    if (comm->topology.nnodes == 1 && p.arm == zipcclArmFlat)
        p.arm = zipcclArmHierarchical; /* nothing travels: one plan */
    return p;
}

static bool same_op(const struct plan_op *a, const struct plan_op *b, uint32_t nranks) {
    return a->op == b->op && a->dtype == b->dtype && a->codec == b->codec && a->arm == b->arm && a->redop == b->redop &&
           a->count == b->count && a->root == b->root && !a->counts == !b->counts &&
           (!a->counts || memcmp(a->counts, b->counts, nranks * sizeof(*a->counts)) == 0);
}

static bool same_transfer(const struct plan_transfer *a, const struct plan_transfer *b) {
    return a->send == b->send && a->op == b->op && a->dtype == b->dtype && a->codec == b->codec && a->peer == b->peer &&
           a->buffer == b->buffer && a->offset == b->offset && a->count == b->count && a->capped == b->capped;
}

static bool matches(const struct exec_comm *comm, const struct exec_entry *e, const struct exec_args *args) {
    if (e->nops != args->nops)
        return false;
    for (uint32_t i = 0; i < e->nops; i++) {
        struct plan_op op = plain_op(comm, &args->ops[i]);
        if (!same_op(&e->ops[i], &op, comm->topology.nranks))
            return false;
    }
    if (e->nops)
        return true;
    if (e->ntransfers != args->ntransfers || e->nbuffers != args->nbuffers || e->rank != args->rank ||
        e->phases != args->phases)
        return false;
    for (uint32_t i = 0; i < e->ntransfers; i++) {
        if (!same_transfer(&e->transfers[i], &args->transfers[i]))
            return false;
    }
    return true;
}

/* Copies the arguments, counts included. */
static zipcclResult_t keep_args(struct exec_comm *comm, struct exec_entry *entry, const struct exec_args *args) {
    size_t nranks = comm->topology.nranks, nv = 0;
    entry->nops = args->nops;
    entry->rank = args->rank;
    entry->phases = args->phases;
    if (args->nops == 0) {
        entry->ntransfers = args->ntransfers;
        entry->nbuffers = args->nbuffers;
        entry->transfers = malloc((args->ntransfers ? args->ntransfers : 1) * sizeof(*entry->transfers));
        if (!entry->transfers)
            return zipcclOutOfMemory;
        for (uint32_t i = 0; i < args->ntransfers; i++) {
            entry->transfers[i] = args->transfers[i];
            entry->capped = entry->capped || args->transfers[i].capped;
        }
        return zipcclSuccess;
    }
    for (uint32_t i = 0; i < args->nops; i++)
        nv += args->ops[i].counts != NULL;
    entry->ops = malloc(args->nops * sizeof(*entry->ops) + nv * nranks * sizeof(uint64_t));
    if (!entry->ops)
        return zipcclOutOfMemory;
    uint64_t *counts = (uint64_t *)(void *)(entry->ops + args->nops);
    for (uint32_t i = 0; i < args->nops; i++) {
        entry->ops[i] = plain_op(comm, &args->ops[i]);
        if (!entry->ops[i].counts)
            continue;
        memcpy(counts, entry->ops[i].counts, nranks * sizeof(*counts));
        entry->ops[i].counts = counts;
        counts += nranks;
    }
    return zipcclSuccess;
}

static zipcclResult_t build(struct exec_comm *comm, struct exec_entry *entry) {
    uint32_t window = comm->executor->config.window;
    if (entry->nops) {
        struct plan_args pa = {.ops = entry->ops,
                               .nops = entry->nops,
                               .node = comm->node,
                               .topology = &comm->topology,
                               .chunk_bytes = comm->chunk_bytes,
                               .window = window};
        return plan_build(&pa, &entry->plan);
    }
    struct plan_exchange_args xa = {.transfers = entry->transfers,
                                    .ntransfers = entry->ntransfers,
                                    .nbuffers = entry->nbuffers,
                                    .rank = entry->rank,
                                    .topology = &comm->topology,
                                    .chunk_bytes = comm->chunk_bytes,
                                    .window = window,
                                    .phases = entry->phases};
    return plan_build_exchange(&xa, &entry->plan);
}

static zipcclResult_t size_memory(struct exec_comm *comm, struct exec_entry *entry) {
    const struct plan *plan = entry->plan;
    entry->slot_static = calloc(plan->nitems ? plan->nitems : 1, sizeof(*entry->slot_static));
    if (!entry->slot_static)
        return zipcclOutOfMemory;
    uint64_t received = 0;
    for (uint32_t i = 0; i < plan->nitems; i++) {
        const struct plan_item *item = &plan->items[i];
        if (item->slot_count == 0)
            continue;
        size_t values = item->slot_count * dtype_get(item->dtype)->bytes;
        struct codec_sizes bound = codec_bound(item->codec, item->dtype, item->slot_count);
        size_t bytes = bound.static_bytes + bound.dynamic_bytes;
        if (bytes == 0)
            return zipcclInvalidArgument; /* the codec does not support the dtype */
        entry->slot_static[i] = bound.static_bytes;
        entry->slot_bytes = bytes > entry->slot_bytes ? bytes : entry->slot_bytes;
        entry->value_bytes = values > entry->value_bytes ? values : entry->value_bytes;
    }
    for (uint32_t i = 0; i < entry->nops && comm->nlocal == 1; i++) { /* else copies read the values again at once */
        const struct plan_op *op = &entry->ops[i];
        received += op->count * dtype_get(op->dtype)->bytes * (op->op == zipcclOpAllGather ? comm->topology.nranks : 1);
    }
    for (uint32_t i = 0; i < entry->ntransfers; i++) {
        const struct plan_transfer *t = &entry->transfers[i];
        received += t->send ? 0 : t->count * dtype_get(t->dtype)->bytes;
    }
    entry->streaming = received >= STREAMING_BYTES;
    entry->native = exec_native_can(comm, entry);
    for (uint32_t i = 0; entry->native && i < plan->nsteps; i++) {
        const struct plan_step *st = &plan->steps[i];
        entry->raw_recv_bytes += st->kind == PLAN_RECV ? st->count * dtype_get(entry->ops[0].dtype)->bytes : 0;
    }
    entry->one_gpu = exec_place_fits(plan);
    return zipcclSuccess;
}

static zipcclResult_t new_entry(struct exec_comm *comm, const struct exec_args *args, struct exec_entry **out) {
    struct exec_entry *entry = calloc(1, sizeof(*entry));
    if (!entry)
        return zipcclOutOfMemory;
    zipcclResult_t result = keep_args(comm, entry, args);
    if (!result)
        result = build(comm, entry);
    if (!result)
        result = size_memory(comm, entry);
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
        if (matches(comm, e, args)) {
            *p = e->next;
            e->next = comm->entries;
            comm->entries = e;
            *out = e;
            return zipcclSuccess;
        }
    }
    return new_entry(comm, args, out);
}

/* The next n objects of `size` bytes in a block of memory that is laid out, or only measured (base NULL). */
static void *place(uint8_t *base, size_t *at, size_t n, size_t size) {
    size_t start = (*at + 15) & ~(size_t)15;
    *at = start + n * size;
    return base ? base + start : NULL;
}

static size_t lay_out(struct exec_op *op, uint8_t *base, const struct exec_entry *entry) {
    const struct plan *plan = entry->plan;
    size_t at = 0, nbuffers = entry->nops ? (size_t)entry->nops * plan->nlocal : entry->nbuffers;
    struct exec_op none, *o = op ? op : &none;
    o->buffers = place(base, &at, nbuffers, sizeof(*o->buffers));
    o->slots = place(base, &at, plan->nslots, sizeof(*o->slots));
    o->scratch = place(base, &at, plan->nvalues, sizeof(*o->scratch));
    o->gpus = place(base, &at, plan->nlocal, sizeof(*o->gpus));
    o->inputs = place(base, &at, plan->ninputs, sizeof(*o->inputs));
    o->items = place(base, &at, plan->nitems, sizeof(*o->items));
    o->waiting = place(base, &at, plan->nsteps, sizeof(*o->waiting));
    o->ready_next = place(base, &at, plan->nsteps, sizeof(*o->ready_next));
    o->parts = place(base, &at, entry->native ? plan->nlocal : 0, sizeof(*o->parts));
    o->parts = entry->native ? o->parts : NULL;
    return at;
}

static struct exec_op *new_op(struct exec_entry *entry) {
    size_t head = (sizeof(struct exec_op) + 15) & ~(size_t)15;
    struct exec_op *op = calloc(1, head + lay_out(NULL, NULL, entry));
    if (op)
        (void)lay_out(op, (uint8_t *)op + head, entry);
    return op;
}

static void fill_items(struct exec_op *op, const struct exec_args *args) {
    const struct exec_entry *e = op->entry;
    for (uint32_t i = 0; i < e->nops; i++) {
        const struct plan_op *p = &e->ops[i];
        op->items[i] = (struct exec_item){
            .op = (uint8_t)p->op,
            .dtype = (uint8_t)p->dtype,
            .redop = (uint8_t)p->redop,
            .arm = (uint8_t)p->arm,
            .codec = (uint8_t)p->codec,
            .root = p->root,
            .seq = (uint32_t)(args->seq + i),
            .channel = FABRIC_COLLECTIVE,
            .op_count = p->counts ? XXH3_64bits(p->counts, op->comm->topology.nranks * sizeof(*p->counts)) : p->count,
            .value_bytes = dtype_get(p->dtype)->bytes,
            .number = args->seq + i};
    }
    for (uint32_t i = 0; i < e->ntransfers; i++) {
        const struct plan_transfer *t = &e->transfers[i];
        op->items[i] =
            (struct exec_item){.op = (uint8_t)(t->op == zipcclOpRecv ? zipcclOpSend : t->op),
                               .dtype = (uint8_t)t->dtype,
                               .codec = (uint8_t)t->codec,
                               .root = args->calls ? args->calls[i] : 0,
                               .seq = args->numbers[i],
                               .channel = t->send ? fabric_channel(e->rank, t->peer) : fabric_channel(t->peer, e->rank),
                               .op_count = t->count,
                               .capped = t->capped,
                               .value_bytes = dtype_get(t->dtype)->bytes,
                               .peer = t->peer,
                               .number = args->seq};
    }
}

zipcclResult_t exec_cache_get(struct exec_comm *comm, const struct exec_args *args, struct exec_op **out) {
    struct exec_entry *entry = NULL;
    zipcclResult_t result = get_entry(comm, args, &entry);
    if (result)
        return result;
    struct exec_op *op = entry->spare;
    if (op) {
        entry->spare = op->next;
        entry->nspare--;
    } else {
        op = new_op(entry);
        if (!op)
            return zipcclOutOfMemory;
    }
    entry->users++;
    op->comm = comm;
    op->entry = entry;
    op->plan = entry->plan;
    op->args = *args;
    fill_items(op, args);
    *out = op;
    return zipcclSuccess;
}

void exec_cache_put(struct exec_op *op) {
    struct exec_entry *entry = op->entry;
    entry->users--;
    if (entry->nspare < MAX_SPARE) {
        op->next = entry->spare;
        entry->spare = op;
        entry->nspare++;
    } else {
        free(op);
    }
}
