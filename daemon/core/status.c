/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills the Status and Stats messages. Everything that a message needs lies in an arena that is dropped after sending.
 */
#include "daemon/core/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/arena.h"
#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/peer.h"
#include "daemon/core/session.h"
#include "proto/result.h"
#include "zipccl.h"

/* A reply must fit a frame: beyond these the rest is left out. */
#define STATUS_MAX_ROWS  512u
#define STATUS_MAX_RANKS 1024u

static bool status_counters(struct daemon *d, struct arena *a, size_t *n, Zipccl__Counter ***out) {
    Zipccl__Counter **all = arena_take(a, STATS_NUM_COUNTERS * sizeof *all);
    if (all == NULL)
        return false;
    if (d->fabric_ops != NULL)
        d->fabric_ops->counters(d->fabric, &d->stats.counters[STATS_fabric_sent_bytes],
                                &d->stats.counters[STATS_fabric_received_bytes]);
    for (unsigned i = 0; i < STATS_NUM_COUNTERS; i++) {
        if ((all[i] = arena_take(a, sizeof **all)) == NULL)
            return false;
        zipccl__counter__init(all[i]);
        all[i]->name = (char *)stats_counter_name((enum stats_counter)i);
        all[i]->value = d->stats.counters[i];
    }
    *n = STATS_NUM_COUNTERS;
    *out = all;
    return true;
}

static Zipccl__CommStatus *status_comm(struct comm *c, struct arena *a, uint64_t now_ns) {
    Zipccl__CommStatus *m = arena_take(a, sizeof *m);
    uint32_t room = c->nmembers < STATUS_MAX_RANKS ? c->nmembers : STATUS_MAX_RANKS;
    uint32_t *local = arena_take(a, (room + 1) * sizeof *local), *waiting = arena_take(a, (room + 1) * sizeof *waiting);
    char what[48];
    if (m == NULL || local == NULL || waiting == NULL)
        return NULL;
    zipccl__comm_status__init(m);
    m->key = c->key;
    m->job = c->job->name;
    m->uid = c->job->uid;
    m->state = (char *)comm_state_name(c->state);
    m->nranks = c->nranks;
    m->nnodes = c->nnodes;
    m->local_ranks = local;
    m->waiting_for = waiting;
    for (uint32_t i = 0; i < room; i++) {
        const struct comm_member *member = c->members[i];
        local[m->n_local_ranks++] = member->rank;
        m->ops_queued += member->count;
        if (c->op_active && !member->arrived)
            waiting[m->n_waiting_for++] = member->rank;
    }
    comm_ops_current(c, what, sizeof what);
    m->ops_done = c->ops_done;
    m->current = arena_text(a, what);
    uint64_t since = comm_ops_since(c);
    m->current_seconds = since != UINT64_MAX && now_ns > since ? (double)(now_ns - since) / 1e9 : 0;
    m->error = c->text;
    return m;
}

/* Outliers first: failed ones, then those whose operation runs longest; else by key, that no look differs from the
 * last by chance. */
static int worse_comm(const void *left, const void *right) {
    const Zipccl__CommStatus *a = *(Zipccl__CommStatus *const *)left, *b = *(Zipccl__CommStatus *const *)right;
    int failed_a = strcmp(a->state, comm_state_name(COMM_FAILED)) == 0;
    int failed_b = strcmp(b->state, comm_state_name(COMM_FAILED)) == 0;
    if (failed_a != failed_b)
        return failed_b - failed_a;
    if (a->current_seconds != b->current_seconds)
        return a->current_seconds > b->current_seconds ? -1 : 1;
    return a->key < b->key ? -1 : a->key > b->key;
}

/* Those that are not up, then by name. */
static int worse_peer(const void *left, const void *right) {
    const Zipccl__PeerStatus *a = *(Zipccl__PeerStatus *const *)left, *b = *(Zipccl__PeerStatus *const *)right;
    int up_a = strcmp(a->state, peer_state_name(PEER_UP)) == 0, up_b = strcmp(b->state, peer_state_name(PEER_UP)) == 0;
    if (up_a != up_b)
        return up_a - up_b;
    return strcmp(a->node, b->node);
}

