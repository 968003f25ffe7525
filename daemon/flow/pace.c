/* SPDX-License-Identifier: Apache-2.0
 *
 * The link clock.
 */
#include "daemon/flow/pace.h"

#include <stddef.h>

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

void pace_init(struct pace *p, uint64_t rate_bits) {
    *p = (struct pace){0};
    pace_set(p, rate_bits);
}

void pace_set(struct pace *p, uint64_t rate_bits) {
    p->sched.ns_per_byte = rate_bits ? 8e9 / (double)rate_bits : 0.0;
    for (unsigned l = 0; l < FLOW_LANES; l++) {
        if (p->lane[l].current)
            p->lane[l].due = p->lane[l].free =
                p->lane[l].start + flow_wire_ns(p->sched.ns_per_byte, p->lane[l].current->taken);
    }
}

void pace_add(struct pace *p, struct flow *flow, enum flow_lane lane, struct flow_item *item) {
    flow_push(&p->sched, flow, lane, item);
}

bool pace_waits(const struct pace *p) {
    return p->lane[FLOW_SMALL].current || p->lane[FLOW_BULK].current || flow_waits(&p->sched, FLOW_SMALL) ||
           flow_waits(&p->sched, FLOW_BULK);
}

/* The flow's own clock. What it did not use it may catch up, one item's time at most. */
static void charge_flow(struct flow *f, enum flow_lane l, const struct flow_item *item, uint64_t start, uint64_t due) {
    if (f->ns_per_byte <= 0)
        return;
    uint64_t own = flow_wire_ns(f->ns_per_byte, item->taken);
    uint64_t behind = later(f->lane[l].free, item->ready) + own;
    f->lane[l].free = later(behind, due > own ? due - own : 0);
    if (l == FLOW_BULK)
        return;
    f->lane[FLOW_BULK].free = later(f->lane[FLOW_BULK].free, start) + own;
    if (f->lane[FLOW_BULK].head)
        f->lane[FLOW_SMALL].free += own;
}

/* The next message begins, where one may by now; else returns when. */
static uint64_t begin(struct pace *p, enum flow_lane l, uint64_t now) {
    uint64_t ready = flow_next_ready(&p->sched, l);
    if (ready == UINT64_MAX)
        return UINT64_MAX;
    uint64_t start = later(p->lane[l].free, ready);
    if (start > now)
        return start;
    /* Of all that are ready by now: who looked late would else serve the flows that happened to be early. */
    struct flow_item *item = flow_pop(&p->sched, l, now);
    uint64_t wire = flow_wire_ns(p->sched.ns_per_byte, item->taken);
    p->lane[l].current = item;
    p->lane[l].start = start;
    p->lane[l].due = p->lane[l].free = start + wire;
    charge_flow(item->flow, l, item, start, start + wire);
    if (l == FLOW_SMALL) {
        bool bulk = p->lane[FLOW_BULK].current != NULL;
        if (bulk && p->lane[FLOW_BULK].due > start)
            p->lane[FLOW_BULK].due += wire;
        p->lane[FLOW_BULK].free = later(p->lane[FLOW_BULK].free, start) + wire;
        if (bulk || flow_waits(&p->sched, FLOW_BULK))
            p->lane[FLOW_SMALL].free += wire;
    }
    return 0;
}

struct flow_item *pace_take(struct pace *p, uint64_t now, uint64_t *due) {
    *due = UINT64_MAX;
    for (unsigned l = 0; l < FLOW_LANES; l++) {
        uint64_t at = p->lane[l].current ? 0 : begin(p, (enum flow_lane)l, now);
        struct flow_item *item = p->lane[l].current;
        if (item && p->lane[l].due <= now) {
            p->lane[l].current = NULL;
            return item;
        }
        if (item)
            at = p->lane[l].due;
        *due = at < *due ? at : *due;
    }
    return NULL;
}

void pace_remove(struct pace *p, bool (*match)(const struct flow_item *item, const void *arg), const void *arg,
                 void (*take)(struct flow_item *item, void *to), void *to) {
    for (unsigned l = 0; l < FLOW_LANES; l++) {
        struct flow_item *item = p->lane[l].current;
        if (!item || !match(item, arg))
            continue;
        p->lane[l].current = NULL;
        p->lane[l].free = p->lane[l].start;
        if (!flow_item_waits(item))
            take(item, to);
    }
    flow_remove(&p->sched, match, arg, take, to);
}
