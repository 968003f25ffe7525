/* SPDX-License-Identifier: Apache-2.0
 *
 * Broadcast. The root's node codes once; coded chunks are passed on as they are.
 *
 * Large: a chain of nodes in order from the root's; every link carries every chunk once, so the time is that of one
 * transfer and a few chunks. Small: a binomial tree of one message, least latency.
 * A slot is free when its chunk is decoded and passed on. The last of the chain waits for nobody, so the others end.
 *
 * Every child first tells its parent that all of its ranks are there, by an empty message with the tag of the first
 * chunk. It costs no time where the ranks agree (a parent does not wait for it before it sends); where they name
 * different roots, two nodes that both would send, or both receive, meet in that tag and see it.
 */
#include "daemon/plan/builder.h"

#include <stdlib.h>

#define TREE_BYTES (64u << 10)

struct cast {
    struct builder *b;
    uint64_t chunk, nchunks;
    uint32_t window, slots;
    uint32_t root_node, root_local;
    uint32_t place; /* of this node, counted from the root's */
    bool coded, tree;
    uint32_t *slot_send, *slot_decode; /* per slot: the last steps that read it */
};

static uint32_t node_at(const struct cast *c, uint32_t place) {
    return (c->root_node + place) % c->b->nnodes;
}

/* The places that this node sends to, in order; at most 31. */
static uint32_t children_of(const struct cast *c, uint32_t children[32]) {
    const struct builder *b = c->b;
    uint32_t n = 0;
    if (!c->tree) {
        if (c->place + 1 < b->nnodes)
            children[n++] = c->place + 1;
    } else {
        /* place's children are place + 2^k for every 2^k below its lowest set bit; the deepest subtree goes first. */
        uint32_t limit = c->place ? c->place & -c->place : UINT32_MAX;
        for (uint32_t k = 31; k-- > 0;) {
            uint32_t bit = 1u << k;
            if (bit < limit && bit < b->nnodes - c->place)
                children[n++] = c->place + bit;
        }
    }
    return n;
}

static uint32_t parent_of(const struct cast *c) {
    return c->tree ? c->place & (c->place - 1) : c->place - 1;
}

/* The empty messages from child to parent. */
static void add_hellos(struct cast *c) {
    struct builder *b = c->b;
    uint32_t children[32], n = children_of(c, children);
    struct plan_step step = {.codec = zipcclCodecRaw, .rank = b->op->root};
    for (uint32_t i = 0; i < n; i++) {
        step.kind = PLAN_RECV;
        step.peer = node_at(c, children[i]);
        builder_edge(b, 0, builder_step(b, &step));
    }
    if (c->place > 0) {
        step.kind = PLAN_SEND;
        step.peer = node_at(c, parent_of(c));
        uint32_t id = builder_step(b, &step);
        for (uint32_t i = 0; i < b->nlocal; i++)
            builder_edge(b, i, id); /* all of them agree */
    }
}

/* Sends the chunk in src on to the next nodes; the last send, for the slot's release. */
static void add_sends(struct cast *c, struct plan_step step, uint32_t ready, uint32_t slot) {
    struct builder *b = c->b;
    uint32_t children[32], n = children_of(c, children);
    step.kind = PLAN_SEND;
    step.dst = (struct plan_ref){0};
    /* One chunk in a tree; in a chain one child: so one entry is enough. Raw: bounds what is under way. */
    uint32_t before = c->coded ? BUILDER_NONE : c->slot_send[slot];
    for (uint32_t i = 0; i < n; i++) {
        step.peer = node_at(c, children[i]);
        uint32_t id = builder_step(b, &step);
        builder_edge(b, ready, id);
        builder_edge(b, before, id);
        c->slot_send[slot] = id;
    }
}

static void add_copies(struct cast *c, const struct plan_step *like, uint32_t have, struct plan_ref src,
                       uint64_t offset) {
    struct builder *b = c->b;
    for (uint32_t i = 0; i < b->nlocal; i++) {
        if (src.space == PLAN_RECVBUF && b->buffers + i == src.index)
            continue;
        struct plan_step step = *like;
        step.kind = PLAN_COPY;
        step.codec = zipcclCodecRaw;
        step.local = (uint16_t)i;
        step.src = src;
        step.dst = (struct plan_ref){PLAN_RECVBUF, b->buffers + i, offset};
        uint32_t id = builder_step(b, &step);
        builder_edge(b, i, id);
        if (have != i)
            builder_edge(b, have, id);
    }
}

