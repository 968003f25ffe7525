/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams of clients, whose events the worker of their GPU has opened, and gates: who waits for them.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/supervisor.h"

static const char unknown_gpu[] =
    "zipccld does not see that GPU (CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES of its unit or container)";

static void queue_push(struct gate_queue *q, struct gate *g) {
    g->next = NULL;
    if (!q->head)
        q->tail = &q->head;
    *q->tail = g;
    q->tail = &g->next;
}

static struct gate *queue_pop(struct gate_queue *q) {
    struct gate *g = q->head;
    if (g)
        q->head = g->next;
    return g;
}

/* Those of other streams stay, in their order. */
static void queue_forget(struct gate_queue *q, const struct device_stream *s) {
    struct gate_queue kept = {0};
    struct gate *g;
    while ((g = queue_pop(q)) != NULL) {
        if (g->stream != s)
            queue_push(&kept, g);
    }
    *q = kept;
    if (!q->head)
        q->tail = NULL;
    else
        for (q->tail = &q->head; *q->tail; q->tail = &(*q->tail)->next)
            ;
}

static void gate_free(struct device *d, struct gate *g) {
    g->stream = NULL;
    g->serial++;
    g->next = d->spare_gates;
    d->spare_gates = g;
}

static struct gate *gate_new(struct device *d) {
    struct gate *g = d->spare_gates;
    if (g) {
        d->spare_gates = g->next;
        return g;
    }
    if (d->ngates == d->gates_capacity) {
        uint32_t capacity = d->gates_capacity ? 2 * d->gates_capacity : 64;
        struct gate **grown = realloc((void *)d->gates, capacity * sizeof(*grown));
        if (!grown)
            return NULL;
        d->gates = grown;
        d->gates_capacity = capacity;
    }
    if (!(g = calloc(1, sizeof(*g))))
        return NULL;
    g->index = d->ngates;
    d->gates[d->ngates++] = g;
    return g;
}

static void open_gate(struct device *d, struct gate *g, zipcclResult_t result, const char *why) {
    g->opened = true;
    g->result = result;
    g->why = why;
    if (!d->opened.head)
        workers_notify(d);
    queue_push(&d->opened, g);
}

static void opened(struct errand *e) {
    struct device_stream *s = e->subject;
    e->owned = e->result != zipcclSuccess;
    s->generation = e->generation;
    device_calls_end(e->calls, e->result, e->why);
}

static struct errand *ask_to_open(const struct device_stream *s, const uint8_t *uuid, const uint8_t *events) {
    const unsigned n = (s->n + WORKER_EVENTS_EACH - 1) / WORKER_EVENTS_EACH;
    struct errand *e = errand_new(1 + n);
    if (!e)
        return NULL;
    e->records[0] =
        (struct worker_record){.type = WORKER_STREAM_OPEN, .stream = {.number = s->number, .nevents = s->n}};
    memcpy(e->records[0].stream.uuid, uuid, sizeof(e->records[0].stream.uuid));
    for (unsigned i = 0; i < s->n; i += WORKER_EVENTS_EACH) {
        unsigned here = s->n - i < WORKER_EVENTS_EACH ? s->n - i : WORKER_EVENTS_EACH;
        struct worker_record *r = &e->records[1 + i / WORKER_EVENTS_EACH];
        r->type = WORKER_EVENTS;
        memcpy(r->events, events + (size_t)i * DEVICE_IPC_BYTES, (size_t)here * DEVICE_IPC_BYTES);
    }
    return e;
}

zipcclResult_t workers_stream_open(struct device *d, const uint8_t *uuid, const uint8_t *events, unsigned n,
                                   struct device_call *call, struct device_stream **stream, const char **why) {
    struct worker *w = worker_of_uuid(d, uuid);
    *stream = NULL;
    *why = unknown_gpu;
    if (!w || n == 0 || n > WORKER_MAX_EVENTS)
        return zipcclInvalidArgument;
    struct device_stream *s = calloc(1, sizeof(*s));
    struct errand *e = NULL;
    if (s) {
        *s = (struct device_stream){.worker = w, .number = ++d->streams, .n = n};
        e = ask_to_open(s, uuid, events);
    }
    *why = "no memory";
    if (!e) {
        free(s);
        return zipcclOutOfMemory;
    }
    call->next = NULL;
    e->calls = call;
    e->asks = e->waits = e->owned = true;
    e->done = opened;
    e->subject = *stream = s;
    worker_errand(w, e);
    return zipcclInProgress;
}

