/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: one client connection each; and the jobs that sessions belong to.
 *
 * Everything here belongs to the loop thread. A session is freed by session_reap, some time after session_kill; until
 * then pointers to it stay valid. A job is freed when its last reference is dropped. A job's name belongs, on this
 * node, to the user whose session named it first, for as long as the job lives.
 */
#ifndef ZIPCCL_DAEMON_SESSION_H
#define ZIPCCL_DAEMON_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/core/drain.h"
#include "daemon/core/handles.h"
#include "daemon/core/list.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/wire.h"
#include "zipccl_types.h"

#define SESSION_MAX_BUFFERS  16384u /* the kernel has a limit on mappings of a process, too */
#define SESSION_MAX_COMMS    1024u
#define SESSION_MAX_STREAMS  1024u
#define SESSION_MAX_ADMINS   16u            /* beside max_sessions, by the admin socket */
#define SESSION_HELLO_NS     10000000000ull /* who connected and says nothing */
#define SESSION_MAX_JOB_NAME 127u

struct daemon;
struct device_flow;
struct fabric_flow;
struct stats_job;

struct job {
    struct list link;
    struct daemon *daemon;
    char name[SESSION_MAX_JOB_NAME + 1];
    uid_t uid;
    char user[64];
    uint32_t refs; /* sessions, communicators, buffers, a lookup of the user's name */
    uint32_t nsessions, ncomms;
    uint64_t registered_bytes;
    struct stats_job *stats;
    struct drain drain;
    /* its share, and what carries that out; NULL: the default's */
    uint32_t weight, priority; /* enum flow_priority */
    uint64_t rate_bits;
    struct fabric_flow *flow;
    struct device_flow *workers;
};

enum session_state { SESSION_HELLO, SESSION_OPEN, SESSION_DEAD };

struct session {
    struct list link;
    struct daemon *daemon;
    struct frame_conn *conn;
    uv_poll_t poll;
    int poll_events;
    bool closing; /* uv_close was called */
    enum session_state state;
    uint64_t id;
    uint64_t opened_ns;
    pid_t pid;
    uint64_t process_start; /* with the pid, it names a process among all that ever were; 0: not known */
    uid_t uid;
    gid_t gid;
    char program[64];
    uint64_t features;
    bool admin;      /* came by the admin socket: commands and status, no collectives */
    struct job *job; /* NULL: a session that runs no collectives */
    struct handles buffers, comms, streams;
    struct list owned_buffers; /* also those released while an operation uses them */
    struct list members;       /* its ranks in communicators */
    uint64_t buffer_bytes;
};

void session_accepted(struct daemon *d, int fd);       /* takes fd, as does: */
void session_accepted_admin(struct daemon *d, int fd); /* root and the daemon's user alone */
void session_no_room(struct daemon *d, int fd);        /* tells who connected that descriptors have run out */
/* The session ends: its communicators fail, its buffers go. Logs why once. Memory stays until session_reap. */
void session_kill(struct session *s, const char *why);
void session_reap(struct daemon *d);
void session_tick(struct daemon *d, uint64_t now_ns);

/* Sending never blocks; a session that cannot be sent to is killed. NULL and dead sessions are fine. */
void session_send(struct session *s, uint16_t type, uint32_t id, const void *payload, size_t bytes);
void session_send_message(struct session *s, uint16_t type, uint32_t id, const ProtobufCMessage *message);
void session_error(struct session *s, uint32_t id, zipcclResult_t result, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The job (name, uid), made where it does not exist; one reference is the caller's. *why: for people. */
ZIPCCL_MUST_CHECK zipcclResult_t job_get(struct daemon *d, const char *name, uid_t uid, struct job **job, char *why,
                                         size_t why_size);
void job_ref(struct job *job);
void job_put(struct job *job);
/* Applies weight, priority and rate_bits, at once. */
void job_share(struct job *job);
bool job_parse_priority(const char *name, uint32_t *priority);
const char *job_priority_name(uint32_t priority);
/* What a user's jobs have together on this node. */
struct job_usage {
    uint32_t jobs, comms;
    uint64_t buffer_bytes;
};
struct job_usage job_usage(const struct daemon *d, uid_t uid);

/* Requests other than collectives (requests.c). False: the session has to end, an error was sent. */
bool requests_handle(struct session *s, const struct frame *f);

#endif
