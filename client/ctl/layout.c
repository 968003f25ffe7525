/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gives how much to whom.
 */
#include "client/ctl/layout.h"

static bool is_shared_out(zipcclOp_t op) {
    return op == zipcclOpReduceScatter || op == zipcclOpAllToAll || op == zipcclOpAllToAllCapped;
}

struct layout layout_make(zipcclOp_t op, unsigned nodes, unsigned per_node, size_t width, uint64_t bytes,
                          const struct rows *rows) {
    struct layout l = {.op = op == zipcclOpRecv ? zipcclOpSend : op,
                       .nodes = nodes,
                       .per_node = per_node,
                       .nranks = nodes * per_node,
                       .width = width,
                       .rows = rows};
    uint64_t values = op == zipcclOpBarrier ? 0 : bytes / width;
    l.count = is_shared_out(op) ? values / l.nranks : values;
    l.bytes = l.count * width * (is_shared_out(op) ? l.nranks : 1);
    return l;
}

uint64_t layout_part(const struct layout *l, unsigned from, unsigned to) {
    double total = (double)l->count;
    switch (l->op) {
    case zipcclOpAllGatherv: /* --size is what a rank gives on average */
        return (uint64_t)(total * l->nranks * rows_share(l->rows, 0, to, l->nranks));
    case zipcclOpReduceScatterv:
        return (uint64_t)(total * rows_share(l->rows, 0, to, l->nranks));
    case zipcclOpAllToAllv:
        return (uint64_t)(total * rows_share(l->rows, from, to, l->nranks));
    default:
        return l->count;
    }
}

uint64_t layout_part_at(const struct layout *l, unsigned from, unsigned to) {
    uint64_t at = 0;
    for (unsigned p = 0; p < to; p++)
        at += layout_part(l, from, p);
    return at;
}

unsigned layout_partner(const struct layout *l, unsigned rank) {
    return (rank + l->nranks / 2) % l->nranks;
}

unsigned layout_source(const struct layout *l, unsigned rank) {
    return (rank + l->nranks - l->nranks / 2) % l->nranks;
}

uint64_t layout_send_bytes(const struct layout *l, unsigned rank) {
    switch (l->op) {
    case zipcclOpBarrier:
        return 0;
    case zipcclOpBroadcast:
        return rank == LAYOUT_ROOT ? l->bytes : 0;
    case zipcclOpScatter:
        return rank == LAYOUT_ROOT ? l->bytes * l->nranks : 0;
    case zipcclOpAllGatherv:
        return layout_part(l, rank, rank) * l->width;
    case zipcclOpReduceScatterv:
    case zipcclOpAllToAllv:
        return layout_part_at(l, rank, l->nranks) * l->width;
    default:
        return l->bytes;
    }
}

uint64_t layout_recv_bytes(const struct layout *l, unsigned rank) {
    uint64_t all = 0;
    switch (l->op) {
    case zipcclOpAllGather:
        return l->bytes * l->nranks;
    case zipcclOpReduce:
        return rank == LAYOUT_ROOT ? l->bytes : 0;
    case zipcclOpGather:
        return rank == LAYOUT_ROOT ? l->bytes * l->nranks : 0;
    case zipcclOpReduceScatter:
        return l->count * l->width;
    case zipcclOpReduceScatterv:
        return layout_part(l, rank, rank) * l->width;
    case zipcclOpAllGatherv:
        return layout_part_at(l, rank, l->nranks) * l->width;
    case zipcclOpAllToAllv:
        for (unsigned from = 0; from < l->nranks; from++)
            all += layout_part(l, from, rank) * l->width;
        return all;
    default:
        return l->bytes;
    }
}

static unsigned node_of(const struct layout *l, unsigned rank) {
    return rank / l->per_node;
}

