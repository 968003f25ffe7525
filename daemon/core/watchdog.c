/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at each thread's heartbeat and remembers since when it is the same.
 */
#include "daemon/core/watchdog.h"

#include <stdio.h>

#include "daemon/core/log.h"

void watchdog_init(struct watchdog *w, uint64_t limit_ns) {
    *w = (struct watchdog){.limit_ns = limit_ns};
}

bool watchdog_add(struct watchdog *w, const struct heartbeat *heartbeat, const char *name, uint64_t now_ns) {
    if (w->n == WATCHDOG_MAX)
        return false;
    w->threads[w->n].heartbeat = heartbeat;
    w->threads[w->n].count = heartbeat_read(heartbeat);
    w->threads[w->n].since_ns = now_ns;
    snprintf(w->threads[w->n].name, sizeof w->threads[w->n].name, "%s", name);
    w->n++;
    return true;
}

bool watchdog_alive(struct watchdog *w, uint64_t now_ns) {
    bool alive = true;
    for (unsigned i = 0; i < w->n; i++) {
        uint64_t count = heartbeat_read(w->threads[i].heartbeat);
        if (count != w->threads[i].count || !heartbeat_busy(count)) {
            if (w->threads[i].stuck)
                log_warn("watchdog: thread %s works again", w->threads[i].name);
            w->threads[i].stuck = false;
            w->threads[i].count = count;
            w->threads[i].since_ns = now_ns;
            continue;
        }
        uint64_t ns = now_ns - w->threads[i].since_ns;
        if (w->limit_ns == 0 || ns < w->limit_ns)
            continue;
        alive = false;
        if (!w->threads[i].stuck)
            log_error("watchdog: thread %s is stuck in one piece of work since %.1f s; systemd is told no more that "
                      "this daemon lives",
                      w->threads[i].name, (double)ns / 1e9);
        w->threads[i].stuck = true;
    }
    return alive;
}
