/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan simulator. Memory holds no bytes but extents: of which expression of which contributions they are. Checked
 * at every step: slots and scratch are not overwritten while a reader is left, reads see what was meant from their
 * start to their end (also where buffers alias), no byte is written twice; at the end: everything has run, and every
 * send has met one receive.
 */
#include "simulator_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"

static char g_why[512];

bool sim_fail(struct sim *s, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    if (!s->why)
        vsnprintf(g_why, sizeof(g_why), format, ap);
    va_end(ap);
    s->why = g_why;
    return false;
}

uint64_t expr_mix(enum expr_kind kind, uint64_t a, uint64_t b) {
    uint64_t h = (uint64_t)kind * 0x9e3779b97f4a7c15u;
    h = (h ^ a) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
    h = (h ^ b) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    return h * 0x9e3779b97f4a7c15u ^ h >> 31;
}

struct value expr_combine(struct value total, struct value more) {
    if (total.none)
        return more;
    return (struct value){.expr = expr_mix(EXPR_COMBINE, total.expr, more.expr)};
}

struct value expr_round(struct value v) {
    if (!v.exact)
        v = (struct value){.expr = expr_mix(EXPR_ROUND, v.expr, 0), .exact = true};
    return v;
}

static uint32_t roll(struct sim *s, uint32_t n) {
    s->seed = s->seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(s->seed >> 8) * n) >> 24);
}

static bool is_capped(const struct unit *u, const struct plan_step *st) {
    return st->kind != PLAN_ARRIVE && u->plan->items[st->item].capped;
}

static uint64_t bytes_of(const struct unit *u, const struct plan_step *st) {
    uint64_t count = st->count;
    if (is_capped(u, st))
        count = plan_capped_count(&u->plan->items[st->item], st, u->actual[st->item]);
    return count * dtype_get(u->plan->items[st->item].dtype)->bytes;
}

/* A chunk of a capped transfer that its actual count does not reach; chunk 0 travels anyway. */
static bool is_left_out(const struct unit *u, const struct plan_step *st) {
    bool message = st->kind == PLAN_SEND || st->kind == PLAN_RECV;
    return is_capped(u, st) && !(message && st->tag == 0) && bytes_of(u, st) == 0;
}

/* Memory. */

static bool overlaps(const struct extent *e, uint64_t offset, uint64_t bytes) {
    return offset < e->offset + e->bytes && e->offset < offset + bytes;
}

/* What lies in a range of the receive buffer: one expression of adjacent contributions, or nothing. */
static bool look(const struct memory *m, uint64_t offset, uint64_t bytes, struct content *out) {
    uint64_t at = offset;
    while (at < offset + bytes) {
        const struct extent *e = m->list, *end = m->list + m->n;
        while (e < end && !(e->offset <= at && at < e->offset + e->bytes))
            e++;
        if (e == end)
            return false;
        struct content c = {e->content.expr, e->content.from + (at - e->offset)};
        if (at == offset)
            *out = c;
        else if (c.expr != out->expr || c.from != out->from + (at - offset))
            return false;
        at = e->offset + e->bytes;
    }
    return true;
}

bool sim_holds(const struct memory *m, uint64_t offset, uint64_t bytes, struct content content) {
    struct content c = content;
    return look(m, offset, bytes, &c) && c.expr == content.expr && c.from == content.from;
}

uint64_t sim_written(const struct memory *m) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->n; i++)
        bytes += m->list[i].bytes;
    return bytes;
}

static bool write_buffer(struct sim *s, uint32_t unit, struct plan_ref dst, uint64_t bytes, struct content content) {
    struct unit *u = &s->units[unit];
    if (dst.index >= u->nbuffers || dst.offset + bytes > u->memory[dst.index].recv_bytes)
        return sim_fail(s, "unit %u: write outside buffer %u", unit, dst.index);
    struct memory *m = &u->memory[dst.index];
    for (uint32_t i = 0; i < m->n; i++) {
        if (overlaps(&m->list[i], dst.offset, bytes))
            return sim_fail(s, "unit %u buffer %u: offset %llu written twice", unit, dst.index,
                            (unsigned long long)dst.offset);
    }
    if (m->n == m->cap) {
        m->cap = m->cap ? m->cap * 2 : 32;
        m->list = realloc(m->list, m->cap * sizeof(*m->list));
    }
    m->list[m->n++] = (struct extent){dst.offset, bytes, content};
    return true;
}

