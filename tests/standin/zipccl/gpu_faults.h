/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults of CUDA on demand: which calls a process makes, how one of them fails, and a job that meets it.
 */
#ifndef ZIPCCL_TESTS_GPU_FAULTS_H
#define ZIPCCL_TESTS_GPU_FAULTS_H

#include "gpu_buffers.h"

#define GPU_FAULTS_COUNT 9000 /* values a rank: a chunk of them lies in a pool */
#define GPU_MAX_CALLS    128

struct gpu_call {
    char name[64];
};
extern struct gpu_call gpu_calls[GPU_MAX_CALLS]; /* that were counted */
extern unsigned gpu_ncalls;

/* A rank that runs operations on memory of all kinds until one fails; it reports how, and how long after the call. Any
 * error will do, if it has a text. */
void gpu_faults_rank(struct e2e_rank *r);
extern bool gpu_faults_split; /* of jobs to come: first of all they split their communicator */
/* The daemon of node 0 counts its calls, in count.PID, and fails where it was told to; so does what it forks. */
void gpu_start_node0(struct e2e *e);
/* Two daemons on GPUs, that of node 0 started so. */
void gpu_counted_daemons(struct e2e *e);
/* From now on: the first time that node 0 makes this call it gives this error, or is killed ("kill"). NULL: none. */
void gpu_arm(const struct e2e *e, const char *call, const char *error);
/* How often a call was made by processes whose counts are in files that begin so, also of those that are gone. learn:
 * calls not seen before are added to gpu_calls. */
unsigned long gpu_counted(const struct e2e *e, const char *of, const char *call, bool learn);

#endif