static void add_root_chunk(struct cast *c, struct plan_step step, uint32_t slot, uint64_t offset) {
    struct builder *b = c->b;
    struct plan_ref values = {PLAN_SENDBUF, b->buffers + c->root_local, offset};
    uint32_t ready = c->root_local; /* its arrival */
    step.local = (uint16_t)c->root_local;
    step.src = values;
    if (b->nnodes > 1) {
        if (c->coded) {
            step.kind = PLAN_ENCODE;
            step.dst = (struct plan_ref){PLAN_SLOT, b->slots + slot, 0};
            ready = builder_step(b, &step);
            builder_edge(b, c->root_local, ready);
            builder_edge(b, c->slot_send[slot], ready);
            step.src = step.dst;
        }
        add_sends(c, step, ready, slot);
    }
    step.tag = 0;
    add_copies(c, &step, c->root_local, values, offset);
}

static void add_other_chunk(struct cast *c, struct plan_step step, uint32_t slot, uint64_t offset) {
    struct builder *b = c->b;
    uint32_t local = (uint32_t)(step.tag % b->nlocal);
    struct plan_ref values = {PLAN_RECVBUF, b->buffers + local, offset}, coded = {PLAN_SLOT, b->slots + slot, 0};
    step.kind = PLAN_RECV;
    step.peer = node_at(c, parent_of(c));
    step.local = (uint16_t)local;
    step.dst = c->coded ? coded : values;
    uint32_t received = builder_step(b, &step), have = received;
    builder_edge(b, local, received);
    builder_edge(b, c->slot_send[slot], received);
    builder_edge(b, c->slot_decode[slot], received);
    c->slot_send[slot] = BUILDER_NONE;
    step.src = step.dst;
    add_sends(c, step, received, slot);
    if (c->coded) {
        step.kind = PLAN_DECODE;
        step.src = coded;
        step.dst = values;
        have = builder_step(b, &step);
        builder_edge(b, received, have);
    }
    c->slot_decode[slot] = have;
    step.tag = 0;
    step.peer = 0;
    add_copies(c, &step, have, values, offset);
}

void plan_broadcast(struct builder *b) {
    const struct plan_op *a = b->op;
    struct cast c = {.b = b, .coded = a->codec != zipcclCodecRaw};
    uint64_t total = a->count * b->value_bytes;
    c.root_node = b->args->topology->rank_node[a->root];
    while (c.root_node == b->node && b->members[b->first[b->node] + c.root_local] != a->root)
        c.root_local++;
    c.place = (b->node + b->nnodes - c.root_node) % b->nnodes;
    c.tree = total <= TREE_BYTES;
    c.chunk = plan_chunk_count(a->dtype, total / (b->nnodes > 1 ? b->nnodes - 1 : 1), b->args->chunk_bytes);
    if (c.tree)
        c.chunk = a->count;
    c.nchunks = (a->count + c.chunk - 1) / c.chunk;
    if (c.nchunks >= UINT32_MAX) {
        b->error = zipcclInvalidArgument;
        return;
    }
    /* Raw chunks hold no slot, but the number under way is bounded alike. */
    uint64_t slots = (uint64_t)b->args->window * (c.coded ? 1 : 4);
    c.slots = (uint32_t)(slots < c.nchunks ? slots : c.nchunks);
    if (c.coded && b->nnodes > 1)
        b->slots = builder_slots(b, c.slots, c.chunk < a->count ? c.chunk : a->count);
    c.slot_send = builder_array(b, c.slots);
    c.slot_decode = builder_array(b, c.slots);
    if (b->nnodes > 1)
        add_hellos(&c);
    for (uint64_t i = 0; i < c.nchunks && !b->error; i++) {
        uint64_t start = i * c.chunk, left = a->count - start;
        struct plan_step step = {
            .codec = (uint8_t)a->codec, .tag = (uint32_t)i, .rank = a->root, .count = left < c.chunk ? left : c.chunk};
        uint32_t slot = (uint32_t)(i % c.slots);
        if (c.place == 0)
            add_root_chunk(&c, step, slot, start * b->value_bytes);
        else
            add_other_chunk(&c, step, slot, start * b->value_bytes);
    }
    free(c.slot_send);
    free(c.slot_decode);
}
