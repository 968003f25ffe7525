/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan simulator. Memory holds no bytes but extents: which values of which rank lie where. Checked at every step:
 * slots are not overwritten while a reader is left, reads see what was meant, no byte is written twice; at the end:
 * everything has run, everything has arrived, every send met one receive.
 */
#include "simulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"

struct extent {
    uint64_t offset, bytes; /* in the buffer */
    uint64_t from;          /* offset in the values of rank */
    uint32_t rank;
};

struct buffer {
    struct extent *list;
    uint32_t n, cap;
};

struct slot {
    struct extent content;
    uint32_t writer; /* step, UINT32_MAX: none yet */
    uint32_t readers_left;
    bool coded;
};

enum phase { WAITING, READY, ACTIVE, DONE };

struct node {
    struct plan *plan;
    uint32_t *waiting;
    uint8_t *phase;
    struct buffer *recvbuf; /* by local rank */
    uint32_t *rank_of;
    uint32_t nlocal;
    struct slot *slots;
    uint32_t *readers; /* of a slot writer step */
};

struct item {
    uint32_t node, step;
    uint32_t node2, step2; /* the receive of a matched pair, UINT32_MAX: none */
};

struct sim {
    const struct plan_args *args;
    struct node *nodes;
    uint32_t nnodes;
    uint64_t esz;
    unsigned seed;
    struct item *ready, *active;
    uint32_t nready, nactive;
    struct sim_result *result;
    char *why;
};

static char g_why[512];

static bool fail(struct sim *s, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(g_why, sizeof(g_why), format, ap);
    va_end(ap);
    s->why = g_why;
    return false;
}

static uint32_t roll(struct sim *s, uint32_t n) {
    s->seed = s->seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(s->seed >> 8) * n) >> 24);
}

static bool write_buffer(struct sim *s, uint32_t n, struct plan_ref dst, struct extent content) {
    if (dst.index >= s->nodes[n].nlocal)
        return fail(s, "node %u: write to local rank %u", n, dst.index);
    struct buffer *b = &s->nodes[n].recvbuf[dst.index];
    content.offset = dst.offset;
    for (uint32_t i = 0; i < b->n; i++) {
        if (content.offset < b->list[i].offset + b->list[i].bytes && b->list[i].offset < content.offset + content.bytes)
            return fail(s, "node %u local %u: offset %llu written twice", n, dst.index, (unsigned long long)dst.offset);
    }
    if (b->n == b->cap) {
        b->cap = b->cap ? b->cap * 2 : 32;
        b->list = realloc(b->list, b->cap * sizeof(*b->list));
    }
    b->list[b->n++] = content;
    return true;
}

static bool read_ref(struct sim *s, uint32_t n, const struct plan_step *step, struct extent *out) {
    struct node *node = &s->nodes[n];
    uint64_t bytes = step->count * s->esz;
    struct plan_ref src = step->src;
    if (step->count == 0) {
        *out = (struct extent){0};
        return true;
    }
    if (src.space == PLAN_SENDBUF) {
        if (src.index >= node->nlocal || src.offset + bytes > s->args->ops->count * s->esz)
            return fail(s, "node %u: read outside a send buffer", n);
        *out = (struct extent){.bytes = bytes, .from = src.offset, .rank = node->rank_of[src.index]};
        return true;
    }
    if (src.space == PLAN_RECVBUF) {
        struct buffer *b = &node->recvbuf[src.index];
        for (uint32_t i = 0; i < b->n; i++) {
            if (b->list[i].offset == src.offset && b->list[i].bytes == bytes) {
                *out = b->list[i];
                return true;
            }
        }
        return fail(s, "node %u: %s reads what is not there", n, plan_kind_name(step->kind));
    }
    if (src.space != PLAN_SLOT || src.index >= node->plan->nslots)
        return fail(s, "node %u: bad source of %s", n, plan_kind_name(step->kind));
    struct slot *slot = &node->slots[src.index];
    if (slot->writer == UINT32_MAX || node->phase[slot->writer] != DONE || slot->content.bytes != bytes ||
        slot->readers_left == 0)
        return fail(s, "node %u: %s reads slot %u too early or too often", n, plan_kind_name(step->kind), src.index);
    *out = slot->content;
    return true;
}

static bool take_slot(struct sim *s, uint32_t n, uint32_t step) {
    struct node *node = &s->nodes[n];
    uint32_t index = node->plan->steps[step].dst.index;
    if (index >= node->plan->nslots || node->plan->steps[step].count > node->plan->items[0].slot_count)
        return fail(s, "node %u: slot %u out of range", n, index);
    struct slot *slot = &node->slots[index];
    if (slot->writer != UINT32_MAX && (node->phase[slot->writer] != DONE || slot->readers_left > 0))
        return fail(s, "node %u: slot %u taken while in use", n, index);
    slot->writer = step;
    slot->readers_left = node->readers[step];
    return true;
}

