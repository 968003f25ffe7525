/* SPDX-License-Identifier: Apache-2.0
 *
 * What happened on this node: a ring of the last events, each with an id of its own, for zipcclctl events.
 * Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_EVENTS_H
#define ZIPCCL_DAEMON_EVENTS_H

#include <stdint.h>

#define EVENTS_KEPT 1024u
#define EVENTS_TEXT 384u
#define EVENTS_JOB  128u

/* X(name, text): kinds */
#define EVENT_KINDS(X)                                                                                                 \
    X(START, "start")                                                                                                  \
    X(JOB_BEGIN, "job-begin")                                                                                          \
    X(JOB_END, "job-end")                                                                                              \
    X(COMM_NEW, "comm-new")                                                                                            \
    X(COMM_READY, "comm-ready")                                                                                        \
    X(COMM_FAILED, "comm-failed")                                                                                      \
    X(PEER_UP, "peer-up")                                                                                              \
    X(PEER_LOST, "peer-lost")                                                                                          \
    X(PEER_REFUSED, "peer-refused")                                                                                    \
    X(RELOAD, "reload")                                                                                                \
    X(LOG_LEVEL, "log-level")                                                                                          \
    X(DRAIN, "drain")                                                                                                  \
    X(JOB_SHARE, "job-share")                                                                                          \
    X(POOL_FULL, "pool-full")                                                                                          \
    X(WORKER_LOST, "worker-lost")                                                                                      \
    X(WORKER_UP, "worker-up")

enum event_kind {
#define EVENT_ENUM(name, text) EVENT_##name,
    EVENT_KINDS(EVENT_ENUM)
#undef EVENT_ENUM
};

struct event {
    uint64_t id, time_ns, comm; /* CLOCK_REALTIME; comm 0: none */
    enum event_kind kind;
    char job[EVENTS_JOB];
    char text[EVENTS_TEXT];
};

struct events {
    uint64_t last;
    struct event ring[EVENTS_KEPT];
};

const char *event_kind_name(enum event_kind kind);
/* job NULL: none. e NULL: nothing is kept. */
void events_add(struct events *e, enum event_kind kind, const char *job, uint64_t comm, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The first event with an id above `after`; NULL: none. */
const struct event *events_next(const struct events *e, uint64_t after);

#endif
