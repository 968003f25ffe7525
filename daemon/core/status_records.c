/* SPDX-License-Identifier: Apache-2.0
 *
 * Records as messages: the flight recorder of a job, the events of the node, the configuration in force.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/core/arena.h"
#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/session.h"
#include "daemon/core/status.h"

#define MAX_EVENTS 512u /* of one reply: it must fit a frame. Who asks again gets the rest */

static uint64_t wall_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static Zipccl__FlightOp *flight_row(struct flight *flight, struct flight_op *f, uint64_t offset, struct arena *a) {
    Zipccl__FlightOp *m = arena_take(a, sizeof *m);
    if (m == NULL)
        return NULL;
    zipccl__flight_op__init(m);
    m->id = f->id;
    m->comm = f->comm;
    m->seq = f->seq;
    m->op = f->op;
    m->dtype = f->dtype;
    m->codec = f->codec;
    m->arm = f->arm;
    m->group = f->group;
    m->rank = f->rank;
    m->bytes = f->bytes;
    m->wire_bytes = f->wire_bytes;
    m->local = f->local;
    m->arrived = f->arrived;
    m->start_ns = f->start_ns + offset;
    m->arrived_ns = f->arrived_ns + offset;
    m->end_ns = f->end_ns > 0 ? f->end_ns + offset : 0;
    m->result = f->result;
    m->native = f->native;
    if (f->end_ns == 0 || f->result != zipcclSuccess) {
        m->n_missing = f->nmissing < FLIGHT_MISSING ? f->nmissing : FLIGHT_MISSING;
        m->missing = f->missing;
        m->where = flight_where(flight, f); /* sent before anything can change it */
    }
    return m;
}

void status_flight(struct session *s, uint32_t id, const Zipccl__FlightRequest *request) {
    struct daemon *d = s->daemon;
    struct stats_job *job = NULL;
    Zipccl__Flight reply = ZIPCCL__FLIGHT__INIT;
    struct arena a = {0};
    for (struct list *l = d->stats.jobs.prev; l != &d->stats.jobs && job == NULL; l = l->prev) {
        struct stats_job *j = list_entry(l, struct stats_job, link);
        if (strcmp(j->name, request->job) == 0)
            job = j;
    }
    if (job == NULL || job->flight == NULL) {
        session_error(s, id, zipcclInvalidArgument,
                      "node %s knows no operations of a job '%s'; zipcclctl jobs lists those that it serves",
                      d->config.node_name, request->job);
        return;
    }
    list_for_each(l, &d->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        if (c->job->stats == job && c->state != COMM_FAILED) /* a failed one was looked at when it failed */
            comm_flight_look(c);
    }
    reply.node = d->config.node_name;
    reply.job = job->name;
    reply.uid = job->uid;
    reply.total = job->flight->last;
    reply.now_ns = wall_ns();
    reply.ops = arena_take(&a, FLIGHT_OPS * sizeof *reply.ops);
    uint64_t offset = reply.now_ns - daemon_now_ns();
    for (uint64_t i = flight_first(job->flight, request->most); reply.ops != NULL && i <= job->flight->last; i++) {
        struct flight_op *f = flight_get(job->flight, i);
        Zipccl__FlightOp *m = f != NULL ? flight_row(job->flight, f, offset, &a) : NULL;
        if (m != NULL)
            reply.ops[reply.n_ops++] = m;
    }
    session_send_message(s, WIRE_FLIGHT_REPLY, id, &reply.base);
    arena_drop(&a);
}

void status_events(struct session *s, uint32_t id, const Zipccl__EventsRequest *request) {
    struct daemon *d = s->daemon;
    Zipccl__Events reply = ZIPCCL__EVENTS__INIT;
    const struct event *e;
    struct arena a = {0};
    reply.node = d->config.node_name;
    memcpy(&reply.instance, d->instance, sizeof reply.instance);
    reply.last = d->events != NULL ? d->events->last : 0;
    reply.events = arena_take(&a, MAX_EVENTS * sizeof *reply.events);
    for (uint64_t after = request->after; reply.events != NULL && reply.n_events < MAX_EVENTS; after = e->id) {
        if ((e = events_next(d->events, after)) == NULL)
            break;
        Zipccl__Event *m = arena_take(&a, sizeof *m);
        if (m == NULL)
            break;
        zipccl__event__init(m);
        m->id = e->id;
        m->time_ns = e->time_ns;
        m->kind = (char *)event_kind_name(e->kind);
        m->job = (char *)e->job;
        m->comm = e->comm;
        m->text = (char *)e->text;
        reply.events[reply.n_events++] = m;
    }
    session_send_message(s, WIRE_EVENTS_REPLY, id, &reply.base);
    arena_drop(&a);
}

void status_config(struct session *s, uint32_t id) {
    struct daemon *d = s->daemon;
    Zipccl__ConfigReply reply = ZIPCCL__CONFIG_REPLY__INIT;
    struct arena a = {0};
    char value[160];
    reply.node = d->config.node_name;
    reply.path = (char *)(d->config_path != NULL ? d->config_path : "");
    reply.keys = arena_take(&a, config_num_keys * sizeof *reply.keys);
    for (size_t i = 0; reply.keys != NULL && i < config_num_keys; i++) {
        const struct config_key *key = &config_keys[i];
        Zipccl__ConfigKey *m = arena_take(&a, sizeof *m);
        if (m == NULL)
            break;
        zipccl__config_key__init(m);
        config_value(&d->config, key, value, sizeof value);
        m->name = (char *)key->name;
        m->value = arena_text(&a, value);
        m->fallback = (char *)key->fallback;
        m->reload = key->reload;
        m->doc = (char *)key->doc;
        reply.keys[reply.n_keys++] = m;
    }
    session_send_message(s, WIRE_CONFIG_REPLY, id, &reply.base);
    arena_drop(&a);
}
