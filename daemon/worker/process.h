/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside a worker: its loop and what it is told (process.c), jobs (process_jobs.c), NCCL (process_launches.c).
 */
#ifndef ZIPCCL_DAEMON_WORKER_PROCESS_H
#define ZIPCCL_DAEMON_WORKER_PROCESS_H

#include "daemon/device/ranges.h"
#include "daemon/worker/channel.h"

struct process;

/* Memory that the daemon has told of. */
struct process_memory {
    struct range range; /* the daemon's addresses; first */
    struct device_memory memory;
    zipcclResult_t result; /* of mapping it */
    const char *why;
};

struct process_stream {
    struct process_stream *next;
    uint64_t number;
    struct device_stream *stream;
};

struct process_job {
    struct device_job job;
    struct process *process;
    struct device_input *inputs; /* kept from job to job */
    uint32_t slot, capacity, missing;
    bool busy;
    /* Of inputs that cannot be had: the job fails with it, once all have come. */
    zipcclResult_t refused;
    const char *why;
};

struct process {
    struct worker_channel channel;
    const struct device_ops *ops;
    struct device *device;
    struct ranges ranges;
    struct process_stream *streams;
    struct process_job jobs[WORKER_JOBS];
    struct process_job *filling; /* whose inputs come now */
    struct {
        uint64_t number;
        uint32_t nevents, have;
        uint8_t uuid[DEVICE_UUID_BYTES];
        uint8_t *handles;
    } opening; /* the stream whose events come now */
    uint32_t own_gpu;
    struct {
        const struct nccl_gpus_ops *gpus; /* NULL: not loaded */
        void *owner;
        struct nccl_launcher *launcher; /* NULL: there was no command yet */
        int wake;                       /* -1: likewise */
        bool looking;                   /* it was asked whether the GPU works */
        struct nccl_answer *held;       /* until it has said */
        uint32_t nheld, held_room;
        bool filling; /* the operations of `command` come now */
        uint32_t missing;
        zipcclResult_t refused; /* as of a job */
        const char *why;
        struct nccl_command command;
    } launches;
};

/* Never returns: what the daemon said makes no sense. */
void process_broken(const char *what) __attribute__((noreturn));
/* Nor does this: the GPU has an error that stays. */
void process_failed(struct process *p, const char *why) __attribute__((noreturn));
void process_end_if_failed(struct process *p); /* where the device says so */
/* Waits for room where there is none. */
void process_tell(struct process *p, const struct worker_record *record);
/* value: NULL: none. */
void process_reply(struct process *p, uint32_t call, zipcclResult_t result, const char *why, const uint64_t value[2]);
/* Where the worker has what the daemon calls `address`, all `bytes` of it. NULL: *result and *why say why not. */
void *worker_translate(const struct process *p, uint64_t address, uint64_t bytes, zipcclResult_t *result,
                       const char **why);
/* Its other address. */
void *worker_translate_alias(const struct process *p, uint64_t address, uint64_t bytes, zipcclResult_t *result,
                             const char **why);
void process_job(struct process *p, const struct worker_record *record);
void process_inputs(struct process *p, const struct worker_record *record);

/* process_launches.c */
void process_nccl(struct process *p, const struct worker_record *record);
void process_launch(struct process *p, const struct worker_record *record);
void process_ops(struct process *p, const struct worker_record *record);
void process_launch_end(struct process *p, const struct worker_record *record);
void process_launch_close(struct process *p, const struct worker_record *record);
void process_launches_hear(struct process *p); /* its answers, to the daemon */
void process_launches_close(struct process *p);

#endif
