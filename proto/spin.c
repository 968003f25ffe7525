/* SPDX-License-Identifier: Apache-2.0
 *
 * Spinning, as spin.h says.
 */
#include "proto/spin.h"

#include <sched.h>
#include <time.h>

#define LONGEST 8u /* bounds; a longer wait counts as this one, or it would be remembered for too long */

bool spin_worth(const struct spin *s, uint64_t bound_ns, uint64_t now_ns) {
    return bound_ns > 0 && s->usual_ns < SPIN_WORTH * bound_ns && now_ns >= s->rest_until_ns;
}

void spin_waited(struct spin *s, uint64_t bound_ns, uint64_t waited_ns) {
    uint64_t most = LONGEST * bound_ns, ns = waited_ns < most ? waited_ns : most;
    if (ns > s->usual_ns)
        s->usual_ns += (ns - s->usual_ns) / 2;
    else
        s->usual_ns -= (s->usual_ns - ns) / 8;
}

void spin_yielded(struct spin *s, uint64_t before_ns, uint64_t after_ns) {
    if (after_ns - before_ns < SPIN_LOST_NS)
        return;
    bool again = s->rest_ns > 0 && before_ns < s->rest_until_ns + s->rest_ns;
    uint64_t rest = again ? s->rest_ns * 2 : SPIN_REST_NS;
    s->rest_ns = rest < SPIN_REST_MOST_NS ? rest : SPIN_REST_MOST_NS;
    s->rest_until_ns = after_ns + s->rest_ns;
}

uint64_t spin_yield(void) {
    struct timespec t;
    (void)sched_yield();
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
