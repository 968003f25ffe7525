/* SPDX-License-Identifier: Apache-2.0
 *
 * Flows: whose turn it is among the jobs that share a link or the workers. Pure: no clock, no thread, no memory.
 *
 * Each flow has two lanes, small items and bulk, which do not wait for each other here. In a lane the items of a flow
 * stay in order; flows of a priority share by deficit round robin, in the ratio of their weights. A higher priority
 * goes first, but a lower one that waits gets one byte in FLOW_STARVE at least. A flow with a rate is not ready before
 * its own clock says so; the others do not wait for it.
 */
#ifndef ZIPCCL_DAEMON_FLOW_H
#define ZIPCCL_DAEMON_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#define FLOW_MAX_WEIGHT  1000u
#define FLOW_STARVE      16u
#define FLOW_SMALL_BYTES 8192u /* of a message: the latency class */

enum flow_lane { FLOW_SMALL, FLOW_BULK, FLOW_LANES };
enum flow_priority { FLOW_HIGH, FLOW_NORMAL, FLOW_LOW, FLOW_PRIORITIES };

struct flow;

/* Something that waits. Owned by the caller; in the flow's hands from push to pop, in pieces to the last pop. */
struct flow_item {
    struct flow_item *next;
    struct flow *flow;
    uint64_t ready; /* ns: not before this */
    uint64_t bytes; /* all of it; where it goes in pieces, what is left */
    uint32_t piece; /* bytes that go at a time, the rest stays in front; 0: all */
    uint64_t taken; /* bytes of the last flow_pop */
};

struct flow {
    uint32_t weight;
    enum flow_priority priority;
    double ns_per_byte; /* of its own rate; 0: none */
    struct {
        struct flow_item *head, *last;
        struct flow *next, *prev; /* ring of the flows that wait in this lane with this priority */
        uint64_t deficit;
        uint64_t left; /* the ring's turned when it had nothing left */
        uint64_t free; /* when its rate allows the next one to begin */
    } lane[FLOW_LANES];
};

struct flow_sched {
    double ns_per_byte; /* of the link; 0: none */
    struct {
        struct flow *head;
        uint64_t turned;  /* bytes that a weight of 1 was given */
        uint64_t starved; /* bytes that higher priorities had while this one waited */
    } ring[FLOW_LANES][FLOW_PRIORITIES];
};

void flow_init(struct flow *flow);
/* weight is put into 1 to FLOW_MAX_WEIGHT; takes effect at once, also on what waits. */
void flow_set(struct flow_sched *s, struct flow *flow, uint32_t weight, enum flow_priority priority,
              uint64_t rate_bits);
void flow_push(struct flow_sched *s, struct flow *flow, enum flow_lane lane, struct flow_item *item);
bool flow_waits(const struct flow_sched *s, enum flow_lane lane);
/* The earliest time at which something may begin; UINT64_MAX: nothing waits. */
uint64_t flow_next_ready(const struct flow_sched *s, enum flow_lane lane);
/* Takes what begins at the time `at`; NULL: nothing is ready then. */
struct flow_item *flow_pop(struct flow_sched *s, enum flow_lane lane, uint64_t at);
/* Takes out what matches, and gives it to `take`. */
void flow_remove(struct flow_sched *s, bool (*match)(const struct flow_item *item, const void *arg), const void *arg,
                 void (*take)(struct flow_item *item, void *to), void *to);

/* What flow_pop takes of it. */
static inline uint64_t flow_item_bytes(const struct flow_item *item) {
    return item->piece > 0 && item->piece < item->bytes ? item->piece : item->bytes;
}

/* After flow_pop: whether pieces of it still wait. */
static inline bool flow_item_waits(const struct flow_item *item) {
    return item->piece > 0 && item->bytes > 0;
}

static inline uint64_t flow_wire_ns(double ns_per_byte, uint64_t bytes) {
    return (uint64_t)((double)bytes * ns_per_byte);
}

#endif
