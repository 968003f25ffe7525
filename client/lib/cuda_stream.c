/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams that stand for CUDA streams: their place in the daemon, the order of batches, the library's own thread. See
 * cuda.h.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/lib/collective.h"
#include "client/lib/cuda.h"
#include "zipccl.pb-c.h"
#include "zipccl_cuda.h"

#define HOST_WAIT_NS 20000 /* between looks of a host function */

static zipcclResult_t fail_cuda(int error, const char *what) {
    return fail_thread(zipcclUnhandledDeviceError, "%s: %s (CUDA error %d)", what, cuda_api_text(error), error);
}

static _Atomic uint32_t *word_of(const struct cuda_stream *t, uint32_t ticket) {
    return (_Atomic uint32_t *)(void *)(t->words->base + (size_t)(ticket % CUDA_POINTS) * WIRE_WORD_BYTES);
}

static bool is_over(const struct cuda_stream *t, uint32_t ticket) {
    return (int32_t)(atomic_load_explicit(word_of(t, ticket), memory_order_acquire) - ticket) >= 0;
}

void cuda_release(struct cuda_stream *t, uint32_t ticket) {
    _Atomic uint32_t *word = word_of(t, ticket);
    uint32_t now = atomic_load_explicit(word, memory_order_relaxed);
    while ((int32_t)(now - ticket) < 0 &&
           !atomic_compare_exchange_weak_explicit(word, &now, ticket, memory_order_release, memory_order_relaxed))
        ;
}

/* Runs on the driver's thread, without the lock. */
static void wait_on_host(void *arg) {
    const struct cuda_wait *w = arg;
    const struct timespec nap = {.tv_nsec = HOST_WAIT_NS};
    while (!is_over(w->stream, w->ticket))
        (void)nanosleep(&nap, NULL);
}

/* The thread that reads the session's socket, so that a stream goes on even where no thread of the application calls
 * the library any more. */
static bool needs_no_reader(void *arg) {
    return !((const struct session *)arg)->cuda_streams;
}

static void *reader_main(void *arg) {
    struct session *s = arg;
    (void)pthread_mutex_lock(&client_lock);
    zipcclResult_t r = session_wait(s, needs_no_reader, s, CLIENT_FOREVER);
    (void)r; /* the streams are gone, or the session is */
    (void)pthread_mutex_unlock(&client_lock);
    return NULL;
}

static zipcclResult_t start_reader(struct session *s) {
    sigset_t all, before;
    if (s->has_reader)
        return zipcclSuccess;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the application's */
    int err = pthread_create(&s->reader, NULL, reader_main, s);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        return fail_thread(zipcclSystemError, "no thread to watch zipccld: %s", strerror(err));
    s->has_reader = true;
    return zipcclSuccess;
}

/* Drops the lock. */
static void stop_reader(struct session *s) {
    if (s->cuda_streams || !s->has_reader || s->forked)
        return;
    s->has_reader = false;
    pthread_t reader = s->reader;
    session_wake(s);
    (void)pthread_mutex_unlock(&client_lock);
    (void)pthread_join(reader, NULL);
    (void)pthread_mutex_lock(&client_lock);
}

static void detach(struct cuda_stream *t) {
    struct session *s = t->session;
    Zipccl__StreamRef m = ZIPCCL__STREAM_REF__INIT;
    struct call call;
    if (!s)
        return;
    if (s->conn && t->handle) {
        memset(&call, 0, sizeof call);
        m.stream = t->handle;
        /* Waited for: the daemon must not look at events that are gone. */
        zipcclResult_t r = call_run(s, &call, WIRE_STREAM_DETACH, &m.base, NULL, 0, WIRE_OK, CLIENT_LEAVE_MS);
        (void)r; /* a session that ends lets go of all */
    }
    t->session = NULL;
    t->handle = 0;
    s->cuda_streams--;
    stop_reader(s);
    session_put(s);
}

