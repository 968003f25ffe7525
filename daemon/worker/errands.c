/* SPDX-License-Identifier: Apache-2.0
 *
 * Errands: what a worker is told or asked of memory and streams, beside jobs. They go in their order, before all jobs
 * that come after; what finds no room waits here, and answers end them when they come. Nobody waits for one on the loop
 * thread: a GPU whose driver takes its time holds up its own clients alone.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/supervisor.h"

static void queue_push(struct errand_queue *q, struct errand *e) {
    e->next = NULL;
    if (!q->head)
        q->tail = &q->head;
    *q->tail = e;
    q->tail = &e->next;
}

static struct errand *queue_pop(struct errand_queue *q) {
    struct errand *e = q->head;
    if (e)
        q->head = e->next;
    return e;
}

struct errand *errand_new(unsigned nrecords) {
    struct errand *e = calloc(1, sizeof(*e) + nrecords * sizeof(e->records[0]));
    if (e) {
        e->nrecords = nrecords;
        e->fd = -1;
    }
    return e;
}

static void errand_free(struct errand *e) {
    if (e->owned)
        free(e->subject);
    free(e);
}

static void end(struct device *d, struct errand *e, zipcclResult_t result, const char *why) {
    e->result = result;
    e->why = why;
    if (!d->ended.head)
        workers_notify(d);
    queue_push(&d->ended, e);
}

/* Whether a worker that does not run now can still be told. */
static bool may_wait(const struct worker *w, const struct errand *e) {
    uint64_t until = e->since_ns + WORKER_AWAIT_NS;
    return e->waits && !e->fd_told && workers_now_ns() <= until && !worker_out(w, until);
}

void worker_errand(struct worker *w, struct errand *e) {
    e->since_ns = workers_now_ns();
    if (w->state != WORKER_UP && !may_wait(w, e)) {
        end(w->device, e, zipcclUnhandledDeviceError, w->why ? w->why : "the GPU's worker does not run");
        return;
    }
    queue_push(&w->errands, e);
    worker_pump(w);
}

/* False: the rest has to wait. */
static bool tell(struct worker *w, struct errand *e) {
    const uint8_t mark = 0;
    if (e->fd >= 0 && !e->fd_told && !worker_socket_send(w->channel.socket, &mark, 1, &e->fd, 1, 0))
        return false;
    e->fd_told = true;
    e->generation = w->generation;
    if (e->asks && e->number == 0)
        e->number = e->records[e->nrecords - 1].call = ++w->calls ? w->calls : ++w->calls;
    while (e->told < e->nrecords) {
        if (!worker_ring_push(&w->channel.shared->to_worker, &e->records[e->told], w->channel.worker_event))
            return false;
        e->told++;
    }
    return true;
}

bool worker_errands_pump(struct worker *w) {
    while (w->state == WORKER_UP && w->errands.head) {
        if (!tell(w, w->errands.head))
            return false;
        struct errand *e = queue_pop(&w->errands);
        if (e->asks) {
            e->since_ns = workers_now_ns();
            queue_push(&w->asked, e);
        } else {
            end(w->device, e, zipcclSuccess, NULL);
        }
    }
    return !w->errands.head;
}

bool worker_errand_answered(struct worker *w, const struct worker_record *r) {
    struct errand *e = w->asked.head;
    if (!e || e->number != r->call)
        return false;
    const zipcclResult_t result = (zipcclResult_t)r->reply.result;
    (void)queue_pop(&w->asked);
    end(w->device, e, result, result != zipcclSuccess ? workers_text(w->device, r->reply.text) : NULL);
    return true;
}

bool worker_errands_any(const struct worker *w) {
    return w->errands.head || w->asked.head;
}

/* Of those that wait, the ones that cannot any longer. */
static void end_waiting(struct worker *w, const char *why) {
    struct errand_queue kept = {0};
    struct errand *e;
    while ((e = queue_pop(&w->errands)) != NULL) {
        if (w->state == WORKER_UP || w->state == WORKER_DYING || may_wait(w, e))
            queue_push(&kept, e);
        else
            end(w->device, e, zipcclUnhandledDeviceError, why);
    }
    while ((e = queue_pop(&kept)) != NULL)
        queue_push(&w->errands, e);
}

void worker_errands_fail(struct worker *w, const char *why) {
    struct errand *e;
    while ((e = queue_pop(&w->asked)) != NULL)
        end(w->device, e, zipcclUnhandledDeviceError, why);
    end_waiting(w, why);
}

void worker_errands_tick(struct worker *w, uint64_t now) {
    if (w->state == WORKER_UP && w->asked.head && now - w->asked.head->since_ns > w->device->timeout_ns)
        worker_kill(w, "GPU %u (%s): its worker (pid %d) does not answer", w->ordinal, w->name, (int)w->pid);
    if (w->errands.head)
        end_waiting(w, w->why ? w->why : "the GPU's worker does not start");
}

void workers_errands_run(struct device *d) {
    struct errand *e;
    while ((e = queue_pop(&d->ended)) != NULL) {
        if (e->done)
            e->done(e);
        errand_free(e);
    }
}

void worker_errands_free(struct worker *w) {
    struct errand *e;
    while ((e = queue_pop(&w->errands)) || (e = queue_pop(&w->asked)) || (e = queue_pop(&w->device->ended)))
        errand_free(e);
}

void device_calls_end(struct device_call *calls, zipcclResult_t result, const char *why) {
    while (calls) {
        struct device_call *call = calls;
        calls = call->next; /* done may free it */
        call->done(call, result, why);
    }
}
