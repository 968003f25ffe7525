/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams of GPUs that sessions have attached. See stream.h.
 */
#include "daemon/core/stream.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/daemon.h"
#include "daemon/core/pending.h"
#include "daemon/core/session.h"

struct session_stream {
    struct daemon *daemon;
    struct device_stream *device;
    uint32_t nevents;
    struct device_memory words;
};

/* True: it is not open any more. False: the call will say. */
static bool stream_free(struct session_stream *t, struct device_call *call) {
    const struct device_ops *ops = t->daemon->device_ops;
    bool gone = t->device == NULL || ops->stream_close(t->device, call);
    if (t->words.base != NULL)
        (void)ops->release(t->daemon->device, &t->words, NULL);
    free(t);
    return gone;
}

static void stream_attached(struct pending *p, zipcclResult_t rc, const char *why) {
    struct session_stream *t = p->subject;
    struct session *s = p->session;
    Zipccl__StreamRef reply = ZIPCCL__STREAM_REF__INIT;
    if (rc != zipcclSuccess) {
        t->device = NULL;
        session_error(s, p->id, rc, "a stream cannot be attached: %s", why);
        (void)stream_free(t, NULL);
        return;
    }
    if (s == NULL) {
        (void)stream_free(t, NULL);
        return;
    }
    reply.stream = handles_add(&s->streams, t);
    if (reply.stream == 0) {
        session_error(s, p->id, zipcclLimitExceeded, "this session has %u streams, the most that are allowed",
                      s->streams.used);
        (void)stream_free(t, NULL);
        return;
    }
    session_send_message(s, WIRE_STREAM_ATTACH_REPLY, p->id, &reply.base);
}

static zipcclResult_t stream_open(struct session_stream *t, int words_fd, const Zipccl__StreamAttach *m,
                                  struct device_call *call, const char **why) {
    struct daemon *d = t->daemon;
    const struct device_import words = {
        .kind = DEVICE_MEMORY_HOST, .fd = words_fd, .bytes = (size_t)t->nevents * WIRE_WORD_BYTES};
    zipcclResult_t rc = d->device_ops->import(d->device, &words, &t->words, why);
    if (rc != zipcclSuccess)
        return rc;
    uint8_t *events = malloc((size_t)t->nevents * DEVICE_IPC_BYTES);
    if (events == NULL) {
        *why = "no memory";
        return zipcclOutOfMemory;
    }
    for (uint32_t i = 0; i < t->nevents; i++)
        memcpy(events + (size_t)i * DEVICE_IPC_BYTES, m->events[i].data, DEVICE_IPC_BYTES);
    rc = d->device_ops->stream_open(d->device, m->device.data, events, t->nevents, call, &t->device, why);
    free(events);
    return rc;
}

void stream_attach(struct session *s, const struct frame *f, const Zipccl__StreamAttach *m) {
    const char *why = "";
    if (s->job == NULL || !(s->features & WIRE_FEATURE_CUDA)) {
        session_error(s, f->id, zipcclInvalidUsage, "%s",
                      s->job == NULL ? "this session named no job: it cannot attach streams"
                                     : "this node's zipccld uses no GPU (device in zipccld.conf): it takes no streams");
        return;
    }
    if (f->nfds != 1) {
        session_error(s, f->id, zipcclInvalidArgument, "attaching a stream takes one descriptor, not %u", f->nfds);
        return;
    }
    struct session_stream *t = calloc(1, sizeof *t);
    struct pending *p = t != NULL ? pending_new(s->daemon, s, f->id, t, stream_attached) : NULL;
    if (p == NULL) {
        free(t);
        session_error(s, f->id, zipcclOutOfMemory, "no memory for a stream");
        return;
    }
    t->daemon = s->daemon;
    t->nevents = (uint32_t)m->n_events;
    zipcclResult_t rc = stream_open(t, f->fds[0], m, &p->call, &why);
    if (rc != zipcclInProgress)
        pending_end(p, rc, why);
}

void stream_detach(struct session *s, uint32_t id, uint64_t handle) {
    struct session_stream *t = handles_remove(&s->streams, handle);
    if (t == NULL) {
        session_error(s, id, zipcclInvalidArgument, "unknown stream %#" PRIx64, handle);
        return;
    }
    /* Without memory for it nobody waits. */
    struct pending *p = pending_new(s->daemon, s, id, NULL, pending_ok);
    if (p == NULL) {
        (void)stream_free(t, NULL);
        session_send(s, WIRE_OK, id, NULL, 0);
    } else if (stream_free(t, &p->call)) {
        pending_end(p, zipcclSuccess, NULL);
    }
}

void stream_close_all(struct session *s) {
    for (uint32_t i = 0; i < s->streams.capacity; i++) {
        struct session_stream *t = s->streams.slots[i].object;
        s->streams.slots[i].object = NULL;
        if (t != NULL)
            (void)stream_free(t, NULL);
    }
    s->streams.used = 0;
}

zipcclResult_t stream_wait(struct session *s, const struct wire_point *point, const struct device_gate *gate,
                           const char **why) {
    struct session_stream *t = handles_get(&s->streams, point->stream);
    if (t == NULL || point->reserved != 0) {
        *why = "the stream is not attached";
        return zipcclInvalidArgument;
    }
    *why = "the device cannot wait for it";
    return s->daemon->device_ops->stream_gate(t->device, point->ticket % t->nevents, gate);
}

void stream_signal(struct session *s, const struct wire_point *point) {
    struct session_stream *t = handles_get(&s->streams, point->stream);
    if (t == NULL)
        return;
    _Atomic uint32_t *word =
        (_Atomic uint32_t *)(void *)(t->words.base + (size_t)(point->ticket % t->nevents) * WIRE_WORD_BYTES);
    uint32_t now = atomic_load_explicit(word, memory_order_relaxed);
    /* The client may have signalled already, and gone on: never backwards. */
    while (
        (int32_t)(now - point->ticket) < 0 &&
        !atomic_compare_exchange_weak_explicit(word, &now, point->ticket, memory_order_release, memory_order_relaxed))
        ;
}
