/* SPDX-License-Identifier: Apache-2.0
 *
 * What waits for a worker: whose job is next.
 *
 * Codec jobs go before copies, for a link may wait for them; after a run of them one copy has its turn, so that copies
 * do not starve. In each, small jobs go before large ones, with the same bound, and flows share by weight.
 */
#include "daemon/device/host.h"

#include <stddef.h>
#include <stdlib.h>

#define CODEC_RUN   8u /* codec jobs in a row while a copy waits */
#define SMALL_RUN   8u /* small jobs in a row while a large one waits */
#define SMALL_BYTES ((size_t)256 << 10)

struct device_flow {
    struct flow codec, copy;
    struct device_flow *next;
    bool closed;
};

_Static_assert(sizeof(struct flow_item) <= sizeof(((struct device_job *)0)->internal), "internal is too small");

static struct flow_item *item_of(struct device_job *job) {
    return (struct flow_item *)(void *)job->internal;
}

static struct device_job *job_of(struct flow_item *item) {
    return (struct device_job *)(void *)((char *)item - offsetof(struct device_job, internal));
}

bool host_queue_init(struct host_queue *q) {
    *q = (struct host_queue){0};
    return (q->fallback = host_queue_flow(q, 1, FLOW_NORMAL)) != NULL;
}

void host_queue_free(struct host_queue *q) {
    while (q->flows) {
        struct device_flow *flow = q->flows;
        q->flows = flow->next;
        free(flow);
    }
}

void host_queue_push(struct host_queue *q, struct device_job *job) {
    struct device_flow *flow = job->flow ? job->flow : q->fallback;
    struct flow_item *item = item_of(job);
    bool copy = job->work == DEVICE_COPY;
    item->ready = 0;
    item->piece = 0;
    item->bytes = host_work_bytes(job) + 1;
    flow_push(copy ? &q->copy : &q->codec, copy ? &flow->copy : &flow->codec,
              item->bytes <= SMALL_BYTES ? FLOW_SMALL : FLOW_BULK, item);
}

static bool waits(const struct flow_sched *s) {
    return flow_waits(s, FLOW_SMALL) || flow_waits(s, FLOW_BULK);
}

bool host_queue_waits(const struct host_queue *q) {
    return waits(&q->codec) || waits(&q->copy);
}

struct device_job *host_queue_take(struct host_queue *q) {
    struct flow_sched *s = &q->codec;
    if (!waits(s) || (waits(&q->copy) && q->codec_run >= CODEC_RUN))
        s = &q->copy;
    if (!waits(s))
        return NULL;
    q->codec_run = s == &q->codec ? q->codec_run + 1 : 0;
    enum flow_lane lane = FLOW_SMALL;
    if (!flow_waits(s, FLOW_SMALL) || (flow_waits(s, FLOW_BULK) && q->small_run >= SMALL_RUN))
        lane = FLOW_BULK;
    q->small_run = lane == FLOW_SMALL ? q->small_run + 1 : 0;
    return job_of(flow_pop(s, lane, 0));
}

struct device_flow *host_queue_flow(struct host_queue *q, uint32_t weight, enum flow_priority priority) {
    struct device_flow *flow = calloc(1, sizeof(*flow));
    if (!flow)
        return NULL;
    flow_init(&flow->codec);
    flow_init(&flow->copy);
    host_queue_set(q, flow, weight, priority);
    flow->next = q->flows;
    q->flows = flow;
    return flow;
}

void host_queue_set(struct host_queue *q, struct device_flow *flow, uint32_t weight, enum flow_priority priority) {
    flow_set(&q->codec, &flow->codec, weight, priority, 0);
    flow_set(&q->copy, &flow->copy, weight, priority, 0);
}

void host_queue_close(struct host_queue *q, struct device_flow *flow) {
    struct device_flow **p = &q->flows;
    flow->closed = true;
    while (*p) {
        struct device_flow *f = *p;
        bool busy = false;
        for (unsigned l = 0; l < FLOW_LANES; l++)
            busy = busy || f->codec.lane[l].head || f->copy.lane[l].head;
        if (!f->closed || busy) { /* it goes with a later one, or with the device */
            p = &f->next;
            continue;
        }
        *p = f->next;
        free(f);
    }
}
