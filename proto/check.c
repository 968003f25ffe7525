/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of messages that need no state: what no sound peer would send is refused before anybody acts on it.
 */
#include <string.h>

#include "peer.pb-c.h"
#include "proto/message.h"
#include "proto/wire.h"
#include "zipccl.pb-c.h"

#define MAX_RANKS         65536u
#define MAX_DRAIN_MS      86400000u
#define MAX_FABRIC_BYTES  4096u
#define INSTANCE_BYTES    16u
#define SECRET_BYTES      32u
#define MAX_PROFILE_BYTES 16384u
#define UNIQUE_ID_BYTES   sizeof(struct wire_unique_id)
#define UUID_BYTES        16u
#define IPC_BYTES         64u

static bool code_shows(uint32_t code) {
    bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
    bool turns =
        code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    return !control && !turns && !(code >= 0xd800 && code < 0xe000) && code <= 0x10ffff;
}

bool message_text_shows(const char *text) {
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000}; /* by the bytes that follow */
    const unsigned char *p = (const unsigned char *)text;
    while (*p) {
        unsigned follow = *p < 0x80 ? 0 : *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : 1;
        uint32_t code = !follow ? *p : *p & (0x3fu >> follow);
        if ((*p >= 0x80 && *p < 0xc2) || *p > 0xf4)
            return false;
        p++;
        for (unsigned i = 0; i < follow; i++, p++) {
            if ((*p & 0xc0) != 0x80)
                return false;
            code = code << 6 | (*p & 0x3f);
        }
        if (code < least[follow] || !code_shows(code))
            return false;
    }
    return true;
}

/* Names go into logs and terminals. */
static bool name_ok(const char *s) {
    return strlen(s) <= MESSAGE_MAX_NAME && message_text_shows(s);
}

static const char *check_versions(uint32_t min, uint32_t max) {
    return !min || min > max ? "the range of protocol versions is empty" : NULL;
}

static const char *check_hello(const Zipccl__Hello *m) {
    if (!name_ok(m->job))
        return "the job's name is too long or not printable";
    if (!name_ok(m->program))
        return "the program's name is too long or not printable";
    return check_versions(m->version_min, m->version_max);
}

static const char *check_rank(uint32_t rank, uint32_t nranks) {
    if (!nranks || nranks > MAX_RANKS)
        return "the number of ranks is not from 1 to 65536";
    return rank >= nranks ? "the rank is not below the number of ranks" : NULL;
}

static const char *check_comm_init(const Zipccl__CommInit *m) {
    if (m->unique_id.len != UNIQUE_ID_BYTES)
        return "the unique id has the wrong size";
    if (m->device.len != 0 && m->device.len != UUID_BYTES)
        return "the device's UUID has the wrong size";
    return check_rank(m->rank, m->nranks);
}

static const char *check_buffer(const Zipccl__BufferRegister *m) {
    if (!m->bytes)
        return "the buffer is empty";
    if (m->kind >= WIRE_NUM_MEMORIES)
        return "the kind of the buffer's memory is unknown";
    if (m->device.len != (m->kind != WIRE_MEMORY_HOST ? UUID_BYTES : 0) ||
        m->handle.len != (m->kind == WIRE_MEMORY_CUDA_IPC ? IPC_BYTES : 0))
        return "the device's UUID or the memory handle has the wrong size";
    return NULL;
}

static const char *check_stream(const Zipccl__StreamAttach *m) {
    if (m->device.len != UUID_BYTES)
        return "the device's UUID has the wrong size";
    if (!m->n_events || m->n_events > WIRE_MAX_EVENTS)
        return "the stream has no events, or too many";
    for (size_t i = 0; i < m->n_events; i++)
        if (m->events[i].len != IPC_BYTES)
            return "an event's handle has the wrong size";
    return NULL;
}

static const char *check_peer_hello(const Zipccl__Peer__PeerHello *m) {
    if (!name_ok(m->node) || !*m->node || !name_ok(m->listen))
        return "the node's name or address is empty, too long or not printable";
    if (m->instance.len != INSTANCE_BYTES)
        return "the instance has the wrong size";
    return check_versions(m->version_min, m->version_max);
}

static const char *check_peer_join(const Zipccl__Peer__PeerJoin *m) {
    if (!name_ok(m->job) || !name_ok(m->fabric_name) || !name_ok(m->device))
        return "a name is too long or not printable";
    if (m->fabric.len > MAX_FABRIC_BYTES)
        return "the fabric address is too long";
    return check_rank(m->rank, m->nranks);
}

