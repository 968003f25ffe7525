/* SPDX-License-Identifier: Apache-2.0
 *
 * The watchdog's judgement: whether every thread lives, from what their heartbeats say over time.
 *
 * Pure: time and heartbeats are given. Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_WATCHDOG_H
#define ZIPCCL_DAEMON_WATCHDOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/heartbeat.h"

#define WATCHDOG_MAX 256u /* threads that are watched */

struct watchdog {
    uint64_t limit_ns; /* how long one piece of work may take; 0: off */
    unsigned n;
    struct {
        const struct heartbeat *heartbeat;
        char name[24];
        uint64_t count, since_ns; /* when it was first seen at this count */
        bool stuck;               /* it was logged */
    } threads[WATCHDOG_MAX];
};

void watchdog_init(struct watchdog *w, uint64_t limit_ns);
/* heartbeat: outlives the watchdog. Those beyond WATCHDOG_MAX are not watched: false. */
bool watchdog_add(struct watchdog *w, const struct heartbeat *heartbeat, const char *name, uint64_t now_ns);
/* Whether none is stuck. Says in the log which one is, once, and when it works again. */
bool watchdog_alive(struct watchdog *w, uint64_t now_ns);

#endif