static bool check_rank(struct sim *s, uint32_t n, const struct plan_step *step, const struct extent *e) {
    if (step->count && e->rank != step->rank)
        return fail(s, "node %u: %s of rank %u holds rank %u", n, plan_kind_name(step->kind), step->rank, e->rank);
    return true;
}

static void push_ready(struct sim *s, uint32_t n, uint32_t step) {
    s->nodes[n].phase[step] = READY;
    s->ready[s->nready++] = (struct item){n, step, UINT32_MAX, UINT32_MAX};
}

static void complete(struct sim *s, uint32_t n, uint32_t step) {
    struct node *node = &s->nodes[n];
    const struct plan_step *st = &node->plan->steps[step];
    node->phase[step] = DONE;
    if (st->src.space == PLAN_SLOT)
        node->slots[st->src.index].readers_left--;
    for (uint32_t i = 0; i < st->nnext; i++) {
        uint32_t next = node->plan->next[st->first_next + i];
        if (--node->waiting[next] == 0)
            push_ready(s, n, next);
    }
}

static bool start(struct sim *s, struct item item) {
    struct node *node = &s->nodes[item.node];
    const struct plan_step *st = &node->plan->steps[item.step];
    node->phase[item.step] = ACTIVE;
    if (st->dst.space == PLAN_SLOT && !take_slot(s, item.node, item.step))
        return false;
    if (st->kind != PLAN_SEND && st->kind != PLAN_RECV) {
        s->active[s->nactive++] = item;
        return true;
    }
    if (st->peer >= s->nnodes || st->peer == item.node)
        return fail(s, "node %u: bad peer %u", item.node, st->peer);
    struct node *other = &s->nodes[st->peer];
    uint8_t want = st->kind == PLAN_SEND ? PLAN_RECV : PLAN_SEND;
    for (uint32_t i = 0; i < other->plan->nsteps; i++) {
        const struct plan_step *o = &other->plan->steps[i];
        if (o->kind != want || o->peer != item.node || o->tag != st->tag || other->phase[i] != ACTIVE)
            continue;
        if (o->count != st->count || o->rank != st->rank || o->codec != st->codec)
            return fail(s, "node %u and %u disagree on tag %u", item.node, st->peer, st->tag);
        struct item pair = {item.node, item.step, st->peer, i};
        if (st->kind == PLAN_RECV)
            pair = (struct item){st->peer, i, item.node, item.step};
        s->active[s->nactive++] = pair;
        return true;
    }
    return true;
}

static bool end(struct sim *s, struct item item) {
    const struct plan_step *st = &s->nodes[item.node].plan->steps[item.step];
    struct extent e = {0};
    if (st->kind == PLAN_ARRIVE) {
        complete(s, item.node, item.step);
        return true;
    }
    if (!read_ref(s, item.node, st, &e) || !check_rank(s, item.node, st, &e))
        return false;
    uint32_t n = item.node, step = item.step;
    if (st->kind == PLAN_SEND) {
        s->result->sent_bytes[n] += st->count * s->esz;
        s->result->messages++;
        complete(s, n, step);
        n = item.node2;
        step = item.step2;
        st = &s->nodes[n].plan->steps[step];
    }
    if (st->dst.space == PLAN_SLOT)
        s->nodes[n].slots[st->dst.index].content = e;
    else if (st->dst.space == PLAN_RECVBUF && st->count && !write_buffer(s, n, st->dst, e))
        return false;
    complete(s, n, step);
    return true;
}

static bool check_shape(struct sim *s, uint32_t n) {
    struct node *node = &s->nodes[n];
    const struct plan *p = node->plan;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct plan_step *st = &p->steps[i];
        for (uint32_t k = 0; k < st->nnext; k++) {
            if (p->next[st->first_next + k] <= i)
                return fail(s, "node %u: edge back from %u", n, i);
        }
        for (uint32_t k = i; st->kind == PLAN_SEND && k-- > 0;) {
            if (p->steps[k].kind == PLAN_SEND && p->steps[k].peer == st->peer && p->steps[k].tag == st->tag)
                return fail(s, "node %u: tag %u sent twice", n, st->tag);
        }
        if (st->dst.space != PLAN_SLOT)
            continue;
        for (uint32_t k = i + 1; k < p->nsteps; k++) {
            if (p->steps[k].src.space == PLAN_SLOT && p->steps[k].src.index == st->dst.index)
                node->readers[i]++;
            if (p->steps[k].dst.space == PLAN_SLOT && p->steps[k].dst.index == st->dst.index)
                break;
        }
        if (node->readers[i] == 0)
            return fail(s, "node %u: slot written for nobody", n);
    }
    return true;
}

