/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a client connection: accept, frames in, frames out, death.
 */
#include "daemon/core/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/buffer.h"
#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/pending.h"
#include "daemon/core/stream.h"
#include "zipccl.pb-c.h"

static void session_ready(uv_poll_t *poll, int status, int events);

static void session_watch(struct session *s) {
    int events = UV_READABLE | (frame_conn_wants_write(s->conn) ? UV_WRITABLE : 0);
    if (events != s->poll_events && s->state != SESSION_DEAD) {
        s->poll_events = events;
        if (uv_poll_start(&s->poll, events, session_ready) != 0)
            session_kill(s, "the loop cannot watch its socket");
    }
}

void session_send(struct session *s, uint16_t type, uint32_t id, const void *payload, size_t bytes) {
    if (s == NULL || s->state == SESSION_DEAD)
        return;
    if (frame_conn_send(s->conn, type, id, payload, bytes, NULL, 0) != zipcclSuccess)
        session_kill(s, frame_conn_why(s->conn));
    else
        session_watch(s);
}

void session_send_message(struct session *s, uint16_t type, uint32_t id, const ProtobufCMessage *message) {
    if (s == NULL || s->state == SESSION_DEAD)
        return;
    if (message_send(s->conn, type, id, message, NULL, 0) != zipcclSuccess)
        session_kill(s, frame_conn_why(s->conn));
    else
        session_watch(s);
}

void session_error(struct session *s, uint32_t id, zipcclResult_t result, const char *format, ...) {
    char text[DAEMON_TEXT];
    va_list ap;
    if (s == NULL || s->state == SESSION_DEAD)
        return;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    Zipccl__Error error = ZIPCCL__ERROR__INIT;
    error.result = (uint32_t)result;
    error.text = text;
    s->daemon->stats.counters[STATS_errors_sent]++;
    if (result == zipcclPermissionDenied)
        s->daemon->stats.counters[STATS_permission_denied]++;
    if (log_often(&s->daemon->refused_requests, daemon_now_ns(), "requests were refused"))
        log_info("request refused: %s (result=%d session=%" PRIu64 " job=%s uid=%u pid=%d)", text, (int)result, s->id,
                 s->job != NULL ? s->job->name : "", s->uid, (int)s->pid);
    session_send_message(s, WIRE_ERROR, id, &error.base);
}

void session_kill(struct session *s, const char *why) {
    if (s->state == SESSION_DEAD)
        return;
    s->state = SESSION_DEAD;
    log_debug("session ends: %s (session=%" PRIu64 " job=%s uid=%u pid=%d)", why, s->id,
              s->job != NULL ? s->job->name : "", s->uid, (int)s->pid);
    uv_poll_stop(&s->poll);
    comm_session_gone(s);
    pending_session_gone(s);
    stream_close_all(s);
    buffer_release_all(s);
}

static void session_closed(uv_handle_t *handle) {
    struct session *s = handle->data;
    frame_conn_free(s->conn);
    handles_free(&s->buffers);
    handles_free(&s->comms);
    handles_free(&s->streams);
    free(s);
}

void session_reap(struct daemon *d) {
    list_for_each_safe(l, &d->sessions) {
        struct session *s = list_entry(l, struct session, link);
        if (s->state != SESSION_DEAD)
            continue;
        list_del(&s->link);
        d->nsessions--;
        if (s->job != NULL) {
            s->job->nsessions--;
            job_put(s->job);
        }
        uv_close((uv_handle_t *)&s->poll, session_closed);
    }
}

void session_tick(struct daemon *d, uint64_t now_ns) {
    list_for_each_safe(l, &d->sessions) {
        struct session *s = list_entry(l, struct session, link);
        if (s->state == SESSION_HELLO && now_ns - s->opened_ns > SESSION_HELLO_NS) {
            session_error(s, 0, zipcclTimeout, "no hello came within %llu s", SESSION_HELLO_NS / 1000000000ull);
            session_kill(s, "no hello");
        }
    }
}

/* One frame. False: the stream is over for this session. */
static bool session_frame(struct session *s, const struct frame *f) {
    s->daemon->stats.counters[STATS_frames_received]++;
    s->daemon->served = true;
    if (f->type == WIRE_REQUEST && !s->admin && s->state == SESSION_OPEN) {
        comm_request(s, f);
        return true;
    }
    return requests_handle(s, f);
}

static void session_ready(uv_poll_t *poll, int status, int events) {
    struct session *s = poll->data;
    struct frame f;
    if (s->state == SESSION_DEAD)
        return;
    if (status < 0) {
        session_kill(s, "the connection broke");
        return;
    }
    if (events & UV_WRITABLE) {
        zipcclResult_t rc = frame_conn_flush(s->conn);
        if (rc != zipcclSuccess && rc != zipcclInProgress) {
            session_kill(s, frame_conn_why(s->conn));
            return;
        }
    }
    if (events & (UV_READABLE | UV_DISCONNECT)) {
        zipcclResult_t read = frame_conn_read(s->conn), next = zipcclInProgress;
        /* What was read before the end of the stream is served first. */
        while (s->state != SESSION_DEAD && (next = frame_conn_next(s->conn, &f)) == zipcclSuccess) {
            if (!session_frame(s, &f))
                session_kill(s, "broke the protocol");
        }
        if (s->state == SESSION_DEAD)
            return;
        zipcclResult_t bad = next != zipcclInProgress ? next : read;
        if (bad == zipcclLimitExceeded || bad == zipcclInvalidArgument || bad == zipcclOutOfMemory) {
            s->daemon->stats.counters[STATS_frames_bad]++;
            session_error(s, 0, bad, "bad frame: %s", frame_conn_why(s->conn));
            session_kill(s, frame_conn_why(s->conn));
            return;
        }
        if (bad != zipcclSuccess && bad != zipcclInProgress) {
            session_kill(s, frame_conn_why(s->conn));
            return;
        }
    }
    session_watch(s);
}

