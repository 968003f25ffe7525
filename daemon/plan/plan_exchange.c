/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchange plans: the transfers of one rank, side by side. Each has slots of its own and waits for no other, so that a
 * rank that comes late holds up nothing but what goes to it or comes from it. (All sizes first does wait: it is there
 * to be compared with. Not so sends and receives, which the other rank may have put into another group: they would wait
 * for each other.)
 *
 * Steps are laid out in rounds of as many chunks of every transfer as it has slots: receives, then encodes with the
 * sends of whole chunks or static parts, then dynamic parts. So where several steps are ready at once, all peers get
 * static parts before any gets a dynamic one.
 */
#include <stdlib.h>

#include "daemon/plan/builder.h"
#include "kernels/dtype.h"

#define RAW_SENDS_AHEAD 2u /* times window: nothing is held, but the fabric's queues are bounded */
#define RAW_RECVS_AHEAD 4u
#define SIZES_TAG       UINT32_MAX

/* A transfer that has steps to come. */
struct lane {
    uint32_t transfer;
    uint64_t chunk, nchunks, done; /* values; chunks */
    uint32_t window;               /* chunks under way */
    uint32_t slots;                /* its first slot */
    uint32_t entry;                /* its first entry of exchange.entries */
};

/* A place in a window: what needs it, or its slot. */
struct entry {
    uint32_t busy[2]; /* the last steps of the chunk before */
    uint32_t first;   /* of the chunk that is being built: the encode, or the receive of the static part */
};

struct exchange {
    struct builder *b;
    const struct plan_exchange_args *args;
    struct lane *lanes;
    uint32_t nlanes, widest;
    struct entry *entries;
    size_t nentries;
    uint32_t all_here; /* sizes first: all sizes have come */
};

static const struct plan_transfer *transfer_of(const struct exchange *x, const struct lane *l) {
    return &x->args->transfers[l->transfer];
}

static uint32_t node_of(const struct exchange *x, const struct plan_transfer *t) {
    return x->args->topology->rank_node[t->peer];
}

static bool is_coded(const struct exchange *x, const struct plan_transfer *t) {
    return t->codec != zipcclCodecRaw && t->count > 0 && node_of(x, t) != x->b->node;
}

static bool has_sizes_first(const struct exchange *x, const struct plan_transfer *t) {
    return x->args->phases == PLAN_SIZES_FIRST && t->op != zipcclOpSend && t->op != zipcclOpRecv;
}

/* What the steps of a chunk have in common; where its values lie. */
static struct plan_step step_of(struct exchange *x, const struct lane *l, uint32_t i, struct plan_ref *values) {
    const struct plan_transfer *t = transfer_of(x, l);
    uint64_t start = (l->done + i) * l->chunk, left = t->count - start;
    x->b->item = l->transfer;
    x->b->value_bytes = dtype_get(t->dtype)->bytes;
    *values = (struct plan_ref){0};
    if (t->count > 0)
        *values =
            (struct plan_ref){t->send ? PLAN_SENDBUF : PLAN_RECVBUF, t->buffer, t->offset + start * x->b->value_bytes};
    return (struct plan_step){.codec = is_coded(x, t) ? (uint8_t)t->codec : zipcclCodecRaw,
                              .peer = node_of(x, t),
                              .rank = t->send ? x->args->rank : t->peer,
                              .tag = (uint32_t)(l->done + i),
                              .count = left < l->chunk ? left : l->chunk};
}

static struct plan_ref slot_of(const struct lane *l, uint32_t i) {
    return (struct plan_ref){PLAN_SLOT, l->slots + i, 0};
}

/* The step takes over the entry from the chunk before, the first one once the rank has arrived (and all sizes have, if
 * it goes through the fabric). */
static void take_entry(struct exchange *x, const struct lane *l, struct entry *entry, uint32_t id) {
    const struct plan_transfer *t = transfer_of(x, l);
    if (l->done == 0)
        builder_edge(x->b, has_sizes_first(x, t) && node_of(x, t) != x->b->node ? x->all_here : 0, id);
    builder_edge(x->b, entry->busy[0], id);
    builder_edge(x->b, entry->busy[1], id);
    entry->busy[0] = entry->busy[1] = BUILDER_NONE;
}

