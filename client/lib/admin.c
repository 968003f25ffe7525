/* SPDX-License-Identifier: Apache-2.0
 *
 * What a daemon tells and does for administrators, as unpacked messages. See admin.h.
 */
#include "client/lib/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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

zipcclResult_t admin_flight(struct admin *admin, const char *job, uint32_t most, Zipccl__Flight **flight) {
    Zipccl__FlightRequest request = ZIPCCL__FLIGHT_REQUEST__INIT;
    ProtobufCMessage *reply;
    request.job = (char *)(uintptr_t)job;
    request.most = most;
    zipcclResult_t r = ask(admin, WIRE_FLIGHT, &request.base, WIRE_FLIGHT_REPLY, &reply);
    *flight = (Zipccl__Flight *)reply;
    return r;
}

zipcclResult_t admin_events(struct admin *admin, uint64_t after, Zipccl__Events **events) {
    Zipccl__EventsRequest request = ZIPCCL__EVENTS_REQUEST__INIT;
    ProtobufCMessage *reply;
    request.after = after;
    zipcclResult_t r = ask(admin, WIRE_EVENTS, &request.base, WIRE_EVENTS_REPLY, &reply);
    *events = (Zipccl__Events *)reply;
    return r;
}

zipcclResult_t admin_config(struct admin *admin, Zipccl__ConfigReply **config) {
    ProtobufCMessage *reply;
    zipcclResult_t r = ask(admin, WIRE_CONFIG, NULL, WIRE_CONFIG_REPLY, &reply);
    *config = (Zipccl__ConfigReply *)reply;
    return r;
}

zipcclResult_t admin_log_level(struct admin *admin, const char *level, Zipccl__AdminReply **done) {
    Zipccl__AdminLog request = ZIPCCL__ADMIN_LOG__INIT;
    ProtobufCMessage *reply;
    request.level = (char *)(uintptr_t)level;
    zipcclResult_t r = ask(admin, WIRE_ADMIN_LOG, &request.base, WIRE_ADMIN_REPLY, &reply);
    *done = (Zipccl__AdminReply *)reply;
    return r;
}

zipcclResult_t admin_reload(struct admin *admin, Zipccl__AdminReply **done) {
    ProtobufCMessage *reply;
    zipcclResult_t r = ask(admin, WIRE_ADMIN_RELOAD, NULL, WIRE_ADMIN_REPLY, &reply);
    *done = (Zipccl__AdminReply *)reply;
    return r;
}

zipcclResult_t admin_drain(struct admin *admin, const char *job, uint64_t timeout_ms, bool cancel,
                           Zipccl__AdminReply **done) {
    Zipccl__AdminDrain request = ZIPCCL__ADMIN_DRAIN__INIT;
    ProtobufCMessage *reply;
    request.job = (char *)(uintptr_t)job;
    request.timeout_ms = timeout_ms;
    request.cancel = cancel;
    zipcclResult_t r = ask(admin, WIRE_ADMIN_DRAIN, &request.base, WIRE_ADMIN_REPLY, &reply);
    *done = (Zipccl__AdminReply *)reply;
    return r;
}

zipcclResult_t admin_job_set(struct admin *admin, const char *job, uint32_t weight, const char *priority,
                             const uint64_t *rate_bits, Zipccl__AdminReply **done) {
    Zipccl__AdminJob request = ZIPCCL__ADMIN_JOB__INIT;
    ProtobufCMessage *reply;
    request.job = (char *)(uintptr_t)job;
    request.weight = weight;
    if (priority)
        request.priority = (char *)(uintptr_t)priority;
    request.set_rate = rate_bits != NULL;
    request.rate_bits = rate_bits ? *rate_bits : 0;
    zipcclResult_t r = ask(admin, WIRE_ADMIN_JOB, &request.base, WIRE_ADMIN_REPLY, &reply);
    *done = (Zipccl__AdminReply *)reply;
    return r;
}

bool admin_peer(const struct admin *admin, pid_t *pid, uid_t *uid) {
    struct ucred cred;
    socklen_t size = sizeof cred;
    if (!admin || !admin->conn || getsockopt(frame_conn_fd(admin->conn), SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
        return false;
    *pid = cred.pid;
    *uid = cred.uid;
    return true;
}

unsigned admin_version(const struct admin *admin) {
    return admin ? admin->info.daemon : 0;
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