static zipcclResult_t attach(struct cuda_stream *t, struct session *s) {
    Zipccl__StreamAttach m = ZIPCCL__STREAM_ATTACH__INIT;
    ProtobufCBinaryData events[CUDA_POINTS];
    struct cuda_ipc handles[CUDA_POINTS];
    struct call call;
    if (!(s->info.features & WIRE_FEATURE_CUDA))
        return fail_thread(zipcclInvalidUsage,
                           "zipccld on node %.100s uses no GPU: set device = cuda in its zipccld.conf", s->info.node);
    for (unsigned i = 0; i < CUDA_POINTS; i++) {
        int e = t->api->ipc_get_event(&handles[i], t->events[i]);
        if (e != CUDA_OK)
            return fail_cuda(e, "sharing an event with zipccld");
        events[i] = (ProtobufCBinaryData){sizeof handles[i].bytes, handles[i].bytes};
    }
    memset(&call, 0, sizeof call);
    m.device = (ProtobufCBinaryData){sizeof t->uuid, t->uuid};
    m.n_events = CUDA_POINTS;
    m.events = events;
    s->refs++;
    s->cuda_streams++;
    t->session = s;
    zipcclResult_t r =
        call_run(s, &call, WIRE_STREAM_ATTACH, &m.base, &t->words->fd, 1, WIRE_STREAM_ATTACH_REPLY, CLIENT_CONTROL_MS);
    if (r != zipcclSuccess)
        (void)fail_thread(r, "%s", call.text);
    t->handle = call.value;
    if (r == zipcclSuccess)
        r = start_reader(s);
    if (r != zipcclSuccess)
        detach(t);
    return r;
}

static zipcclResult_t enter(const struct cuda_stream *t) {
    cuda_context_t now = NULL;
    int e = t->api->ctx_get_current(&now);
    if (e == CUDA_OK && now != t->context)
        e = t->api->ctx_set_current(t->context);
    return e == CUDA_OK ? zipcclSuccess : fail_cuda(e, "taking the stream's context");
}

struct room {
    const struct cuda_stream *t;
    uint32_t ticket;
};

static bool has_room(void *arg) {
    const struct room *room = arg;
    return is_over(room->t, room->ticket - CUDA_POINTS);
}

/* The host function of a slot's last batch still reads its ticket; that it is over says only that it will end soon. */
static void wait_for_function(const struct cuda_stream *t, uint32_t ticket) {
    const struct timespec nap = {.tv_nsec = HOST_WAIT_NS};
    while (t->api->event_query(t->after[ticket % CUDA_POINTS]) == CUDA_NOT_READY) {
        (void)pthread_mutex_unlock(&client_lock);
        (void)nanosleep(&nap, NULL);
        (void)pthread_mutex_lock(&client_lock);
    }
}

zipcclResult_t cuda_begin(struct batch *b, unsigned ahead) {
    struct cuda_stream *t = b->stream->cuda;
    int status = 0;
    zipcclResult_t r = enter(t);
    if (r != zipcclSuccess)
        return r;
    int e = t->api->is_capturing(t->stream, &status);
    if (e != CUDA_OK || status)
        return fail_thread(zipcclInvalidUsage,
                           "the CUDA stream is being captured into a graph, which cannot hold operations of zipccld: "
                           "call it outside of the capture, or use NCCL there");
    cuda_reap(t);
    if (t->session != b->comm->session) {
        stream_drain(b->stream);
        detach(t);
        if ((r = attach(t, b->comm->session)) != zipcclSuccess)
            return r;
    }
    if (ahead >= CUDA_POINTS)
        return fail_thread(zipcclLimitExceeded, "a group has more than %u communicators on one CUDA stream",
                           CUDA_POINTS);
    struct room room = {t, t->ticket + 1 + ahead};
    if (!has_room(&room))
        r = session_wait(t->session, has_room, &room, CLIENT_FOREVER);
    if (t->by_host)
        wait_for_function(t, room.ticket);
    return r;
}

static int copy_some(const struct cuda_stream *t, uint8_t *to, const uint8_t *from, size_t bytes) {
    return bytes ? t->api->copy((uintptr_t)to, (uintptr_t)from, bytes, t->stream) : CUDA_OK;
}

zipcclResult_t cuda_copy(struct cuda_stream *t, const struct copy *copy) {
    int e = CUDA_OK;
    if (!copy->to)
        return zipcclSuccess;
    if (!copy->counts)
        e = copy_some(t, copy->to, copy->from, copy->bytes);
    for (size_t i = 0; e == CUDA_OK && copy->counts && i < copy->nparts; i++) {
        size_t at = copy->offsets[i] * copy->width;
        e = copy_some(t, copy->to + at, copy->from + at, copy->counts[i] * copy->width);
    }
    return e == CUDA_OK ? zipcclSuccess : fail_cuda(e, "copying to or from a staging area");
}