static bool status_gpus(struct daemon *d, struct arena *a, Zipccl__Status *m) {
    struct device_gpu gpu;
    size_t n = 0;
    while (d->device_ops->gpu != NULL && d->device_ops->gpu(d->device, (unsigned)n, &gpu))
        n++;
    m->gpus = arena_take(a, (n + 1) * sizeof *m->gpus);
    while (m->gpus != NULL && m->n_gpus < n && d->device_ops->gpu(d->device, (unsigned)m->n_gpus, &gpu)) {
        Zipccl__GpuStatus *g = arena_take(a, sizeof *g);
        if (g == NULL)
            return false;
        zipccl__gpu_status__init(g);
        g->gpu = gpu.ordinal;
        g->name = arena_text(a, gpu.name);
        g->worker = (uint32_t)gpu.worker;
        g->restarts = gpu.restarts;
        g->pool_bytes = gpu.pool_bytes;
        g->pool_used_bytes = gpu.pool_used_bytes;
        g->pool_missed_bytes = gpu.pool_missed_bytes;
        g->error = arena_text(a, gpu.failed != NULL ? gpu.failed : "");
        m->gpus[m->n_gpus++] = g;
    }
    return m->gpus != NULL;
}

/* Returns how many are left out. */
static uint32_t status_fit(size_t *n) {
    const size_t most = *n < STATUS_MAX_ROWS ? *n : STATUS_MAX_ROWS, left_out = *n - most;
    *n = most;
    return (uint32_t)left_out;
}

static bool status_fill(struct daemon *d, struct arena *a, Zipccl__Status *m) {
    uint64_t now_ns = daemon_now_ns();
    char text[160];
    m->node = d->config.node_name;
    snprintf(text, sizeof text, "%d.%d.%d", ZIPCCL_MAJOR, ZIPCCL_MINOR, ZIPCCL_PATCH);
    m->version = arena_text(a, text);
    m->uptime_seconds = (double)(now_ns - d->started_ns) / 1e9;
    m->state = (char *)drain_state(d, NULL);
    d->device_ops->describe(d->device, text, sizeof text);
    m->device = arena_text(a, text);
    if (d->fabric_ops != NULL)
        d->fabric_ops->describe(d->fabric, text, sizeof text);
    m->fabric = arena_text(a, d->fabric_ops != NULL ? text : "none");
    m->listen = d->listening;
    m->link_rate_bits = d->config.link_rate;
    m->sessions = d->nsessions;
    m->encode_gbps = (double)d->encode_bps / 1e9;
    m->decode_gbps = (double)d->decode_bps / 1e9;
    m->jobs = arena_take(a, (d->njobs + 1) * sizeof *m->jobs);
    m->comms = arena_take(a, (d->ncomms + 1) * sizeof *m->comms);
    m->peers = arena_take(a, (d->nlinks + 1) * sizeof *m->peers);
    if (m->jobs == NULL || m->comms == NULL || m->peers == NULL)
        return false;
    list_for_each(l, &d->jobs) {
        struct job *job = list_entry(l, struct job, link);
        if (m->n_jobs >= STATUS_MAX_ROWS) {
            m->jobs_left_out++;
            continue;
        }
        Zipccl__JobStatus *j = arena_take(a, sizeof *j);
        if (j == NULL)
            break;
        zipccl__job_status__init(j);
        j->job = job->name;
        j->uid = job->uid;
        j->user = job->user;
        j->sessions = job->nsessions;
        j->comms = job->ncomms;
        j->registered_bytes = job->registered_bytes;
        j->state = (char *)drain_state(d, job);
        j->weight = job->weight;
        j->priority = (char *)job_priority_name(job->priority);
        j->rate_bits = job->rate_bits;
        if (job->flow != NULL && d->fabric_ops != NULL)
            d->fabric_ops->flow_bytes(job->flow, &j->queued_bytes, &j->sent_bytes);
        m->jobs[m->n_jobs++] = j;
    }
    list_for_each(l, &d->comms) {
        Zipccl__CommStatus *c = status_comm(list_entry(l, struct comm, link), a, now_ns);
        if (c == NULL)
            break;
        m->comms[m->n_comms++] = c;
    }
    qsort(m->comms, m->n_comms, sizeof *m->comms, worse_comm);
    m->comms_left_out = status_fit(&m->n_comms);
    list_for_each(l, &d->links) {
        struct peer_link *link = list_entry(l, struct peer_link, link);
        Zipccl__PeerStatus *p = arena_take(a, sizeof *p);
        if (p == NULL)
            break;
        zipccl__peer_status__init(p);
        p->node = link->node;
        p->address = link->listen[0] != '\0' ? link->listen : link->address;
        p->state = (char *)peer_state_name(link->state);
        p->idle_seconds = now_ns > link->heard_ns ? (double)(now_ns - link->heard_ns) / 1e9 : 0;
        m->peers[m->n_peers++] = p;
    }
    qsort(m->peers, m->n_peers, sizeof *m->peers, worse_peer);
    m->peers_left_out = status_fit(&m->n_peers);
    return status_gpus(d, a, m) && status_counters(d, a, &m->n_counters, &m->counters);
}

