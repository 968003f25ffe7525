/* SPDX-License-Identifier: Apache-2.0
 *
 * Gathers what metrics show of a running daemon.
 */
#include "daemon/core/metrics.h"

#include <string.h>

#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/peer.h"
#include "daemon/core/session.h"
#include "proto/message.h"
#include "zipccl.h"

#define METRICS_STRING(x) #x
#define METRICS_VALUE(x)  METRICS_STRING(x)

/* States that people see under one name are one. */
static unsigned metrics_state_of(struct metrics_state *all, unsigned *n, const char *name) {
    for (unsigned i = 0; i < *n; i++) {
        if (strcmp(all[i].name, name) == 0)
            return i;
    }
    all[*n] = (struct metrics_state){.name = name};
    return (*n)++;
}

static void metrics_comms(struct daemon *d, struct metrics_view *v) {
    uint64_t now_ns = daemon_now_ns(), oldest_ns = now_ns;
    for (unsigned i = COMM_JOINING; i <= COMM_FAILED; i++)
        (void)metrics_state_of(v->comms, &v->ncomms, comm_state_name((enum comm_state)i));
    list_for_each(l, &d->comms) {
        const struct comm *c = list_entry(l, struct comm, link);
        uint64_t since = comm_ops_since(c);
        v->comms[metrics_state_of(v->comms, &v->ncomms, comm_state_name(c->state))].count++;
        for (uint32_t i = 0; i < c->nmembers; i++)
            v->queued += c->members[i]->count;
        v->running += since != UINT64_MAX;
        if (since < oldest_ns)
            oldest_ns = since;
    }
    v->oldest_seconds = (double)(now_ns - oldest_ns) / 1e9;
}

static void metrics_pools(const struct daemon *d, struct metrics_view *v) {
    struct device_gpu gpu;
    while (d->device_ops->gpu != NULL && v->npools < METRICS_MAX_GPUS && d->device_ops->gpu(d->device, v->npools, &gpu))
        v->pools[v->npools++] = (struct metrics_pool){gpu.pool_bytes, gpu.pool_used_bytes, gpu.pool_missed_bytes};
}

void metrics_gather(struct daemon *d, struct metrics_view *v) {
    *v = (struct metrics_view){
        .stats = &d->stats,
        .version = METRICS_VALUE(ZIPCCL_MAJOR) "." METRICS_VALUE(ZIPCCL_MINOR) "." METRICS_VALUE(ZIPCCL_PATCH),
        .node = message_text_shows(d->config.node_name) ? d->config.node_name : "?",
        .device = d->device_ops->name,
        .fabric = d->fabric_ops != NULL ? d->config.fabric : "none",
        .uptime_seconds = (double)(daemon_now_ns() - d->started_ns) / 1e9,
        .draining = d->draining,
        .sessions = d->nsessions,
        .jobs = d->njobs,
        .link_rate_bits = d->config.link_rate,
        .encode_bps = d->encode_bps,
        .decode_bps = d->decode_bps,
    };
    if (d->fabric_ops != NULL)
        d->fabric_ops->counters(d->fabric, &d->stats.counters[STATS_fabric_sent_bytes],
                                &d->stats.counters[STATS_fabric_received_bytes]);
    list_for_each(l, &d->jobs) v->registered_bytes += list_entry(l, struct job, link)->registered_bytes;
    for (unsigned i = PEER_RESOLVING; i <= PEER_DEAD; i++)
        (void)metrics_state_of(v->peers, &v->npeers, peer_state_name((enum peer_state)i));
    list_for_each(l, &d->links) {
        const struct peer_link *link = list_entry(l, struct peer_link, link);
        v->peers[metrics_state_of(v->peers, &v->npeers, peer_state_name(link->state))].count++;
    }
    metrics_comms(d, v);
    metrics_pools(d, v);
}
