/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing and capped unpacking of protobuf messages. See message.h.
 */
#include "proto/message.h"

#include <stdlib.h>

#include "peer.pb-c.h"
#include "proto/wire.h"
#include "zipccl.pb-c.h"

const ProtobufCMessageDescriptor *message_descriptor(unsigned type) {
    switch (type) {
    case WIRE_HELLO:
        return &zipccl__hello__descriptor;
    case WIRE_HELLO_REPLY:
        return &zipccl__hello_reply__descriptor;
    case WIRE_ERROR:
        return &zipccl__error__descriptor;
    case WIRE_COMM_INIT:
        return &zipccl__comm_init__descriptor;
    case WIRE_COMM_INIT_REPLY:
        return &zipccl__comm_init_reply__descriptor;
    case WIRE_COMM_DESTROY:
    case WIRE_COMM_ABORT:
        return &zipccl__comm_ref__descriptor;
    case WIRE_COMM_SPLIT:
        return &zipccl__comm_split__descriptor;
    case WIRE_COMM_EVENT:
        return &zipccl__comm_event__descriptor;
    case WIRE_BUFFER_REGISTER:
        return &zipccl__buffer_register__descriptor;
    case WIRE_BUFFER_REGISTER_REPLY:
    case WIRE_BUFFER_RELEASE:
        return &zipccl__buffer_ref__descriptor;
    case WIRE_STREAM_ATTACH:
        return &zipccl__stream_attach__descriptor;
    case WIRE_STREAM_ATTACH_REPLY:
    case WIRE_STREAM_DETACH:
        return &zipccl__stream_ref__descriptor;
    case WIRE_STATUS_REPLY:
        return &zipccl__status__descriptor;
    case WIRE_STATS:
        return &zipccl__stats_request__descriptor;
    case WIRE_STATS_REPLY:
        return &zipccl__stats__descriptor;
    case WIRE_FLIGHT:
        return &zipccl__flight_request__descriptor;
    case WIRE_FLIGHT_REPLY:
        return &zipccl__flight__descriptor;
    case WIRE_EVENTS:
        return &zipccl__events_request__descriptor;
    case WIRE_EVENTS_REPLY:
        return &zipccl__events__descriptor;
    case WIRE_CONFIG_REPLY:
        return &zipccl__config_reply__descriptor;
    case WIRE_ADMIN_LOG:
        return &zipccl__admin_log__descriptor;
    case WIRE_ADMIN_DRAIN:
        return &zipccl__admin_drain__descriptor;
    case WIRE_ADMIN_REPLY:
        return &zipccl__admin_reply__descriptor;
    case WIRE_ADMIN_JOB:
        return &zipccl__admin_job__descriptor;
    case WIRE_PEER_HELLO:
        return &zipccl__peer__peer_hello__descriptor;
    case WIRE_PEER_JOIN:
        return &zipccl__peer__peer_join__descriptor;
    case WIRE_PEER_TABLE:
        return &zipccl__peer__peer_table__descriptor;
    case WIRE_PEER_READY:
        return &zipccl__peer__peer_ready__descriptor;
    case WIRE_PEER_GO:
        return &zipccl__peer__peer_go__descriptor;
    case WIRE_PEER_ABORT:
        return &zipccl__peer__peer_abort__descriptor;
    case WIRE_PEER_LEAVE:
        return &zipccl__peer__peer_leave__descriptor;
    default:
        return NULL;
    }
}

zipcclResult_t message_send(struct frame_conn *c, uint16_t type, uint32_t id, const ProtobufCMessage *message,
                            const int *fds, uint32_t nfds) {
    uint8_t small[1024], *bytes = small;
    size_t size = protobuf_c_message_get_packed_size(message);
    if (size > sizeof small && size <= FRAME_MAX_PAYLOAD && !(bytes = malloc(size)))
        return zipcclOutOfMemory;
    if (size <= FRAME_MAX_PAYLOAD)
        size = protobuf_c_message_pack(message, bytes);
    /* Too large a size is refused, with a text, by the send. */
    zipcclResult_t r = frame_conn_send(c, type, id, bytes, size, fds, nfds);
    if (bytes != small)
        free(bytes);
    return r;
}

/* malloc until the budget is spent. What it gives is freed by plain free. */
static void *capped_alloc(void *budget, size_t size) {
    const size_t overhead = 32; /* of the heap, so that many tiny pieces count too */
    size_t *left = budget;
    if (size > *left || size + overhead > *left)
        return NULL;
    *left -= size + overhead;
    return malloc(size ? size : 1);
}

static void capped_free(void *budget, void *p) {
    (void)budget;
    free(p);
}

zipcclResult_t message_unpack(const struct frame *f, ProtobufCMessage **message, const char **why) {
    size_t budget = MESSAGE_MAX_MEMORY;
    ProtobufCAllocator allocator = {capped_alloc, capped_free, &budget};
    const ProtobufCMessageDescriptor *d = message_descriptor(f->type);
    *message = NULL;
    *why = "";
    if (!d) {
        *why = "this frame type carries no message";
        return zipcclInvalidArgument;
    }
    ProtobufCMessage *m = protobuf_c_message_unpack(d, &allocator, f->length, f->payload);
    if (!m) {
        *why = "the message cannot be decoded, or is too large";
        return zipcclInvalidArgument;
    }
    if (!message_check(f->type, m, why)) {
        message_free(m);
        return zipcclInvalidArgument;
    }
    *message = m;
    return zipcclSuccess;
}

void message_free(ProtobufCMessage *message) {
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
}
