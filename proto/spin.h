/* SPDX-License-Identifier: Apache-2.0
 *
 * When to look at a socket again and again instead of sleeping until it is ready. A wake-up on another core takes
 * longer than a small operation, but whoever spins keeps a core from others. So it is done only while waits have been
 * short, for a bounded time each, giving the core away between the looks; and where that cost a time slice, because
 * others have work for the core, not at all for a while.
 *
 * All zero at start. Pure, but for spin_yield.
 */
#ifndef ZIPCCL_PROTO_SPIN_H
#define ZIPCCL_PROTO_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_DEFAULT_US   50u
#define SPIN_MAX_US       10000u
#define SPIN_WORTH        2u       /* waits longer than this many bounds are not worth it */
#define SPIN_LOST_NS      300000u  /* a yield that took longer gave a whole slice away */
#define SPIN_REST_NS      5000000u /* after that; doubled where it happens again soon */
#define SPIN_REST_MOST_NS 500000000u

struct spin {
    uint64_t usual_ns; /* decaying mean of waits: one long wait ends the spinning, several short ones start it */
    uint64_t rest_ns, rest_until_ns;
};

/* bound_ns: how long to spin in one wait; 0: never. */
bool spin_worth(const struct spin *s, uint64_t bound_ns, uint64_t now_ns);
/* What was waited for came after so long. */
void spin_waited(struct spin *s, uint64_t bound_ns, uint64_t waited_ns);
/* The core was given away, and came back. */
void spin_yielded(struct spin *s, uint64_t before_ns, uint64_t after_ns);
/* Gives the core away; when it came back (CLOCK_MONOTONIC). */
uint64_t spin_yield(void);

#endif
