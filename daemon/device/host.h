/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the host device: its memory (host_memory.c), the work itself (host_work.c), threads and queues (host.c).
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
};

ZIPCCL_MUST_CHECK zipcclResult_t host_import(struct device *device, int fd, size_t bytes, struct device_memory *out,
                                             const char **why);
void host_release(struct device *device, struct device_memory *memory);
void *host_pool_alloc(struct host_pool *pool, size_t bytes);
void host_pool_free(struct host_pool *pool, void *ptr, size_t bytes);
void host_pool_drain(struct host_pool *pool);

/* Does the job's work on the calling thread; sets its results. */
void host_work_run(struct device_job *job);
/* Bytes of values that a job moves. */
size_t host_work_bytes(const struct device_job *job);

#endif
