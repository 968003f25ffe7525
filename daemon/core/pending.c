/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that wait for the device. See pending.h.
 */
#include "daemon/core/pending.h"

#include <stdlib.h>

#include "daemon/core/daemon.h"
#include "daemon/core/session.h"
#include "proto/wire.h"

static void call_done(struct device_call *call, zipcclResult_t result, const char *why) {
    pending_end((struct pending *)((char *)call - offsetof(struct pending, call)), result, why);
}

struct pending *pending_new(struct daemon *d, struct session *s, uint32_t id, void *subject,
                            void (*ended)(struct pending *pending, zipcclResult_t result, const char *why)) {
    struct pending *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    p->session = s;
    p->id = id;
    p->subject = subject;
    p->ended = ended;
    p->call.done = call_done;
    list_add_tail(&d->pendings, &p->link);
    return p;
}

void pending_end(struct pending *p, zipcclResult_t result, const char *why) {
    list_del(&p->link);
    p->ended(p, result, why != NULL ? why : "");
    free(p);
}

void pending_session_gone(struct session *s) {
    list_for_each(l, &s->daemon->pendings) {
        struct pending *p = list_entry(l, struct pending, link);
        if (p->session == s)
            p->session = NULL;
    }
}

void pending_close(struct daemon *d) {
    list_for_each_safe(l, &d->pendings)
        pending_end(list_entry(l, struct pending, link), zipcclAborted, "the daemon ends");
}

void pending_ok(struct pending *p, zipcclResult_t result, const char *why) {
    (void)result, (void)why; /* whatever became of it, it is not open any more */
    session_send(p->session, WIRE_OK, p->id, NULL, 0);
}
