/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gather, with equal and with uneven counts. A rank's values cross to each other node once; local ranks get them by
 * copies.
 *
 * Each node numbers its pieces (chunk, local rank) in one order; the number is the tag, and both sides work through the
 * pieces of a node in that order. Coded, piece i uses send slot i mod window, and at each receiver slot i mod window of
 * the sender; a slot is taken again when its earlier piece has left (sender) or is decoded (receiver). A receive waits
 * only for local arrivals and decodes, so piece i moves on every node once piece i - window has: no cycle between
 * nodes. Raw, nothing holds memory, but the pieces under way are bounded in the same manner, so that a large operation
 * does not fill the queues of the fabric; receives are posted further ahead than sends.
 */
#include "daemon/plan/builder.h"

#include <stdlib.h>

#define RAW_SENDS_AHEAD 2u /* times window */
#define RAW_RECVS_AHEAD 4u

struct gather {
    struct builder *b;
    struct builder_tiles tiles; /* the pieces */
    bool coded;
    uint64_t *base;      /* by local rank: values of all ranks before it */
    uint32_t *send_free; /* [window slot][peer]: the last send out of it */
    uint32_t *recv_free; /* [peer][window slot]: the last receive (raw) or decode (coded) of it */
    uint32_t send_window, recv_window;
};

static struct plan_ref recv_ref(const struct gather *g, uint32_t local, const struct builder_tile *tile) {
    return (struct plan_ref){PLAN_RECVBUF, g->b->buffers + local, tile->offset * g->b->value_bytes};
}

/* Where the tile lies in its rank's send buffer; base: offset of the rank's part. */
static struct plan_ref send_ref(const struct gather *g, const struct builder_tile *tile) {
    return (struct plan_ref){PLAN_SENDBUF, g->b->buffers + tile->local,
                             (tile->offset - g->base[tile->local]) * g->b->value_bytes};
}

static void add_sends(struct gather *g, uint32_t piece) {
    struct builder *b = g->b;
    const struct builder_tile *tile = &g->tiles.list[g->tiles.first[b->node] + piece];
    uint32_t local = tile->local, slot = piece % g->send_window;
    struct plan_ref src = send_ref(g, tile);
    struct plan_step step = {
        .local = tile->local, .codec = (uint8_t)b->op->codec, .rank = tile->rank, .tag = piece, .count = tile->count};
    uint32_t *busy = &g->send_free[(size_t)slot * b->nnodes];
    uint32_t ready = local; /* the arrival */
    if (g->coded) {
        step.kind = PLAN_ENCODE;
        step.src = src;
        step.dst = (struct plan_ref){PLAN_SLOT, b->slots + slot, 0};
        ready = builder_step(b, &step);
        builder_edge(b, local, ready);
        for (uint32_t n = 0; n < b->nnodes; n++)
            builder_edge(b, busy[n], ready);
        src = step.dst;
        step.dst = (struct plan_ref){0};
    }
    step.kind = PLAN_SEND;
    step.src = src;
    for (uint32_t k = 1; k < b->nnodes; k++) {
        step.peer = (b->node + k) % b->nnodes;
        uint32_t id = builder_step(b, &step);
        builder_edge(b, ready, id);
        if (!g->coded)
            builder_edge(b, busy[step.peer], id);
        busy[step.peer] = id;
    }
}

/* Copies what lies in local rank `from`'s buffer to the other ranks of this node. */
static void add_copies(struct gather *g, uint32_t have, uint32_t from, struct plan_ref src,
                       const struct builder_tile *tile) {
    struct builder *b = g->b;
    for (uint32_t i = 0; i < b->nlocal; i++) {
        bool own = src.space == PLAN_RECVBUF && i == from;
        if (own)
            continue;
        struct plan_step step = {.kind = PLAN_COPY,
                                 .local = (uint16_t)i,
                                 .rank = tile->rank,
                                 .count = tile->count,
                                 .src = src,
                                 .dst = recv_ref(g, i, tile)};
        uint32_t id = builder_step(b, &step);
        builder_edge(b, i, id);
        if (have != i)
            builder_edge(b, have, id);
    }
}

