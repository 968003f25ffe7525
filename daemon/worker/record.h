/* SPDX-License-Identifier: Apache-2.0
 *
 * What zipccld and the worker process of a GPU say to each other: records of one size, in rings of shared memory.
 *
 * Both run the same program, so there is no version. Each side checks what the other says all the same: a process whose
 * GPU has failed may say anything. Addresses in records are those of the daemon; the worker has a table of what it
 * knows of them (worker_translate). A record with a `call` is answered by a WORKER_REPLY with the same number.
 */
#ifndef ZIPCCL_DAEMON_WORKER_RECORD_H
#define ZIPCCL_DAEMON_WORKER_RECORD_H

#include "daemon/device/device.h"
#include "daemon/fabric/nccl_launch.h"

#define WORKER_RECORD_BYTES 320u
#define WORKER_TEXT_BYTES   224u
#define WORKER_KINDS        3u  /* of jobs: encode, copy, decode and reduce */
#define WORKER_BULK         16u /* large jobs of a kind that a worker has at once; more wait in the daemon */
#define WORKER_SMALL        64u /* likewise small ones */
#define WORKER_JOBS         (WORKER_KINDS * (WORKER_BULK + WORKER_SMALL))
#define WORKER_INPUTS_EACH  4u
#define WORKER_MAX_INPUTS   65536u /* of a reduction */
#define WORKER_EVENTS_EACH  4u
#define WORKER_MAX_EVENTS   1024u /* of a stream */
#define WORKER_OPS_EACH     13u
#define WORKER_UNASKED      UINT32_MAX /* a launching side's answer to nothing: NCCL_FAILED */

enum worker_record_type {
    /* to the worker */
    WORKER_MAP,          /* memory; where has_fd is set, the socket has its descriptor. OWN: answered by GROWN */
    WORKER_UNMAP,        /* its address */
    WORKER_JOB,          /* followed by the inputs of a reduction */
    WORKER_INPUTS,       /* up to WORKER_INPUTS_EACH */
    WORKER_STREAM_OPEN,  /* followed by the handles of its events */
    WORKER_EVENTS,       /* up to WORKER_EVENTS_EACH; the call is the last one's */
    WORKER_STREAM_CLOSE, /* its number */
    WORKER_GATE,
    WORKER_MEASURE,
    WORKER_PING,         /* nothing: that it is read tells that the worker lives */
    WORKER_NCCL,         /* loads it; answered with its version */
    WORKER_LAUNCH,       /* a command of nccl_launch.h, followed by its operations */
    WORKER_OPS,          /* up to WORKER_OPS_EACH */
    WORKER_LAUNCH_END,   /* as launcher_end of nccl_launch.h */
    WORKER_LAUNCH_CLOSE, /* as launcher_close: nothing is launched any more */
    /* from the worker */
    WORKER_REPLY,
    WORKER_GPU,    /* one that there is; all come before READY */
    WORKER_READY,  /* or why not: there will be nothing else then */
    WORKER_DONE,   /* a job */
    WORKER_OPENED, /* a gate */
    WORKER_ANSWER, /* a command */
    WORKER_GROWN,  /* memory that it was to make */
    WORKER_FAILED, /* the GPU, by an error that stays: the worker ends now */
};

struct worker_input {
    uint8_t codec, scaled, ends_group, round_group, verify, zero[3];
    uint64_t scalar, src, src_static, src_dynamic, src_dynamic_bytes, hash;
};

struct worker_record {
    uint32_t type, call;
    union {
        struct {
            uint64_t base, bytes, offset, process_start, id;
            int32_t pid;
            uint32_t kind, has_fd;
            uint8_t uuid[DEVICE_UUID_BYTES], handle[DEVICE_IPC_BYTES];
        } map;
        struct {
            uint64_t base;
        } unmap;
        struct {
            uint32_t slot, work, codec, dtype, flags, verify, ninputs, redop, divisor;
            uint64_t src, src_static, src_dynamic, src_dynamic_bytes, dst, dst_dynamic, count, hash;
        } job;
        struct worker_input inputs[WORKER_INPUTS_EACH];
        struct {
            uint64_t number;
            uint32_t nevents;
            uint8_t uuid[DEVICE_UUID_BYTES];
        } stream;
        uint8_t events[WORKER_EVENTS_EACH][DEVICE_IPC_BYTES];
        struct {
            uint64_t stream, number;
            uint32_t event;
        } gate;
        struct {
            uint32_t result;
            uint64_t value[2];
            char text[WORKER_TEXT_BYTES];
        } reply; /* READY, FAILED too */
        struct {
            uint32_t ordinal, mps;
            uint8_t uuid[DEVICE_UUID_BYTES];
            char name[64];
        } gpu;
        struct {
            uint32_t slot, result, bad_input;
            uint64_t out_static, out_dynamic, ns, hash;
            char text[WORKER_TEXT_BYTES];
        } done;
        struct {
            uint64_t number;
            uint32_t result;
            char text[WORKER_TEXT_BYTES];
        } opened;
        struct {
            uint64_t comm;
            uint32_t number, what, nops, rank, nranks;
            union {
                struct nccl_unique unique;
                struct nccl_call call;
                struct nccl_branch branch;
            };
        } launch;
        struct nccl_op ops[WORKER_OPS_EACH];
        struct {
            uint64_t comm;
            uint32_t number, result;
            union {
                struct nccl_unique unique;
                char text[WORKER_TEXT_BYTES];
            };
        } answer;
        struct {
            uint64_t base;
            uint32_t result, aliased;
            char text[WORKER_TEXT_BYTES];
        } grown;
        uint8_t room[WORKER_RECORD_BYTES - 8];
    };
};
_Static_assert(sizeof(struct worker_record) == WORKER_RECORD_BYTES, "one size");

/* What a worker is given first, through its socket, with the descriptors of its channel. */
struct worker_start {
    uint32_t record_bytes, gpu_sms, own_gpu, dumpable;
    int32_t daemon;
};

#endif