zipcclResult_t cuda_record(struct cuda_stream *t, struct wire_point *point) {
    uint32_t ticket = t->ticket + 1;
    int e = t->api->event_record(t->events[ticket % CUDA_POINTS], t->stream);
    if (e != CUDA_OK)
        return fail_cuda(e, "recording an event");
    t->ticket = ticket;
    *point = (struct wire_point){.stream = t->handle, .ticket = ticket};
    return zipcclSuccess;
}

void cuda_follow(struct batch *b) {
    struct cuda_stream *t = b->stream->cuda;
    uint32_t ticket = b->point.ticket, slot = ticket % CUDA_POINTS;
    zipcclResult_t r = zipcclSuccess;
    int e;
    if (t->by_host) {
        t->waits[slot] = (struct cuda_wait){t, ticket};
        e = t->api->launch_host(t->stream, wait_on_host, &t->waits[slot]);
    } else {
        e = t->api->wait_value(t->stream, t->device_words + (size_t)slot * WIRE_WORD_BYTES, ticket, 0);
    }
    for (struct note *n = b->first; n && e == CUDA_OK && r == zipcclSuccess; n = n->next) {
        r = cuda_copy(t, &n->op->out);
        if (r == zipcclSuccess)
            r = cuda_copy(t, &n->op->out_counts);
    }
    for (struct note *n = b->first; n; n = n->next) {
        n->op->out.to = n->op->out_counts.to = NULL; /* not by the processor */
        n->op->unfollowed = false;
    }
    client_notify();
    if (e == CUDA_OK && r == zipcclSuccess)
        e = t->api->event_record(t->after[slot], t->stream);
    if (e != CUDA_OK)
        r = fail_cuda(e, "waiting in the CUDA stream");
    /* It was sent, and the stream does not know: nobody may take the results for good. */
    if (r != zipcclSuccess)
        comm_fail(b->comm, r, thread_error());
}

void cuda_retire(struct cuda_stream *t, uint32_t ticket, struct region *region, bool tainted) {
    struct cuda_retired *r = malloc(sizeof *r);
    if (!r) { /* without a note of it, it can only be waited for */
        (void)t->api->stream_synchronize(t->stream);
        staging_give(region);
        return;
    }
    *r = (struct cuda_retired){.next = t->retired, .region = region, .ticket = ticket, .tainted = tainted};
    t->retired = r;
}

static void give_back(struct cuda_retired *r) {
    struct region *region = r->region;
    if (r->tainted && region->kind == REGION_STAGING) {
        region_free(region);
    } else {
        region->spoiled = region->spoiled || r->tainted;
        staging_give(region);
    }
    free(r);
}

void cuda_reap(struct cuda_stream *t) {
    for (struct cuda_retired **p = &t->retired; *p;) {
        struct cuda_retired *r = *p;
        if (t->api->event_query(t->after[r->ticket % CUDA_POINTS]) == CUDA_NOT_READY) {
            p = &r->next;
            continue;
        }
        *p = r->next;
        give_back(r);
    }
}

zipcclResult_t cuda_query(struct cuda_stream *t) {
    int e = t->api->stream_query(t->stream);
    cuda_reap(t);
    return e == CUDA_OK ? zipcclSuccess : e == CUDA_NOT_READY ? zipcclInProgress : fail_cuda(e, "the CUDA stream");
}

zipcclResult_t cuda_synchronize(struct cuda_stream *t) {
    (void)pthread_mutex_unlock(&client_lock);
    int e = t->api->stream_synchronize(t->stream);
    (void)pthread_mutex_lock(&client_lock);
    cuda_reap(t);
    return e == CUDA_OK ? zipcclSuccess : fail_cuda(e, "the CUDA stream");
}

