/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the CUDA device: GPUs and the way of jobs (cuda.c), lanes and the thread that sees them end (cuda_lane.c),
 * what a job launches (cuda_work.c), clients' memory and scratch (cuda_memory.c), memory of GPUs that is the daemon's
 * (cuda_pool.c), clients' streams (cuda_stream.c), the
 * driver's own calls (cuda_driver.c), measurement (cuda_measure.c).
 *
 * The loop thread launches; one thread of the device looks which launches have ended. They share what is said to be
 * under the lock. Work on host memory alone goes to the host device inside.
 */
#ifndef ZIPCCL_DAEMON_DEVICE_CUDA_H
#define ZIPCCL_DAEMON_DEVICE_CUDA_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "daemon/device/host.h"
#include "daemon/device/job_queue.h"
#include "daemon/device/ranges.h"
#include "kernels/cuda/codec_cuda.h"

#define CUDA_MAX_GPUS   16u
#define CUDA_DEPTH      4u /* launched jobs of a lane */
#define CUDA_LANES      2u /* of a kind */
#define CUDA_TEXT_BYTES 192u

struct cuda_gpu;

/* The driver's calls that the runtime does not have, found when the device is opened. */
struct cuda_driver {
    CUresult (*mem_get_address_range)(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
    CUresult (*mem_address_reserve)(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr addr,
                                    unsigned long long f);
    CUresult (*mem_address_free)(CUdeviceptr ptr, size_t size);
    CUresult (*mem_import)(CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type);
    CUresult (*mem_map)(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                        unsigned long long flags);
    CUresult (*mem_unmap)(CUdeviceptr ptr, size_t size);
    CUresult (*mem_set_access)(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count);
    CUresult (*mem_release)(CUmemGenericAllocationHandle handle);
    CUresult (*mem_create)(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                           unsigned long long flags);
    bool has_vmm; /* all but the first and the last */
};

/* A launched job. Its table and results lie in `host`, pinned, and in `device`; args_bytes of the lane each. */
struct cuda_slot {
    struct device_job *job;
    cudaEvent_t begin, end;
    uint8_t *host, *device;
    const void *hash_at; /* copy: its bytes where the processor reads them */
    bool plain;          /* a copy, or values that are not coded: no kernel says how it went */
    zipcclResult_t result;
};

enum cuda_kind { CUDA_ENCODE, CUDA_DECODE, CUDA_COPY, CUDA_KINDS };

/* A stream, whose jobs run one after another and so share its scratch. */
struct cuda_lane {
    struct cuda_gpu *gpu;
    cudaStream_t stream;
    struct job_queue waiting; /* loop thread */
    struct cuda_slot slots[CUDA_DEPTH];
    unsigned head, n; /* under the lock */
    uint8_t *scratch; /* on the GPU */
    size_t scratch_bytes, args_bytes;
};

struct cuda_gpu {
    struct device *device;
    int ordinal;
    uint8_t uuid[DEVICE_UUID_BYTES];
    char name[64];
    bool ready;                /* its lanes exist */
    _Atomic bool failed;       /* by an error that stays */
    char why[CUDA_TEXT_BYTES]; /* set before failed is */
    struct cuda_lane lanes[CUDA_KINDS][CUDA_LANES];
};

/* Memory of a client, once, however often it is registered; see cuda_memory.c. */
struct cuda_mapping {
    struct range range; /* first */
    struct cuda_mapping *next;
    enum device_memory_kind kind;
    pid_t pid;
    uint64_t process_start, id;
    struct cuda_gpu *gpu;       /* NULL: host memory */
    struct cuda_gpu *mapped_on; /* whose context has it: gpu's, or another one's, which is its peer */
    struct device_memory host;
    uint8_t *alias; /* of memory that is the daemon's; NULL: it has one address */
    bool pinned;    /* host memory that the GPUs can use */
    unsigned refs;
};

struct cuda_gate {
    struct cuda_gate *next;
    struct device_stream *stream;
    cudaEvent_t event;
    struct device_gate gate;
    zipcclResult_t result;
};

struct device_stream {
    struct device *device;
    struct cuda_gpu *gpu;
    unsigned n;
    cudaEvent_t events[];
};

struct device {
    struct device_config config;
    struct device *host; /* a device_host */
    int epoll_fd, event_fd;
    struct cuda_driver driver;
    unsigned ngpus;
    struct cuda_gpu gpus[CUDA_MAX_GPUS];
    struct cuda_gpu *own; /* the only one that is worked on; NULL: all are */
    bool mps;