static bool check_end(struct sim *s) {
    const struct plan_args *a = s->args;
    for (uint32_t n = 0; n < s->nnodes; n++) {
        for (uint32_t i = 0; i < s->nodes[n].plan->nsteps; i++) {
            if (s->nodes[n].phase[i] != DONE)
                return fail(s, "deadlock: node %u step %u %s tag %u", n, i,
                            plan_kind_name(s->nodes[n].plan->steps[i].kind), s->nodes[n].plan->steps[i].tag);
        }
        for (uint32_t l = 0; l < s->nodes[n].nlocal && a->ops->op != zipcclOpBarrier; l++) {
            uint64_t got = 0, want = a->ops->count * s->esz * (a->ops->op == zipcclOpAllGather ? a->topology->nranks : 1);
            struct buffer *b = &s->nodes[n].recvbuf[l];
            for (uint32_t i = 0; i < b->n; i++) {
                const struct extent *e = &b->list[i];
                uint64_t base = a->ops->op == zipcclOpAllGather ? e->rank * a->ops->count * s->esz : 0;
                got += e->bytes; /* nothing overlaps: full size is full cover */
                if (e->offset != base + e->from || (a->ops->op == zipcclOpBroadcast && e->rank != a->ops->root))
                    return fail(s, "node %u local %u: values at the wrong place", n, l);
            }
            if (got != want)
                return fail(s, "node %u local %u: %llu of %llu bytes", n, l, (unsigned long long)got,
                            (unsigned long long)want);
        }
    }
    return true;
}

static bool set_up(struct sim *s) {
    size_t steps = 0;
    for (uint32_t n = 0; n < s->nnodes; n++) {
        struct plan_args args = *s->args;
        struct node *node = &s->nodes[n];
        args.node = n;
        if (plan_build(&args, &node->plan) != zipcclSuccess)
            return fail(s, "node %u: plan_build fails", n);
        struct plan *p = node->plan;
        steps += p->nsteps;
        node->waiting = calloc(p->nsteps + 1, sizeof(*node->waiting));
        node->readers = calloc(p->nsteps + 1, sizeof(*node->readers));
        node->phase = calloc(p->nsteps + 1, 1);
        node->rank_of = calloc(args.topology->nranks, sizeof(*node->rank_of));
        node->recvbuf = calloc(args.topology->nranks, sizeof(*node->recvbuf));
        node->slots = calloc(p->nslots + 1, sizeof(*node->slots));
        for (uint32_t i = 0; i < p->nslots; i++)
            node->slots[i].writer = UINT32_MAX;
        for (uint32_t r = 0; r < args.topology->nranks; r++) {
            if (args.topology->rank_node[r] == n)
                node->rank_of[node->nlocal++] = r;
        }
        if (!check_shape(s, n))
            return false;
    }
    s->ready = calloc(steps + 1, sizeof(*s->ready));
    s->active = calloc(steps + 1, sizeof(*s->active));
    for (uint32_t n = 0; n < s->nnodes; n++) {
        for (uint32_t i = 0; i < s->nodes[n].plan->nsteps; i++) {
            s->nodes[n].waiting[i] = s->nodes[n].plan->steps[i].ndeps;
            if (s->nodes[n].waiting[i] == 0)
                push_ready(s, n, i);
        }
    }
    return true;
}

const char *simulate(const struct plan_args *args, unsigned seed, struct sim_result *result) {
    struct sim s = {.args = args, .nnodes = args->topology->nnodes, .seed = seed, .result = result};
    s.esz = dtype_get(args->ops->dtype)->bytes;
    s.nodes = calloc(s.nnodes, sizeof(*s.nodes));
    memset(result, 0, sizeof(*result));
    bool ok = set_up(&s);
    while (ok && s.nready + s.nactive > 0) {
        uint32_t pick = roll(&s, s.nready + s.nactive);
        if (pick < s.nready) {
            struct item item = s.ready[pick];
            s.ready[pick] = s.ready[--s.nready];
            ok = start(&s, item);
        } else {
            struct item item = s.active[pick - s.nready];
            s.active[pick - s.nready] = s.active[--s.nactive];
            ok = end(&s, item);
        }
    }
    if (ok)
        check_end(&s);
    for (uint32_t n = 0; n < s.nnodes; n++) {
        struct node *node = &s.nodes[n];
        for (uint32_t l = 0; l < node->nlocal; l++)
            free(node->recvbuf[l].list);
        free(node->waiting);
        free(node->readers);
        free(node->phase);
        free(node->rank_of);
        free(node->recvbuf);
        free(node->slots);
        plan_free(node->plan);
    }
    free(s.nodes);
    free(s.ready);
    free(s.active);
    return s.why;
}
