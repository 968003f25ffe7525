/* SPDX-License-Identifier: Apache-2.0
 *
 * The builder's core: growing lists, the final array of successors, checks of arguments, and the chunk size.
 */
#include "daemon/plan/builder.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"

#define MIN_CHUNK_BYTES   (64u << 10)
#define USUAL_CHUNK_BYTES (128u << 10) /* below it, messages cost more than the overlap gains */
#define GROUP_VALUES      32768u
#define PIPELINE_CHUNKS   8u

static bool grow(struct builder *b, void **array, uint32_t *cap, size_t item) {
    uint32_t next = *cap ? *cap * 2 : 64;
    void *bigger = next > *cap ? realloc(*array, (size_t)next * item) : NULL;
    if (!bigger) {
        b->error = zipcclOutOfMemory;
        return false;
    }
    *array = bigger;
    *cap = next;
    return true;
}

uint32_t builder_step(struct builder *b, const struct plan_step *step) {
    if (b->error)
        return BUILDER_NONE;
    if (b->nsteps == b->steps_cap && !grow(b, (void **)&b->steps, &b->steps_cap, sizeof(*b->steps)))
        return BUILDER_NONE;
    struct plan_step *s = &b->steps[b->nsteps];
    *s = *step;
    s->item = b->item;
    if (s->kind == PLAN_SEND && s->part != PLAN_DYNAMIC && s->peer != b->node && !b->items[s->item].capped)
        b->raw_send_bytes += s->count * b->value_bytes;
    return b->nsteps++;
}

void builder_input(struct builder *b, const struct plan_input *input) {
    if (b->error)
        return;
    if (b->ninputs == b->inputs_cap && !grow(b, (void **)&b->inputs, &b->inputs_cap, sizeof(*b->inputs)))
        return;
    struct plan_step *step = &b->steps[b->nsteps - 1];
    if (step->ninputs++ == 0)
        step->first_input = b->ninputs;
    b->inputs[b->ninputs++] = *input;
}

static uint32_t take(struct builder *b, uint32_t *total, uint64_t n, uint64_t count) {
    uint32_t first = *total;
    if (b->error)
        return 0;
    if (n > UINT32_MAX - first) {
        b->error = zipcclInvalidArgument;
        return 0;
    }
    *total += (uint32_t)n;
    if (b->items[b->item].slot_count < count)
        b->items[b->item].slot_count = count;
    return first;
}

uint32_t builder_slots(struct builder *b, uint64_t n, uint64_t count) {
    return take(b, &b->nslots, n, count);
}

uint32_t builder_values(struct builder *b, uint64_t n, uint64_t count) {
    return take(b, &b->nvalues, n, count);
}

uint64_t builder_total(const struct builder *b) {
    uint64_t total = 0;
    for (uint32_t r = 0; r < b->args->topology->nranks; r++)
        total += builder_count_of(b, r);
    return total;
}

void builder_edge(struct builder *b, uint32_t from, uint32_t to) {
    if (b->error || from == BUILDER_NONE || to == BUILDER_NONE)
        return;
    if (b->nedges == b->edges_cap && !grow(b, (void **)&b->edges, &b->edges_cap, sizeof(*b->edges)))
        return;
    b->edges[b->nedges++] = (struct builder_edge){from, to};
}

