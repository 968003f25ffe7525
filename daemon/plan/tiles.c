/* SPDX-License-Identifier: Apache-2.0
 *
 * How the values of an operation are cut into tiles, and other facts of its layout. Every node computes the same.
 */
#include "daemon/plan/builder.h"

#include <stdlib.h>

#include "kernels/dtype.h"

#define MAX_TILES   (1u << 26)
#define SMALL_BYTES (64u << 10)
#define SMALL_NODES 8u
#define PART_VALUES 512u /* parts of nodes start at a block of the codec */

static bool open_lists(struct builder *b, struct builder_tiles *tiles, uint64_t ntiles) {
    *tiles = (struct builder_tiles){0};
    if (b->error)
        return false;
    if (ntiles > MAX_TILES) {
        b->error = zipcclInvalidArgument;
        return false;
    }
    tiles->list = malloc(((size_t)ntiles + 1) * sizeof(*tiles->list));
    tiles->first = calloc((size_t)b->nnodes + 1, sizeof(*tiles->first));
    if (!tiles->list || !tiles->first) {
        b->error = zipcclOutOfMemory;
        return false;
    }
    return true;
}

static void add_tile(struct builder_tiles *tiles, uint32_t *n, uint64_t offset, uint64_t count, uint32_t rank,
                     uint32_t local) {
    tiles->list[(*n)++] = (struct builder_tile){offset, count, rank, (uint16_t)local};
    if (count > tiles->most)
        tiles->most = count;
}

static void close_node(struct builder_tiles *tiles, uint32_t node, uint32_t n) {
    tiles->first[node + 1] = n;
    if (n - tiles->first[node] > tiles->longest)
        tiles->longest = n - tiles->first[node];
}

void builder_tiles_of_ranks(struct builder *b, struct builder_tiles *tiles, uint64_t chunk) {
    uint32_t nranks = b->args->topology->nranks, n = 0;
    uint64_t ntiles = 0, offset = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        uint64_t count = builder_count_of(b, r);
        ntiles += count / chunk + (count % chunk != 0);
    }
    uint64_t *offsets = calloc((size_t)nranks + 1, sizeof(*offsets));
    uint32_t *left = calloc((size_t)nranks + 1, sizeof(*left)); /* of a node: members with tiles left */
    if (!offsets || !left)
        b->error = zipcclOutOfMemory;
    if (!open_lists(b, tiles, ntiles))
        goto out;
    for (uint32_t r = 0; r < nranks; r++) {
        offsets[r] = offset;
        offset += builder_count_of(b, r);
    }
    for (uint32_t m = 0; m < b->nnodes; m++) {
        uint32_t nleft = builder_members(b, m);
        for (uint32_t i = 0; i < nleft; i++)
            left[i] = i;
        for (uint64_t start = 0; nleft > 0; start += chunk) {
            uint32_t still = 0;
            for (uint32_t i = 0; i < nleft; i++) {
                uint32_t rank = b->members[b->first[m] + left[i]];
                uint64_t count = builder_count_of(b, rank);
                if (start >= count)
                    continue;
                add_tile(tiles, &n, offsets[rank] + start, count - start < chunk ? count - start : chunk, rank,
                         left[i]);
                left[still++] = left[i];
            }
            nleft = still;
        }
        close_node(tiles, m, n);
    }
out:
    free(offsets);
    free(left);
}

/* The last ones may be empty. */
static uint64_t part_values(uint64_t total, uint64_t parts) {
    uint64_t part = (total + parts - 1) / parts;
    return parts > 1 ? (part + PART_VALUES - 1) / PART_VALUES * PART_VALUES : part;
}

void builder_tiles_of_nodes(struct builder *b, struct builder_tiles *tiles, uint32_t only_node) {
    uint64_t total = b->op->count, parts = only_node == BUILDER_NONE ? b->nnodes : 1;
    uint64_t part = part_values(total, parts);
    uint64_t chunk = plan_chunk_count(b->op->dtype, part * b->value_bytes, b->args->chunk_bytes);
    if (!open_lists(b, tiles, total / chunk + parts))
        return;
    uint64_t start = 0;
    uint32_t n = 0;
    for (uint32_t m = 0; m < b->nnodes; m++) {
        uint64_t end = start + part < total ? start + part : total;
        uint32_t local = 0, members = builder_members(b, m);
        if (only_node != BUILDER_NONE && m != only_node)
            end = start;
        while (start < end) {
            uint64_t count = end - start < chunk ? end - start : chunk;
            add_tile(tiles, &n, start, count, b->members[b->first[m] + local], local);
            local = local + 1 < members ? local + 1 : 0;
            start += count;
        }
        close_node(tiles, m, n);
    }
}

