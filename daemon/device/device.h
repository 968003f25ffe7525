/* SPDX-License-Identifier: Apache-2.0
 *
 * The device seam: memory and codec work. `host` is shared memory, worker threads and the SIMD codec.
 *
 * All functions are called on the loop thread. Work runs elsewhere; device_poll, called when device_fd is readable,
 * runs the callbacks of finished jobs on the loop thread.
 */
#ifndef ZIPCCL_DAEMON_DEVICE_H
#define ZIPCCL_DAEMON_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/flow/flow.h"
#include "daemon/heartbeat.h"
#include "zipccl_types.h"

struct device;      /* opened by device_open, freed by close */
struct device_flow; /* the work of one job of clients, as it shares the workers with others */

/* Memory of a client, mapped here. Owned by the device until release. */
struct device_memory {
    uint8_t *base;
    size_t bytes;
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
    void (*done)(struct device_job *job);
    void *arg;
    struct device_flow *flow; /* NULL: the default one, weight 1 */
    struct device_job *next;  /* the device's own, as internal */
    uint64_t internal[6];
};

struct device_config {
    unsigned workers;    /* 0: choose */
    size_t inline_bytes; /* work on fewer bytes may be done at once, in submit */
};

struct device_ops {
    const char *name;
    ZIPCCL_MUST_CHECK zipcclResult_t (*open)(const struct device_config *config, struct device **device);
    void (*close)(struct device *device); /* waits for jobs; their callbacks do not run */
    /* Maps the memory that fd names (checked: sealed against shrinking, at least bytes long). Keeps no fd.
     * *why: static text for people on failure. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*import)(struct device *device, int fd, size_t bytes, struct device_memory *out,
                                               const char **why);
    void (*release)(struct device *device, struct device_memory *memory);
    /* Daemon-owned scratch, 4 KiB aligned, resident. */
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
};

extern const struct device_ops device_host;

#endif