static struct cell *cell_of(struct unit *u, struct plan_ref ref) {
    if (ref.space == PLAN_SLOT)
        return ref.index < u->plan->nslots ? &u->slots[ref.index] : NULL;
    if (ref.space == PLAN_VALUES)
        return ref.index < u->plan->nvalues ? &u->values[ref.index] : NULL;
    return NULL;
}

static bool read_sendbuf(struct sim *s, uint32_t unit, struct plan_ref ref, uint64_t bytes, struct content *out) {
    const struct memory *m = &s->units[unit].memory[ref.index];
    if (ref.offset + bytes > m->send_bytes)
        return sim_fail(s, "unit %u: read outside send buffer %u", unit, ref.index);
    *out = (struct content){m->leaf, ref.offset};
    int64_t first = (int64_t)ref.offset + m->alias;
    for (uint32_t i = 0; m->in_place && i < m->n; i++) {
        const struct extent *e = &m->list[i];
        /* Written with what it held anyway: nothing was lost. */
        bool same = e->content.expr == m->leaf && e->content.from + (uint64_t)m->alias == e->offset;
        bool over = first < (int64_t)(e->offset + e->bytes) && (int64_t)e->offset < first + (int64_t)bytes;
        if (over && !same)
            return sim_fail(s, "unit %u: send buffer %u is read at %llu after it was overwritten", unit, ref.index,
                            (unsigned long long)ref.offset);
    }
    return true;
}

static bool read_ref(struct sim *s, uint32_t unit, uint32_t step, struct plan_ref ref, unsigned codec,
                     struct content *out) {
    struct unit *u = &s->units[unit];
    const struct plan_step *st = &u->plan->steps[step];
    uint64_t bytes = bytes_of(u, st);
    const char *kind = plan_kind_name((enum plan_kind)st->kind);
    *out = (struct content){0};
    if (bytes == 0)
        return true;
    if ((codec != zipcclCodecRaw) != (ref.space == PLAN_SLOT))
        return sim_fail(s, "unit %u step %u: %s mixes up codec and place", unit, step, kind);
    if (ref.space == PLAN_SENDBUF && ref.index < u->nbuffers)
        return read_sendbuf(s, unit, ref, bytes, out);
    if (ref.space == PLAN_RECVBUF && ref.index < u->nbuffers) {
        if (!look(&u->memory[ref.index], ref.offset, bytes, out))
            return sim_fail(s, "unit %u step %u: %s reads what is not there", unit, step, kind);
        return true;
    }
    struct cell *cell = cell_of(u, ref);
    if (!cell)
        return sim_fail(s, "unit %u step %u: bad source of %s", unit, step, kind);
    bool whole = st->part != PLAN_WHOLE || !cell->half;
    if (cell->writer == SIM_NONE || u->phase[cell->writer] != DONE || cell->bytes != bytes || !whole ||
        cell->readers_left == 0 || cell->item != st->item || ref.offset)
        return sim_fail(s, "unit %u step %u: %s reads %u too early or too often", unit, step, kind, ref.index);
    *out = cell->content;
    return true;
}

