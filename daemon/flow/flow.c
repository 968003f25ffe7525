/* SPDX-License-Identifier: Apache-2.0
 *
 * Deficit round robin with priorities and rates.
 *
 * A round that nobody could use is skipped by arithmetic, so the quantum may be small and a chunk large. A flow that
 * had nothing for a while gets what it missed, two items at most: a job that waits for its own answers between
 * operations keeps its share, and nobody saves up by being idle.
 */
#include "daemon/flow/flow.h"

#include <stddef.h>

#define QUANTUM 4096u /* bytes of a round, for a weight of 1 */
#define MISSED  2u    /* items */

void flow_init(struct flow *flow) {
    *flow = (struct flow){.weight = 1, .priority = FLOW_NORMAL};
}

static void ring_add(struct flow_sched *s, struct flow *f, enum flow_lane l) {
    struct flow **head = &s->ring[l][f->priority].head;
    if (!*head) {
        *head = f->lane[l].next = f->lane[l].prev = f;
        return;
    }
    f->lane[l].next = *head;
    f->lane[l].prev = (*head)->lane[l].prev;
    f->lane[l].prev->lane[l].next = f;
    (*head)->lane[l].prev = f;
}

static void ring_del(struct flow_sched *s, struct flow *f, enum flow_lane l) {
    struct flow **head = &s->ring[l][f->priority].head;
    f->lane[l].deficit = 0;
    f->lane[l].left = s->ring[l][f->priority].turned;
    if (f->lane[l].next == f) {
        *head = NULL;
        s->ring[l][f->priority].starved = 0;
        return;
    }
    if (*head == f)
        *head = f->lane[l].next;
    f->lane[l].prev->lane[l].next = f->lane[l].next;
    f->lane[l].next->lane[l].prev = f->lane[l].prev;
}

void flow_set(struct flow_sched *s, struct flow *f, uint32_t weight, enum flow_priority priority, uint64_t rate_bits) {
    for (unsigned l = 0; l < FLOW_LANES && priority != f->priority; l++) {
        if (f->lane[l].head)
            ring_del(s, f, (enum flow_lane)l);
    }
    bool moved = priority != f->priority;
    f->priority = priority;
    for (unsigned l = 0; l < FLOW_LANES && moved; l++) {
        if (f->lane[l].head)
            ring_add(s, f, (enum flow_lane)l);
    }
    f->weight = weight < 1 ? 1 : weight > FLOW_MAX_WEIGHT ? FLOW_MAX_WEIGHT : weight;
    f->ns_per_byte = rate_bits ? 8e9 / (double)rate_bits : 0.0;
}

void flow_push(struct flow_sched *s, struct flow *f, enum flow_lane l, struct flow_item *item) {
    item->next = NULL;
    item->flow = f;
    if (f->lane[l].head) {
        f->lane[l].last->next = item;
    } else {
        uint64_t turned = s->ring[l][f->priority].turned - f->lane[l].left, most = MISSED * item->bytes;
        f->lane[l].deficit = turned > most / f->weight ? most : turned * f->weight;
        f->lane[l].head = item;
        ring_add(s, f, l);
    }
    f->lane[l].last = item;
}

