/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of clients other than collectives: hello first, then whatever the frame type says.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/admin.h"
#include "daemon/core/buffer.h"
#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/session.h"
#include "daemon/core/status.h"
#include "daemon/core/stream.h"
#include "zipccl.h"

static bool requests_hello(struct session *s, const struct frame *f, const Zipccl__Hello *m) {
    struct daemon *d = s->daemon;
    Zipccl__HelloReply reply = ZIPCCL__HELLO_REPLY__INIT;
    char why[320];
    if (m->version_min > WIRE_VERSION_MAX || m->version_max < WIRE_VERSION_MIN) {
        session_error(s, f->id, zipcclVersionMismatch,
                      "protocol versions do not match: the client speaks %u to %u, zipccld on node %s %u to %u",
                      m->version_min, m->version_max, d->config.node_name, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
        return false;
    }
    if (m->job[0] != '\0' && s->admin) {
        session_error(s, f->id, zipcclInvalidUsage, "jobs run over the client socket (%s), not the admin socket",
                      d->config.socket);
        return false;
    }
    if (m->job[0] != '\0') {
        if (drain_why(d, NULL, why, sizeof why) != NULL) {
            session_error(s, f->id, zipcclDaemonUnavailable, "%s", why);
            return false;
        }
        zipcclResult_t rc = job_get(d, m->job, s->uid, &s->job, why, sizeof why);
        if (rc != zipcclSuccess) {
            session_error(s, f->id, rc, "%s", why);
            return false;
        }
        s->job->nsessions++;
        if (drain_why(d, s->job, why, sizeof why) != NULL) {
            session_error(s, f->id, zipcclDaemonUnavailable, "%s", why);
            return false;
        }
    }
    snprintf(s->program, sizeof s->program, "%.63s", m->program);
    s->features = m->features & (WIRE_FEATURE_VERIFY | WIRE_FEATURE_SPLIT |
                                 (d->device_ops->stream_open != NULL ? WIRE_FEATURE_CUDA : 0));
    s->state = SESSION_OPEN;
    reply.version = m->version_max < WIRE_VERSION_MAX ? m->version_max : WIRE_VERSION_MAX;
    reply.features = s->features;
    reply.node = d->config.node_name;
    reply.session = s->id;
    reply.daemon = ZIPCCL_VERSION_CODE;
    reply.max_buffer_bytes = d->config.max_buffer_bytes;
    log_debug("session opens (session=%" PRIu64 " job=%s uid=%u pid=%d program=%s)", s->id, m->job, s->uid, (int)s->pid,
              s->program);
    session_send_message(s, WIRE_HELLO_REPLY, f->id, &reply.base);
    return true;
}

static bool requests_takes_fds(uint16_t type) {
    return type == WIRE_BUFFER_REGISTER || type == WIRE_STREAM_ATTACH;
}

static void requests_message(struct session *s, const struct frame *f, const ProtobufCMessage *m) {
    switch (f->type) {
    case WIRE_COMM_INIT:
        comm_init(s, f->id, (const Zipccl__CommInit *)m);
        break;
    case WIRE_COMM_DESTROY:
        comm_destroy(s, f->id, ((const Zipccl__CommRef *)m)->comm);
        break;
    case WIRE_COMM_ABORT:
        comm_abort(s, f->id, ((const Zipccl__CommRef *)m)->comm);
        break;
    case WIRE_COMM_SPLIT:
        comm_split_none(s, f->id, (const Zipccl__CommSplit *)m);
        break;
    case WIRE_BUFFER_REGISTER:
        buffer_register(s, f, (const Zipccl__BufferRegister *)m);
        break;
    case WIRE_BUFFER_RELEASE:
        buffer_release(s, f->id, ((const Zipccl__BufferRef *)m)->buffer);
        break;
    case WIRE_STREAM_ATTACH:
        stream_attach(s, f, (const Zipccl__StreamAttach *)m);
        break;
    case WIRE_STREAM_DETACH:
        stream_detach(s, f->id, ((const Zipccl__StreamRef *)m)->stream);
        break;
    case WIRE_STATS:
        status_stats(s, f->id, (const Zipccl__StatsRequest *)m);
        break;
    case WIRE_FLIGHT:
        status_flight(s, f->id, (const Zipccl__FlightRequest *)m);
        break;
    case WIRE_EVENTS:
        status_events(s, f->id, (const Zipccl__EventsRequest *)m);
        break;
    case WIRE_ADMIN_LOG:
    case WIRE_ADMIN_DRAIN:
    case WIRE_ADMIN_JOB:
        admin_run(admin_find(f->type), s, f->id, m);
        break;
    default:
        break;
    }
}

/* What the admin socket serves. */
static bool requests_for_admin(uint16_t type) {
    return type == WIRE_HELLO || type == WIRE_STATUS || type == WIRE_STATS || type == WIRE_FLIGHT ||
           type == WIRE_EVENTS || type == WIRE_CONFIG || admin_find(type) != NULL;
}

bool requests_handle(struct session *s, const struct frame *f) {
    struct daemon *d = s->daemon;
    ProtobufCMessage *m = NULL;
    const char *why = "";
    bool ok = true;
    if (s->state == SESSION_HELLO && f->type != WIRE_HELLO) {
        d->stats.counters[STATS_frames_bad]++;
        session_error(s, f->id, zipcclInvalidUsage, "the first frame must be a hello, not type %u", f->type);
        return false;
    }
    if (f->nfds > 0 && !requests_takes_fds(f->type)) {
        d->stats.counters[STATS_frames_bad]++;
        session_error(s, f->id, zipcclInvalidArgument, "frame type %u carries no descriptors", f->type);
        return true;
    }
    if (s->admin && !requests_for_admin(f->type)) {
        session_error(s, f->id, zipcclInvalidUsage,
                      "the admin socket serves status and administration, not frame type %u", f->type);
        return true;
    }
    switch (f->type) {
    case WIRE_UNIQUE_ID:
        comm_unique_id(s, f->id);
        return true;
    case WIRE_STATUS:
        status_send(s, f->id);
        return true;
    case WIRE_CONFIG:
        status_config(s, f->id);
        return true;
    case WIRE_ADMIN_RELOAD:
        admin_run(admin_find(f->type), s, f->id, NULL);
        return true;
    case WIRE_HELLO:
    case WIRE_COMM_INIT:
    case WIRE_COMM_DESTROY:
    case WIRE_COMM_ABORT:
    case WIRE_COMM_SPLIT:
    case WIRE_BUFFER_REGISTER:
    case WIRE_BUFFER_RELEASE:
    case WIRE_STREAM_ATTACH:
    case WIRE_STREAM_DETACH:
    case WIRE_STATS:
    case WIRE_FLIGHT:
    case WIRE_EVENTS:
    case WIRE_ADMIN_LOG:
    case WIRE_ADMIN_DRAIN:
    case WIRE_ADMIN_JOB:
        break;
    default:
        d->stats.counters[STATS_frames_bad]++;
        session_error(s, f->id, zipcclInvalidArgument, "frame type %u is none that a client sends", f->type);
        return true;
    }
    zipcclResult_t rc = message_unpack(f, &m, &why);
    if (rc != zipcclSuccess) {
        d->stats.counters[STATS_frames_bad]++;
        session_error(s, f->id, rc, "%s: %s", wire_type_name(f->type), why);
        return s->state == SESSION_OPEN;
    }
    if (f->type != WIRE_HELLO) {
        requests_message(s, f, m);
    } else if (s->state == SESSION_OPEN) {
        session_error(s, f->id, zipcclInvalidUsage, "a second hello");
        ok = false;
    } else {
        ok = requests_hello(s, f, (const Zipccl__Hello *)m);
    }
    message_free(m);
    return ok;
}
