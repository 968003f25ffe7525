/* SPDX-License-Identifier: Apache-2.0
 *
 * What waits for a worker: whose job it is told next, and the flows that share it.
 *
 * A worker runs coding, decoding and copies side by side, each in the order of its coming. So of each kind it is told
 * few jobs at once: what its lanes take, and a little for the way there. The others wait here, where flows share by
 * weight and priority. Small jobs have a number of their own, so that they need not wait for large ones to end.
 */
#include <stddef.h>
#include <stdlib.h>

#include "daemon/worker/supervisor.h"

#define SMALL_BYTES ((size_t)256 << 10)

/* A flow, as it shares each worker, and the host device. */
struct device_flow {
    struct device_flow *next, *host;
    uint32_t jobs; /* that wait */
    bool closed;
    struct flow flows[]; /* WORKER_KINDS of each worker */
};

_Static_assert(sizeof(struct flow_item) <= sizeof(((struct device_job *)0)->internal), "internal is too small");

static struct flow_item *item_of(struct device_job *job) {
    return (struct flow_item *)(void *)job->internal;
}

static struct device_job *job_of(struct flow_item *item) {
    return (struct device_job *)(void *)((char *)item - offsetof(struct device_job, internal));
}

static unsigned kind_of(const struct device_job *job) {
    return job->work == DEVICE_ENCODE ? 0 : job->work == DEVICE_COPY ? 1 : 2;
}

static enum flow_lane lane_of(const struct device_job *job) {
    return host_work_bytes(job) <= SMALL_BYTES ? FLOW_SMALL : FLOW_BULK;
}

void worker_order_init(struct worker_order *o) {
    *o = (struct worker_order){.next = NULL};
    for (unsigned kind = 0; kind < WORKER_KINDS; kind++)
        flow_init(&o->fallback[kind]);
}

void worker_order_push(struct worker *w, struct device_job *job) {
    struct worker_order *o = &w->order;
    const unsigned kind = kind_of(job);
    struct flow *flow = job->flow ? &job->flow->flows[w->ordinal * WORKER_KINDS + kind] : &o->fallback[kind];
    struct flow_item *item = item_of(job);
    *item = (struct flow_item){.bytes = host_work_bytes(job) + 1};
    if (job->flow)
        job->flow->jobs++;
    flow_push(&o->kinds[kind], flow, lane_of(job), item);
}

static void end_if_idle(struct device *d, struct device_flow *flow) {
    struct device_flow **p = &d->flows;
    if (!flow->closed || flow->jobs > 0)
        return;
    while (*p != flow)
        p = &(*p)->next;
    *p = flow->next;
    free(flow);
}

/* The job is its worker's, or over. */
static void leave_flow(struct device *d, const struct device_job *job) {
    if (!job->flow)
        return;
    job->flow->jobs--;
    end_if_idle(d, job->flow);
}

struct device_job *worker_order_next(struct worker *w) {
    struct worker_order *o = &w->order;
    for (unsigned i = 0; i < WORKER_KINDS * FLOW_LANES && !o->next; i++) {
        const unsigned kind = i % WORKER_KINDS;
        const enum flow_lane lane = i < WORKER_KINDS ? FLOW_SMALL : FLOW_BULK;
        if (o->told[kind][lane] == (lane == FLOW_SMALL ? WORKER_SMALL : WORKER_BULK))
            continue;
        struct flow_item *item = flow_pop(&o->kinds[kind], lane, 0);
        o->next = item ? job_of(item) : NULL;
    }
    return o->next;
}

void worker_order_told(struct worker *w) {
    struct device_job *job = w->order.next;
    w->order.next = NULL;
    w->order.told[kind_of(job)][lane_of(job)]++;
    leave_flow(w->device, job);
}

void worker_order_ended(struct worker *w, const struct device_job *job) {
    w->order.told[kind_of(job)][lane_of(job)]--;
}

struct device_job *worker_order_drop(struct worker *w) {
    struct worker_order *o = &w->order;
    struct device_job *job = o->next;
    o->next = NULL;
    for (unsigned i = 0; i < WORKER_KINDS * FLOW_LANES && !job; i++) {
        struct flow_item *item = flow_pop(&o->kinds[i % WORKER_KINDS], i < WORKER_KINDS ? FLOW_SMALL : FLOW_BULK, 0);
        job = item ? job_of(item) : NULL;
    }
    if (job)
        leave_flow(w->device, job);
    return job;
}

bool worker_order_waits(const struct worker *w) {
    const struct worker_order *o = &w->order;
    bool any = o->next != NULL;
    for (unsigned kind = 0; kind < WORKER_KINDS && !any; kind++)
        any = flow_waits(&o->kinds[kind], FLOW_SMALL) || flow_waits(&o->kinds[kind], FLOW_BULK);
    return any;
}

/* ---- flows ---- */

struct device_flow *workers_flow_open(struct device *d, uint32_t weight, enum flow_priority priority) {
    struct device_flow *flow = calloc(1, sizeof(*flow) + d->nworkers * WORKER_KINDS * sizeof(flow->flows[0]));
    if (!flow || !(flow->host = device_host.flow_open(d->host, weight, priority))) {
        free(flow);
        return NULL;
    }
    for (unsigned i = 0; i < d->nworkers * WORKER_KINDS; i++)
        flow_init(&flow->flows[i]);
    workers_flow_set(d, flow, weight, priority);
    flow->next = d->flows;
    d->flows = flow;
    return flow;
}

void workers_flow_set(struct device *d, struct device_flow *flow, uint32_t weight, enum flow_priority priority) {
    device_host.flow_set(d->host, flow->host, weight, priority);
    for (unsigned i = 0; i < d->nworkers * WORKER_KINDS; i++)
        flow_set(&d->workers[i / WORKER_KINDS].order.kinds[i % WORKER_KINDS], &flow->flows[i], weight, priority, 0);
}

void workers_flow_close(struct device *d, struct device_flow *flow) {
    device_host.flow_close(d->host, flow->host);
    flow->closed = true;
    end_if_idle(d, flow);
}

struct device_flow *workers_flow_host(const struct device_flow *flow) {
    return flow ? flow->host : NULL;
}

void workers_flows_free(struct device *d) {
    while (d->flows) {
        struct device_flow *flow = d->flows;
        d->flows = flow->next;
        free(flow);
    }
}
