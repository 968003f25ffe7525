/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: each a queue with a thread that begins with the first operation. The legacy stream of a device has the real
 * one's rule: its work waits for what the blocking streams of the device were given before, and theirs for its.
 */
#include "core.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x5374726du

static struct CUstream_st *g_streams;
static unsigned long long g_ids;
static pthread_cond_t g_progress = PTHREAD_COND_INITIALIZER; /* an operation ended */
static unsigned g_waiters;

void standin_wake_all(void) {
    pthread_mutex_lock(&standin_lock);
    pthread_cond_broadcast(&g_progress);
    pthread_mutex_unlock(&standin_lock);
}

/* ---- operations ---- */

struct standin_op *standin_op_new(void (*run)(void *), void (*drop)(void *), enum standin_op_class class,
                                  const void *arg, size_t bytes) {
    struct standin_op *op = calloc(1, sizeof(*op) + bytes);
    if (!op)
        abort();
    op->run = run;
    op->drop = drop;
    op->class = class;
    op->bytes = bytes;
    if (bytes)
        memcpy(op->arg, arg, bytes);
    return op;
}

void standin_op_use(struct standin_op *op, const void *p) {
    struct standin_memory *m = standin_memory_at(p);
    for (unsigned i = 0; m && i < op->nuses; i++)
        if (op->uses[i] == m)
            return;
    if (!m || op->nuses == STANDIN_USES)
        return;
    op->uses[op->nuses++] = m;
    m->busy++;
}

static void op_unuse(struct standin_op *op) {
    for (unsigned i = 0; i < op->nuses; i++)
        op->uses[i]->busy--;
    op->nuses = 0;
}

void standin_op_free(struct standin_op *op) {
    pthread_mutex_lock(&standin_lock);
    op_unuse(op);
    pthread_mutex_unlock(&standin_lock);
    if (op->drop)
        op->drop(op->arg);
    free(op);
}

static int op_inject(enum standin_op_class class) {
    int e = 0;
    if (class == STANDIN_OP_KERNEL)
        STANDIN_ENTER(e, "kernel");
    else if (class == STANDIN_OP_COPY)
        STANDIN_ENTER(e, "copy");
    if (e)
        standin_fail(e);
    return e;
}

/* ---- a stream's thread ---- */

static void stream_free(struct CUstream_st *s) {
    struct CUstream_st **p = &g_streams;
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    pthread_cond_destroy(&s->wake);
    s->magic = 0;
    free(s);
}

static void *stream_thread(void *arg) {
    struct CUstream_st *s = arg;
    pthread_mutex_lock(&standin_lock);
    for (;;) {
        while (!s->first) {
            if (s->destroyed && s->waited == 0) {
                stream_free(s);
                pthread_mutex_unlock(&standin_lock);
                return NULL;
            }
            pthread_cond_wait(&s->wake, &standin_lock);
        }
        struct standin_op *op = s->first;
        pthread_mutex_unlock(&standin_lock);
        while (standin_ending())
            pause();
        if (standin_failed() == 0 && op_inject(op->class) == 0)
            op->run(op->arg);
        pthread_mutex_lock(&standin_lock);
        s->first = op->next;
        if (!s->first)
            s->last = &s->first;
        op_unuse(op); /* before whoever waits can go on and free it */
        s->done++;
        if (g_waiters)
            pthread_cond_broadcast(&g_progress);
        pthread_mutex_unlock(&standin_lock);
        standin_op_free(op);
        pthread_mutex_lock(&standin_lock);
    }
}

static int stream_start(struct CUstream_st *s) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    if (s->started)
        return 0;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGABRT);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->started = pthread_create(&thread, &attributes, stream_thread, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return s->started ? 0 : CUDA_ERROR_OPERATING_SYSTEM;
}

/* ---- handles ---- */

static struct CUstream_st *stream_make(int device, unsigned flags, int priority) {
    struct CUstream_st *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->magic = MAGIC;
    s->device = device;
    s->flags = flags;
    s->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    s->id = ++g_ids;
    s->last = &s->first;
    pthread_cond_init(&s->wake, NULL);
    s->next = g_streams;
    g_streams = s;
    return s;
}

