/* SPDX-License-Identifier: Apache-2.0
 *
 * The device seam: memory and codec work. `host` is shared memory, worker threads and the SIMD codec. `cuda` adds
 * memory of GPUs and works there on whatever touches it; what lies in host memory alone is left to a host device
 * inside.
 *
 * All functions are called on the loop thread. Work runs elsewhere; device_poll, called when device_fd is readable,
 * runs the callbacks of finished jobs on the loop thread.
 */
#ifndef ZIPCCL_DAEMON_DEVICE_H
#define ZIPCCL_DAEMON_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/flow/flow.h"
#include "daemon/heartbeat.h"
#include "zipccl_types.h"

struct device;        /* opened by device_open, freed by close */
struct device_flow;   /* the work of one job of clients, as it shares the workers with others */
struct device_stream; /* a client's stream of a GPU, as its daemon sees it */

#define DEVICE_UUID_BYTES 16u
#define DEVICE_IPC_BYTES  64u /* of a CUDA IPC handle */

/* OWN is no client's: memory of a GPU that the device makes. */
enum device_memory_kind { DEVICE_MEMORY_HOST, DEVICE_MEMORY_CUDA_IPC, DEVICE_MEMORY_CUDA_VMM, DEVICE_MEMORY_CUDA_OWN };

/* What takes its time: done runs from poll, once, or not at all where the device is closed before. The caller's, and
 * untouched by it until then. why: of an error, for people; valid until the device is closed. */
struct device_call {
    void (*done)(struct device_call *call, zipcclResult_t result, const char *why);
    struct device_call *next; /* the device's own */
};

/* What a client hands over. Nothing of it is kept but copies. */
struct device_import {
    enum device_memory_kind kind;
    int fd;        /* a memfd; VMM: of cuMemExportToShareableHandle */
    size_t offset; /* where it begins in a memfd; a multiple of the page */
    size_t bytes;
    const uint8_t *handle; /* IPC: of the whole allocation */
    const uint8_t *uuid;   /* all but a memfd: the GPU */
    /* Names the allocation among all that ever were: opened twice, it is mapped once. */
    pid_t pid;
    uint64_t process_start, id;
    struct device_call *call; /* may be NULL for host memory, which is mapped at once */
};

/* Memory of a client, mapped here. Owned by the device until release. */
struct device_memory {
    uint8_t *base;
    size_t bytes;
    uint8_t *alias; /* OWN: the same memory at another address; NULL: it has but one */
    bool on_gpu;    /* the processor cannot touch it */
    void *own;      /* the device's */
};

enum device_work { DEVICE_ENCODE, DEVICE_DECODE, DEVICE_COPY, DEVICE_REDUCE };

/* One input of DEVICE_REDUCE, see struct plan_input for the order and the groups. */
struct device_input {
    zipcclCodec_t codec; /* raw: values at src */
    bool scaled, ends_group, round_group;
    bool verify;     /* coded: check hash */
    uint64_t scalar; /* where scaled: its bytes, in dtype, from the lowest */
    const void *src; /* values, or the static part */
    size_t src_static, src_dynamic_bytes;
    const void *src_dynamic;
    uint64_t hash;
};

/* A unit of work; owned by the caller, untouched by it until done runs. */
struct device_job {
    enum device_work work;
    zipcclCodec_t codec;
    zipcclDataType_t dtype;
    unsigned flags;                       /* CODEC_STREAMING */
    const void *src;                      /* encode, copy: values. decode: static part */
    size_t src_static, src_dynamic_bytes; /* decode */
    const void *src_dynamic;              /* decode */
    void *dst;                            /* encode: static part. decode, copy: values */
    void *dst_dynamic;                    /* encode */
    uint64_t count;                       /* values; copy: bytes */
    bool verify;                          /* encode: hash the coded parts; decode: check hash */
    uint64_t hash;                        /* XXH3 of static then dynamic part, with verify */
    const struct device_input *inputs;    /* reduce: ninputs, in order, untouched until done. src is not used */
    uint32_t ninputs;
    zipcclRedOp_t redop; /* reduce */
    uint32_t divisor;    /* reduce, avg: what the end result is divided by; 0: not at all */
    uint32_t bad_input;  /* result of a reduce that fails with zipcclCorruptData: which */
    /* results */
    zipcclResult_t result;
    size_t out_static, out_dynamic; /* encode */
    uint64_t ns;                    /* worker time */
    const char *why;                /* of a failure, for people; or NULL. Valid until the device is closed */
    void (*done)(struct device_job *job);
    void *arg;
    struct device_flow *flow; /* NULL: the default one, weight 1. The device's from submit on, as next and internal */
    struct device_job *next;
    uint64_t internal[6];
};

/* A GPU, and the process that works on it. */
struct device_gpu {
    unsigned ordinal;
    uint8_t uuid[DEVICE_UUID_BYTES];
    char name[64];
    bool mps;
    pid_t worker;       /* 0: none runs; or the calling process itself works on it */
    uint32_t restarts;  /* of the worker */
    const char *failed; /* why it cannot be used; NULL: it can. Valid until the device is closed */
    /* Its pool: what it has, what is taken of that, and bytes that found no room there, since the start. */
    uint64_t pool_bytes, pool_used_bytes, pool_missed_bytes;
};

/* Something that people should hear of: a GPU's worker was lost, or is back; its pool can have no more. */
enum device_event_kind { DEVICE_EVENT_LOST, DEVICE_EVENT_BACK, DEVICE_EVENT_POOL };
struct device_event {
    enum device_event_kind kind;
    const char *text; /* valid during the call */
};