static bool reduce(struct sim *s, uint32_t unit, uint32_t step, struct content *out) {
    struct unit *u = &s->units[unit];
    const struct plan_step *st = &u->plan->steps[step];
    struct value total = {.none = true}, group = {.none = true};
    if (st->ninputs == 0 || !u->redops)
        return sim_fail(s, "unit %u step %u: reduces nothing", unit, step);
    for (uint32_t i = 0; i < st->ninputs; i++) {
        const struct plan_input *in = &u->plan->inputs[st->first_input + i];
        struct content c;
        if (!read_ref(s, unit, step, in->ref, in->codec, &c))
            return false;
        if (i > 0 && c.from != out->from)
            return sim_fail(s, "unit %u step %u: sums up different places", unit, step);
        *out = c;
        struct value v = {.expr = c.expr, .exact = true};
        if (in->scaled) {
            if (in->ref.space != PLAN_SENDBUF || in->ref.index != st->item * u->plan->nlocal + in->local ||
                u->redops[st->item] != zipcclPreMulSum)
                return sim_fail(s, "unit %u step %u: scaled by whom?", unit, step);
            v = (struct value){.expr = expr_mix(EXPR_SCALED, c.expr, 0)};
        }
        group = expr_combine(group, v);
        if (in->ends_group) {
            total = expr_combine(total, in->round_group ? expr_round(group) : group);
            group = (struct value){.none = true};
        }
    }
    if (!group.none)
        return sim_fail(s, "unit %u step %u: a group does not end", unit, step);
    out->expr = st->final ? expr_mix(EXPR_FINAL, total.expr, 0) : expr_round(total).expr;
    return true;
}

/* What the step reads; codec of its source. */
static bool evaluate(struct sim *s, uint32_t unit, uint32_t step, struct content *out) {
    const struct plan_step *st = &s->units[unit].plan->steps[step];
    if (st->kind == PLAN_REDUCE)
        return reduce(s, unit, step, out);
    unsigned codec = st->kind == PLAN_SEND || st->kind == PLAN_DECODE ? st->codec : zipcclCodecRaw;
    return read_ref(s, unit, step, st->src, codec, out);
}

static uint32_t reads_of(const struct unit *u, uint32_t step, struct plan_ref ref) {
    const struct plan_step *st = &u->plan->steps[step];
    uint32_t n = st->src.space == ref.space && st->src.index == ref.index;
    for (uint32_t i = 0; i < st->ninputs; i++) {
        const struct plan_ref *in = &u->plan->inputs[st->first_input + i].ref;
        n += in->space == ref.space && in->index == ref.index;
    }
    return n;
}

static bool second_part(const struct plan_step *st) {
    return st->kind == PLAN_RECV && st->part == PLAN_DYNAMIC;
}

/* The step starts to write its slot or scratch: nobody else may need what is there. */
static bool take_cell(struct sim *s, uint32_t unit, uint32_t step) {
    struct unit *u = &s->units[unit];
    const struct plan_step *st = &u->plan->steps[step];
    struct cell *cell = cell_of(u, st->dst);
    if (!cell || st->count > u->plan->items[st->item].slot_count || st->dst.offset)
        return sim_fail(s, "unit %u step %u: slot %u out of range", unit, step, st->dst.index);
    if (second_part(st)) {
        if (cell->writer == SIM_NONE || u->phase[cell->writer] != DONE || !cell->half || cell->item != st->item)
            return sim_fail(s, "unit %u step %u: a second part without a first", unit, step);
        return true;
    }
    if (cell->writer != SIM_NONE && (u->phase[cell->writer] != DONE || cell->readers_left > reads_of(u, step, st->dst)))
        return sim_fail(s, "unit %u step %u: slot %u taken while in use", unit, step, st->dst.index);
    if (cell->item != SIM_NONE && cell->item != st->item)
        return sim_fail(s, "unit %u: slot %u has two owners", unit, st->dst.index);
    cell->item = st->item;
    return true;
}

static void push_ready(struct sim *s, uint32_t unit, uint32_t step) {
    s->units[unit].phase[step] = READY;
    s->ready[s->nready++] = (struct pending){unit, step};
}

static void release(struct unit *u, struct plan_ref ref) {
    struct cell *cell = cell_of(u, ref);
    if (cell)
        cell->readers_left--;
}

