/* SPDX-License-Identifier: Apache-2.0
 *
 * Status and statistics of a daemon, as unpacked messages. See admin.h.
 */
#include "client/lib/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/connect.h"
#include "proto/message.h"
#include "proto/result.h"
#include "proto/wire.h"

struct admin {
    struct frame_conn *conn;
    struct connect_info info;
    int timeout_ms;
    uint32_t next_id;
    char *path;
    char why[CONNECT_WHY_BYTES];
};

zipcclResult_t admin_open(const char *socket, int timeout_ms, struct admin **admin) {
    struct admin *a = calloc(1, sizeof *a);
    *admin = a;
    if (!a)
        return zipcclOutOfMemory;
    a->timeout_ms = timeout_ms;
    a->next_id = 2; /* 1 was the hello */
    a->path = strdup(socket ? socket : connect_socket_path());
    if (!a->path) {
        (void)snprintf(a->why, sizeof a->why, "out of memory");
        return zipcclOutOfMemory;
    }
    return connect_open(a->path, "", timeout_ms, &a->conn, &a->info, a->why);
}

void admin_close(struct admin *admin) {
    if (!admin)
        return;
    frame_conn_free(admin->conn);
    free(admin->path);
    free(admin);
}

/* Sends a request and waits for its reply, skipping what was not asked for. */
static zipcclResult_t ask(struct admin *a, uint16_t type, const ProtobufCMessage *request, uint16_t reply_type,
                          ProtobufCMessage **reply) {
    struct frame f;
    const char *bad = "";
    uint32_t id = a->next_id++;
    *reply = NULL;
    if (!a->conn)
        return zipcclDaemonUnavailable;
    zipcclResult_t r = request ? message_send(a->conn, type, id, request, NULL, 0)
                               : frame_conn_send(a->conn, type, id, NULL, 0, NULL, 0);
    while (r == zipcclSuccess) {
        r = frame_conn_wait_frame(a->conn, &f, a->timeout_ms);
        if (r == zipcclSuccess && f.id == id)
            break;
    }
    if (r == zipcclTimeout) {
        (void)snprintf(a->why, sizeof a->why, "zipccld at %.200s did not answer %s within %d ms", a->path,
                       wire_type_name(type), a->timeout_ms);
        return r;
    }
    if (r != zipcclSuccess) {
        (void)snprintf(a->why, sizeof a->why, "zipccld at %.200s ended the connection: %.200s", a->path,
                       frame_conn_why(a->conn));
        return r == zipcclRemoteError ? zipcclDaemonUnavailable : r;
    }
    if (f.type == WIRE_OK && reply_type == WIRE_OK)
        return zipcclSuccess; /* it carries nothing */
    r = message_unpack(&f, reply, &bad);
    if (r != zipcclSuccess || (f.type != reply_type && f.type != WIRE_ERROR)) {
        (void)snprintf(a->why, sizeof a->why, "zipccld at %.200s answered %s with a bad %s: %s", a->path,
                       wire_type_name(type), wire_type_name(f.type), bad);
        r = zipcclInternalError;
    } else if (f.type == WIRE_ERROR) {
        const Zipccl__Error *e = (const Zipccl__Error *)*reply;
        r = result_from_wire(e->result);
        (void)snprintf(a->why, sizeof a->why, "%.400s", *e->text ? e->text : result_string(r));
    }
    if (r != zipcclSuccess) {
        message_free(*reply);
        *reply = NULL;
    }
    return r;
}

zipcclResult_t admin_status(struct admin *admin, Zipccl__Status **status) {
    ProtobufCMessage *reply;
    zipcclResult_t r = ask(admin, WIRE_STATUS, NULL, WIRE_STATUS_REPLY, &reply);
    *status = (Zipccl__Status *)reply;
    return r;
}

static zipcclResult_t ask_stats(struct admin *admin, const char *job, bool decisions, Zipccl__Stats **stats) {
    Zipccl__StatsRequest request = ZIPCCL__STATS_REQUEST__INIT;
    ProtobufCMessage *reply;
    if (job)
        request.job = (char *)(uintptr_t)job;
    request.decisions = decisions;
    zipcclResult_t r = ask(admin, WIRE_STATS, &request.base, WIRE_STATS_REPLY, &reply);
    *stats = (Zipccl__Stats *)reply;
    return r;
}

zipcclResult_t admin_stats(struct admin *admin, const char *job, Zipccl__Stats **out) {
    return ask_stats(admin, job, false, out);
}

zipcclResult_t admin_decisions(struct admin *admin, const char *job, Zipccl__Stats **out) {
    return ask_stats(admin, job, true, out);
}

zipcclResult_t admin_job_set(struct admin *admin, const char *job, uint32_t weight, const char *priority,
                             const uint64_t *rate_bits) {
    Zipccl__JobSet m = ZIPCCL__JOB_SET__INIT;
    ProtobufCMessage *reply = NULL;
    m.job = (char *)(uintptr_t)job;
    m.weight = weight;
    if (priority)
        m.priority = (char *)(uintptr_t)priority;
    m.set_rate = rate_bits != NULL;
    m.rate_bits = rate_bits ? *rate_bits : 0;
    return ask(admin, WIRE_JOB_SET, &m.base, WIRE_OK, &reply);
}

const char *admin_why(const struct admin *admin) {
    return admin ? admin->why : "out of memory";
}

const char *admin_socket(const struct admin *admin) {
    return admin && admin->path ? admin->path : "";
}

const char *admin_node(const struct admin *admin) {
    return admin ? admin->info.node : "";
}
