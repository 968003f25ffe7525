/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs on their way to workers and back. A job goes to the GPU whose pool it touches, which no other worker reaches,
 * else to the one that has its result, or else its values; what touches none is the host device's. A worker has so many
 * at once; the others wait (order.c), in the jobs themselves: nothing is allocated for a job.
 */
#include <string.h>

#include "daemon/worker/supervisor.h"
#include "kernels/codec.h"

/* The i-th address that a job names; false past the last. */
static bool address(const struct device_job *job, uint32_t i, const void **ptr) {
    const void *own[] = {job->dst, job->work == DEVICE_REDUCE ? NULL : job->src,
                         job->work == DEVICE_ENCODE   ? job->dst_dynamic
                         : job->work == DEVICE_DECODE ? job->src_dynamic
                                                      : NULL};
    const uint32_t nown = sizeof(own) / sizeof(own[0]), ninputs = job->work == DEVICE_REDUCE ? job->ninputs : 0;
    if (i < nown) {
        *ptr = own[i];
        return true;
    }
    if (i - nown >= 2 * ninputs)
        return false;
    const struct device_input *in = &job->inputs[(i - nown) / 2];
    *ptr = (i - nown) % 2 == 0 ? in->src : in->codec == zipcclCodecRaw ? NULL : in->src_dynamic;
    return true;
}

/* Whose job it is; NULL: the host's. *why: it cannot be done. */
static struct worker *worker_of_job(const struct device *d, const struct device_job *job, const char **why) {
    struct worker *w = NULL, *pool = NULL;
    const void *ptr;
    bool foreign = false;
    *why = NULL;
    for (uint32_t i = 0; address(job, i, &ptr); i++) {
        const struct memory *m = ptr ? memory_of(d, ptr) : NULL;
        if (ptr && !m)
            foreign = true;
        if (!m || !m->home)
            continue;
        foreign = foreign || (m->slab && pool && m->home != pool);
        pool = m->slab ? m->home : pool;
        w = w ? w : m->home;
        *why = *why ? *why : memory_dead(m);
    }
    w = pool ? pool : w;
    if (w && !*why && (foreign || job->ninputs > WORKER_MAX_INPUTS))
        *why = "a GPU's worker cannot reach all memory of the operation";
    return w;
}

bool workers_submit(struct device *d, struct device_job *job) {
    const char *why;
    struct worker *w = worker_of_job(d, job, &why);
    job->why = why;
    if (!w) {
        job->flow = workers_flow_host(job->flow);
        return device_host.submit(d->host, job);
    }
    job->result = why ? zipcclUnhandledDeviceError : zipcclSuccess;
    job->ns = 0;
    if (why || (job->count == 0 && job->work != DEVICE_ENCODE && job->work != DEVICE_DECODE))
        return true;
    worker_order_push(w, job);
    worker_pump(w);
    return false;
}

static void end_job(struct device *d, struct device_job *job) {
    if (!d->done.head)
        workers_notify(d);
    job_queue_push(&d->done, job);
}

/* All memory that it names is made known to the worker. False: that has to wait, or it dies. */
static bool tell_memory(struct worker *w, const struct device_job *job) {
    const void *ptr;
    for (uint32_t i = 0; address(job, i, &ptr); i++) {
        struct memory *m = ptr ? memory_of(w->device, ptr) : NULL;
        if (m && !memory_tell(w, m))
            return false;
    }
    return true;
}

static void fill_input(struct worker_input *to, const struct device_input *in) {
    *to = (struct worker_input){.codec = (uint8_t)in->codec,
                                .scaled = in->scaled,
                                .ends_group = in->ends_group,
                                .round_group = in->round_group,
                                .verify = in->verify,
                                .scalar = in->scalar,
                                .src = (uintptr_t)in->src,
                                .src_static = in->src_static,
                                .src_dynamic = (uintptr_t)in->src_dynamic,
                                .src_dynamic_bytes = in->src_dynamic_bytes,
                                .hash = in->hash};
}