/* The step is over: writes what it has, and lets others start. */
static bool complete(struct sim *s, uint32_t unit, uint32_t step, struct content content) {
    struct unit *u = &s->units[unit];
    const struct plan_step *st = &u->plan->steps[step];
    uint64_t bytes = bytes_of(u, st);
    u->phase[step] = DONE;
    release(u, st->src);
    for (uint32_t i = 0; i < st->ninputs; i++)
        release(u, u->plan->inputs[st->first_input + i].ref);
    struct cell *cell = cell_of(u, st->dst);
    if (cell && second_part(st)) {
        cell->half = false;
        cell->readers_left--;
    } else if (cell) {
        *cell = (struct cell){content, bytes, st->item, step, u->readers[step], st->part == PLAN_STATIC};
    } else if (st->dst.space == PLAN_RECVBUF && bytes && !write_buffer(s, unit, st->dst, bytes, content)) {
        return false;
    }
    for (uint32_t i = 0; i < st->nnext; i++) {
        uint32_t next = u->plan->next[st->first_next + i];
        if (--u->waiting[next] == 0)
            push_ready(s, unit, next);
    }
    return true;
}

/* Nobody knows how much comes before chunk 0 has come. */
static bool knows_count(const struct unit *u, uint32_t step) {
    const struct plan_step *st = &u->plan->steps[step];
    if (!is_capped(u, st) || (st->kind != PLAN_RECV && st->kind != PLAN_DECODE) ||
        (st->kind == PLAN_RECV && st->tag == 0))
        return true;
    for (uint32_t i = 0; i < step; i++) {
        const struct plan_step *first = &u->plan->steps[i];
        if (first->kind == PLAN_RECV && first->item == st->item && first->tag == 0)
            return u->phase[i] == DONE;
    }
    return false;
}

static bool start(struct sim *s, struct pending p) {
    struct unit *u = &s->units[p.unit];
    const struct plan_step *st = &u->plan->steps[p.step];
    struct content c = {0};
    u->phase[p.step] = ACTIVE;
    if (!knows_count(u, p.step))
        return sim_fail(s, "unit %u step %u: its count has not come", p.unit, p.step);
    if (is_left_out(u, st))
        return complete(s, p.unit, p.step, c);
    if (st->kind != PLAN_ARRIVE && st->kind != PLAN_RECV && !evaluate(s, p.unit, p.step, &c))
        return false;
    if ((st->dst.space == PLAN_SLOT || st->dst.space == PLAN_VALUES) && !take_cell(s, p.unit, p.step))
        return false;
    if (st->kind == PLAN_SEND || st->kind == PLAN_RECV) {
        struct pending other = {u->partner_unit[p.step], u->partner_step[p.step]};
        if (s->units[other.unit].phase[other.step] != ACTIVE)
            return true;
        if (st->kind == PLAN_RECV)
            p = other;
    }
    s->active[s->nactive++] = p;
    return true;
}

static bool end(struct sim *s, struct pending p) {
    struct unit *u = &s->units[p.unit];
    const struct plan_step *st = &u->plan->steps[p.step];
    struct content c = {0};
    if (st->kind != PLAN_ARRIVE && !evaluate(s, p.unit, p.step, &c))
        return false;
    if (st->kind == PLAN_SEND && u->phase[p.step] == ACTIVE) {
        /* The receiver has it; the sender hears of that later. */
        if (st->peer != u->node && st->part != PLAN_DYNAMIC)
            s->result->sent_bytes[u->node] += bytes_of(u, st);
        s->result->messages++;
        u->phase[p.step] = SENT;
        s->active[s->nactive++] = p;
        return complete(s, u->partner_unit[p.step], u->partner_step[p.step], c);
    }
    return complete(s, p.unit, p.step, c);
}

