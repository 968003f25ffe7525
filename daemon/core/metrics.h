/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics: what Prometheus reads from this daemon. metrics.c gathers, metrics_render.c names and writes,
 * metrics_text.c formats, metrics_http.c serves, all on the loop thread.
 *
 * The text is bounded: STATS_SHOWN_JOBS jobs and STATS_SHOWN_ROWS rows by name, the rest summed as job="other".
 */
#ifndef ZIPCCL_DAEMON_METRICS_H
#define ZIPCCL_DAEMON_METRICS_H

#include "daemon/core/metrics_text.h"
#include "daemon/core/stats.h"

#define METRICS_MAX_STATES 6u
#define METRICS_MAX_GPUS   16u

struct daemon;
struct metrics_http;

struct metrics_state {
    const char *name;
    uint64_t count;
};

/* Of a GPU: what the daemon has of its memory, and what found no room there. */
struct metrics_pool {
    uint64_t bytes, used_bytes, missed_bytes;
};

/* What the text is made of. Belongs to the caller; its pointers must live while it is rendered. */
struct metrics_view {
    const struct stats *stats;
    const char *version, *node, *device, *fabric;
    double uptime_seconds;
    bool draining;
    uint64_t sessions, jobs, queued, running, registered_bytes;
    uint64_t link_rate_bits, encode_bps, decode_bps;
    double oldest_seconds;                       /* of the operation that runs longest */
    struct metrics_pool pools[METRICS_MAX_GPUS]; /* by GPU */
    unsigned npools;
    struct metrics_state comms[METRICS_MAX_STATES], peers[METRICS_MAX_STATES];
    unsigned ncomms, npeers;
};

void metrics_gather(struct daemon *d, struct metrics_view *v);
void metrics_render(const struct metrics_view *v, struct metrics_text *t);

/* Listens where the configuration says so. Without metrics the daemon still serves: what goes wrong is only logged.
 * NULL: off. */
struct metrics_http *metrics_http_open(struct daemon *d);
void metrics_http_close(struct metrics_http *m); /* NULL is fine; the loop frees it later */

#endif