static void session_refuse(struct daemon *d, struct frame_conn *conn, zipcclResult_t result, const char *text,
                           uid_t uid, pid_t pid) {
    Zipccl__Error error = ZIPCCL__ERROR__INIT;
    error.result = (uint32_t)result;
    error.text = (char *)text;
    d->stats.counters[STATS_sessions_refused]++;
    if (log_often(&d->refused_sessions, daemon_now_ns(), "connections were refused"))
        log_warn("connection refused: %s (uid=%u pid=%d)", text, uid, (int)pid);
    zipcclResult_t rc = message_send(conn, WIRE_ERROR, 0, &error.base, NULL, 0);
    (void)rc; /* best effort: it is closed in any case */
    frame_conn_free(conn);
}

/* Field 22 of /proc/PID/stat, in ticks; the name before it may hold anything. */
static uint64_t process_start(pid_t pid) {
    char path[40], text[1024];
    unsigned long long start = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL)
        (void)fclose(f);
    text[n] = '\0';
    char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at != NULL)
        start = strtoull(at + 1, NULL, 10);
    return start;
}

static void session_open(struct daemon *d, int fd, bool admin) {
    struct ucred cred;
    socklen_t length = sizeof cred;
    char text[160];
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &length) != 0) {
        log_warn("connection refused: no peer credentials: %s", strerror(errno));
        close(fd);
        return;
    }
    struct frame_conn *conn = frame_conn_new(fd, true);
    if (conn == NULL) {
        log_warn("connection refused: out of memory (uid=%u pid=%d)", cred.uid, (int)cred.pid);
        return;
    }
    if (admin && cred.uid != 0 && cred.uid != geteuid()) {
        snprintf(text, sizeof text, "user %u may not administrate this daemon: root and user %u may", cred.uid,
                 geteuid());
        session_refuse(d, conn, zipcclPermissionDenied, text, cred.uid, cred.pid);
        return;
    }
    uint32_t same = 0, admins = 0;
    list_for_each(l, &d->sessions) {
        const struct session *other = list_entry(l, struct session, link);
        admins += other->admin;
        same += !other->admin && other->uid == cred.uid;
    }
    /* Who is to look why all places are taken finds one. */
    if (admin ? admins >= SESSION_MAX_ADMINS : d->nsessions - admins >= d->config.max_sessions) {
        snprintf(text, sizeof text, "this daemon serves %u sessions%s, the most that are allowed%s",
                 admin ? admins : d->nsessions - admins, admin ? " of administrators" : "",
                 admin ? "" : " (max_sessions)");
        session_refuse(d, conn, zipcclLimitExceeded, text, cred.uid, cred.pid);
        return;
    }
    if (!admin && same >= d->config.max_sessions_per_user) {
        snprintf(text, sizeof text, "user %u has %u sessions, the most that are allowed (max_sessions_per_user)",
                 cred.uid, same);
        session_refuse(d, conn, zipcclLimitExceeded, text, cred.uid, cred.pid);
        return;
    }
    struct session *s = calloc(1, sizeof *s);
    if (s == NULL || uv_poll_init(&d->loop, &s->poll, frame_conn_fd(conn)) != 0) {
        free(s);
        session_refuse(d, conn, zipcclLimitExceeded, "out of memory", cred.uid, cred.pid);
        return;
    }
    s->poll.data = s;
    s->daemon = d;
    s->conn = conn;
    s->id = ++d->next_session;
    s->opened_ns = daemon_now_ns();
    s->pid = cred.pid;
    s->process_start = process_start(cred.pid);
    s->uid = cred.uid;
    s->gid = cred.gid;
    s->admin = admin;
    handles_init(&s->buffers, SESSION_MAX_BUFFERS);
    handles_init(&s->comms, SESSION_MAX_COMMS);
    handles_init(&s->streams, SESSION_MAX_STREAMS);
    list_init(&s->owned_buffers);
    list_init(&s->members);
    list_add_tail(&d->sessions, &s->link);
    d->nsessions++;
    d->stats.counters[STATS_sessions_opened]++;
    session_watch(s);
}

void session_accepted(struct daemon *d, int fd) {
    session_open(d, fd, false);
}

void session_no_room(struct daemon *d, int fd) {
    struct ucred cred = {0};
    socklen_t length = sizeof cred;
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &length); /* for the log alone */
    struct frame_conn *conn = frame_conn_new(fd, true);
    if (conn != NULL)
        session_refuse(d, conn, zipcclLimitExceeded, "this daemon has no descriptors left (raise LimitNOFILE)",
                       cred.uid, cred.pid);
}

void session_accepted_admin(struct daemon *d, int fd) {
    session_open(d, fd, true);
}