/* Edges go up; every slot that is written has readers, and they are counted. */
static bool check_shape(struct sim *s, uint32_t unit) {
    struct unit *u = &s->units[unit];
    const struct plan *p = u->plan;
    uint32_t *writer[2] = {calloc(p->nslots + 1, sizeof(uint32_t)), calloc(p->nvalues + 1, sizeof(uint32_t))};
    uint64_t sent = 0;
    memset(writer[0], 0xff, (p->nslots + 1) * sizeof(uint32_t));
    memset(writer[1], 0xff, (p->nvalues + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < p->nsteps && !s->why; i++) {
        const struct plan_step *st = &p->steps[i];
        for (uint32_t k = 0; k < st->nnext; k++) {
            if (p->next[st->first_next + k] <= i)
                sim_fail(s, "unit %u: edge back from %u", unit, i);
        }
        if (st->kind == PLAN_SEND && st->peer != u->node && st->part != PLAN_DYNAMIC && !is_capped(u, st))
            sent += bytes_of(u, st);
        if (st->item >= p->nitems && st->kind != PLAN_ARRIVE)
            sim_fail(s, "unit %u step %u: no such item", unit, i);
        for (uint32_t k = 0; k <= st->ninputs && !s->why; k++) {
            struct plan_ref ref = k < st->ninputs ? p->inputs[st->first_input + k].ref : st->src;
            if (second_part(st))
                ref = st->dst;
            if (!cell_of(u, ref))
                continue;
            uint32_t w = writer[ref.space == PLAN_VALUES][ref.index];
            if (w == SIM_NONE)
                sim_fail(s, "unit %u step %u: reads slot %u that nobody has written", unit, i, ref.index);
            else
                u->readers[w]++;
        }
        if (cell_of(u, st->dst) && !second_part(st))
            writer[st->dst.space == PLAN_VALUES][st->dst.index] = i;
    }
    for (uint32_t i = 0; i < p->nsteps && !s->why; i++) {
        if (cell_of(u, p->steps[i].dst) && !second_part(&p->steps[i]) && u->readers[i] == 0)
            sim_fail(s, "unit %u step %u: slot written for nobody", unit, i);
    }
    if (sent != p->raw_send_bytes)
        sim_fail(s, "unit %u: raw_send_bytes is %llu, not %llu", unit, (unsigned long long)p->raw_send_bytes,
                 (unsigned long long)sent);
    free(writer[0]);
    free(writer[1]);
    return !s->why;
}

struct message {
    uint64_t key[2];
    uint32_t unit, step;
    bool send;
};

static int compare_messages(const void *a, const void *b) {
    const struct message *x = a, *y = b;
    for (int i = 0; i < 2; i++) {
        if (x->key[i] != y->key[i])
            return x->key[i] < y->key[i] ? -1 : 1;
    }
    return (int)y->send - (int)x->send;
}

static bool pair_messages(struct sim *s, struct message *list, size_t n) {
    qsort(list, n, sizeof(*list), compare_messages);
    for (size_t i = 0; i < n; i += 2) {
        struct unit *u = &s->units[list[i].unit];
        const struct plan_step *st = &u->plan->steps[list[i].step];
        if (i + 1 == n || memcmp(list[i].key, list[i + 1].key, sizeof(list->key)) != 0 || !list[i].send ||
            list[i + 1].send)
            return sim_fail(s, "unit %u step %u: %s of tag %u meets nobody, or too many", list[i].unit, list[i].step,
                            plan_kind_name((enum plan_kind)st->kind), st->tag);
        struct unit *v = &s->units[list[i + 1].unit];
        const struct plan_step *o = &v->plan->steps[list[i + 1].step];
        if (o->count != st->count || o->rank != st->rank || o->codec != st->codec || o->part != st->part ||
            o->peer != u->node || st->peer != v->node)
            return sim_fail(s, "units %u and %u disagree on tag %u", list[i].unit, list[i + 1].unit, st->tag);
        u->partner_unit[list[i].step] = list[i + 1].unit;
        u->partner_step[list[i].step] = list[i + 1].step;
        v->partner_unit[list[i + 1].step] = list[i].unit;
        v->partner_step[list[i + 1].step] = list[i].step;
    }
    return true;
}

static bool set_up(struct sim *s) {
    size_t steps = 0, n = 0;
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct unit *u = &s->units[i];
        const struct plan *p = u->plan;
        steps += p->nsteps;
        u->waiting = calloc(p->nsteps + 1, sizeof(*u->waiting));
        u->readers = calloc(p->nsteps + 1, sizeof(*u->readers));
        u->partner_unit = calloc(p->nsteps + 1, sizeof(*u->partner_unit));
        u->partner_step = calloc(p->nsteps + 1, sizeof(*u->partner_step));
        u->phase = calloc(p->nsteps + 1, 1);
        u->slots = calloc(p->nslots + 1, sizeof(*u->slots));
        u->values = calloc(p->nvalues + 1, sizeof(*u->values));
        for (uint32_t k = 0; k <= p->nslots; k++)
            u->slots[k].writer = u->slots[k].item = SIM_NONE;
        for (uint32_t k = 0; k <= p->nvalues; k++)
            u->values[k].writer = u->values[k].item = SIM_NONE;
        if (!check_shape(s, i))
            return false;
    }
    s->ready = calloc(steps + 1, sizeof(*s->ready));
    s->active = calloc(steps + 1, sizeof(*s->active));
    struct message *list = calloc(steps + 1, sizeof(*list));
    for (uint32_t i = 0; i < s->nunits; i++) {
        for (uint32_t k = 0; k < s->units[i].plan->nsteps; k++) {
            uint8_t kind = s->units[i].plan->steps[k].kind;
            s->units[i].waiting[k] = s->units[i].plan->steps[k].ndeps;
            if (s->units[i].waiting[k] == 0 && k != s->units[i].late_arrival)
                push_ready(s, i, k);
            if (kind == PLAN_SEND || kind == PLAN_RECV) {
                list[n] = (struct message){.unit = i, .step = k, .send = kind == PLAN_SEND};
                s->channel(s, i, k, list[n++].key);
            }
        }
    }
    bool ok = pair_messages(s, list, n);
    free(list);
    return ok;
}