uint32_t *builder_array(struct builder *b, size_t n) {
    if (b->error)
        return NULL;
    uint32_t *array = malloc((n ? n : 1) * sizeof(*array));
    if (!array) {
        b->error = zipcclOutOfMemory;
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        array[i] = BUILDER_NONE;
    return array;
}

uint32_t builder_all_arrived(struct builder *b) {
    if (b->nlocal == 1)
        return 0;
    /* A copy of nothing onto itself: there to be waited for, instead of an edge from every rank to every step. */
    struct plan_ref nothing = {PLAN_SENDBUF, b->buffers, 0};
    struct plan_step step = {.kind = PLAN_COPY, .src = nothing, .dst = nothing};
    uint32_t id = builder_step(b, &step);
    for (uint32_t i = 0; i < b->nlocal; i++)
        builder_edge(b, i, id);
    return id;
}

/* Sorts the ranks by node. False on an invalid topology. */
static bool sort_members(struct builder *b) {
    const struct plan_topology *t = b->args->topology;
    b->first = calloc((size_t)t->nnodes + 1, sizeof(*b->first));
    b->members = calloc(t->nranks, sizeof(*b->members));
    uint32_t *fill = calloc(t->nnodes, sizeof(*fill));
    bool ok = b->first && b->members && fill;
    if (!ok) {
        b->error = zipcclOutOfMemory;
        goto out;
    }
    for (uint32_t r = 0; r < t->nranks && ok; r++) {
        ok = t->rank_node[r] < t->nnodes;
        if (ok)
            b->first[t->rank_node[r] + 1]++;
    }
    for (uint32_t n = 0; n < t->nnodes && ok; n++) {
        ok = b->first[n + 1] > 0; /* a node without a rank takes no part */
        b->first[n + 1] += b->first[n];
    }
    if (!ok) {
        b->error = zipcclInvalidArgument;
        goto out;
    }
    for (uint32_t r = 0; r < t->nranks; r++) {
        uint32_t n = t->rank_node[r];
        b->members[b->first[n] + fill[n]++] = r;
    }
    b->nlocal = builder_members(b, b->node);
out:
    free(fill);
    return ok;
}

/* Counting sort of the edges by their start: plan.next. The order of addition, so of `to`, is kept. */
static zipcclResult_t make_plan(struct builder *b, struct plan **out) {
    if (b->error)
        return b->error;
    struct plan *p = calloc(1, sizeof(*p));
    uint32_t *next = malloc(((size_t)b->nedges + 1) * sizeof(*next));
    if (!p || !next) {
        free(p);
        free(next);
        return zipcclOutOfMemory;
    }
    for (uint32_t i = 0; i < b->nedges; i++) {
        b->steps[b->edges[i].from].nnext++;
        b->steps[b->edges[i].to].ndeps++;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < b->nsteps; i++) {
        b->steps[i].first_next = at;
        at += b->steps[i].nnext;
        b->steps[i].nnext = 0;
    }
    for (uint32_t i = 0; i < b->nedges; i++) {
        struct plan_step *from = &b->steps[b->edges[i].from];
        next[from->first_next + from->nnext++] = b->edges[i].to;
    }
    p->steps = b->steps;
    p->nsteps = b->nsteps;
    p->next = next;
    p->inputs = b->inputs;
    p->ninputs = b->ninputs;
    p->items = b->items;
    p->nitems = b->nitems;
    p->nslots = b->nslots;
    p->nvalues = b->nvalues;
    p->nlocal = b->nlocal;
    p->raw_send_bytes = b->raw_send_bytes;
    b->steps = NULL;
    b->inputs = NULL;
    b->items = NULL;
    *out = p;
    return zipcclSuccess;
}

zipcclResult_t builder_finish(struct builder *b, struct plan **plan) {
    zipcclResult_t result = make_plan(b, plan);
    free(b->steps);
    free(b->inputs);
    free(b->items);
    free(b->edges);
    free(b->first);
    free(b->members);
    return result;
}

static bool has_counts(zipcclOp_t op) {
    return op == zipcclOpAllGatherv || op == zipcclOpReduceScatterv;
}

static bool reduces(zipcclOp_t op) {
    return op == zipcclOpReduceScatter || op == zipcclOpReduceScatterv || op == zipcclOpAllReduce ||
           op == zipcclOpReduce;
}

static bool check_reduction(const struct plan_op *op) {
    if ((unsigned)op->redop >= zipcclNumRedOps || (unsigned)op->arm >= zipcclNumArms)
        return false;
    return op->arm != zipcclArmFlat || op->redop != zipcclPreMulSum;
}

typedef void (*build_function)(struct builder *b);

/* NULL: not an operation of a collective plan. */
static build_function find_function(const struct plan_op *op) {
    switch (op->op) {
    case zipcclOpAllGather:
    case zipcclOpAllGatherv:
        return plan_all_gather;
    case zipcclOpBroadcast:
        return plan_broadcast;
    case zipcclOpBarrier:
        return plan_barrier;
    default:
        return reduces(op->op) ? plan_reduce : NULL;
    }
}

/* Whether it is known and its sizes and its root make sense: no product of sizes may overflow later. */
static bool check_op(const struct plan_op *op, uint32_t nranks) {
    const struct dtype_info *dtype = dtype_get(op->dtype);
    if (!find_function(op) || !dtype || (unsigned)op->codec >= zipcclNumCodecs)
        return false;
    if (op->op == zipcclOpBarrier)
        return true;
    if (has_counts(op->op) != (op->counts != NULL) || (reduces(op->op) && !check_reduction(op)))
        return false;
    uint64_t most = (UINT64_MAX >> 2) / dtype->bytes / nranks;
    for (uint32_t r = 0; op->counts && r < nranks; r++) {
        if (op->counts[r] > most)
            return false;
    }
    return op->count <= most && op->root < nranks;
}

static void build_op(struct builder *b, const struct plan_op *op) {
    b->op = op;
    b->value_bytes = dtype_get(op->dtype)->bytes;
    b->buffers = b->item * b->nlocal;
    b->items[b->item] = (struct plan_item){.dtype = op->dtype, .codec = op->codec};
    if (op->op == zipcclOpBarrier || builder_total(b) == 0)
        plan_barrier(b);
    else
        find_function(op)(b);
}

static void add_all(struct builder *b) {
    for (uint32_t i = 0; i < b->nlocal; i++) {
        struct plan_step arrive = {
            .kind = PLAN_ARRIVE, .local = (uint16_t)i, .rank = b->members[b->first[b->node] + i]};
        builder_step(b, &arrive);
    }
    for (b->item = 0; b->item < b->nitems && !b->error; b->item++)
        build_op(b, &b->args->ops[b->item]);
}

zipcclResult_t plan_build(const struct plan_args *args, struct plan **plan) {
    const struct plan_topology *t = args->topology;
    *plan = NULL;
    if (!t || !t->rank_node || t->nranks == 0 || t->nranks > BUILDER_MAX_RANKS || t->nnodes == 0 ||
        t->nnodes > t->nranks || args->node >= t->nnodes || args->window == 0 || args->chunk_bytes == 0 ||
        args->nops == 0)
        return zipcclInvalidArgument;
    for (uint32_t i = 0; i < args->nops; i++) {
        if (!check_op(&args->ops[i], t->nranks))
            return zipcclInvalidArgument;
    }

    struct builder b = {.args = args, .nnodes = t->nnodes, .node = args->node, .nitems = args->nops};
    b.items = calloc(args->nops, sizeof(*b.items));
    if (!b.items)
        b.error = zipcclOutOfMemory;
    else if (sort_members(&b))
        add_all(&b);
    return builder_finish(&b, plan);
}

void plan_free(struct plan *plan) {
    if (!plan)
        return;
    free(plan->steps);
    free(plan->next);
    free(plan->inputs);
    free(plan->items);
    free(plan);
}

uint64_t plan_chunk_count(zipcclDataType_t dtype, uint64_t bytes, uint64_t chunk_bytes) {
    const struct dtype_info *info = dtype_get(dtype);
    uint64_t group = (uint64_t)GROUP_VALUES * (info ? info->bytes : 1);
    uint64_t want = bytes / PIPELINE_CHUNKS;
    if (want < USUAL_CHUNK_BYTES)
        want = USUAL_CHUNK_BYTES;
    want = (want + group - 1) / group * group;
    if (want > chunk_bytes)
        want = chunk_bytes / group * group;
    while (want < MIN_CHUNK_BYTES || want == 0)
        want += group;
    return want / group * GROUP_VALUES;
}

static const char *const g_kinds[PLAN_NUM_KINDS] = {
    [PLAN_ARRIVE] = "arrive", [PLAN_ENCODE] = "encode", [PLAN_SEND] = "send",     [PLAN_RECV] = "receive",
    [PLAN_DECODE] = "decode", [PLAN_COPY] = "copy",     [PLAN_REDUCE] = "reduce",
};

const char *plan_kind_name(enum plan_kind kind) {
    return (unsigned)kind < PLAN_NUM_KINDS ? g_kinds[kind] : NULL;
}