/* Bytes that go from this node's ranks to others' in an operation of pairs. */
static double leaves(const struct layout *l, unsigned node) {
    uint64_t sum = 0;
    for (unsigned r = node * l->per_node; r < (node + 1) * l->per_node; r++)
        for (unsigned to = 0; to < l->nranks; to++) {
            if (node_of(l, to) == node)
                continue;
            if (l->op != zipcclOpSend)
                sum += layout_part(l, r, to) * l->width;
            else if (layout_partner(l, r) == to)
                sum += l->bytes;
        }
    return (double)sum;
}

/* Bytes of the parts of this node's ranks: all-gather-v, reduce-scatter-v. */
static double parts_of_node(const struct layout *l, unsigned node) {
    uint64_t sum = 0;
    for (unsigned r = node * l->per_node; r < (node + 1) * l->per_node; r++)
        sum += layout_part(l, r, r) * l->width;
    return (double)sum;
}

static double node_must_send(const struct layout *l, unsigned node) {
    double bytes = (double)l->bytes, others = l->nodes - 1;
    switch (l->op) {
    case zipcclOpAllGather:
        return bytes * l->per_node * others;
    case zipcclOpBroadcast:
        return node == LAYOUT_ROOT ? bytes : 0;
    case zipcclOpReduce:
        return node == LAYOUT_ROOT ? 0 : bytes;
    case zipcclOpReduceScatter: /* one contribution of each node */
        return bytes * others / l->nodes;
    case zipcclOpAllReduce:
        return 2 * bytes * others / l->nodes;
    case zipcclOpGather:
        return node == LAYOUT_ROOT ? 0 : bytes * l->per_node;
    case zipcclOpScatter:
        return node == LAYOUT_ROOT ? bytes * l->per_node * others : 0;
    case zipcclOpAllGatherv:
        return parts_of_node(l, node) * others;
    case zipcclOpReduceScatterv:
        return (double)layout_send_bytes(l, 0) - parts_of_node(l, node);
    case zipcclOpBarrier:
        return 0;
    default:
        return leaves(l, node);
    }
}

double layout_must_send(const struct layout *l) {
    double most = 0;
    for (unsigned node = 0; l->nodes > 1 && node < l->nodes; node++) {
        double bytes = node_must_send(l, node);
        most = bytes > most ? bytes : most;
    }
    return most;
}

double layout_alg_bytes(const struct layout *l) {
    double all = 0;
    switch (l->op) {
    case zipcclOpAllGather:
    case zipcclOpGather:
    case zipcclOpScatter:
        return (double)l->bytes * l->nranks;
    case zipcclOpAllGatherv:
        return (double)layout_recv_bytes(l, 0);
    case zipcclOpReduceScatterv:
        return (double)layout_send_bytes(l, 0);
    case zipcclOpAllToAllv: /* of a rank on average */
        for (unsigned r = 0; r < l->nranks; r++)
            all += (double)layout_send_bytes(l, r);
        return all / l->nranks;
    default:
        return (double)l->bytes;
    }
}

double layout_bus_factor(const struct layout *l) {
    double n = l->nranks;
    switch (l->op) {
    case zipcclOpAllReduce:
        return 2 * (n - 1) / n;
    case zipcclOpBroadcast:
    case zipcclOpReduce:
    case zipcclOpSend:
    case zipcclOpBarrier:
        return 1;
    default:
        return (n - 1) / n;
    }
}

const char *layout_bytes_mean(zipcclOp_t op) {
    switch (op) {
    case zipcclOpBarrier:
        return "";
    case zipcclOpReduceScatter:
    case zipcclOpReduceScatterv:
    case zipcclOpAllToAll:
    case zipcclOpAllToAllv:
    case zipcclOpAllToAllCapped:
        return "what each rank gives to all";
    case zipcclOpScatter:
        return "what each rank receives";
    case zipcclOpBroadcast:
        return "what the root gives";
    case zipcclOpAllGatherv:
        return "what a rank gives on average";
    default:
        return "what each rank gives";
    }
}
