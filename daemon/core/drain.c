/* SPDX-License-Identifier: Apache-2.0
 *
 * Draining of the node and of jobs. See drain.h.
 */
#include "daemon/core/drain.h"

#include <stdio.h>

#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/session.h"

static bool alive(const struct comm *c) {
    return (c->state != COMM_FAILED && c->state != COMM_CLOSING) || comm_ops_running(c);
}

/* Of a job, or (NULL) all: what is idle or late ends. */
static void sweep(struct daemon *d, const struct job *job, bool late) {
    char text[DAEMON_TEXT];
    list_for_each_safe(l, &d->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        if ((job != NULL && c->job != job) || c->state == COMM_FAILED || c->state == COMM_CLOSING)
            continue;
        if (late || (c->state != COMM_READY && c->state != COMM_FAILING) || comm_ops_idle(c))
            comm_fail(c, NULL, zipcclDaemonUnavailable, "%s", drain_why(d, c->job, text, sizeof text));
    }
}

void drain_begin(struct daemon *d, struct job *job, uint64_t timeout_ms) {
    struct drain *drain = job != NULL ? &job->drain : &d->drain;
    double seconds = (double)timeout_ms / 1000.0;
    drain->on = true;
    drain->deadline_ns = daemon_now_ns() + timeout_ms * 1000000ull;
    log_info("%s is drained by an administrator, for up to %g s", job != NULL ? job->name : "the node", seconds);
    events_add(d->events, EVENT_DRAIN, job != NULL ? job->name : NULL, 0,
               "no new operations; those that run may end within %g s", seconds);
    sweep(d, job, timeout_ms == 0);
}

bool drain_cancel(struct daemon *d, struct job *job) {
    struct drain *drain = job != NULL ? &job->drain : &d->drain;
    if (!drain->on)
        return false;
    drain->on = false;
    log_info("%s takes work again", job != NULL ? job->name : "the node");
    events_add(d->events, EVENT_DRAIN, job != NULL ? job->name : NULL, 0, "cancelled: takes work again");
    return true;
}

void drain_tick(struct daemon *d, uint64_t now_ns) {
    if (d->drain.on)
        sweep(d, NULL, now_ns >= d->drain.deadline_ns);
    list_for_each(l, &d->jobs) {
        struct job *job = list_entry(l, struct job, link);
        if (job->drain.on)
            sweep(d, job, now_ns >= job->drain.deadline_ns);
    }
}

const char *drain_why(const struct daemon *d, const struct job *job, char *text, size_t size) {
    if (d->draining)
        snprintf(text, size, "zipccld on node %s is shutting down", d->config.node_name);
    else if (d->drain.on)
        snprintf(text, size, "node %s is being drained by its administrator (zipcclctl drain node --cancel ends it)",
                 d->config.node_name);
    else if (job != NULL && job->drain.on)
        snprintf(text, size, "job '%s' is being drained by the administrator of node %s", job->name,
                 d->config.node_name);
    else
        return NULL;
    return text;
}

const char *drain_state(const struct daemon *d, const struct job *job) {
    if (d->draining)
        return "draining";
    if (!d->drain.on && (job == NULL || !job->drain.on))
        return "running";
    list_for_each(l, &d->comms) {
        const struct comm *c = list_entry(l, struct comm, link);
        if ((job == NULL || c->job == job) && alive(c))
            return "draining";
    }
    return "drained";
}