    /* loop thread */
    struct host_pool pool;
    struct cuda_mapping *mappings;
    struct ranges ranges;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool has_thread, stop;            /* the latter under the lock, as all below */
    struct job_queue done;            /* ended, for poll */
    struct cuda_gate *gates, *opened; /* that wait; for poll */
    struct cuda_gate *spare_gates;
    struct heartbeat heartbeat;
};

/* cuda.c */
struct cuda_gpu *cuda_gpu_of_uuid(struct device *d, const uint8_t *uuid);
int cuda_gpu_number(const struct device *d, const uint8_t *uuid);
/* Makes its lanes, at its first use. Else *why. */
ZIPCCL_MUST_CHECK zipcclResult_t cuda_gpu_ready(struct cuda_gpu *gpu, const char **why);
/* Whether an error of a call is one that stays; then the GPU counts as failed, with this text. */
bool cuda_gpu_check(struct cuda_gpu *gpu, cudaError_t error, const char *what);
zipcclResult_t cuda_result(cudaError_t error);
void cuda_poll(struct device *d);
void cuda_notify(struct device *d); /* poll has something to do */

/* cuda_driver.c: false, with *why, where a call is missing that every driver has */
bool cuda_driver_load(struct cuda_driver *driver, const char **why);

/* cuda_lane.c */
ZIPCCL_MUST_CHECK cudaError_t cuda_lane_init(struct cuda_lane *lane, struct cuda_gpu *gpu, int priority);
void cuda_lane_free(struct cuda_lane *lane);
void cuda_lane_submit(struct cuda_gpu *gpu, enum cuda_kind kind, struct device_job *job);
void cuda_lanes_fill(struct device *d); /* launches what waited for room */
void *cuda_thread(void *device);

/* cuda_work.c */
struct cuda_need {
    size_t scratch, args;
};
struct cuda_need cuda_work_need(const struct cuda_lane *lane, const struct device_job *job);
/* Enqueues the job on the lane's stream, and what brings its results to the host. */
ZIPCCL_MUST_CHECK cudaError_t cuda_work_launch(struct cuda_lane *lane, struct cuda_slot *slot);
/* It has ended: results, hashes. Any thread. */
void cuda_work_finish(struct cuda_slot *slot);

/* cuda_memory.c */
ZIPCCL_MUST_CHECK zipcclResult_t cuda_import(struct device *d, const struct device_import *import,
                                             struct device_memory *out, const char **why);
bool cuda_release(struct device *d, struct device_memory *memory, struct device_call *call);
/* What holds this address; NULL: scratch, or nothing known. */
struct cuda_mapping *cuda_mapping_of(const struct device *d, const void *ptr);
/* The GPU that has it; NULL: the host. */
static inline struct cuda_gpu *cuda_gpu_of(const struct device *d, const void *ptr) {
    const struct cuda_mapping *m = cuda_mapping_of(d, ptr);
    return m ? m->gpu : NULL;
}
/* Makes sure that GPUs can use host memory. */
bool cuda_reach(struct device *d, const void *ptr);
bool cuda_pin(void *ptr, size_t bytes);
void cuda_unpin(void *ptr);
void cuda_mappings_free(struct device *d);

/* cuda_pool.c: sets the mapping's addresses */
ZIPCCL_MUST_CHECK zipcclResult_t cuda_pool_map(struct device *d, struct cuda_mapping *m, const char **why);
void cuda_pool_unmap(struct device *d, const struct cuda_mapping *m);

/* cuda_stream.c */
ZIPCCL_MUST_CHECK zipcclResult_t cuda_stream_open(struct device *d, const uint8_t *uuid, const uint8_t *events,
                                                  unsigned n, struct device_call *call, struct device_stream **stream,
                                                  const char **why);
ZIPCCL_MUST_CHECK zipcclResult_t cuda_stream_gate(struct device_stream *stream, unsigned i,
                                                  const struct device_gate *gate);
bool cuda_stream_close(struct device_stream *stream, struct device_call *call);
bool cuda_gates_look(struct device *d); /* under the lock: moves those whose time has come; true: there were some */
void cuda_gates_run(struct device *d);
void cuda_gates_free(struct device *d);

/* cuda_measure.c */
bool cuda_measure(struct device *d, uint64_t *encode_bps, uint64_t *decode_bps);

#endif
