/* SPDX-License-Identifier: Apache-2.0
 *
 * The fabric seam: messages between daemons. `ucx` runs on UCX active messages; `nccl` moves values in memory of a GPU
 * by NCCL, and all else by ucx.
 *
 * All functions are called on the loop thread. Progress happens on a thread of the fabric's own; fabric poll, called
 * when fd is readable, runs the callbacks on the loop thread. A message waits at its sender (rendezvous) or in the
 * fabric (small ones) until the receiver posts a matching receive: a slow node holds nobody's memory.
 */
#ifndef ZIPCCL_DAEMON_FABRIC_H
#define ZIPCCL_DAEMON_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/flow/flow.h"
#include "daemon/heartbeat.h"
#include "zipccl_types.h"

struct fabric;
struct fabric_peer; /* an endpoint, ref-counted by connect/disconnect pairs */
struct fabric_flow; /* the sends of one job, as they share the link with others */

/* Travels in front of every message. comm, node, channel, seq and tag match sends to receives. 64 bytes, little
 * endian. */
struct fabric_header {
    uint64_t comm;                   /* number of the communicator, which its nodes alone know */
    uint32_t node;                   /* index of the sending node in it */
    uint32_t seq;                    /* collective: its number; transfer: its number between the two ranks */
    uint32_t tag;                    /* of the plan */
    uint8_t op, dtype, codec, flags; /* what the sender believes: checked by the receiver (flags bit 0: hash is set) */
    uint32_t root;
    uint32_t report;       /* of the sending node, for the switcher (daemon/core/report.h); 0: none */
    uint64_t op_count;     /* count of the whole operation */
    uint64_t count;        /* values in this message; capped transfers: in all of them, see executor_capped.c */
    uint32_t static_bytes; /* of a coded chunk; the rest is the dynamic part. raw: 0 */
    uint32_t channel;      /* FABRIC_COLLECTIVE, or fabric_channel of two ranks */
    uint64_t hash;         /* XXH3 of the payload where flags say so */
};
_Static_assert(sizeof(struct fabric_header) == 64, "fabric_header layout");

/* Ranks are below 65536, and no rank sends to itself through the fabric: 0 is free. */
#define FABRIC_COLLECTIVE 0u
static inline uint32_t fabric_channel(uint32_t from_rank, uint32_t to_rank) {
    return from_rank << 16 | to_rank;
}

/* What the two sides of a connection show each other: who shows something else is not heard. */
#define FABRIC_TOKEN_BYTES 16u
struct fabric_tokens {
    uint8_t show[FABRIC_TOKEN_BYTES], expect[FABRIC_TOKEN_BYTES];
};

struct fabric_iov {
    const void *base;
    size_t bytes;
};

/* How a flow shares the link: weights count among those of a priority. Effective where the link, or the flow, has a
 * rate: without one nothing waits here. */
struct fabric_share {
    uint32_t weight;
    enum flow_priority priority;
    uint64_t rate_bits; /* 0: the link's alone */
};

/* A send. Owned by the caller; buffers stay untouched until done runs. Paced by the link rate: it counts when its
 * receiver is ready for it. */
struct fabric_send {
    struct fabric_peer *peer;
    struct fabric_flow *flow; /* NULL: the default one, weight 1 */
    struct fabric_header header;
    struct fabric_iov iov[2];
    unsigned niov;
    void (*done)(struct fabric_send *send, zipcclResult_t result);
    void *arg;
    void *internal[10];
};

/* A receive. done gets success with header and bytes set, zipcclLimitExceeded (header set too) where the message is
 * longer than capacity, zipcclRemoteError where the peer is gone, zipcclAborted after fabric abort. */
struct fabric_recv {
    struct fabric_peer *peer; /* where it comes from: the peer's death ends the receive */
    uint64_t comm;
    uint32_t node, channel, seq, tag;
    void *buffer;
    size_t capacity;
    struct fabric_header header; /* as received */
    size_t bytes;
    void (*done)(struct fabric_recv *recv, zipcclResult_t result);
    void *arg;
    void *internal[6];
};