static bool tell_job(struct worker *w, const struct device_job *job, uint32_t slot) {
    const uint32_t ninputs = job->work == DEVICE_REDUCE ? job->ninputs : 0;
    struct worker_record r = {.type = WORKER_JOB,
                              .job = {.slot = slot,
                                      .work = (uint32_t)job->work,
                                      .codec = (uint32_t)job->codec,
                                      .dtype = (uint32_t)job->dtype,
                                      .flags = job->flags,
                                      .verify = job->verify,
                                      .ninputs = ninputs,
                                      .redop = (uint32_t)job->redop,
                                      .divisor = job->divisor,
                                      .src = (uintptr_t)job->src,
                                      .src_static = job->src_static,
                                      .src_dynamic = (uintptr_t)job->src_dynamic,
                                      .src_dynamic_bytes = job->src_dynamic_bytes,
                                      .dst = (uintptr_t)job->dst,
                                      .dst_dynamic = (uintptr_t)job->dst_dynamic,
                                      .count = job->count,
                                      .hash = job->hash}};
    bool told = worker_push(w, &r);
    for (uint32_t i = 0; told && i < ninputs; i += WORKER_INPUTS_EACH) {
        r = (struct worker_record){.type = WORKER_INPUTS};
        for (uint32_t k = 0; k < WORKER_INPUTS_EACH && i + k < ninputs; k++)
            fill_input(&r.inputs[k], &job->inputs[i + k]);
        told = worker_push(w, &r);
    }
    return told;
}

/* Records that a job may take, its memory among them; more than the ring has count as all of it. */
static unsigned room_for(const struct device_job *job) {
    uint64_t n = job->work == DEVICE_REDUCE ? job->ninputs : 0;
    n = 4 + n / WORKER_INPUTS_EACH + 1 + 2 * n;
    return n < WORKER_RING_RECORDS ? (unsigned)n : WORKER_RING_RECORDS;
}

void worker_pump(struct worker *w) {
    struct device_job *job;
    const bool free = worker_errands_pump(w);
    if (free) {
        worker_gates_pump(w);
        worker_launches_pump(w);
    }
    while (free && w->state == WORKER_UP && (job = worker_order_next(w)) &&
           worker_ring_room(&w->channel.shared->to_worker) >= room_for(job)) {
        if (!tell_memory(w, job))
            break;
        worker_order_told(w);
        uint32_t slot = w->idle_slots[--w->nidle];
        w->jobs[slot] = job;
        if (!tell_job(w, job, slot))
            return;
    }
    if (!w->device->timer_ns)
        workers_arm(w->device);
}

const char *worker_job_done(struct worker *w, const struct worker_record *r) {
    if (r->done.slot >= WORKER_JOBS || !w->jobs[r->done.slot] || r->done.result >= zipcclNumResults)
        return "a job that it does not have";
    struct device_job *job = w->jobs[r->done.slot];
    const bool good = r->done.result == zipcclSuccess;
    if (good && job->work == DEVICE_ENCODE) {
        struct codec_sizes bound = codec_bound(job->codec, job->dtype, job->count);
        if (r->done.out_static > bound.static_bytes || r->done.out_dynamic > bound.dynamic_bytes)
            return "more coded bytes than there can be";
    }
    char text[WORKER_TEXT_BYTES];
    worker_text_of(text, r->done.text);
    job->result = (zipcclResult_t)r->done.result;
    job->why = text[0] ? workers_text(w->device, text) : NULL;
    job->bad_input = r->done.bad_input;
    job->out_static = r->done.out_static;
    job->out_dynamic = r->done.out_dynamic;
    job->ns = r->done.ns;
    job->hash = r->done.hash;
    worker_order_ended(w, job);
    w->jobs[r->done.slot] = NULL;
    w->idle_slots[w->nidle++] = r->done.slot;
    end_job(w->device, job);
    return NULL;
}

static void fail_job(struct device *d, struct device_job *job, const char *why) {
    job->result = zipcclUnhandledDeviceError;
    job->why = why;
    end_job(d, job);
}

void worker_jobs_fail(struct worker *w, const char *why) {
    struct device_job *job;
    w->nidle = 0;
    for (uint32_t i = 0; i < WORKER_JOBS; i++) {
        if ((job = w->jobs[i])) {
            worker_order_ended(w, job);
            fail_job(w->device, job, why);
        }
        w->jobs[i] = NULL;
        w->idle_slots[w->nidle++] = i;
    }
    while ((job = worker_order_drop(w)) != NULL)
        fail_job(w->device, job, why);
}

bool worker_jobs_any(const struct worker *w) {
    return worker_order_waits(w) || w->nidle < WORKER_JOBS;
}
