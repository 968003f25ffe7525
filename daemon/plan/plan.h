/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: what one node does for one collective, as a graph of steps. Building one is a pure function; nothing here
 * knows of a socket, a device or a clock. The executor runs plans; tests and the simulator walk them.
 *
 * A plan speaks of local ranks by their index on the node, and of memory by references that the executor resolves.
 * Steps are numbered so that every edge goes from a lower to a higher number: a plan cannot hold a cycle.
 */
#ifndef ZIPCCL_DAEMON_PLAN_H
#define ZIPCCL_DAEMON_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

enum plan_kind {
    PLAN_ARRIVE, /* local rank `local` has called the operation: its buffers may be used */
    PLAN_ENCODE, /* src values -> slot dst, codec */
    PLAN_SEND,   /* src (values, or a coded slot) -> node `peer` */
    PLAN_RECV,   /* from node `peer` -> dst (values, or a slot) */
    PLAN_DECODE, /* slot src -> dst values */
    PLAN_COPY,   /* src values -> dst values; nothing to do where both are the same memory */
    PLAN_NUM_KINDS
};

enum plan_space {
    PLAN_NONE,
    PLAN_SENDBUF, /* of local rank `index` */
    PLAN_RECVBUF,
    PLAN_SLOT /* coded chunk `index` of the operation: codec_bound of slot_count values */
};

struct plan_ref {
    uint8_t space; /* enum plan_space */
    uint32_t index;
    uint64_t offset; /* bytes; slots: 0 */
};

struct plan_step {
    uint8_t kind;   /* enum plan_kind */
    uint8_t codec;  /* zipcclCodec_t: of an encode or decode; of a send or receive: raw, or what the slot holds */
    uint16_t local; /* arrive: local rank. Others: the local rank that it serves (for errors) */
    uint32_t peer;  /* send, receive: node index */
    uint32_t tag;   /* send, receive: equal on both sides, unique per ordered pair of nodes */
    uint32_t rank;  /* whose data it is (global rank) */
    uint64_t count; /* values */
    struct plan_ref src, dst;
    uint32_t ndeps;      /* steps that must end before this one starts */
    uint32_t first_next; /* steps that wait for this one: plan.next[first_next .. +nnext) */
    uint32_t nnext;
};

struct plan {
    struct plan_step *steps;
    uint32_t nsteps;
    uint32_t *next;
    uint32_t nslots;
    uint64_t slot_count;     /* values that a slot must hold, coded */
    uint64_t raw_send_bytes; /* what this node sends where nothing is coded */
    zipcclDataType_t dtype;
    zipcclCodec_t codec;
};

/* Where the ranks live. rank_node[r] is the node of rank r; local index = order of global rank on the node. */
struct plan_topology {
    uint32_t nranks;
    uint32_t nnodes;
    const uint32_t *rank_node;
};

struct plan_args {
    zipcclOp_t op;
    zipcclDataType_t dtype;
    zipcclCodec_t codec; /* decided: not auto */
    uint64_t count;      /* as in the API */
    uint32_t root;       /* broadcast */
    uint32_t node;       /* for whom */
    const struct plan_topology *topology;
    uint64_t chunk_bytes; /* greatest chunk of values */
    uint32_t window;      /* slots per direction and peer: chunks under way */
};

/* Builds the plan; the caller frees it by plan_free. zipcclInvalidArgument, zipcclOutOfMemory. */
ZIPCCL_MUST_CHECK zipcclResult_t plan_build(const struct plan_args *args, struct plan **plan);
void plan_free(struct plan *plan);

/* Values per chunk for a transfer of `bytes`: whole 32 Ki groups, at least 64 KiB, small enough that the
 * pipeline has several chunks, at most chunk_bytes. Pure, so all nodes agree. */
uint64_t plan_chunk_count(zipcclDataType_t dtype, uint64_t bytes, uint64_t chunk_bytes);

const char *plan_kind_name(enum plan_kind kind);

#endif