zipcclResult_t workers_stream_gate(struct device_stream *s, unsigned i, const struct device_gate *gate) {
    struct device *d = s->worker->device;
    if (i >= s->n)
        return zipcclInvalidArgument;
    struct gate *g = gate_new(d);
    if (!g)
        return zipcclOutOfMemory;
    g->stream = s;
    g->event = i;
    g->gate = *gate;
    g->sent = g->opened = false;
    const char *why = worker_lost(s->worker, s->generation);
    if (why) {
        open_gate(d, g, zipcclUnhandledDeviceError, why);
        return zipcclSuccess;
    }
    queue_push(&s->worker->gates, g);
    worker_pump(s->worker);
    return zipcclSuccess;
}

void worker_gates_pump(struct worker *w) {
    while (w->state == WORKER_UP && w->gates.head) {
        const struct gate *g = w->gates.head;
        const struct worker_record r = {
            .type = WORKER_GATE,
            .gate = {.stream = g->stream->number, .number = (uint64_t)g->serial << 32 | g->index, .event = g->event}};
        if (!worker_ring_push(&w->channel.shared->to_worker, &r, w->channel.worker_event))
            return;
        queue_pop(&w->gates)->sent = true;
    }
}

/* One that was forgotten is nobody's. */
void worker_gate_opened(struct worker *w, const struct worker_record *r) {
    struct device *d = w->device;
    uint32_t index = (uint32_t)r->opened.number, serial = (uint32_t)(r->opened.number >> 32);
    if (index >= d->ngates)
        return;
    struct gate *g = d->gates[index];
    if (!g->stream || g->serial != serial || g->stream->worker != w || !g->sent || g->opened)
        return;
    char text[WORKER_TEXT_BYTES];
    worker_text_of(text, r->opened.text);
    open_gate(d, g, r->opened.result == zipcclSuccess ? zipcclSuccess : zipcclUnhandledDeviceError,
              text[0] ? workers_text(d, text) : NULL);
}

bool worker_gates_any(const struct worker *w) {
    const struct device *d = w->device;
    for (uint32_t i = 0; i < d->ngates; i++) {
        if (d->gates[i]->stream && d->gates[i]->stream->worker == w && !d->gates[i]->opened)
            return true;
    }
    return false;
}

void worker_gates_fail(struct worker *w, const char *why) {
    struct device *d = w->device;
    while (queue_pop(&w->gates))
        ;
    for (uint32_t i = 0; i < d->ngates; i++) {
        struct gate *g = d->gates[i];
        if (g->stream && g->stream->worker == w && !g->opened)
            open_gate(d, g, zipcclUnhandledDeviceError, why);
    }
}

void workers_gates_run(struct device *d) {
    struct gate *g;
    while ((g = queue_pop(&d->opened)) != NULL) {
        const struct device_gate gate = g->gate;
        zipcclResult_t result = g->result;
        const char *why = g->why;
        gate_free(d, g);
        gate.opened(&gate, result, why); /* may close streams */
    }
}

static void closed(struct errand *e) {
    device_calls_end(e->calls, zipcclSuccess, NULL); /* a worker that died of it has closed it too */
}

bool workers_stream_close(struct device_stream *s, struct device_call *call) {
    struct worker *w = s->worker;
    struct device *d = w->device;
    queue_forget(&w->gates, s);
    queue_forget(&d->opened, s);
    for (uint32_t i = 0; i < d->ngates; i++) {
        if (d->gates[i]->stream == s)
            gate_free(d, d->gates[i]);
    }
    if (s->generation != w->generation || w->state != WORKER_UP) {
        free(s);
        return true;
    }
    /* Its client may destroy the events next: nobody looks at them then. */
    struct errand *e = errand_new(1);
    if (!e) {
        worker_kill(w, "GPU %u (%s): no memory to tell its worker (pid %d) of a stream that ends", w->ordinal, w->name,
                    (int)w->pid);
        free(s);
        return true;
    }
    e->records[0] = (struct worker_record){.type = WORKER_STREAM_CLOSE, .stream = {.number = s->number}};
    e->asks = e->owned = true;
    e->done = closed;
    e->subject = s;
    if (call)
        call->next = NULL;
    e->calls = call;
    worker_errand(w, e);
    return call == NULL;
}

void workers_gates_free(struct device *d) {
    for (uint32_t i = 0; i < d->ngates; i++)
        free(d->gates[i]);
    free((void *)d->gates);
}
