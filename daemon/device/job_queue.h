/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs of a device in a row: those that wait, and those that are done and not told of. Owned by one thread, or under
 * the lock of its owner.
 */
#ifndef ZIPCCL_DAEMON_DEVICE_JOB_QUEUE_H
#define ZIPCCL_DAEMON_DEVICE_JOB_QUEUE_H

#include "daemon/device/device.h"

struct job_queue {
    struct device_job *head, **tail;
};

static inline void job_queue_init(struct job_queue *q) {
    q->head = NULL;
    q->tail = &q->head;
}

static inline void job_queue_push(struct job_queue *q, struct device_job *job) {
    job->next = NULL;
    *q->tail = job;
    q->tail = &job->next;
}

static inline struct device_job *job_queue_pop(struct job_queue *q) {
    struct device_job *job = q->head;
    if (job && !(q->head = job->next))
        q->tail = &q->head;
    return job;
}

/* Takes all of them, as a list. */
static inline struct device_job *job_queue_take(struct job_queue *q) {
    struct device_job *head = q->head;
    job_queue_init(q);
    return head;
}

/* Tells of those in a list that was taken. */
static inline void job_list_done(struct device_job *job) {
    while (job) {
        struct device_job *next = job->next; /* done may use the job again */
        job->done(job);
        job = next;
    }
}

#endif