static void add_encode(struct exchange *x, const struct lane *l, uint32_t i) {
    struct entry *entry = &x->entries[l->entry + i];
    struct plan_ref values;
    struct plan_step step = step_of(x, l, i, &values);
    step.kind = PLAN_ENCODE;
    step.src = values;
    step.dst = slot_of(l, i);
    entry->first = builder_step(x->b, &step);
    take_entry(x, l, entry, entry->first);
}

/* The send of a chunk, or of its static part. */
static void add_send(struct exchange *x, const struct lane *l, uint32_t i) {
    struct entry *entry = &x->entries[l->entry + i];
    const struct plan_transfer *t = transfer_of(x, l);
    bool coded = is_coded(x, t), sizes_first = has_sizes_first(x, t);
    if (coded && !sizes_first)
        add_encode(x, l, i);
    struct plan_ref values;
    struct plan_step step = step_of(x, l, i, &values);
    step.kind = PLAN_SEND;
    step.src = coded ? slot_of(l, i) : values;
    if (coded && x->args->phases == PLAN_TWO_PHASE) {
        step.part = PLAN_STATIC;
        step.tag *= 2;
    }
    uint32_t id = builder_step(x->b, &step);
    if (coded)
        builder_edge(x->b, entry->first, id);
    if (!coded || sizes_first)
        take_entry(x, l, entry, id);
    entry->busy[0] = id;
}

/* The receive of a chunk, or of its static part. */
static void add_recv(struct exchange *x, const struct lane *l, uint32_t i) {
    struct entry *entry = &x->entries[l->entry + i];
    struct plan_ref values;
    struct plan_step step = step_of(x, l, i, &values);
    bool coded = step.codec != zipcclCodecRaw, two = coded && x->args->phases == PLAN_TWO_PHASE;
    step.kind = PLAN_RECV;
    step.dst = coded ? slot_of(l, i) : values;
    if (two) {
        step.part = PLAN_STATIC;
        step.tag *= 2;
    }
    uint32_t id = builder_step(x->b, &step);
    take_entry(x, l, entry, id);
    entry->first = entry->busy[0] = id;
    if (!coded || two)
        return;
    step.kind = PLAN_DECODE;
    step.src = step.dst;
    step.dst = values;
    entry->busy[0] = builder_step(x->b, &step);
    builder_edge(x->b, id, entry->busy[0]);
}

static void add_dynamic(struct exchange *x, const struct lane *l, uint32_t i) {
    struct entry *entry = &x->entries[l->entry + i];
    const struct plan_transfer *t = transfer_of(x, l);
    struct plan_ref values;
    struct plan_step step = step_of(x, l, i, &values);
    step.kind = t->send ? PLAN_SEND : PLAN_RECV;
    step.part = PLAN_DYNAMIC;
    step.tag = step.tag * 2 + 1;
    if (t->send)
        step.src = slot_of(l, i);
    else
        step.dst = slot_of(l, i);
    uint32_t id = builder_step(x->b, &step);
    builder_edge(x->b, entry->first, id);
    if (t->send) {
        entry->busy[1] = id;
        return;
    }
    step.kind = PLAN_DECODE;
    step.part = PLAN_WHOLE;
    step.src = step.dst;
    step.dst = values;
    entry->busy[0] = builder_step(x->b, &step);
    builder_edge(x->b, id, entry->busy[0]);
}

enum pass { RECEIVES, ENCODES, SENDS, DYNAMIC_PARTS };