struct device_config {
    unsigned workers;      /* 0: choose */
    size_t inline_bytes;   /* work on fewer bytes may be done at once, in submit */
    unsigned gpu_sms;      /* multiprocessors that a kernel may take; 0: all */
    unsigned own_gpu;      /* 1 + the ordinal of the one GPU to work on; 0: all */
    size_t gpu_pool_bytes; /* the most that alloc_on takes of each GPU */
    /* For devices with worker processes. */
    const char *worker_program;                                 /* NULL: this one */
    unsigned worker_timeout_ms;                                 /* for one piece of work; 0: 10 s */
    void (*event)(void *arg, const struct device_event *event); /* NULL: nobody listens */
    void *event_arg;
    unsigned worker_reap_ms;                        /* for a killed one to be gone; 0: 10 s */
    pid_t (*reap)(pid_t pid, int *status, int how); /* waitpid, or a test's; NULL: waitpid */
};

/* Handed back as it is. */
struct device_gate {
    /* why: of an error, for people; or NULL. Valid until the device is closed. */
    void (*opened)(const struct device_gate *gate, zipcclResult_t result, const char *why);
    void *owner;
    uint64_t key, number;
};

struct device_ops {
    const char *name;
    /* zipcclInvalidUsage: this node has none. *why: for people, static or the device's own. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*open)(const struct device_config *config, struct device **device,
                                             const char **why);
    void (*close)(struct device *device); /* waits for jobs; their callbacks do not run */
    /* Maps a client's memory (checked: a memfd is sealed against shrinking, all of it is at least bytes long).
     * *why: static text for people on failure. zipcclInProgress: the call will say; until then out has its address and
     * size, and is not to be used or released. Where the call fails there is nothing to release. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*import)(struct device *device, const struct device_import *import,
                                               struct device_memory *out, const char **why);
    /* True: it is no longer open here, and its owner may free it. False: the call will say. NULL: nobody asks. */
    bool (*release)(struct device *device, struct device_memory *memory, struct device_call *call);
    /* Daemon-owned scratch, 4 KiB aligned, resident. The processor and the fabric can use it, whatever the device. */
    void *(*alloc)(struct device *device, size_t bytes);
    void (*free)(struct device *device, void *ptr, size_t bytes);
    /* True: done already (job->result is set, done is not called). False: done will be called by poll. */
    bool (*submit)(struct device *device, struct device_job *job);
    /* Shares of the workers: by weight among flows of a priority. NULL: no memory. A flow is closed when no job of it
     * is left or, later, ends by itself with its last one. */
    struct device_flow *(*flow_open)(struct device *device, uint32_t weight, enum flow_priority priority);
    void (*flow_set)(struct device *device, struct device_flow *flow, uint32_t weight, enum flow_priority priority);
    void (*flow_close)(struct device *device, struct device_flow *flow);
    int (*fd)(const struct device *device);
    void (*poll)(struct device *device);
    /* For status: "host: 2 workers, avx512". */
    void (*describe)(const struct device *device, char *text, size_t size);
    /* Of the i-th thread, NULL past the last one; the operation itself may be NULL. Valid until close. */
    const struct heartbeat *(*heartbeat)(const struct device *device, unsigned i);

    /* What follows is NULL where all memory is the host's. */
    /* Whether an address lies in memory that the processor and the fabric cannot touch. */
    bool (*on_gpu)(const struct device *device, const void *ptr);
    /* The number of the GPU that has an address, as in gpu_number; -1: the host has it. */
    int (*gpu_of)(const struct device *device, const void *ptr);
    /* Scratch in the memory of a GPU, given back by free. NULL: it has no room now; alloc may have some. The function
     * itself may be NULL. */
    void *(*alloc_on)(struct device *device, unsigned gpu, size_t bytes);
    /* Makes imported memory one that GPUs reach, where it is the host's. False: it cannot be. */
    bool (*reach)(struct device *device, const void *ptr);
    /* The number that CUDA gives the GPU `uuid` here; -1: it is not here. */
    int (*gpu_number)(const struct device *device, const uint8_t *uuid);
    /* A client's stream of the GPU `uuid`: n IPC event handles, one behind the other. zipcclInProgress: the call will
     * say; until then *stream, which is set, is not to be used or closed, and where it fails there is none. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*stream_open)(struct device *device, const uint8_t *uuid, const uint8_t *events,
                                                    unsigned n, struct device_call *call, struct device_stream **stream,
                                                    const char **why);
    /* Calls opened, from poll, when what the client recorded last in event i has come to pass, or with an error. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*stream_gate)(struct device_stream *stream, unsigned i,
                                                    const struct device_gate *gate);
    bool (*stream_close)(struct device_stream *stream, struct device_call *call); /* as release; forgets its gates */
    /* Bytes of values a second that it codes, measured now. False where that fails. */
    bool (*measure)(struct device *device, uint64_t *encode_bps, uint64_t *decode_bps);
    /* The i-th GPU; false past the last one. */
    bool (*gpu)(const struct device *device, unsigned i, struct device_gpu *gpu);
};

extern const struct device_ops device_host;

/* device_load.c: the device of the CUDA module, in this process; what is loaded stays so. *why as above. */
ZIPCCL_MUST_CHECK zipcclResult_t device_load_cuda(const struct device_config *config, const struct device_ops **ops,
                                                  struct device **device, const char **why);
/* Whether there are a module to load and a driver; else *why. */
bool device_has_cuda(const char **why);

#endif
