/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges in the simulator: every rank has a plan of its own, made of the calls of its group.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"
#include "simulator_impl.h"

#define BUFFER_BYTES (1ull << 40) /* as large as any offset */

struct exchange {
    const struct sim_exchange *args;
    struct plan_transfer **transfers; /* by rank */
    uint32_t *ntransfers;
    uint32_t **ordinal; /* by rank and transfer: its number among those of its pair and direction */
};

static void channel(const struct sim *s, uint32_t unit, uint32_t step, uint64_t key[2]) {
    const struct exchange *x = s->user;
    const struct plan_step *st = &s->units[unit].plan->steps[step];
    const struct plan_transfer *t = &x->transfers[unit][st->item];
    uint64_t from = t->send ? unit : t->peer, to = t->send ? t->peer : unit;
    key[0] = from << 32 | to;
    key[1] = (uint64_t)x->ordinal[unit][st->item] << 32 | st->tag;
}

/* What does not involve the late rank. All sizes first waits for everybody. */
static bool independent(const struct sim *s, uint32_t unit, uint32_t step) {
    const struct exchange *x = s->user;
    const struct plan_step *st = &s->units[unit].plan->steps[step];
    if (unit == s->options->late)
        return false;
    if (x->args->phases == PLAN_SIZES_FIRST &&
        (st->kind == PLAN_ARRIVE || !x->transfers[unit][st->item].capped || st->kind == PLAN_COPY))
        return false;
    return st->kind == PLAN_ARRIVE || x->transfers[unit][st->item].peer != s->options->late;
}

static void list_transfers(struct exchange *x, uint32_t rank) {
    const struct plan_topology *t = x->args->topology;
    struct plan_transfer *list = calloc((size_t)x->args->ncalls * 2 * t->nranks, sizeof(*list));
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->args->ncalls; i++) {
        const struct plan_call *call = &x->args->calls[rank * x->args->ncalls + i];
        if (call->op != zipcclNumOps)
            n += plan_transfers(call, rank, t->nranks, i, list + n);
    }
    uint32_t *ordinal = calloc(n + 1, sizeof(*ordinal)), *seen = calloc(2 * (size_t)t->nranks, sizeof(*seen));
    for (uint32_t i = 0; i < n; i++) {
        list[i].codec = x->args->codec;
        ordinal[i] = seen[2 * list[i].peer + list[i].send]++;
    }
    free(seen);
    x->transfers[rank] = list;
    x->ntransfers[rank] = n;
    x->ordinal[rank] = ordinal;
}

/* What travels of a transfer. */
static uint64_t actual_count(const struct exchange *x, uint32_t rank, uint32_t transfer) {
    const struct plan_transfer *t = &x->transfers[rank][transfer];
    uint32_t from = t->send ? rank : t->peer, to = t->send ? t->peer : rank;
    return t->capped ? x->args->calls[from * x->args->ncalls + t->buffer].send_counts[to] : t->count;
}

static bool build_unit(struct sim *s, uint32_t rank) {
    const struct exchange *x = s->user;
    const struct sim_exchange *a = x->args;
    struct unit *u = &s->units[rank];
    struct plan_exchange_args args = {.transfers = x->transfers[rank],
                                      .ntransfers = x->ntransfers[rank],
                                      .nbuffers = a->ncalls,
                                      .rank = rank,
                                      .topology = a->topology,
                                      .chunk_bytes = a->chunk_bytes,
                                      .window = a->window,
                                      .phases = a->phases};
    *u = (struct unit){.node = a->topology->rank_node[rank], .nbuffers = a->ncalls};
    u->late_arrival = rank == s->options->late ? 0 : SIM_NONE;
    if (plan_build_exchange(&args, &u->plan) != zipcclSuccess)
        return sim_fail(s, "rank %u: plan_build_exchange fails", rank);
    if (u->plan->nlocal != 1 || u->plan->steps[0].kind != PLAN_ARRIVE)
        return sim_fail(s, "rank %u: does not arrive", rank);
    u->memory = calloc(u->nbuffers, sizeof(*u->memory));
    u->actual = calloc(x->ntransfers[rank] + 1, sizeof(*u->actual));
    for (uint32_t i = 0; i < x->ntransfers[rank]; i++)
        u->actual[i] = actual_count(x, rank, i);
    for (uint32_t i = 0; i < a->ncalls; i++)
        u->memory[i] =
            (struct memory){.leaf = expr_leaf(i, rank), .send_bytes = BUFFER_BYTES, .recv_bytes = BUFFER_BYTES};
    return true;
}

/* The send that a receive meets. */
static const struct plan_transfer *sender_of(const struct exchange *x, uint32_t rank, uint32_t transfer) {
    uint32_t peer = x->transfers[rank][transfer].peer;
    for (uint32_t i = 0; i < x->ntransfers[peer]; i++) {
        const struct plan_transfer *t = &x->transfers[peer][i];
        if (t->send && t->peer == rank && x->ordinal[peer][i] == x->ordinal[rank][transfer])
            return t;
    }
    return NULL;
}