void builder_tiles_of_parts(struct builder *b, struct builder_tiles *tiles) {
    uint64_t greatest = 0;
    for (uint32_t m = 0; m < b->nnodes; m++) {
        uint64_t part = 0;
        for (uint32_t i = b->first[m]; i < b->first[m + 1]; i++)
            part += builder_count_of(b, b->members[i]);
        greatest = part > greatest ? part : greatest;
    }
    builder_tiles_of_ranks(b, tiles, plan_chunk_count(b->op->dtype, greatest * b->value_bytes, b->args->chunk_bytes));
}

void builder_tiles_free(struct builder_tiles *tiles) {
    free(tiles->list);
    free(tiles->first);
    *tiles = (struct builder_tiles){0};
}

static bool is_small(uint32_t nnodes, uint64_t bytes) {
    return nnodes <= SMALL_NODES && bytes <= SMALL_BYTES;
}

bool builder_is_small(const struct builder *b) {
    return is_small(b->nnodes, b->op->count * b->value_bytes);
}

static bool all_have(const uint64_t *counts, const struct plan_topology *t) {
    for (uint32_t node = 0; node < t->nnodes; node++) {
        bool any = false;
        for (uint32_t r = 0; r < t->nranks && !any; r++)
            any = t->rank_node[r] == node && counts[r] > 0;
        if (!any)
            return false;
    }
    return true;
}

bool plan_all_hear(const struct plan_op *op, const struct plan_topology *t) {
    switch (op->op) {
    case zipcclOpAllGather:
    case zipcclOpReduceScatter:
        return op->count > 0;
    case zipcclOpAllReduce:
        if (t->nnodes < 2 || is_small(t->nnodes, op->count * dtype_get(op->dtype)->bytes))
            return op->count > 0;
        /* Who has a part hears from all, and tells all: no two may be without. */
        return op->count > part_values(op->count, t->nnodes) * (t->nnodes - 2);
    case zipcclOpAllGatherv:
    case zipcclOpReduceScatterv:
        return all_have(op->counts, t);
    default:
        return false;
    }
}

uint32_t builder_local(const struct builder *b, uint32_t rank) {
    uint32_t node = b->args->topology->rank_node[rank], local = 0;
    while (b->members[b->first[node] + local] != rank)
        local++;
    return local;
}

uint32_t *builder_order(struct builder *b) {
    const struct plan_topology *t = b->args->topology;
    uint32_t *order = builder_array(b, b->nnodes), n = 0;
    for (uint32_t r = 0; order && r < t->nranks; r++) {
        uint32_t node = t->rank_node[r];
        if (b->members[b->first[node]] == r)
            order[n++] = node;
    }
    return order;
}

uint64_t *builder_bases(struct builder *b) {
    uint64_t *bases = b->error ? NULL : calloc(b->nlocal, sizeof(*bases)), before = 0;
    uint32_t local = 0;
    if (!bases && !b->error)
        b->error = zipcclOutOfMemory;
    for (uint32_t r = 0; bases && r < b->args->topology->nranks; r++) {
        if (b->args->topology->rank_node[r] == b->node)
            bases[local++] = before;
        before += builder_count_of(b, r);
    }
    return bases;
}

void builder_spread(struct builder *b, const struct builder_tile *tile, uint32_t from, uint32_t have) {
    for (uint32_t i = 0; i < b->nlocal; i++) {
        if (i == from)
            continue;
        struct plan_step step = {.kind = PLAN_COPY,
                                 .local = (uint16_t)i,
                                 .rank = tile->rank,
                                 .count = tile->count,
                                 .src = builder_values_at(b, PLAN_RECVBUF, from, tile->offset),
                                 .dst = builder_values_at(b, PLAN_RECVBUF, i, tile->offset)};
        builder_edge(b, have, builder_step(b, &step));
    }
}