void status_send(struct session *s, uint32_t id) {
    Zipccl__Status status = ZIPCCL__STATUS__INIT;
    struct arena a = {0};
    if (!status_fill(s->daemon, &a, &status))
        session_error(s, id, zipcclOutOfMemory, "no memory for the status");
    else
        session_send_message(s, WIRE_STATUS_REPLY, id, &status.base);
    arena_drop(&a);
}

/* The middle of a bucket may lie outside of all that were in it. */
static uint64_t status_quantile(const struct stats_row *r, unsigned permille) {
    uint64_t ns = r->times != NULL ? quantile_at(r->times, permille) : 0;
    if (ns == 0)
        return 0;
    return ns < r->min_ns ? r->min_ns : ns > r->max_ns ? r->max_ns : ns;
}

static Zipccl__OpStats *status_row(const struct stats_job *job, const struct stats_row *r, struct arena *a) {
    Zipccl__OpStats *m = arena_take(a, sizeof *m);
    if (m == NULL)
        return NULL;
    zipccl__op_stats__init(m);
    m->job = (char *)job->name;
    m->uid = job->uid;
    m->count = r->count;
    m->errors = r->errors;
    m->raw_bytes = r->raw_bytes;
    m->wire_bytes = r->wire_bytes;
    m->coded_from_bytes = r->coded_from_bytes;
    m->coded_to_bytes = r->coded_to_bytes;
    m->total_ns = r->total_ns;
    m->wait_ns = r->wait_ns;
    m->encode_ns = r->encode_ns;
    m->decode_ns = r->decode_ns;
    m->min_ns = r->min_ns;
    m->max_ns = r->max_ns;
    m->p50_ns = status_quantile(r, 500);
    m->p99_ns = status_quantile(r, 990);
    return m;
}

/* Adds the rows of one job. */
static bool status_job_rows(const struct stats_job *job, struct arena *a, Zipccl__Stats *m) {
    for (unsigned op = 0; op < zipcclNumOps; op++) {
        for (unsigned dtype = 0; dtype < zipcclNumTypes; dtype++) {
            for (unsigned codec = 0; codec < STATS_CODECS; codec++) {
                const struct stats_row *r = &job->rows[op][dtype][codec];
                if (r->count == 0 && r->errors == 0)
                    continue;
                if (m->n_ops >= STATUS_MAX_ROWS) {
                    m->ops_left_out++;
                    continue;
                }
                Zipccl__OpStats *row = status_row(job, r, a);
                if (row == NULL)
                    return false;
                row->op = op;
                row->dtype = dtype;
                row->codec = codec;
                m->ops[m->n_ops++] = row;
            }
        }
    }
    return true;
}

void status_stats(struct session *s, uint32_t id, const Zipccl__StatsRequest *request) {
    struct daemon *d = s->daemon;
    const char *job = request->job;
    Zipccl__Stats stats = ZIPCCL__STATS__INIT;
    struct arena a = {0};
    stats.node = d->config.node_name;
    stats.ops = arena_take(&a, STATUS_MAX_ROWS * sizeof *stats.ops);
    if (stats.ops == NULL || !status_counters(d, &a, &stats.n_counters, &stats.counters)) {
        session_error(s, id, zipcclOutOfMemory, "no memory for the statistics");
        arena_drop(&a);
        return;
    }
    /* Youngest first: where there are too many, old jobs are left out. */
    for (struct list *l = d->stats.jobs.prev; l != &d->stats.jobs; l = l->prev) {
        const struct stats_job *j = list_entry(l, struct stats_job, link);
        if (job[0] != '\0' && strcmp(job, j->name) != 0)
            continue;
        if (!status_job_rows(j, &a, &stats))
            break;
    }
    if (request->decisions)
        status_decisions(d, job, &a, &stats);
    session_send_message(s, WIRE_STATS_REPLY, id, &stats.base);
    arena_drop(&a);
}