void cuda_stream_free(struct cuda_stream *t) {
    if (enter(t) == zipcclSuccess)
        (void)cuda_synchronize(t);
    detach(t);
    while (t->retired) {
        struct cuda_retired *r = t->retired;
        t->retired = r->next;
        give_back(r);
    }
    for (unsigned i = 0; i < CUDA_POINTS; i++) {
        if (t->events[i])
            (void)t->api->event_destroy(t->events[i]);
        if (t->after[i])
            (void)t->api->event_destroy(t->after[i]);
    }
    if (t->words)
        region_free(t->words);
    free(t);
}

bool cuda_current(const struct session *s, unsigned char uuid[CUDA_UUID_BYTES]) {
    const char *why;
    const struct cuda_api *api = s->info.features & WIRE_FEATURE_CUDA ? cuda_api_load(&why) : NULL;
    cuda_context_t context = NULL;
    int device;
    return api && api->ctx_get_current(&context) == CUDA_OK && context && api->ctx_get_device(&device) == CUDA_OK &&
           api->device_get_uuid(uuid, device) == CUDA_OK;
}

/* What the GPU and its driver have to give. */
static zipcclResult_t set_up(struct cuda_stream *t) {
    int device = 0, e = t->api->ctx_get_current(&t->context);
    const char *how = getenv("ZIPCCL_CUDA_WAIT"); /* host: for drivers whose waits for a word do not work */
    if (e == CUDA_OK && !t->context)
        return fail_thread(zipcclInvalidUsage, "no GPU is current in this thread: call cudaSetDevice first");
    if (e == CUDA_OK)
        e = t->api->ctx_get_device(&device);
    if (e == CUDA_OK)
        e = t->api->device_get_uuid(t->uuid, device);
    for (unsigned i = 0; i < CUDA_POINTS && e == CUDA_OK; i++) {
        e = t->api->event_create(&t->events[i], CUDA_EVENT_SHARED);
        if (e == CUDA_OK)
            e = t->api->event_create(&t->after[i], CUDA_EVENT_PLAIN);
    }
    if (e == CUDA_OK)
        e = t->api->host_register(t->words->base, t->words->bytes, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED);
    if (e == CUDA_OK) {
        t->words->pinned = true;
        e = t->api->host_device_pointer(&t->device_words, t->words->base, 0);
    }
    if (e != CUDA_OK)
        return fail_cuda(e, "setting up a stream");
    /* Words are 0: a wait that is over at once shows whether the driver can wait at all. */
    t->by_host = (how && strcmp(how, "host") == 0) || !t->api->wait_value ||
                 t->api->wait_value(t->stream, t->device_words, 0, 0) != CUDA_OK;
    return zipcclSuccess;
}

zipcclResult_t zipcclStreamFromCuda(zipcclStream_t *stream, struct CUstream_st *cuda_stream) {
    const char *why = "";
    struct session *s = NULL;
    if (!stream)
        return fail_thread(zipcclInvalidArgument, "zipcclStreamFromCuda: stream is NULL");
    *stream = NULL;
    struct zipcclStream *made = calloc(1, sizeof *made);
    struct cuda_stream *t = calloc(1, sizeof *t);
    struct region *words = NULL;
    zipcclResult_t r = zipcclOutOfMemory;
    if (!made || !t) {
        (void)fail_thread(r, "zipcclStreamFromCuda: no memory");
        free(made);
        free(t);
        return r;
    }
    made->magic = CLIENT_STREAM_MAGIC;
    made->cuda = t;
    t->stream = cuda_stream;
    r = region_new((size_t)CUDA_POINTS * WIRE_WORD_BYTES, &words);
    (void)pthread_mutex_lock(&client_lock);
    t->words = words;
    t->api = r == zipcclSuccess ? cuda_api_load(&why) : NULL;
    if (t->api)
        r = set_up(t);
    else if (r == zipcclSuccess)
        r = fail_thread(zipcclInvalidUsage, "zipcclStreamFromCuda: %s", why);
    if (r == zipcclSuccess)
        r = session_get(&s);
    if (r == zipcclSuccess)
        r = attach(t, s);
    if (s)
        session_put(s);
    if (r == zipcclSuccess) {
        *stream = made;
    } else {
        char text[CLIENT_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", thread_error());
        if (t->api) {
            cuda_stream_free(t);
        } else {
            if (t->words)
                region_free(t->words);
            free(t);
        }
        free(made);
        (void)fail_thread(r, "%s", text);
    }
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}
