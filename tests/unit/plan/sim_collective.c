/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives in the simulator: the buffers of every rank, and what they must hold in the end. The expressions of
 * reductions are made here from the rule that zipcclRedOp_t documents, not from the plans.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"
#include "proto/op.h"
#include "simulator_impl.h"

struct collective {
    const struct plan_args *args;
    uint32_t *order; /* nodes by their lowest rank */
};

static uint64_t count_of(const struct plan_op *op, uint32_t rank) {
    return op->counts ? op->counts[rank] : op->count;
}

static uint64_t offset_of(const struct plan_op *op, uint32_t rank) {
    uint64_t offset = 0;
    for (uint32_t r = 0; r < rank; r++)
        offset += count_of(op, r);
    return offset;
}

static bool is_gather(zipcclOp_t op) {
    return op == zipcclOpAllGather || op == zipcclOpAllGatherv;
}

static bool is_scatter(zipcclOp_t op) {
    return op == zipcclOpReduceScatter || op == zipcclOpReduceScatterv;
}

static struct memory memory_of(const struct collective *c, uint32_t index, uint32_t rank, bool in_place) {
    const struct plan_op *op = &c->args->ops[index];
    uint32_t nranks = c->args->topology->nranks;
    uint64_t esz = dtype_get(op->dtype)->bytes, total = offset_of(op, nranks) * esz, own = count_of(op, rank) * esz;
    int64_t offset = (int64_t)(offset_of(op, rank) * esz);
    struct memory m = {.leaf = expr_leaf(index, rank), .in_place = in_place};
    if (op->op == zipcclOpBarrier)
        return m;
    m.send_bytes = is_scatter(op->op) ? total : own;
    m.recv_bytes = is_gather(op->op) ? total : own;
    if (op->op == zipcclOpBroadcast && rank != op->root)
        m.send_bytes = 0;
    if (op->op == zipcclOpReduce && rank != op->root)
        m.recv_bytes = 0;
    m.alias = is_gather(op->op) ? offset : is_scatter(op->op) ? -offset : 0;
    return m;
}

static struct value contribution(const struct collective *c, uint32_t index, uint32_t rank) {
    struct value v = {.expr = expr_leaf(index, rank), .exact = true};
    if (c->args->ops[index].redop == zipcclPreMulSum)
        v = (struct value){.expr = expr_mix(EXPR_SCALED, v.expr, 0)};
    return v;
}

/* The rule: ranks of a node in order, rounded where there are several nodes; nodes in order; one rounding. */
static uint64_t by_the_rule(const struct collective *c, uint32_t index) {
    const struct plan_topology *t = c->args->topology;
    struct value total = {.none = true};
    for (uint32_t k = 0; k < t->nnodes; k++) {
        struct value node = {.none = true};
        for (uint32_t r = 0; r < t->nranks; r++) {
            if (t->rank_node[r] == c->order[k])
                node = expr_combine(node, contribution(c, index, r));
        }
        total = expr_combine(total, t->nnodes > 1 ? expr_round(node) : node);
    }
    return expr_mix(EXPR_FINAL, total.expr, 0);
}

/* The ring: from the rank after `owner` round to it, one rounding whenever a node is left. */
static uint64_t by_the_ring(const struct collective *c, uint32_t index, uint32_t owner) {
    const struct plan_topology *t = c->args->topology;
    uint32_t *ring = calloc(t->nranks, sizeof(*ring)), n = 0, at = 0;
    for (uint32_t k = 0; k < t->nnodes; k++) {
        for (uint32_t r = 0; r < t->nranks; r++) {
            if (t->rank_node[r] == c->order[k])
                ring[n++] = r;
        }
    }
    while (ring[at] != owner)
        at++;
    struct value total = {.none = true};
    uint32_t before = SIM_NONE;
    for (uint32_t i = 1; i <= n; i++) {
        uint32_t rank = ring[(at + i) % n], node = t->rank_node[rank];
        if (before != SIM_NONE && before != node)
            total = expr_round(total);
        total = expr_combine(total, expr_round(contribution(c, index, rank)));
        before = node;
    }
    free(ring);
    return expr_mix(EXPR_FINAL, total.expr, 0);
}

/* The ring cuts an all-reduce as it likes, but all ranks must get the same. */
static bool check_ring_all_reduce(struct sim *s, uint32_t index, const struct memory *m, const struct memory *first) {
    const struct collective *c = s->user;
    const struct plan_topology *t = c->args->topology;
    for (uint32_t i = 0; i < m->n; i++) {
        const struct extent *e = &m->list[i];
        bool known = false;
        for (uint32_t r = 0; r < t->nranks && !known; r++)
            known = e->content.expr == by_the_ring(c, index, r);
        if (!known || e->content.from != e->offset || !sim_holds(first, e->offset, e->bytes, e->content))
            return sim_fail(s, "op %u: not the ring's sum at %llu", index, (unsigned long long)e->offset);
    }
    return true;
}

