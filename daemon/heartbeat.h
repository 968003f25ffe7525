/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread's sign of life: a counter that is odd while the thread works, even while it waits for work.
 *
 * Only its thread writes; the watchdog (daemon/core/watchdog.h) reads. A counter that stays odd and the same is a
 * thread that is stuck in one piece of work; an even one is a thread that is known to be idle.
 */
#ifndef ZIPCCL_DAEMON_HEARTBEAT_H
#define ZIPCCL_DAEMON_HEARTBEAT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct heartbeat {
    _Atomic uint64_t count;
};

/* At the start of a piece of work; again at the start of the next. */
static inline void heartbeat_work(struct heartbeat *h) {
    uint64_t count = atomic_load_explicit(&h->count, memory_order_relaxed);
    atomic_store_explicit(&h->count, (count + 1) | 1, memory_order_relaxed);
}

/* Before the thread sleeps. */
static inline void heartbeat_idle(struct heartbeat *h) {
    uint64_t count = atomic_load_explicit(&h->count, memory_order_relaxed);
    atomic_store_explicit(&h->count, (count + 2) & ~UINT64_C(1), memory_order_relaxed);
}

static inline uint64_t heartbeat_read(const struct heartbeat *h) {
    return atomic_load_explicit(&h->count, memory_order_relaxed);
}

static inline bool heartbeat_busy(uint64_t count) {
    return (count & 1) != 0;
}

#endif
