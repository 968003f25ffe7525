/* SPDX-License-Identifier: Apache-2.0
 *
 * Events. Each has a slot in a memfd of the process, which an importer maps: a record takes the next number and sets
 * `completed` to it when the stream is there, a wait is for the number that was the last when it was issued. Where the
 * process that recorded is dead, waits end (ZIPCCL_STANDIN_DEAD=block: they never do; the real driver promises
 * neither).
 */
#include "event.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct CUevent_st *standin_events;
struct standin_pool standin_pool = {.fd = -1};

static int pool_open(void) {
    if (standin_pool.slots)
        return 0;
    standin_pool.fd = memfd_create("standin-events", MFD_CLOEXEC);
    if (standin_pool.fd < 0 || ftruncate(standin_pool.fd, STANDIN_POOL_BYTES) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *m = mmap(NULL, STANDIN_POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, standin_pool.fd, 0);
    if (m == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    standin_pool.slots = m;
    standin_pool.pid = getpid();
    return 0;
}

struct CUevent_st *standin_event_at(const void *event) {
    for (struct CUevent_st *e = standin_events; e; e = e->next)
        if (e == event && !e->destroyed)
            return e;
    return NULL;
}

struct CUevent_st *standin_event_make(struct standin_pool *pool, unsigned index, int device, unsigned flags) {
    struct CUevent_st *e = calloc(1, sizeof(*e));
    if (!e)
        abort();
    e->pool = pool;
    e->slot = &pool->slots[index];
    e->serial = atomic_load(&e->slot->serial);
    e->device = device;
    e->flags = flags;
    e->next = standin_events;
    standin_events = e;
    return e;
}

int standin_event_new(void **event, unsigned flags) {
    if (!event || flags & ~7u || ((flags & cudaEventInterprocess) && !(flags & cudaEventDisableTiming)))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    int e = pool_open();
    unsigned i = 0;
    while (e == 0 && i < STANDIN_SLOTS && atomic_load(&standin_pool.slots[i].serial) % 2)
        i++;
    if (i == STANDIN_SLOTS)
        e = CUDA_ERROR_OUT_OF_MEMORY;
    if (e == 0) {
        struct standin_slot *s = &standin_pool.slots[i];
        const unsigned serial = atomic_load(&s->serial);
        memset(s, 0, sizeof(*s));
        atomic_store(&s->serial, serial + 1);
        *event = standin_event_make(&standin_pool, i, standin_current_device(), flags);
    }
    pthread_mutex_unlock(&standin_lock);
    return e;
}

/* Under the lock, when nothing refers to it any more. */
static void event_free(struct CUevent_st *e) {
    struct CUevent_st **p = &standin_events;
    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
    if (e->pool == &standin_pool)
        atomic_fetch_add(&e->slot->serial, 1);
    else
        standin_pool_drop(e->pool);
    free(e);
}

/* Processes that have waits for this event queued. */
static unsigned waiters_of(struct standin_slot *s) {
    unsigned n = 0;
    for (unsigned i = 0; i < STANDIN_WAITERS; i++) {
        const int pid = atomic_load(&s->waiters[i].pid);
        n += pid && atomic_load(&s->waiters[i].count) && kill(pid, 0) == 0;
    }
    return n;
}

int standin_event_destroy(void *event) {
    int code = 0;
    pthread_mutex_lock(&standin_lock);
    struct CUevent_st *e = standin_event_at(event);
    if (!e)
        code = CUDA_ERROR_INVALID_HANDLE;
    else if (e->pool == &standin_pool && waiters_of(e->slot))
        code = standin_rule(CUDA_ERROR_INVALID_HANDLE, "event destroyed while waited on",
                            "%u other processes have waits for event %p queued", waiters_of(e->slot), event);
    if (code == 0) {
        e->destroyed = true;
        if (e->refs == 0)
            event_free(e);
    }
    pthread_mutex_unlock(&standin_lock);
    return code;
}

/* ---- the words ---- */

static void waiter_count(struct standin_slot *s, unsigned up) {
    const int self = getpid();
    for (unsigned i = 0; i < STANDIN_WAITERS; i++) {
        int pid = atomic_load(&s->waiters[i].pid);
        if (pid != self && pid && up && kill(pid, 0) != 0 &&
            atomic_compare_exchange_strong(&s->waiters[i].pid, &pid, self)) {
            atomic_store(&s->waiters[i].count, 0);
            pid = self;
        }
        int none = 0;
        if (pid == self || (up && atomic_compare_exchange_strong(&s->waiters[i].pid, &none, self))) {
            atomic_fetch_add(&s->waiters[i].count, up ? 1u : ~0u);
            return;
        }
    }
}

static bool dead_block(void) {
    const char *dead = getenv("ZIPCCL_STANDIN_DEAD");
    return dead && strcmp(dead, "block") == 0;
}

static bool reached(struct standin_slot *s, uint32_t number) {
    if ((int32_t)(atomic_load(&s->completed) - number) >= 0)
        return true;
    const int pid = atomic_load(&s->recorder);
    return pid != getpid() && kill(pid, 0) != 0 && errno == ESRCH && !dead_block();
}

static void wait_number(struct standin_slot *s, uint32_t number) {
    while (!reached(s, number) && standin_failed() == 0 && !standin_ending()) {
        const uint32_t seen = atomic_load(&s->completed);
        const struct timespec slice = {0, 50000000};
        if ((int32_t)(seen - number) < 0)
            syscall(SYS_futex, &s->completed, FUTEX_WAIT, seen, &slice, NULL, 0);
    }
}

static void complete(struct standin_slot *s, uint32_t number) {
    struct timespec now;
    uint32_t seen = atomic_load(&s->completed);
    clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store(&s->ns, now.tv_sec * 1000000000ll + now.tv_nsec);
    while ((int32_t)(seen - number) < 0 && !atomic_compare_exchange_weak(&s->completed, &seen, number))
        ;
    syscall(SYS_futex, &s->completed, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- in a stream ---- */

struct moment {
    struct CUevent_st *event;
    uint32_t number;
};

static void record_run(void *arg) {
    const struct moment *m = arg;
    complete(m->event->slot, m->number);
}

static void wait_run(void *arg) {
    const struct moment *m = arg;
    wait_number(m->event->slot, m->number);
}

static void unref(struct CUevent_st *e) {
    pthread_mutex_lock(&standin_lock);
    if (--e->refs == 0 && e->destroyed)
        event_free(e);
    pthread_mutex_unlock(&standin_lock);
}

static void record_drop(void *arg) {
    unref(((struct moment *)arg)->event);
}

static void wait_drop(void *arg) {
    struct CUevent_st *e = ((struct moment *)arg)->event;
    if (e->pool != &standin_pool)
        waiter_count(e->slot, 0);
    unref(e);
}

/* Under the lock. An importer's event whose exporter destroyed it is not to be used. */
static int usable(struct CUevent_st *e) {
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (atomic_load(&e->slot->serial) != e->serial)
        return standin_rule(CUDA_ERROR_INVALID_HANDLE, "imported event used after its exporter destroyed it",
                            "event %p of process %d", (void *)e, e->pool->pid);
    return 0;
}

int standin_event_record(void *event, void *stream) {
    struct moment m = {NULL, 0};
    pthread_mutex_lock(&standin_lock);
    struct CUevent_st *e = standin_event_at(event);
    const struct CUstream_st *s = standin_stream(stream);
    int code = s ? usable(e) : CUDA_ERROR_INVALID_HANDLE;
    if (code == 0 && s->device != e->device)
        code = standin_rule(CUDA_ERROR_INVALID_HANDLE, "wrong device current",
                            "an event of device %d recorded on a stream of device %d", e->device, s->device);
    if (code == 0) {
        m.event = e;
        if (!s->capture) {
            atomic_store(&e->slot->recorder, getpid());
            m.number = atomic_fetch_add(&e->slot->recorded, 1) + 1;
        }
        e->refs++;
    }
    pthread_mutex_unlock(&standin_lock);
    if (code == 0)
        code = standin_push(stream, standin_op_new(record_run, record_drop, STANDIN_OP_ORDER, &m, sizeof(m)));
    return code;
}

int standin_event_wait(void *event, void *stream) {
    struct moment m = {NULL, 0};
    pthread_mutex_lock(&standin_lock);
    struct CUevent_st *e = standin_event_at(event);
    int code = standin_stream(stream) ? usable(e) : CUDA_ERROR_INVALID_HANDLE;
    if (code == 0) {
        m = (struct moment){e, atomic_load(&e->slot->recorded)};
        e->refs++;
        if (e->pool != &standin_pool)
            waiter_count(e->slot, 1);
    }
    pthread_mutex_unlock(&standin_lock);
    if (code == 0)
        code = standin_push(stream, standin_op_new(wait_run, wait_drop, STANDIN_OP_ORDER, &m, sizeof(m)));
    return code;
}

/* ---- on the host ---- */

static int event_hold(void *event, struct CUevent_st **e) {
    pthread_mutex_lock(&standin_lock);
    *e = standin_event_at(event);
    const int code = usable(*e);
    if (code == 0)
        (*e)->refs++;
    pthread_mutex_unlock(&standin_lock);
    return code;
}

int standin_event_query(void *event) {
    struct CUevent_st *e;
    int code = event_hold(event, &e);
    if (code)
        return code;
    code = reached(e->slot, atomic_load(&e->slot->recorded)) ? 0 : CUDA_ERROR_NOT_READY;
    unref(e);
    return code;
}

int standin_event_sync(void *event) {
    struct CUevent_st *e;
    const int code = event_hold(event, &e);
    if (code)
        return code;
    wait_number(e->slot, atomic_load(&e->slot->recorded));
    unref(e);
    return standin_failed();
}

int standin_event_elapsed(float *ms, void *start, void *end) {
    int code = 0;
    pthread_mutex_lock(&standin_lock);
    const struct CUevent_st *a = standin_event_at(start), *b = standin_event_at(end);
    if (!a || !b || ((a->flags | b->flags) & cudaEventDisableTiming) || !atomic_load(&a->slot->recorded) ||
        !atomic_load(&b->slot->recorded))
        code = CUDA_ERROR_INVALID_HANDLE;
    else if (!reached(a->slot, atomic_load(&a->slot->recorded)) || !reached(b->slot, atomic_load(&b->slot->recorded)))
        code = CUDA_ERROR_NOT_READY;
    else
        *ms = (float)(atomic_load(&b->slot->ns) - atomic_load(&a->slot->ns)) * 1e-6f;
    pthread_mutex_unlock(&standin_lock);
    return code;
}
