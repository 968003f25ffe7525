/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the host device: its memory (host_memory.c), the work itself (host_work.c, host_reduce.c), threads (host.c),
 * what waits for them (host_queue.c).
 */
#ifndef ZIPCCL_DAEMON_DEVICE_HOST_H
#define ZIPCCL_DAEMON_DEVICE_HOST_H

#include "daemon/device/device.h"

#define HOST_SIZE_CLASSES 512u

struct host_block {
    struct host_block *next;
};

/* Scratch that was given back, by size class; used on the loop thread alone. */
struct host_pool {
    struct host_block *free[HOST_SIZE_CLASSES];
    size_t kept_bytes;
    /* Of each block: after it was mapped, and before it is unmapped; or NULL. False: it cannot be used. */
    bool (*pin)(void *ptr, size_t bytes);
    void (*unpin)(void *ptr);
};

/* What waits for a worker; under the device's lock. */
struct host_queue {
    struct flow_sched codec, copy;
    unsigned codec_run;                   /* codec jobs in a row while a copy waited */
    unsigned small_run;                   /* small jobs in a row while a large one waited */
    struct device_flow *flows, *fallback; /* all that are open; the one of jobs that name none */
};

bool host_queue_init(struct host_queue *q); /* false: no memory */
void host_queue_free(struct host_queue *q);
void host_queue_push(struct host_queue *q, struct device_job *job);
struct device_job *host_queue_take(struct host_queue *q);
bool host_queue_waits(const struct host_queue *q);
struct device_flow *host_queue_flow(struct host_queue *q, uint32_t weight, enum flow_priority priority);
void host_queue_set(struct host_queue *q, struct device_flow *flow, uint32_t weight, enum flow_priority priority);
void host_queue_close(struct host_queue *q, struct device_flow *flow);

ZIPCCL_MUST_CHECK zipcclResult_t host_import(struct device *device, const struct device_import *import,
                                             struct device_memory *out, const char **why);
bool host_release(struct device *device, struct device_memory *memory, struct device_call *call);
/* What so many bytes take of a pool: the size of their class, and its index, below HOST_SIZE_CLASSES. */
size_t host_class_size(size_t bytes, unsigned *index);
void *host_pool_alloc(struct host_pool *pool, size_t bytes);
void host_pool_free(struct host_pool *pool, void *ptr, size_t bytes);
void host_pool_drain(struct host_pool *pool);

struct codec_reader;
struct reduce_input;

/* What a thread needs for reductions, so that no job allocates; host_reduce.c. */
struct host_scratch {
    uint8_t *decoded;    /* groups of coded inputs */
    void *group, *total; /* accumulators between parts of a reduction */
    struct codec_reader *readers;
    struct reduce_input *inputs;
    uint32_t capacity; /* of readers and inputs */
};

/* False where memory is out; host_scratch_free in any case. */
bool host_scratch_init(struct host_scratch *s);
void host_scratch_free(struct host_scratch *s);
/* Room for more inputs than any job had before. */
bool host_scratch_reserve(struct host_scratch *s, uint32_t inputs);

/* Does the job's work on the calling thread, which owns the scratch; sets its results. */
void host_work_run(struct device_job *job, struct host_scratch *scratch);
/* DEVICE_REDUCE. Returns the job's result and sets bad_input. */
zipcclResult_t host_reduce(struct device_job *job, struct host_scratch *scratch);
/* XXH3 of two parts, one after the other. */
uint64_t host_hash_parts(const void *a, size_t a_bytes, const void *b, size_t b_bytes);
/* Bytes of values that a job moves; of a reduction: of all its inputs. */
size_t host_work_bytes(const struct device_job *job);

#endif
