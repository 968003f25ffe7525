/* SPDX-License-Identifier: Apache-2.0
 *
 * What the frames carry: the frame types, and the fixed-layout messages of the hot path.
 * Everything else is protobuf (zipccl.proto between client and daemon, peer.proto between daemons).
 */
#ifndef ZIPCCL_PROTO_WIRE_H
#define ZIPCCL_PROTO_WIRE_H

#include <stdint.h>

#define WIRE_VERSION_MIN 2u
#define WIRE_VERSION_MAX 2u
/* What daemons say to each other, over their links and over the fabric (the messages of NCCL's order among them).
 * Daemons of different ones refuse each other, as all nodes of a job are of one release; clients do not see it. */
#define WIRE_PEER_VERSION 2u

/* Feature bits of the hello; both sides use what both have. */
#define WIRE_FEATURE_VERIFY (1u << 0)
#define WIRE_FEATURE_CUDA   (1u << 1) /* memory and streams of GPUs */
#define WIRE_FEATURE_SPLIT  (1u << 2) /* WIRE_COMM_SPLIT */

/* BufferRegister.kind: what names the memory. */
enum wire_memory {
    WIRE_MEMORY_HOST,     /* a memfd */
    WIRE_MEMORY_CUDA_IPC, /* a handle, no descriptor */
    WIRE_MEMORY_CUDA_VMM, /* its descriptor */
    WIRE_NUM_MEMORIES
};

/* X(name, value, payload). Payloads named Zipccl__* are protobuf messages. */
#define WIRE_TYPES(X)                                                                                                  \
    X(WIRE_HELLO, 1, "Hello") /* client's first frame */                                                               \
    X(WIRE_HELLO_REPLY, 2, "HelloReply")                                                                               \
    X(WIRE_ERROR, 3, "Error") /* reply to any request that failed; id of the request */                                \
    X(WIRE_UNIQUE_ID, 4, "empty")                                                                                      \
    X(WIRE_UNIQUE_ID_REPLY, 5, "128 bytes")                                                                            \
    X(WIRE_COMM_INIT, 6, "CommInit")                                                                                   \
    X(WIRE_COMM_INIT_REPLY, 7, "CommInitReply")                                                                        \
    X(WIRE_COMM_DESTROY, 8, "CommRef")                                                                                 \
    X(WIRE_COMM_ABORT, 9, "CommRef")                                                                                   \
    X(WIRE_COMM_SPLIT, 49, "CommSplit")           /* this rank has come to it, and joins nothing that it makes */      \
    X(WIRE_COMM_EVENT, 10, "CommEvent")           /* daemon to client, unasked: the communicator failed */             \
    X(WIRE_BUFFER_REGISTER, 11, "BufferRegister") /* + 1 fd, where its kind has one */                                 \
    X(WIRE_BUFFER_REGISTER_REPLY, 12, "BufferRef")                                                                     \
    X(WIRE_BUFFER_RELEASE, 13, "BufferRef")                                                                            \
    X(WIRE_OK, 14, "empty") /* reply where there is nothing to say */                                                  \
    X(WIRE_REQUEST, 15, "struct wire_request")                                                                         \
    X(WIRE_COMPLETION, 16, "struct wire_completion + text")                                                            \
    X(WIRE_STATUS, 17, "empty")                                                                                        \
    X(WIRE_STATUS_REPLY, 18, "Status")                                                                                 \
    X(WIRE_STATS, 19, "StatsRequest")                                                                                  \
    X(WIRE_STATS_REPLY, 20, "Stats")                                                                                   \
    X(WIRE_FLIGHT, 26, "FlightRequest")                                                                                \
    X(WIRE_FLIGHT_REPLY, 27, "Flight")                                                                                 \
    X(WIRE_EVENTS, 28, "EventsRequest")                                                                                \
    X(WIRE_EVENTS_REPLY, 29, "Events")                                                                                 \
    X(WIRE_CONFIG, 30, "empty")                                                                                        \
    X(WIRE_CONFIG_REPLY, 31, "ConfigReply")                                                                            \
    X(WIRE_ADMIN_LOG, 32, "AdminLog") /* admin requests: root and the daemon's own user alone */                       \
    X(WIRE_ADMIN_RELOAD, 33, "empty")                                                                                  \
    X(WIRE_ADMIN_DRAIN, 34, "AdminDrain")                                                                              \
    X(WIRE_ADMIN_REPLY, 35, "AdminReply")                                                                              \
    X(WIRE_ADMIN_JOB, 36, "AdminJob")                                                                                  \
    X(WIRE_STREAM_ATTACH, 37, "StreamAttach") /* + 1 fd */                                                             \
    X(WIRE_STREAM_ATTACH_REPLY, 38, "StreamRef")                                                                       \
    X(WIRE_STREAM_DETACH, 39, "StreamRef")                                                                             \
    X(WIRE_PEER_HELLO, 40, "PeerHello") /* daemon to daemon; both send it first, once they know each other */          \
    X(WIRE_PEER_JOIN, 41, "PeerJoin")                                                                                  \
    X(WIRE_PEER_TABLE, 42, "PeerTable")                                                                                \
    X(WIRE_PEER_READY, 43, "PeerReady")                                                                                \
    X(WIRE_PEER_GO, 44, "PeerGo")                                                                                      \
    X(WIRE_PEER_ABORT, 45, "PeerAbort")                                                                                \
    X(WIRE_PEER_LEAVE, 46, "PeerLeave")                                                                                \
    X(WIRE_PEER_PING, 47, "empty")                                                                                     \
    X(WIRE_PEER_AUTH, 48, "see daemon/core/peer_auth.h") /* before the hello; all after it is sealed */