/* One pass over the round: the first chunk of every lane, then the second... */
static void add_pass(struct exchange *x, enum pass pass) {
    for (uint32_t i = 0; i < x->widest; i++) {
        for (uint32_t k = 0; k < x->nlanes && !x->b->error; k++) {
            const struct lane *l = &x->lanes[k];
            const struct plan_transfer *t = transfer_of(x, l);
            if (i >= l->window || l->done + i >= l->nchunks)
                continue;
            if (pass == RECEIVES && !t->send)
                add_recv(x, l, i);
            else if (pass == SENDS && t->send)
                add_send(x, l, i);
            else if (pass == ENCODES && t->send && is_coded(x, t) && has_sizes_first(x, t))
                add_encode(x, l, i);
            else if (pass == DYNAMIC_PARTS && is_coded(x, t))
                add_dynamic(x, l, i);
        }
    }
}

static void add_rounds(struct exchange *x) {
    while (x->nlanes > 0 && !x->b->error) {
        add_pass(x, RECEIVES);
        add_pass(x, SENDS);
        if (x->args->phases == PLAN_TWO_PHASE)
            add_pass(x, DYNAMIC_PARTS);
        uint32_t left = 0;
        for (uint32_t k = 0; k < x->nlanes; k++) {
            struct lane *l = &x->lanes[k];
            l->done += l->window;
            if (l->done < l->nchunks)
                x->lanes[left++] = *l;
        }
        x->nlanes = left;
    }
}

/* A copy of nothing onto itself: a step to wait for in the place of many. */
static uint32_t add_join(struct exchange *x) {
    const struct plan_transfer *t = &x->args->transfers[0];
    struct plan_ref nothing = {t->send ? PLAN_SENDBUF : PLAN_RECVBUF, t->buffer, t->offset};
    struct plan_step step = {.kind = PLAN_COPY, .rank = x->args->rank, .src = nothing, .dst = nothing};
    uint32_t id = builder_step(x->b, &step);
    builder_edge(x->b, 0, id);
    return id;
}

/* Codes everything, tells it to all peers that get something, hears it from all that send something. */
static void add_sizes(struct exchange *x) {
    struct builder *b = x->b;
    const struct plan_topology *topology = x->args->topology;
    uint32_t nranks = topology->nranks, rank = x->args->rank;
    uint32_t *first_send = builder_array(b, nranks), *first_recv = builder_array(b, nranks);
    add_pass(x, ENCODES);
    for (uint32_t i = x->args->ntransfers; i-- > 0 && !b->error;) {
        const struct plan_transfer *t = &x->args->transfers[i];
        if (node_of(x, t) != b->node && has_sizes_first(x, t))
            (t->send ? first_send : first_recv)[t->peer] = i;
    }
    uint32_t nencodes = b->nsteps, coded = add_join(x);
    for (uint32_t i = 1; i < nencodes; i++)
        builder_edge(b, i, coded); /* all steps so far but the arrival */
    for (uint32_t k = 1; k < nranks && !b->error; k++) {
        uint32_t peer = (rank + k) % nranks;
        struct plan_step step = {.kind = PLAN_SEND, .peer = topology->rank_node[peer], .rank = rank, .tag = SIZES_TAG};
        b->item = first_send[peer];
        if (b->item != BUILDER_NONE)
            builder_edge(b, coded, builder_step(b, &step));
    }
    uint32_t nsends = b->nsteps;
    for (uint32_t k = 1; k < nranks && !b->error; k++) {
        uint32_t peer = (rank + nranks - k) % nranks;
        struct plan_step step = {.kind = PLAN_RECV, .peer = topology->rank_node[peer], .rank = peer, .tag = SIZES_TAG};
        b->item = first_recv[peer];
        if (b->item != BUILDER_NONE)
            builder_edge(b, 0, builder_step(b, &step));
    }
    uint32_t nrecvs = b->nsteps;
    b->item = 0;
    x->all_here = add_join(x);
    for (uint32_t i = nsends; i < nrecvs; i++)
        builder_edge(b, i, x->all_here);
    free(first_send);
    free(first_recv);
}

