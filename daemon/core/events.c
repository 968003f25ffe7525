/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of events. See events.h.
 */
#include "daemon/core/events.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

const char *event_kind_name(enum event_kind kind) {
    static const char *const names[] = {
#define EVENT_NAME(name, text) text,
        EVENT_KINDS(EVENT_NAME)
#undef EVENT_NAME
    };
    return names[kind];
}

void events_add(struct events *e, enum event_kind kind, const char *job, uint64_t comm, const char *format, ...) {
    struct timespec now;
    va_list ap;
    if (e == NULL)
        return;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    struct event *event = &e->ring[++e->last % EVENTS_KEPT];
    event->id = e->last;
    event->time_ns = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
    event->comm = comm;
    event->kind = kind;
    snprintf(event->job, sizeof event->job, "%s", job != NULL ? job : "");
    va_start(ap, format);
    vsnprintf(event->text, sizeof event->text, format, ap);
    va_end(ap);
}

const struct event *events_next(const struct events *e, uint64_t after) {
    if (e == NULL || after >= e->last)
        return NULL;
    uint64_t oldest = e->last > EVENTS_KEPT ? e->last - EVENTS_KEPT + 1 : 1;
    return &e->ring[(after + 1 > oldest ? after + 1 : oldest) % EVENTS_KEPT];
}