static bool check_memory(struct sim *s, uint32_t index, uint32_t rank, const struct memory *m) {
    const struct collective *c = s->user;
    const struct plan_op *op = &c->args->ops[index];
    const struct plan_topology *t = c->args->topology;
    uint64_t esz = dtype_get(op->dtype)->bytes, bytes = m->recv_bytes;
    bool good = true;
    if (sim_written(m) != bytes)
        return sim_fail(s, "op %u rank %u: %llu of %llu bytes", index, rank, (unsigned long long)sim_written(m),
                        (unsigned long long)bytes);
    if (is_gather(op->op)) {
        for (uint32_t r = 0; r < t->nranks; r++)
            good = good && sim_holds(m, offset_of(op, r) * esz, count_of(op, r) * esz,
                                     (struct content){expr_leaf(index, r), 0});
    } else if (op->op == zipcclOpBroadcast) {
        good = sim_holds(m, 0, bytes, (struct content){expr_leaf(index, op->root), 0});
    } else if (op->op == zipcclOpAllReduce && op->arm == zipcclArmRing) {
        return check_ring_all_reduce(s, index, m,
                                     &s->units[t->rank_node[0]].memory[index * s->units[t->rank_node[0]].plan->nlocal]);
    } else if (op_reduces(op->op) && bytes > 0) {
        uint64_t from = is_scatter(op->op) ? offset_of(op, rank) * esz : 0;
        uint32_t owner = is_scatter(op->op) ? rank : op->root;
        uint64_t expr = op->arm == zipcclArmRing ? by_the_ring(c, index, owner) : by_the_rule(c, index);
        good = sim_holds(m, 0, bytes, (struct content){expr, from});
    }
    return good || sim_fail(s, "op %u rank %u: wrong values", index, rank);
}

static void channel(const struct sim *s, uint32_t unit, uint32_t step, uint64_t key[2]) {
    const struct plan_step *st = &s->units[unit].plan->steps[step];
    uint32_t node = s->units[unit].node;
    uint64_t from = st->kind == PLAN_SEND ? node : st->peer, to = st->kind == PLAN_SEND ? st->peer : node;
    key[0] = from << 32 | to;
    key[1] = (uint64_t)st->item << 32 | st->tag;
}

static bool build_units(struct sim *s, zipcclRedOp_t *redops, uint32_t late) {
    const struct collective *c = s->user;
    const struct plan_topology *t = c->args->topology;
    for (uint32_t i = 0; i < c->args->nops; i++)
        redops[i] = c->args->ops[i].redop;
    for (uint32_t n = 0; n < t->nnodes; n++) {
        struct unit *u = &s->units[n];
        struct plan_args args = *c->args;
        args.node = n;
        if (s->options->seed % 4 == 0)
            args.window += n % 3; /* daemons need not agree in it */
        *u = (struct unit){.node = n, .redops = redops, .late_arrival = SIM_NONE};
        if (plan_build(&args, &u->plan) != zipcclSuccess)
            return sim_fail(s, "node %u: plan_build fails", n);
        u->nbuffers = args.nops * u->plan->nlocal;
        u->memory = calloc(u->nbuffers, sizeof(*u->memory));
        uint32_t local = 0;
        for (uint32_t r = 0; r < t->nranks; r++) {
            if (t->rank_node[r] != n)
                continue;
            if (u->plan->steps[local].kind != PLAN_ARRIVE || u->plan->steps[local].local != local)
                return sim_fail(s, "node %u: step %u is no arrival", n, local);
            if (r == late)
                u->late_arrival = local;
            for (uint32_t i = 0; i < args.nops; i++)
                u->memory[i * u->plan->nlocal + local] = memory_of(c, i, r, s->options->in_place);
            local++;
        }
        if (local != u->plan->nlocal)
            return sim_fail(s, "node %u: nlocal is %u", n, u->plan->nlocal);
    }
    return true;
}

static void check_results(struct sim *s) {
    const struct collective *c = s->user;
    const struct plan_topology *t = c->args->topology;
    for (uint32_t i = 0; i < c->args->nops; i++) {
        for (uint32_t n = 0; n < t->nnodes; n++) {
            uint32_t local = 0;
            for (uint32_t r = 0; r < t->nranks; r++) {
                struct unit *u = &s->units[n];
                if (t->rank_node[r] == n && !check_memory(s, i, r, &u->memory[i * u->plan->nlocal + local++]))
                    return;
            }
        }
    }
}

const char *simulate(const struct plan_args *args, const struct sim_options *options, struct sim_result *result) {
    const struct plan_topology *t = args->topology;
    struct collective c = {.args = args};
    struct sim s = {.nunits = t->nnodes, .options = options, .result = result, .channel = channel, .user = &c};
    zipcclRedOp_t *redops = calloc(args->nops, sizeof(*redops));
    memset(result, 0, sizeof(*result));
    s.units = calloc(s.nunits, sizeof(*s.units));
    c.order = calloc(t->nnodes, sizeof(*c.order));
    uint32_t n = 0;
    for (uint32_t r = 0; r < t->nranks; r++) {
        bool first = true;
        for (uint32_t q = 0; q < r; q++)
            first = first && t->rank_node[q] != t->rank_node[r];
        if (first)
            c.order[n++] = t->rank_node[r];
    }
    if (build_units(&s, redops, options->late) && sim_run(&s))
        check_results(&s);
    sim_free(&s);
    free(c.order);
    free(redops);
    return s.why;
}