struct nccl_gpus;

struct fabric_config {
    const char *tls;              /* UCX_TLS, NULL: UCX's own choice */
    const char *net_devices;      /* UCX_NET_DEVICES, NULL: all */
    uint64_t link_rate_bits;      /* bits a second that this node may send to all others together; 0: uncapped */
    const struct nccl_gpus *gpus; /* for nccl: nccl_launch.h; copied */
};

/* A communicator that is made, on all its nodes. */
struct fabric_join {
    uint64_t comm;
    uint32_t node, nnodes;            /* this one's index */
    uint32_t gpus;                    /* a bit for each GPU of this node that its ranks use, as CUDA numbers them */
    struct fabric_peer *const *peers; /* own: not used */
};

struct fabric_ops {
    const char *name;
    /* *why: static text for people on failure. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*open)(const struct fabric_config *config, struct fabric **fabric,
                                             const char **why);
    void (*close)(struct fabric *fabric); /* drops everything; callbacks do not run */
    const void *(*address)(const struct fabric *fabric, size_t *bytes);
    ZIPCCL_MUST_CHECK zipcclResult_t (*connect)(struct fabric *fabric, const void *address, size_t bytes,
                                                const struct fabric_tokens *tokens, struct fabric_peer **peer);
    void (*disconnect)(struct fabric *fabric, struct fabric_peer *peer);
    /* Before anything is sent or received of a communicator; NULL where the fabric need not know. Ended by forget. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*join)(struct fabric *fabric, const struct fabric_join *join);
    /* Whether values there may be sent and received as they are in comm, whatever memory they come from or go to; NULL:
     * all in host memory may, and none in a GPU's. */
    bool (*takes)(struct fabric *fabric, uint64_t comm, const void *values);
    /* Whether comm's messages are best in the memory of that GPU, where one works on them; NULL: they never are. */
    bool (*takes_gpu)(struct fabric *fabric, uint64_t comm, unsigned gpu);
    void (*send)(struct fabric *fabric, struct fabric_send *send);
    void (*recv)(struct fabric *fabric, struct fabric_recv *recv);
    /* Ends the posted receives of comm with zipcclAborted (by poll, later), drops messages of comm that wait or come
     * from now on, so that their senders end too. */
    void (*abort)(struct fabric *fabric, uint64_t comm);
    /* What of this node made the sends and receives of comm fail, for people; NULL: it is not known here. The operation
     * itself may be NULL. Valid until close. */
    const char *(*why)(struct fabric *fabric, uint64_t comm);
    /* comm is over: forget it (messages that still come are dropped). */
    void (*forget)(struct fabric *fabric, uint64_t comm);
    void (*set_link_rate)(struct fabric *fabric, uint64_t bits);
    /* NULL: no memory. Changes take effect at once. After close a flow is forgotten as soon as its sends are done. */
    struct fabric_flow *(*flow_open)(struct fabric *fabric, const struct fabric_share *share);
    void (*flow_set)(struct fabric *fabric, struct fabric_flow *flow, const struct fabric_share *share);
    void (*flow_close)(struct fabric *fabric, struct fabric_flow *flow);
    /* Bytes of sends that are not done, and of those that are. */
    void (*flow_bytes)(const struct fabric_flow *flow, uint64_t *queued, uint64_t *sent);
    int (*fd)(const struct fabric *fabric);
    void (*poll)(struct fabric *fabric);
    void (*describe)(const struct fabric *fabric, char *text, size_t size);
    /* Of the progress thread; may be NULL. Valid until close. */
    const struct heartbeat *(*heartbeat)(const struct fabric *fabric);
    /* Counters since open. */
    void (*counters)(const struct fabric *fabric, uint64_t *sent_bytes, uint64_t *received_bytes);
};

extern const struct fabric_ops fabric_ucx;
extern const struct fabric_ops fabric_nccl; /* with NCCL's headers only */

#endif
