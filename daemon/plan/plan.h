/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: what one node, or one rank, does for one operation or a group of them, as a graph of steps. Building one is a
 * pure function; nothing here knows of a socket, a device or a clock. The executor runs plans; tests and the simulator
 * walk them.
 *
 * Two kinds. A collective plan (plan_build) serves all ranks of a node together: gathers, broadcasts, reductions,
 * barriers. An exchange plan (plan_build_exchange) serves one rank: a list of transfers with other ranks, which is what
 * all-to-all(-v, -capped), gather, scatter, send, receive and groups of them are (plan_transfers lists them).
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
    PLAN_SEND,   /* src (values, or a coded slot) -> node `peer`, which may be this node in an exchange */
    PLAN_RECV,   /* from node `peer` -> dst (values, or a slot) */
    PLAN_DECODE, /* slot src -> dst values */
    PLAN_COPY,   /* src values -> dst values; nothing to do where both are the same memory. Of no values, onto itself:
                  * a step to wait for in the place of many */
    PLAN_REDUCE, /* inputs -> dst values, which may be one of the inputs: element by element */
    PLAN_NUM_KINDS
};

enum plan_space {
    PLAN_NONE,
    PLAN_SENDBUF, /* of buffer `index`: operation in the plan * ranks served + local rank */
    PLAN_RECVBUF,
    PLAN_SLOT,  /* coded chunk `index` of the plan: codec_bound of its operation's slot_count values */
    PLAN_VALUES /* scratch `index` of the plan: slot_count values */
};

/* Which part of a coded slot a message carries. */
enum plan_part { PLAN_WHOLE, PLAN_STATIC, PLAN_DYNAMIC };

struct plan_ref {
    uint8_t space; /* enum plan_space */
    uint32_t index;
    uint64_t offset; /* bytes; slots and scratch: 0 */
};

/* One input of a reduction, in the order in which they are combined. */
struct plan_input {
    struct plan_ref ref; /* values, or a coded slot */
    uint8_t codec;       /* of a slot; raw: values */
    bool scaled;         /* a rank's own values: PreMulSum multiplies them by the scalar of local rank `local` */
    bool ends_group;     /* the inputs since the last end are combined, then added to the total */
    bool round_group;    /* with ends_group: that result is rounded to the dtype before it is added */
    uint16_t local;
    uint32_t rank; /* whose values; of a node's result: its lowest rank */
};

struct plan_step {
    uint8_t kind;   /* enum plan_kind */
    uint8_t codec;  /* zipcclCodec_t: of an encode or decode; of a send or receive: raw, or what the slot holds */
    uint8_t part;   /* enum plan_part of a send or receive */
    bool final;     /* reduce: the end result (avg divides), not a node's contribution */
    uint16_t local; /* arrive: local rank. Others: the local rank that it serves (for errors) */
    uint32_t item;  /* the operation (collective plan) or the transfer (exchange plan) that it belongs to */
    uint32_t peer;  /* send, receive: node index */
    uint32_t tag;   /* send, receive: equal on both sides, unique per item and ordered pair of nodes */
    uint32_t rank;  /* whose data it is (global rank) */
    uint64_t count; /* values */
    struct plan_ref src, dst;
    uint32_t first_input, ninputs; /* reduce: plan.inputs */
    uint32_t ndeps;                /* steps that must end before this one starts */
    uint32_t first_next;           /* steps that wait for this one: plan.next[first_next .. +nnext) */
    uint32_t nnext;
};

/* What the slots and the scratch of an operation or transfer hold. The ring's codec is raw, whatever was asked for. */
struct plan_item {
    zipcclDataType_t dtype;
    zipcclCodec_t codec;
    uint64_t slot_count; /* values; 0: it uses none */
    bool capped;         /* a transfer of at most what its steps say, see plan_transfer: */
    uint64_t chunk;      /* ... values before chunk 1; chunk k starts at k times as many */
};

struct plan {
    struct plan_step *steps;
    uint32_t nsteps;
    uint32_t *next;
    struct plan_input *inputs;
    uint32_t ninputs;
    struct plan_item *items;
    uint32_t nitems;
    uint32_t nslots, nvalues;
    uint32_t nlocal;         /* ranks that must arrive */
    uint64_t raw_send_bytes; /* what goes to other nodes where nothing is coded, but for capped transfers */
};

/* Where the ranks live. rank_node[r] is the node of rank r; local index = order of global rank on the node. */
struct plan_topology {
    uint32_t nranks;
    uint32_t nnodes;
    const uint32_t *rank_node;
};

