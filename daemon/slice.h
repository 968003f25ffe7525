/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a thread may run before another one has its turn, where there are more threads than processors. A thread
 * with a short slice starts at once when it is woken while one with a longer slice runs; shares stay as they are.
 * Linux 6.12 and later take it from any user; older ones, and a filter of system calls that is in the way, change
 * nothing.
 */
#ifndef ZIPCCL_DAEMON_SLICE_H
#define ZIPCCL_DAEMON_SLICE_H

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_SHORT_NS 100000u   /* the least that Linux takes: threads that pass on small things */
#define SLICE_LONG_NS  20000000u /* threads that work on large ones */

/* sched_attr of sched_setattr(2): its header and the C library's exclude each other. */
struct slice_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* Of the calling thread; only where its policy is SCHED_OTHER. */
static inline void slice_set(uint64_t ns) {
    struct slice_attr attr = {.size = sizeof(attr)};
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) != 0 || attr.policy != 0)
        return;
    attr.runtime = ns;
    (void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

#endif