enum wire_type {
#define WIRE_ENUM(name, value, payload) name = value,
    WIRE_TYPES(WIRE_ENUM)
#undef WIRE_ENUM
};

/* One operation of one rank. 96 bytes, little endian, then the counts of the v operations: all-gather-v and
 * reduce-scatter-v: nranks counts; all-to-all-v: nranks each of send counts, send offsets, receive counts, receive
 * offsets (values). Each a uint64. Behind an all-to-all-capped: struct wire_counts. Buffers are {id of a registered
 * buffer, offset in it}. */
struct wire_request {
    uint64_t comm;        /* handle from CommInitReply, of this session */
    uint64_t seq;         /* 1, 2, 3... per communicator and rank */
    uint64_t count;       /* as in the API; v operations, all-to-all-capped: 0 */
    uint64_t send_buffer; /* 0: none */
    uint64_t send_offset;
    uint64_t recv_buffer; /* 0: none */
    uint64_t recv_offset;
    uint64_t max_count; /* all-to-all-capped; else 0 */
    uint64_t scalar;    /* PreMulSum: its bytes, in dtype, from the lowest; else 0 */
    uint16_t op;        /* zipcclOp_t */
    uint16_t dtype;     /* zipcclDataType_t */
    uint16_t codec;     /* zipcclCodec_t: pinned, or zipcclCodecAuto */
    uint16_t flags;     /* WIRE_GROUP_MORE */
    uint32_t root;      /* send, receive: the other rank */
    uint8_t redop;      /* zipcclRedOp_t, 0 where nothing is reduced */
    uint8_t arm;        /* zipcclArm_t: pinned, or zipcclArmAuto; 0 where nothing is reduced */
    uint16_t reserved;  /* 0 */
    uint64_t client_ns; /* CLOCK_MONOTONIC of the client when it sent */
};
_Static_assert(sizeof(struct wire_request) == 96, "wire_request layout");

/* Where the counts of an all-to-all-capped lie: nranks uint64 each, at offsets that are multiples of 8. The daemon
 * reads the one when the operation starts, and writes the other before it completes. */
struct wire_counts {
    uint64_t send_buffer;
    uint64_t send_offset;
    uint64_t recv_buffer;
    uint64_t recv_offset;
};
_Static_assert(sizeof(struct wire_counts) == 32, "wire_counts layout");

/* Where in a stream of a GPU a request is: it starts when event ticket % events of that stream, which the client
 * recorded before it sent this, has come to pass. At its end, word ticket % events becomes ticket, if it is behind. */
struct wire_point {
    uint64_t stream;
    uint32_t ticket;   /* 1, 2, 3... */
    uint32_t reserved; /* 0 */
};
_Static_assert(sizeof(struct wire_point) == 16, "wire_point layout");
#define WIRE_WORD_BYTES 64u  /* from one word to the next; each is a uint32 */
#define WIRE_MAX_EVENTS 256u /* of a stream */

/* The next request of this communicator belongs to the same group; the last one of a group does not have it. */
#define WIRE_GROUP_MORE 1u
/* A struct wire_point ends the frame. The last request of a group may have it, and speaks for all. */
#define WIRE_ON_STREAM 2u
#define WIRE_MAX_GROUP 4096u
/* ... of which so many may be other than all-to-all, gather, scatter, send and receive. */
#define WIRE_MAX_GROUP_COLLECTIVES 256u

/* The end of one request. A text for people follows where result is not success. */
struct wire_completion {
    uint64_t comm;
    uint64_t seq;
    uint32_t result; /* zipcclResult_t */
    uint32_t text_bytes;
    uint64_t wire_bytes; /* sent by this node for the whole operation */
    uint16_t codec;      /* the one that was used */
    uint16_t reserved[3];
};
_Static_assert(sizeof(struct wire_completion) == 40, "wire_completion layout");

/* What a unique id holds. */
struct wire_unique_id {
    uint64_t magic; /* WIRE_UNIQUE_ID_MAGIC */
    uint64_t key;   /* random; names the communicator among all daemons */
    uint64_t nonce; /* random; proof of having been handed the id */
    char root[96];  /* "host:port" where the root daemon listens for daemons, NUL-terminated */
    uint64_t reserved;
};

/* The name of a frame type, "?" where there is none. */
const char *wire_type_name(unsigned type);

#define WIRE_UNIQUE_ID_MAGIC 0x31444955434c5a00ull
_Static_assert(sizeof(struct wire_unique_id) == 128, "wire_unique_id layout");

#endif
