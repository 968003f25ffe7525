/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs in a worker: from a record to the device's job, and what came of it back to the daemon.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/process.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"

void *worker_translate(const struct process *p, uint64_t address, uint64_t bytes, zipcclResult_t *result,
                       const char **why) {
    const struct range *range = ranges_find(&p->ranges, (const void *)(uintptr_t)address);
    const struct process_memory *m = (const struct process_memory *)range;
    uint64_t offset = range ? address - (uint64_t)(uintptr_t)range->base : 0;
    if (!range || bytes > range->bytes - offset) {
        *result = zipcclInternalError;
        *why = "the worker of the GPU knows no memory at an address of the operation";
        return NULL;
    }
    if (m->result != zipcclSuccess) {
        *result = m->result;
        *why = m->why;
        return NULL;
    }
    return m->memory.base + offset;
}

void *worker_translate_alias(const struct process *p, uint64_t address, uint64_t bytes, zipcclResult_t *result,
                             const char **why) {
    const uint8_t *at = worker_translate(p, address, bytes, result, why);
    const struct process_memory *m =
        at ? (const struct process_memory *)ranges_find(&p->ranges, (const void *)(uintptr_t)address) : NULL;
    if (m && m->memory.alias)
        return m->memory.alias + (at - m->memory.base);
    if (m) {
        *result = zipcclInternalError;
        *why = "the worker of the GPU knows no second address of an operation's memory";
    }
    return NULL;
}

static void tell_done(const struct process_job *j) {
    const struct device_job *job = &j->job;
    struct worker_record r = {.type = WORKER_DONE,
                              .done = {.slot = j->slot,
                                       .result = (uint32_t)job->result,
                                       .bad_input = job->bad_input,
                                       .out_static = job->out_static,
                                       .out_dynamic = job->out_dynamic,
                                       .ns = job->ns,
                                       .hash = job->hash}};
    snprintf(r.done.text, sizeof(r.done.text), "%s", job->why ? job->why : "");
    process_tell(j->process, &r);
}

static void job_done(struct device_job *job) {
    struct process_job *j = job->arg;
    j->busy = false;
    tell_done(j);
}

/* One address of a job. What was refused once stays so. */
static void *reach(struct process_job *j, uint64_t address, uint64_t bytes) {
    if (address == 0 && bytes == 0)
        return NULL;
    zipcclResult_t result = zipcclSuccess;
    const char *why = NULL;
    void *ptr = worker_translate(j->process, address, bytes, &result, &why);
    if (!ptr && j->refused == zipcclSuccess) {
        j->refused = result;
        j->why = why;
    }
    return ptr;
}

static void start(struct process_job *j) {
    struct process *p = j->process;
    j->job.done = job_done;
    j->job.arg = j;
    if (j->refused != zipcclSuccess) {
        j->job.result = j->refused;
        j->job.why = j->why;
        job_done(&j->job);
    } else if (p->ops->submit(p->device, &j->job)) {
        job_done(&j->job);
    }
}

void process_job(struct process *p, const struct worker_record *r) {
    const struct dtype_info *info = r->job.work == DEVICE_COPY ? NULL : dtype_get((zipcclDataType_t)r->job.dtype);
    if (r->job.slot >= WORKER_JOBS || p->jobs[r->job.slot].busy || p->filling || r->job.work > DEVICE_REDUCE ||
        r->job.ninputs > WORKER_MAX_INPUTS || (r->job.work != DEVICE_COPY && !info) || r->job.count > SIZE_MAX / 64)
        process_broken("a job");
    struct process_job *j = &p->jobs[r->job.slot];
    const uint64_t values = r->job.count * (info ? info->bytes : 1);
    const bool encode = r->job.work == DEVICE_ENCODE, decode = r->job.work == DEVICE_DECODE;
    const struct codec_sizes bound =
        encode ? codec_bound((zipcclCodec_t)r->job.codec, (zipcclDataType_t)r->job.dtype, r->job.count)
               : (struct codec_sizes){0};
    j->process = p;
    j->slot = r->job.slot;
    j->busy = true;
    j->refused = zipcclSuccess;
    j->missing = r->job.ninputs;
    if (r->job.ninputs > j->capacity) {
        struct device_input *grown = realloc(j->inputs, r->job.ninputs * sizeof(*grown));
        if (!grown)
            process_broken("more inputs than there is memory for");
        j->inputs = grown;
        j->capacity = r->job.ninputs;
    }
    j->job = (struct device_job){.work = (enum device_work)r->job.work,
                                 .codec = (zipcclCodec_t)r->job.codec,
                                 .dtype = (zipcclDataType_t)r->job.dtype,
                                 .flags = r->job.flags,
                                 .verify = r->job.verify != 0,
                                 .redop = (zipcclRedOp_t)r->job.redop,
                                 .divisor = r->job.divisor,
                                 .inputs = j->inputs,
                                 .ninputs = r->job.ninputs,
                                 .src_static = r->job.src_static,
                                 .src_dynamic_bytes = r->job.src_dynamic_bytes,
                                 .count = r->job.count,
                                 .hash = r->job.hash};
    if (r->job.work != DEVICE_REDUCE)
        j->job.src = reach(j, r->job.src, decode ? r->job.src_static : values);
    if (decode)
        j->job.src_dynamic = reach(j, r->job.src_dynamic, r->job.src_dynamic_bytes);
    j->job.dst = reach(j, r->job.dst, encode ? bound.static_bytes : values);
    if (encode)
        j->job.dst_dynamic = reach(j, r->job.dst_dynamic, bound.dynamic_bytes);
    if (j->missing > 0)
        p->filling = j;
    else
        start(j);
}

void process_inputs(struct process *p, const struct worker_record *r) {
    struct process_job *j = p->filling;
    if (!j)
        process_broken("inputs of no job");
    const struct dtype_info *info = dtype_get(j->job.dtype);
    for (unsigned i = 0; i < WORKER_INPUTS_EACH && j->missing > 0; i++, j->missing--) {
        const struct worker_input *in = &r->inputs[i];
        const bool raw = in->codec == zipcclCodecRaw;
        j->inputs[j->job.ninputs - j->missing] = (struct device_input){
            .codec = (zipcclCodec_t)in->codec,
            .scaled = in->scaled != 0,
            .ends_group = in->ends_group != 0,
            .round_group = in->round_group != 0,
            .verify = in->verify != 0,
            .scalar = in->scalar,
            .src = reach(j, in->src, raw ? j->job.count * (info ? info->bytes : 1) : in->src_static),
            .src_static = in->src_static,
            .src_dynamic_bytes = in->src_dynamic_bytes,
            .src_dynamic = raw ? NULL : reach(j, in->src_dynamic, in->src_dynamic_bytes),
            .hash = in->hash,
        };
    }
    if (j->missing > 0)
        return;
    p->filling = NULL;
    start(j);
}