static void open_lane(struct exchange *x, struct lane *l, uint32_t transfer) {
    struct builder *b = x->b;
    const struct plan_transfer *t = &x->args->transfers[transfer];
    bool coded = is_coded(x, t);
    uint64_t bytes = t->count * dtype_get(t->dtype)->bytes;
    *l = (struct lane){.transfer = transfer, .chunk = t->count, .nchunks = 1};
    if (t->count > 0 && node_of(x, t) != b->node) {
        l->chunk = plan_chunk_count(t->dtype, bytes, x->args->chunk_bytes);
        l->nchunks = (t->count + l->chunk - 1) / l->chunk;
    }
    uint64_t window = (uint64_t)x->args->window * (coded ? 1 : t->send ? RAW_SENDS_AHEAD : RAW_RECVS_AHEAD);
    if ((coded && has_sizes_first(x, t)) || window > l->nchunks)
        window = l->nchunks;
    if (l->nchunks >= UINT32_MAX / 2 || x->nentries + window > UINT32_MAX) {
        b->error = zipcclInvalidArgument;
        return;
    }
    l->window = (uint32_t)window;
    l->entry = (uint32_t)x->nentries;
    x->nentries += window;
    x->widest = l->window > x->widest ? l->window : x->widest;
    b->item = transfer;
    b->items[transfer] = (struct plan_item){.dtype = t->dtype, .codec = coded ? t->codec : zipcclCodecRaw};
    if (coded)
        l->slots = builder_slots(b, l->window, l->chunk < t->count ? l->chunk : t->count);
}

static bool set_up(struct exchange *x) {
    struct builder *b = x->b;
    b->items = calloc((size_t)b->nitems + 1, sizeof(*b->items));
    x->lanes = calloc((size_t)b->nitems + 1, sizeof(*x->lanes));
    if (!b->items || !x->lanes)
        b->error = zipcclOutOfMemory;
    for (uint32_t i = 0; i < b->nitems && !b->error; i++)
        open_lane(x, &x->lanes[x->nlanes++], i);
    if (b->error)
        return false;
    x->entries = malloc((x->nentries + 1) * sizeof(*x->entries));
    if (!x->entries) {
        b->error = zipcclOutOfMemory;
        return false;
    }
    for (size_t i = 0; i < x->nentries; i++)
        x->entries[i] = (struct entry){{BUILDER_NONE, BUILDER_NONE}, BUILDER_NONE};
    return true;
}

static bool check(const struct plan_exchange_args *args) {
    const struct plan_topology *t = args->topology;
    if (!t || !t->rank_node || t->nranks > BUILDER_MAX_RANKS || args->rank >= t->nranks || t->nnodes > t->nranks ||
        args->window == 0 || args->chunk_bytes == 0 || (unsigned)args->phases > PLAN_SIZES_FIRST ||
        args->ntransfers == UINT32_MAX)
        return false;
    for (uint32_t r = 0; r < t->nranks; r++) {
        if (t->rank_node[r] >= t->nnodes)
            return false;
    }
    for (uint32_t i = 0; i < args->ntransfers; i++) {
        const struct plan_transfer *x = &args->transfers[i];
        const struct dtype_info *dtype = dtype_get(x->dtype);
        if (!dtype || (unsigned)x->codec >= zipcclNumCodecs || x->peer >= t->nranks || x->buffer >= args->nbuffers)
            return false;
        uint64_t most = (UINT64_MAX >> 2) / dtype->bytes;
        if (x->count > most || x->offset > most)
            return false;
    }
    return true;
}

zipcclResult_t plan_build_exchange(const struct plan_exchange_args *args, struct plan **plan) {
    *plan = NULL;
    if (!check(args))
        return zipcclInvalidArgument;
    struct builder b = {.nnodes = args->topology->nnodes,
                        .node = args->topology->rank_node[args->rank],
                        .nitems = args->ntransfers,
                        .nlocal = 1};
    struct exchange x = {.b = &b, .args = args};
    if (set_up(&x)) {
        struct plan_step arrive = {.kind = PLAN_ARRIVE, .rank = args->rank};
        b.item = 0;
        x.all_here = builder_step(&b, &arrive);
        if (args->phases == PLAN_SIZES_FIRST && args->ntransfers > 0)
            add_sizes(&x);
        add_rounds(&x);
    }
    free(x.lanes);
    free(x.entries);
    return builder_finish(&b, plan);
}