bool flow_waits(const struct flow_sched *s, enum flow_lane l) {
    for (unsigned p = 0; p < FLOW_PRIORITIES; p++) {
        if (s->ring[l][p].head)
            return true;
    }
    return false;
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* When the first item of f may begin. It is to leave when its last byte has passed the flow's rate and the link's. */
static uint64_t ready_at(const struct flow_sched *s, const struct flow *f, enum flow_lane l) {
    const struct flow_item *item = f->lane[l].head;
    if (f->ns_per_byte <= 0)
        return item->ready;
    uint64_t bytes = flow_item_bytes(item);
    uint64_t own = flow_wire_ns(f->ns_per_byte, bytes), link = flow_wire_ns(s->ns_per_byte, bytes);
    return later(f->lane[l].free, item->ready) + (own > link ? own - link : 0);
}

uint64_t flow_next_ready(const struct flow_sched *s, enum flow_lane l) {
    uint64_t first = UINT64_MAX;
    for (unsigned p = 0; p < FLOW_PRIORITIES; p++) {
        const struct flow *head = s->ring[l][p].head, *f = head;
        if (!head)
            continue;
        do {
            uint64_t at = ready_at(s, f, l);
            first = at < first ? at : first;
            f = f->lane[l].next;
        } while (f != head);
    }
    return first;
}

/* Whose turn it is in this priority; it becomes the head of the ring, and stays until its deficit is used up. */
static struct flow *ring_turn(struct flow_sched *s, enum flow_lane l, unsigned priority, uint64_t at) {
    struct flow **head = &s->ring[l][priority].head, *f;
    for (;;) {
        uint64_t rounds = UINT64_MAX;
        if (!(f = *head))
            return NULL;
        do {
            uint64_t bytes = flow_item_bytes(f->lane[l].head), quantum = (uint64_t)QUANTUM * f->weight;
            if (ready_at(s, f, l) <= at) {
                if (f->lane[l].deficit >= bytes) {
                    *head = f;
                    return f;
                }
                uint64_t need = (bytes - f->lane[l].deficit + quantum - 1) / quantum;
                rounds = need < rounds ? need : rounds;
            }
            f = f->lane[l].next;
        } while (f != *head);
        if (rounds == UINT64_MAX)
            return NULL;
        s->ring[l][priority].turned += rounds * QUANTUM;
        do {
            if (ready_at(s, f, l) <= at)
                f->lane[l].deficit += rounds * QUANTUM * f->weight;
            f = f->lane[l].next;
        } while (f != *head);
    }
}

static struct flow *turn(struct flow_sched *s, enum flow_lane l, uint64_t at) {
    struct flow *first = NULL;
    for (unsigned p = 0; p < FLOW_PRIORITIES; p++) {
        struct flow *f = ring_turn(s, l, p, at);
        if (!f)
            continue;
        if (!first)
            first = f;
        else if (s->ring[l][p].starved >= (FLOW_STARVE - 1) * flow_item_bytes(f->lane[l].head))
            return f;
    }
    return first;
}

struct flow_item *flow_pop(struct flow_sched *s, enum flow_lane l, uint64_t at) {
    struct flow *f = turn(s, l, at);
    if (!f)
        return NULL;
    struct flow_item *item = f->lane[l].head;
    item->taken = flow_item_bytes(item);
    uint64_t *starved = &s->ring[l][f->priority].starved, paid = (FLOW_STARVE - 1) * item->taken;
    *starved = *starved > paid ? *starved - paid : 0;
    for (unsigned p = f->priority + 1; p < FLOW_PRIORITIES; p++) {
        if (s->ring[l][p].head)
            s->ring[l][p].starved += item->taken;
    }
    f->lane[l].deficit -= item->taken;
    if (item->piece > 0)
        item->bytes -= item->taken;
    if (flow_item_waits(item))
        return item;
    if (!(f->lane[l].head = item->next))
        ring_del(s, f, l);
    return item;
}

static void remove_from(struct flow_sched *s, struct flow *f, enum flow_lane l,
                        bool (*match)(const struct flow_item *item, const void *arg), const void *arg,
                        void (*take)(struct flow_item *item, void *to), void *to) {
    struct flow_item *last = NULL;
    for (struct flow_item **p = &f->lane[l].head; *p;) {
        struct flow_item *item = *p;
        if (match(item, arg)) {
            *p = item->next;
            take(item, to);
        } else {
            last = item;
            p = &item->next;
        }
    }
    f->lane[l].last = last;
    if (!last)
        ring_del(s, f, l);
}

void flow_remove(struct flow_sched *s, bool (*match)(const struct flow_item *item, const void *arg), const void *arg,
                 void (*take)(struct flow_item *item, void *to), void *to) {
    for (unsigned k = 0; k < FLOW_LANES * FLOW_PRIORITIES; k++) {
        enum flow_lane l = (enum flow_lane)(k / FLOW_PRIORITIES);
        struct flow *f = s->ring[l][k % FLOW_PRIORITIES].head;
        struct flow *end = f ? f->lane[l].prev : NULL;
        while (f) {
            struct flow *next = f == end ? NULL : f->lane[l].next;
            remove_from(s, f, l, match, arg, take, to);
            f = next;
        }
    }
}