static void check_results(struct sim *s) {
    const struct exchange *x = s->user;
    const uint32_t *rank_node = x->args->topology->rank_node;
    uint64_t crossed = 0;
    for (uint32_t r = 0; r < s->nunits; r++) {
        uint64_t want = 0, got = 0;
        for (uint32_t i = 0; i < x->ntransfers[r]; i++) {
            const struct plan_transfer *t = &x->transfers[r][i], *from;
            if (t->send)
                continue;
            uint64_t bytes = actual_count(x, r, i) * dtype_get(t->dtype)->bytes;
            from = sender_of(x, r, i);
            want += bytes;
            crossed += rank_node[r] == rank_node[t->peer] ? 0 : bytes;
            if (!from || !sim_holds(&s->units[r].memory[t->buffer], t->offset, bytes,
                                    (struct content){expr_leaf(from->buffer, t->peer), from->offset})) {
                sim_fail(s, "rank %u: wrong values from rank %u", r, t->peer);
                return;
            }
        }
        for (uint32_t i = 0; i < s->units[r].nbuffers; i++)
            got += sim_written(&s->units[r].memory[i]);
        if (got != want) {
            sim_fail(s, "rank %u: writes too much", r);
            return;
        }
    }
    for (uint32_t n = 0; n < x->args->topology->nnodes; n++)
        crossed -= s->result->sent_bytes[n];
    if (crossed != 0)
        sim_fail(s, "%lld bytes too few between nodes", (long long)crossed);
}

/* Phase one comes first: no dynamic part of a peer before the static parts of all. */
static void check_order(struct sim *s) {
    const struct exchange *x = s->user;
    for (uint32_t r = 0; r < s->nunits; r++) {
        const struct plan *p = s->units[r].plan;
        bool dynamic = false;
        for (uint32_t i = 0; i < p->nsteps; i++) {
            const struct plan_step *st = &p->steps[i];
            if (st->kind != PLAN_SEND)
                continue;
            dynamic = dynamic || st->part == PLAN_DYNAMIC;
            if (st->part == PLAN_STATIC && dynamic && st->tag / 2 < x->args->window)
                sim_fail(s, "rank %u: a dynamic part before the static part of step %u", r, i);
        }
    }
}

/* Sizes first: every message of data, sends and receives excepted, waits for every message of sizes that this rank
 * gets. */
static void check_sizes(struct sim *s) {
    const struct exchange *x = s->user;
    for (uint32_t r = 0; r < s->nunits; r++) {
        const struct plan *p = s->units[r].plan;
        bool *after = calloc(p->nsteps + 1, sizeof(*after));
        for (uint32_t first = 0; first < p->nsteps; first++) {
            if (p->steps[first].kind != PLAN_RECV || p->steps[first].tag != UINT32_MAX)
                continue;
            memset(after, 0, p->nsteps);
            after[first] = true;
            for (uint32_t i = first; i < p->nsteps; i++) {
                const struct plan_step *st = &p->steps[i];
                for (uint32_t k = 0; k < st->nnext && after[i]; k++)
                    after[p->next[st->first_next + k]] = true;
            }
            for (uint32_t i = 0; i < p->nsteps; i++) {
                const struct plan_step *st = &p->steps[i];
                zipcclOp_t called =
                    st->kind == PLAN_ARRIVE || st->kind == PLAN_COPY ? zipcclNumOps : x->transfers[r][st->item].op;
                if (after[i] && (called == zipcclOpSend || called == zipcclOpRecv))
                    sim_fail(s, "rank %u step %u: a send or receive that waits for sizes", r, i);
                bool data = (st->kind == PLAN_SEND || st->kind == PLAN_RECV) && st->tag != UINT32_MAX;
                zipcclOp_t op = data ? x->transfers[r][st->item].op : zipcclNumOps;
                data = data && op != zipcclOpSend && op != zipcclOpRecv &&
                       op != zipcclOpAllToAllCapped; /* wait for nothing */
                if (data && st->peer != s->units[r].node && !after[i])
                    sim_fail(s, "rank %u step %u: does not wait for sizes", r, i);
            }
        }
        free(after);
    }
}

const char *simulate_exchange(const struct sim_exchange *args, const struct sim_options *options,
                              struct sim_result *result) {
    uint32_t nranks = args->topology->nranks;
    struct exchange x = {.args = args};
    struct sim s = {.nunits = nranks,
                    .options = options,
                    .result = result,
                    .channel = channel,
                    .independent = independent,
                    .user = &x};
    memset(result, 0, sizeof(*result));
    s.units = calloc(nranks, sizeof(*s.units));
    x.transfers = calloc(nranks, sizeof(struct plan_transfer *));
    x.ntransfers = calloc(nranks, sizeof(*x.ntransfers));
    x.ordinal = calloc(nranks, sizeof(uint32_t *));
    bool ok = true;
    for (uint32_t r = 0; r < nranks; r++)
        list_transfers(&x, r);
    for (uint32_t r = 0; r < nranks && ok; r++)
        ok = build_unit(&s, r);
    if (ok)
        check_order(&s);
    if (ok && args->phases == PLAN_SIZES_FIRST)
        check_sizes(&s);
    if (ok && !s.why && sim_run(&s))
        check_results(&s);
    for (uint32_t r = 0; r < nranks; r++) {
        free(x.transfers[r]);
        free(x.ordinal[r]);
    }
    sim_free(&s);
    free(x.transfers);
    free(x.ntransfers);
    free(x.ordinal);
    return s.why;
}
