/* SPDX-License-Identifier: Apache-2.0
 *
 * GPUs behind processes. An error of CUDA that stays takes all that its process has on the GPU; so the daemon touches
 * none itself, and has a worker process for each.
 *
 * device_workers is the device `cuda` of the daemon: the host device inside, and what it asks the workers to do
 * (device.c, memory.c, scratch.c), their lives (supervise.c). A worker is `zipccld --worker=FD` (process.c,
 * process_jobs.c), which runs the CUDA module's device for its GPU. What they say to each other: record.h, channel.h.
 * NCCL's launching side of a GPU is in its worker too (launches.c, process_launches.c).
 */
#ifndef ZIPCCL_DAEMON_WORKER_WORKER_H
#define ZIPCCL_DAEMON_WORKER_WORKER_H

#include "daemon/device/device.h"
#include "daemon/fabric/nccl_launch.h"

extern const struct device_ops device_workers;
/* The GPUs for the NCCL fabric; their owner is the device. The fabric is closed before it. */
extern const struct nccl_gpus_ops nccl_gpus_workers;

/* `name` as in the configuration: host, cuda, or auto, which is cuda where the node has a GPU. *why: what kept it from
 * cuda, or from anything; "" where nothing did. */
ZIPCCL_MUST_CHECK zipcclResult_t device_open(const char *name, const struct device_config *config,
                                             const struct device_ops **ops, struct device **device, const char **why);

/* The whole life of a worker, whose socket is fd; its exit code. */
int worker_run(int fd);

#endif