/* Nothing moves any more. The late rank comes; without one, that is the end. */
static bool at_rest(struct sim *s, bool *late_here) {
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct unit *u = &s->units[i];
        for (uint32_t k = 0; k < u->plan->nsteps; k++) {
            const struct plan_step *st = &u->plan->steps[k];
            if (u->phase[k] != DONE && (*late_here || (s->independent && s->independent(s, i, k))))
                return sim_fail(s, "deadlock%s: unit %u step %u %s item %u peer %u tag %u",
                                *late_here ? "" : " before the late rank", i, k,
                                plan_kind_name((enum plan_kind)st->kind), st->item, st->peer, st->tag);
        }
    }
    for (uint32_t i = 0; i < s->nunits && !*late_here; i++) {
        if (s->units[i].late_arrival != SIM_NONE)
            push_ready(s, i, s->units[i].late_arrival);
    }
    *late_here = true;
    return true;
}

bool sim_run(struct sim *s) {
    s->seed = s->options->seed;
    bool ok = set_up(s), late_here = s->options->late == SIM_NOBODY;
    while (ok) {
        if (s->nready + s->nactive == 0) {
            bool over = late_here;
            ok = at_rest(s, &late_here);
            if (over)
                break;
            continue;
        }
        uint32_t pick = roll(s, s->nready + s->nactive);
        if (pick < s->nready) {
            struct pending p = s->ready[pick];
            s->ready[pick] = s->ready[--s->nready];
            ok = start(s, p);
        } else {
            struct pending p = s->active[pick - s->nready];
            s->active[pick - s->nready] = s->active[--s->nactive];
            ok = end(s, p);
        }
    }
    return ok;
}

void sim_free(struct sim *s) {
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct unit *u = &s->units[i];
        for (uint32_t k = 0; k < u->nbuffers; k++)
            free(u->memory[k].list);
        free(u->memory);
        free(u->actual);
        free(u->waiting);
        free(u->readers);
        free(u->partner_unit);
        free(u->partner_step);
        free(u->phase);
        free(u->slots);
        free(u->values);
        plan_free(u->plan);
    }
    free(s->units);
    free(s->ready);
    free(s->active);
}