/* One operation of a collective plan. */
struct plan_op {
    zipcclOp_t op; /* not one of op_exchanges */
    zipcclDataType_t dtype;
    zipcclCodec_t codec; /* decided: not auto */
    zipcclArm_t arm;     /* decided, where it reduces; else ignored */
    zipcclRedOp_t redop;
    uint64_t count;         /* as in the API */
    uint32_t root;          /* broadcast, reduce */
    const uint64_t *counts; /* all-gather-v, reduce-scatter-v: by rank, values; else NULL */
};

struct plan_args {
    const struct plan_op *ops;
    uint32_t nops; /* more than one: a group, whose operations run side by side */
    uint32_t node; /* for whom */
    const struct plan_topology *topology;
    uint64_t chunk_bytes; /* greatest chunk of values */
    uint32_t window;      /* slots per direction and peer: chunks under way */
};

/* Builds the plan; the caller frees it by plan_free. zipcclInvalidArgument, zipcclOutOfMemory.
 * PreMulSum takes the hierarchical arm alone: the scalars of other nodes are not known here. */
ZIPCCL_MUST_CHECK zipcclResult_t plan_build(const struct plan_args *args, struct plan **plan);
void plan_free(struct plan *plan);
/* Whether every node sends something to every other one; of gathers and reductions to all, whose arm is not the ring.
 */
bool plan_all_hear(const struct plan_op *op, const struct plan_topology *topology);

/* One direction between this rank and another one. */
struct plan_transfer {
    bool send;
    zipcclOp_t op; /* what the API call was, for checks and errors */
    zipcclDataType_t dtype;
    zipcclCodec_t codec; /* decided, by both sides alike */
    uint32_t peer;       /* global rank; may be this one */
    uint32_t buffer;     /* PLAN_SENDBUF or PLAN_RECVBUF index */
    uint64_t offset;     /* bytes in it */
    uint64_t count;
    bool capped; /* count is the most. The sender knows the actual count when it arrives, the receiver from chunk 0 */
};

/* How coded chunks of an exchange travel. Chunk k has tag k, in two phases 2k and 2k + 1. */
enum plan_phases {
    PLAN_STREAM,     /* one message a chunk */
    PLAN_TWO_PHASE,  /* static parts as soon as they are coded, dynamic parts after them: lower steps go first */
    PLAN_SIZES_FIRST /* all is coded and all sizes are exchanged before the first byte is sent: for comparison. Sizes
                      * are an empty message of the first transfer to each rank of another node, tag UINT32_MAX */
};

struct plan_exchange_args {
    const struct plan_transfer *transfers; /* of one pair and direction: in the order in which the other side lists
                                            * them */
    uint32_t ntransfers;
    uint32_t nbuffers;
    uint32_t rank; /* for whom */
    const struct plan_topology *topology;
    uint64_t chunk_bytes;
    uint32_t window; /* slots per transfer */
    enum plan_phases phases;
};

/* Values of a chunk (a step of a capped transfer with tag k) where `actual` of its transfer are to move. */
static inline uint64_t plan_capped_count(const struct plan_item *item, const struct plan_step *step, uint64_t actual) {
    uint64_t start = step->tag * item->chunk, left = actual > start ? actual - start : 0;
    return left < step->count ? left : step->count;
}

/* One arrival, of local rank 0. Capped transfers are planned for their greatest count, in PLAN_STREAM whatever `phases`
 * says: of the chunks, both sides leave out those that the actual count does not reach. Chunk 0 always travels, if only
 * as an empty message; the receives of the others wait for it. A transfer inside a node is a send and a receive of raw
 * values, of the whole count, tag 0, peer: this node. One of no values is one empty message, codec raw. */
ZIPCCL_MUST_CHECK zipcclResult_t plan_build_exchange(const struct plan_exchange_args *args, struct plan **plan);

/* The call of one rank that the transfers of an exchange are made of. */
struct plan_call {
    zipcclOp_t op; /* op_exchanges */
    zipcclDataType_t dtype;
    uint64_t count; /* all-to-all, gather, scatter: values per pair; -capped: the most; send, receive: values */
    uint32_t root;  /* root; send, receive: the other rank */
    /* all-to-all-v, by rank: values to send and receive, and where they lie (values from the buffer's start) */
    const uint64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
};

/* Appends the transfers of one call to out (room for 2 * nranks), buffer index `buffer`; returns how many. Their codec
 * is raw: the caller decides. In an all-to-all every pair has a transfer, also of zero values. */
uint32_t plan_transfers(const struct plan_call *call, uint32_t rank, uint32_t nranks, uint32_t buffer,
                        struct plan_transfer *out);

/* Values per chunk for a transfer of `bytes`: whole 32 Ki groups, at least 64 KiB, small enough that the
 * pipeline has several chunks, at most chunk_bytes. Pure, so all nodes agree. */
uint64_t plan_chunk_count(zipcclDataType_t dtype, uint64_t bytes, uint64_t chunk_bytes);

const char *plan_kind_name(enum plan_kind kind);

#endif