struct CUstream_st *standin_stream(void *handle) {
    if (handle == NULL || handle == (void *)0x1) {
        struct CUctx_st *d = &standin_devices[standin_current_device()];
        if (!d->legacy)
            d->legacy = stream_make(d->index, 0, 0);
        return d->legacy;
    }
    for (struct CUstream_st *s = g_streams; s; s = s->next)
        if (s == handle && !s->destroyed)
            return s;
    return NULL;
}

int standin_stream_new(void **stream, unsigned flags, int priority) {
    if (!stream || flags > cudaStreamNonBlocking)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    *stream = stream_make(standin_current_device(), flags, priority);
    pthread_mutex_unlock(&standin_lock);
    return 0;
}

/* Returns at once; the thread ends behind what is queued. */
int standin_stream_destroy(void *stream) {
    pthread_mutex_lock(&standin_lock);
    struct CUstream_st *s = stream > (void *)0x2 ? standin_stream(stream) : NULL;
    void *graph = s ? s->capture : NULL;
    if (s) {
        s->capture = NULL;
        s->destroyed = true;
        pthread_cond_signal(&s->wake);
        if (!s->started)
            stream_free(s);
    }
    pthread_mutex_unlock(&standin_lock);
    if (graph)
        (void)standin_graph_destroy(graph);
    return s ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

int standin_stream_info(void *stream, unsigned *flags, int *priority, unsigned long long *id) {
    pthread_mutex_lock(&standin_lock);
    const struct CUstream_st *s = standin_stream(stream);
    if (s && flags)
        *flags = s->flags;
    if (s && priority)
        *priority = s->priority;
    if (s && id)
        *id = s->id;
    pthread_mutex_unlock(&standin_lock);
    return s ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

int standin_stream_device(void *stream, int *device) {
    pthread_mutex_lock(&standin_lock);
    const struct CUstream_st *s = standin_stream(stream);
    if (s)
        *device = s->device;
    pthread_mutex_unlock(&standin_lock);
    return s ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- queueing ---- */

static void append(struct CUstream_st *s, struct standin_op *op) {
    op->next = NULL;
    *s->last = op;
    s->last = &op->next;
    s->issued++;
    pthread_cond_signal(&s->wake);
}

struct after {
    struct CUstream_st *on;
    uint64_t ticket;
};

static void after_run(void *arg) {
    const struct after *a = arg;
    pthread_mutex_lock(&standin_lock);
    g_waiters++;
    while (a->on->done < a->ticket && standin_failed() == 0)
        pthread_cond_wait(&g_progress, &standin_lock);
    g_waiters--;
    pthread_mutex_unlock(&standin_lock);
}

static void after_drop(void *arg) {
    const struct after *a = arg;
    pthread_mutex_lock(&standin_lock);
    a->on->waited--;
    pthread_cond_signal(&a->on->wake);
    pthread_mutex_unlock(&standin_lock);
}

static void append_after(struct CUstream_st *s, struct CUstream_st *on) {
    const struct after a = {on, on->issued};
    if (on->done == on->issued)
        return;
    on->waited++;
    append(s, standin_op_new(after_run, after_drop, STANDIN_OP_ORDER, &a, sizeof(a)));
}

static bool blocking_beside(const struct CUstream_st *s, int device) {
    return s->device == device && s->flags == 0 && s != standin_devices[device].legacy;
}

/* The legacy stream's rule. */
static int order_streams(struct CUstream_st *s) {
    struct CUstream_st *legacy = standin_devices[s->device].legacy;
    if (s != legacy) {
        if (legacy && s->flags == 0)
            append_after(s, legacy);
        return 0;
    }
    for (struct CUstream_st *o = g_streams; o; o = o->next)
        if (blocking_beside(o, s->device)) {
            if (o->capture) {
                o->capture->broken = true;
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
            append_after(s, o);
        }
    return 0;
}

static int push(struct CUstream_st *s, struct standin_op *op) {
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture) {
        if (!op->graphable)
            return standin_capture_forbids(s);
        op_unuse(op);
        op->next = NULL;
        *s->capture->last = op;
        s->capture->last = &op->next;
        return 0;
    }
    int e = stream_start(s);
    if (e == 0)
        e = order_streams(s);
    if (e == 0)
        append(s, op);
    return e;
}

int standin_push(void *stream, struct standin_op *op) {
    pthread_mutex_lock(&standin_lock);
    const int e = push(standin_stream(stream), op);
    pthread_mutex_unlock(&standin_lock);
    if (e)
        standin_op_free(op);
    return e;
}

int standin_enqueue(void *stream, void (*fn)(void *), const void *arg, size_t bytes, const struct standin_use *uses,
                    unsigned nuses) {
    struct standin_op *op = standin_op_new(fn, NULL, STANDIN_OP_WORK, arg, bytes);
    pthread_mutex_lock(&standin_lock);
    for (unsigned i = 0; i < nuses; i++)
        standin_op_use(op, uses[i].at);
    pthread_mutex_unlock(&standin_lock);
    return standin_push(stream, op);
}

struct host_call {
    void (*fn)(void *);
    void *arg;
};

static void host_run(void *arg) {
    const struct host_call *c = arg;
    c->fn(c->arg);
}

int standin_host_func(void *stream, void (*fn)(void *), void *arg) {
    const struct host_call c = {fn, arg};
    struct standin_op *op = standin_op_new(host_run, NULL, STANDIN_OP_WORK, &c, sizeof(c));
    op->graphable = true;
    return standin_push(stream, op);
}

/* ---- the host waits ---- */

/* Under the lock. */
static int wait_done(struct CUstream_st *s, uint64_t ticket) {
    s->waited++;
    g_waiters++;
    while (s->done < ticket && standin_failed() == 0)
        pthread_cond_wait(&g_progress, &standin_lock);
    g_waiters--;
    s->waited--;
    pthread_cond_signal(&s->wake);
    return standin_failed();
}

static void nothing(void *arg) {
    (void)arg;
}

int standin_stream_sync(void *stream) {
    int e;
    pthread_mutex_lock(&standin_lock);
    struct CUstream_st *s = standin_stream(stream);
    if (!s) {
        e = CUDA_ERROR_INVALID_HANDLE;
    } else if (s->capture) {
        e = standin_capture_forbids(s);
    } else if (s == standin_devices[s->device].legacy) { /* also what the blocking streams have */
        struct standin_op *op = standin_op_new(nothing, NULL, STANDIN_OP_ORDER, NULL, 0);
        e = push(s, op);
        if (e)
            free(op);
        else
            e = wait_done(s, s->issued);
    } else {
        e = wait_done(s, s->issued);
    }
    pthread_mutex_unlock(&standin_lock);
    return e;
}

int standin_stream_query(void *stream) {
    int e = 0;
    pthread_mutex_lock(&standin_lock);
    struct CUstream_st *s = standin_stream(stream);
    if (!s)
        e = CUDA_ERROR_INVALID_HANDLE;
    else if (s->capture)
        e = standin_capture_forbids(s);
    else if (s->done != s->issued)
        e = CUDA_ERROR_NOT_READY;
    else if (s == standin_devices[s->device].legacy)
        for (struct CUstream_st *o = g_streams; o; o = o->next)
            if (blocking_beside(o, s->device) && o->done != o->issued)
                e = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&standin_lock);
    return e;
}

int standin_device_sync(int device) {
    pthread_mutex_lock(&standin_lock);
    int e = 0;
    for (struct CUstream_st *s = g_streams; s && e == 0; s = s->next)
        if (s->device == device && s->capture)
            e = standin_capture_forbids(s);
again: /* the list may have changed while it waited */
    for (struct CUstream_st *s = g_streams; s && e == 0; s = s->next)
        if (s->device == device && s->done != s->issued) {
            e = wait_done(s, s->issued);
            goto again;
        }
    pthread_mutex_unlock(&standin_lock);
    return e;
}
