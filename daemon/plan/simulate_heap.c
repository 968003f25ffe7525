/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator's queue of events: a heap of four children a place, by time, then by `order`.
 */
#include <stdlib.h>

#include "daemon/plan/simulate_impl.h"

#define CHILDREN 4u

static bool before(const struct sim_event *a, const struct sim_event *b) {
    if (a->at_ps != b->at_ps)
        return a->at_ps < b->at_ps;
    return a->order != b->order ? a->order < b->order : a->step < b->step;
}

bool sim_heap_push(struct sim_heap *h, const struct sim_event *event) {
    if (h->n == h->cap) {
        uint32_t cap = h->cap ? h->cap * 2 : 1024;
        struct sim_event *events = cap > h->cap ? realloc(h->events, (size_t)cap * sizeof(*events)) : NULL;
        if (!events)
            return false;
        h->events = events;
        h->cap = cap;
    }
    uint32_t at = h->n++;
    while (at > 0) {
        uint32_t parent = (at - 1) / CHILDREN;
        if (!before(event, &h->events[parent]))
            break;
        h->events[at] = h->events[parent];
        at = parent;
    }
    h->events[at] = *event;
    return true;
}

struct sim_event sim_heap_pop(struct sim_heap *h) {
    struct sim_event top = h->events[0], last = h->events[--h->n];
    uint32_t at = 0;
    for (;;) {
        uint32_t first = at * CHILDREN + 1, least = first;
        if (first >= h->n)
            break;
        for (uint32_t i = first + 1; i < first + CHILDREN && i < h->n; i++) {
            if (before(&h->events[i], &h->events[least]))
                least = i;
        }
        if (!before(&h->events[least], &last))
            break;
        h->events[at] = h->events[least];
        at = least;
    }
    h->events[at] = last;
    return top;
}