static const char *check_peer_table(const Zipccl__Peer__PeerTable *m) {
    if (!m->n_nodes || m->n_nodes > MAX_RANKS)
        return "the table has no nodes, or too many";
    if (m->secret.len != SECRET_BYTES)
        return "the communicator's secret has the wrong size";
    size_t total = 0;
    for (size_t i = 0; i < m->n_nodes; i++) {
        const Zipccl__Peer__PeerNode *n = m->nodes[i];
        if (!name_ok(n->node) || !name_ok(n->listen))
            return "a node's name or address is too long or not printable";
        if (n->instance.len != INSTANCE_BYTES)
            return "a node's instance has the wrong size";
        if (n->fabric.len > MAX_FABRIC_BYTES)
            return "a node's fabric address is too long";
        if (!n->n_ranks)
            return "a node has no ranks";
        total += n->n_ranks;
    }
    /* Each rank is below the total; that none comes twice is for the receiver to see, who builds the topology. */
    if (total > MAX_RANKS)
        return "the table has too many ranks";
    for (size_t i = 0; i < m->n_nodes; i++)
        for (size_t j = 0; j < m->nodes[i]->n_ranks; j++)
            if (m->nodes[i]->ranks[j] >= total)
                return "a rank in the table is out of range";
    return NULL;
}

static const char *check_failure(uint32_t result) {
    return result == zipcclSuccess ? "an error that says success" : NULL;
}

bool message_check(unsigned type, const ProtobufCMessage *message, const char **why) {
    const void *m = message;
    *why = NULL;
    switch (type) {
    case WIRE_HELLO:
        *why = check_hello(m);
        break;
    case WIRE_HELLO_REPLY:
        if (!name_ok(((const Zipccl__HelloReply *)m)->node))
            *why = "the node's name is too long or not printable";
        break;
    case WIRE_ERROR:
        *why = check_failure(((const Zipccl__Error *)m)->result);
        break;
    case WIRE_COMM_INIT:
        *why = check_comm_init(m);
        break;
    case WIRE_COMM_EVENT:
        *why = check_failure(((const Zipccl__CommEvent *)m)->result);
        break;
    case WIRE_BUFFER_REGISTER:
        *why = check_buffer(m);
        break;
    case WIRE_STREAM_ATTACH:
        *why = check_stream(m);
        break;
    case WIRE_STREAM_ATTACH_REPLY:
    case WIRE_STREAM_DETACH:
        if (!((const Zipccl__StreamRef *)m)->stream)
            *why = "stream 0 does not exist";
        break;
    case WIRE_BUFFER_REGISTER_REPLY:
    case WIRE_BUFFER_RELEASE:
        if (!((const Zipccl__BufferRef *)m)->buffer)
            *why = "buffer 0 does not exist";
        break;
    case WIRE_STATS:
        if (!name_ok(((const Zipccl__StatsRequest *)m)->job))
            *why = "the job's name is too long or not printable";
        break;
    case WIRE_FLIGHT:
        if (!name_ok(((const Zipccl__FlightRequest *)m)->job) || !*((const Zipccl__FlightRequest *)m)->job)
            *why = "the job's name is empty, too long or not printable";
        break;
    case WIRE_ADMIN_LOG:
        if (!name_ok(((const Zipccl__AdminLog *)m)->level))
            *why = "the level is too long or not printable";
        break;
    case WIRE_ADMIN_DRAIN:
        if (!name_ok(((const Zipccl__AdminDrain *)m)->job))
            *why = "the job's name is too long or not printable";
        else if (((const Zipccl__AdminDrain *)m)->timeout_ms > MAX_DRAIN_MS)
            *why = "the time-out is longer than a day";
        break;
    case WIRE_ADMIN_JOB:
        if (!name_ok(((const Zipccl__AdminJob *)m)->job) || !name_ok(((const Zipccl__AdminJob *)m)->priority))
            *why = "the job's name or priority is too long or not printable";
        break;
    case WIRE_PEER_HELLO:
        *why = check_peer_hello(m);
        break;
    case WIRE_PEER_JOIN:
        *why = check_peer_join(m);
        break;
    case WIRE_PEER_TABLE:
        *why = check_peer_table(m);
        break;
    case WIRE_PEER_GO:
        if (((const Zipccl__Peer__PeerGo *)m)->profile.len > MAX_PROFILE_BYTES)
            *why = "the profile is too long";
        break;
    case WIRE_PEER_ABORT:
        *why = check_failure(((const Zipccl__Peer__PeerAbort *)m)->result);
        break;
    default:
        break;
    }
    return !*why;
}