static void add_recv(struct gather *g, uint32_t peer, uint32_t piece) {
    struct builder *b = g->b;
    if (piece >= builder_ntiles(&g->tiles, peer))
        return;
    const struct builder_tile *tile = &g->tiles.list[g->tiles.first[peer] + piece];
    uint32_t local = piece % b->nlocal, slot = piece % g->recv_window;
    uint32_t *busy = &g->recv_free[(size_t)peer * g->recv_window + slot];
    struct plan_ref dst = recv_ref(g, local, tile);
    /* Send slots come first, then each peer's; this node itself has none. */
    uint32_t peer_index = peer < b->node ? peer : peer - 1;
    struct plan_ref coded = {PLAN_SLOT, b->slots + g->send_window + peer_index * g->recv_window + slot, 0};
    struct plan_step step = {.kind = PLAN_RECV,
                             .codec = (uint8_t)b->op->codec,
                             .local = (uint16_t)local,
                             .peer = peer,
                             .tag = piece,
                             .rank = tile->rank,
                             .count = tile->count,
                             .dst = g->coded ? coded : dst};
    uint32_t have = builder_step(b, &step);
    builder_edge(b, local, have);
    builder_edge(b, *busy, have);
    if (g->coded) {
        uint32_t received = have;
        step.kind = PLAN_DECODE;
        step.src = coded;
        step.dst = dst;
        have = builder_step(b, &step);
        builder_edge(b, received, have);
    }
    *busy = have;
    add_copies(g, have, local, dst, tile);
}

static bool set_up(struct gather *g) {
    struct builder *b = g->b;
    uint64_t greatest = 0;
    for (uint32_t r = 0; r < b->args->topology->nranks; r++) {
        uint64_t count = builder_count_of(b, r);
        greatest = count > greatest ? count : greatest;
    }
    g->base = builder_bases(b);
    uint64_t chunk = plan_chunk_count(b->op->dtype, greatest * b->value_bytes, b->args->chunk_bytes);
    builder_tiles_of_ranks(b, &g->tiles, chunk);
    uint64_t sends = (uint64_t)b->args->window * (g->coded ? 1 : RAW_SENDS_AHEAD);
    uint64_t recvs = (uint64_t)b->args->window * (g->coded ? 1 : RAW_RECVS_AHEAD);
    g->send_window = (uint32_t)(sends < g->tiles.longest ? sends : g->tiles.longest);
    g->recv_window = (uint32_t)(recvs < g->tiles.longest ? recvs : g->tiles.longest);
    if (b->nnodes > 1) {
        if (g->coded)
            b->slots = builder_slots(b, g->send_window + (uint64_t)(b->nnodes - 1) * g->recv_window, g->tiles.most);
        g->send_free = builder_array(b, (size_t)g->send_window * b->nnodes);
        g->recv_free = builder_array(b, (size_t)g->recv_window * b->nnodes);
    }
    return !b->error;
}

void plan_all_gather(struct builder *b) {
    struct gather g = {.b = b, .coded = b->op->codec != zipcclCodecRaw};
    if (!set_up(&g))
        goto out;
    uint32_t mine = builder_ntiles(&g.tiles, b->node);
    for (uint32_t i = 0; i < g.tiles.longest && b->nnodes > 1; i++) {
        if (i < mine)
            add_sends(&g, i);
        for (uint32_t k = 1; k < b->nnodes; k++)
            add_recv(&g, (b->node + b->nnodes - k) % b->nnodes, i);
    }
    /* Last in the plan, for they hold up nobody else. */
    for (uint32_t i = 0; i < mine; i++) {
        const struct builder_tile *tile = &g.tiles.list[g.tiles.first[b->node] + i];
        add_copies(&g, tile->local, tile->local, send_ref(&g, tile), tile);
    }
out:
    free(g.base);
    free(g.send_free);
    free(g.recv_free);
    builder_tiles_free(&g.tiles);
}
