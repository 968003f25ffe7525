/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of clients, as the daemon knows it. Host memory is mapped here, and in a worker when a job there first touches
 * it. Of a GPU's memory the daemon has nothing but addresses, so many as it has bytes, which fault: the worker of the
 * GPU has it mapped, and others do when a job there first touches it.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/worker/supervisor.h"

struct memory *memory_of(const struct device *d, const void *ptr) {
    return (struct memory *)ranges_find(&d->ranges, ptr);
}

void *memory_reserve(size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

const char *memory_dead(const struct memory *m) {
    return m->home ? worker_lost(m->home, m->home_generation) : NULL;
}

static struct worker_record record_of(const struct memory *m) {
    struct worker_record r = {.type = WORKER_MAP,
                              .map = {.base = (uintptr_t)m->range.base,
                                      .bytes = m->range.bytes,
                                      .offset = m->offset,
                                      .process_start = m->process_start,
                                      .id = m->id,
                                      .pid = m->pid,
                                      .kind = (uint32_t)m->kind,
                                      .has_fd = m->fd >= 0}};
    if (m->home)
        memcpy(r.map.uuid, m->home->uuid, sizeof(r.map.uuid));
    memcpy(r.map.handle, m->handle, sizeof(r.map.handle));
    return r;
}

bool memory_tell(struct worker *w, struct memory *m) {
    if (m->known[w->ordinal] == w->generation)
        return true;
    const struct worker_record r = record_of(m);
    const uint8_t mark = 0;
    if (m->fd >= 0 && !worker_socket_send(w->channel.socket, &mark, 1, &m->fd, 1, 0))
        return false;
    if (!worker_push(w, &r))
        return false;
    m->known[w->ordinal] = w->generation;
    return true;
}

static void take_out(struct device *d, const struct memory *m) {
    for (struct memory **p = &d->memories; *p; p = &(*p)->next) {
        if (*p == m) {
            *p = m->next;
            return;
        }
    }
}

/* No worker has it any more, and it is in no list. */
static void drop(struct device *d, struct memory *m) {
    struct device_call *calls = m->leaving;
    if (m->range.base) {
        ranges_remove(&d->ranges, &m->range);
        munmap(m->range.base, m->range.bytes);
    }
    if (m->fd >= 0)
        close(m->fd);
    free(m);
    device_calls_end(calls, zipcclSuccess, NULL);
}

/* One that has died of it has closed it too. */
static void closed(struct errand *e) {
    struct memory *m = e->subject;
    struct device *d = m->home->device;
    if (--m->closing > 0)
        return;
    take_out(d, m);
    drop(d, m);
}

void memory_untell(struct device *d, struct memory *m) {
    /* A client may free memory of a GPU next, which it must not while it is open. */
    const bool asks = m->kind == DEVICE_MEMORY_CUDA_IPC || m->kind == DEVICE_MEMORY_CUDA_VMM;
    for (unsigned i = 0; i < d->nworkers; i++) {
        struct worker *w = &d->workers[i];
        if (w->state != WORKER_UP || m->known[i] != w->generation)
            continue;
        struct errand *e = errand_new(1);
        if (!e) {
            worker_kill(w, "GPU %u (%s): no memory to tell its worker (pid %d) of memory that goes", w->ordinal,
                        w->name, (int)w->pid);
            continue;
        }
        e->records[0] = (struct worker_record){.type = WORKER_UNMAP, .unmap = {.base = (uintptr_t)m->range.base}};
        e->asks = asks;
        if (asks) {
            e->done = closed;
            e->subject = m;
            m->closing++;
        }
        worker_errand(w, e);
    }
    memset(m->known, 0, sizeof(m->known));
}

static zipcclResult_t import_host(struct device *d, struct memory *m, const struct device_import *in,
                                  const char **why) {
    struct device_memory mapped;
    zipcclResult_t result = host_import(d->host, in, &mapped, why);
    if (result != zipcclSuccess)
        return result;
    m->range = (struct range){mapped.base, mapped.bytes};
    m->fd = fcntl(in->fd, F_DUPFD_CLOEXEC, 0); /* for workers */
    *why = "no descriptors left (LimitNOFILE)";
    return m->fd < 0 ? zipcclSystemError : zipcclSuccess;
}

static void opened(struct errand *e) {
    struct memory *m = e->subject;
    struct device *d = m->home->device;
    m->opening = NULL;
    if (e->result == zipcclSuccess) {
        m->home_generation = e->generation;
        m->known[m->home->ordinal] = e->generation;
    } else {
        take_out(d, m);
        drop(d, m);
    }
    device_calls_end(e->calls, e->result, e->why);
}

/* As far as it goes at once: the worker is asked for the rest. */
static zipcclResult_t import_gpu(struct memory *m, const struct device_import *in, const char **why) {
    *why = "no addresses for memory of a GPU";
    void *base = memory_reserve(in->bytes);
    if (!base)
        return zipcclOutOfMemory;
    m->range = (struct range){base, in->bytes};
    if (in->handle)
        memcpy(m->handle, in->handle, sizeof(m->handle));
    if (in->kind == DEVICE_MEMORY_CUDA_VMM) {
        m->fd = fcntl(in->fd, F_DUPFD_CLOEXEC, 0);
        *why = "no descriptors left (LimitNOFILE)";
        if (m->fd < 0)
            return zipcclSystemError;
    }
    m->opening = errand_new(1);
    *why = "no memory";
    if (!m->opening)
        return zipcclOutOfMemory;
    m->opening->records[0] = record_of(m);
    m->opening->fd = m->fd;
    m->opening->asks = m->opening->waits = true;
    m->opening->done = opened;
    m->opening->subject = m;
    return zipcclSuccess;
}

/* The same allocation, registered before with a worker that still lives. */
static struct memory *find(const struct device *d, const struct device_import *in, const struct worker *home) {
    if (in->process_start == 0)
        return NULL;
    for (struct memory *m = d->memories; m; m = m->next) {
        if (m->kind == in->kind && m->pid == in->pid && m->process_start == in->process_start && m->id == in->id &&
            m->home == home && m->range.bytes == in->bytes && m->closing == 0 && (m->opening || !memory_dead(m)))
            return m;
    }
    return NULL;
}

/* NULL: *result and *why say why not. */
static struct memory *create(struct device *d, const struct device_import *in, struct worker *home,
                             zipcclResult_t *result, const char **why) {
    struct memory *m = calloc(1, sizeof(*m));
    *why = "no memory";
    *result = zipcclOutOfMemory;
    if (!m)
        return NULL;
    m->kind = in->kind;
    m->home = home;
    m->fd = -1;
    m->pid = in->pid;
    m->process_start = in->process_start;
    m->id = in->id;
    m->offset = in->offset;
    *result = home ? import_gpu(m, in, why) : import_host(d, m, in, why);
    if (*result == zipcclSuccess && !ranges_add(&d->ranges, &m->range)) {
        *why = "no memory";
        *result = zipcclOutOfMemory;
    }
    if (*result != zipcclSuccess) {
        free(m->opening);
        drop(d, m);
        return NULL;
    }
    m->next = d->memories;
    d->memories = m;
    if (m->opening)
        worker_errand(home, m->opening);
    return m;
}

zipcclResult_t workers_import(struct device *d, const struct device_import *in, struct device_memory *out,
                              const char **why) {
    struct worker *home = NULL;
    zipcclResult_t result = zipcclSuccess;
    *out = (struct device_memory){0};
    if (in->kind != DEVICE_MEMORY_HOST && !(home = worker_of_uuid(d, in->uuid))) {
        *why = "zipccld does not see that GPU (CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES of its unit or container)";
        return zipcclInvalidArgument;
    }
    struct memory *m = home ? find(d, in, home) : NULL;
    if (!m && !(m = create(d, in, home, &result, why)))
        return result;
    m->refs++;
    *out = (struct device_memory){.base = m->range.base, .bytes = m->range.bytes, .on_gpu = home != NULL, .own = m};
    if (!m->opening)
        return zipcclSuccess;
    in->call->next = m->opening->calls;
    m->opening->calls = in->call;
    return zipcclInProgress;
}

bool workers_release(struct device *d, struct device_memory *memory, struct device_call *call) {
    struct memory *m = memory->own;
    *memory = (struct device_memory){0};
    if (!m || --m->refs > 0)
        return true;
    memory_untell(d, m);
    if (m->closing == 0) {
        take_out(d, m);
        drop(d, m);
        return true;
    }
    if (call)
        call->next = NULL;
    m->leaving = call;
    return call == NULL;
}

void workers_memory_free(struct device *d) {
    while (d->memories) {
        struct memory *m = d->memories;
        d->memories = m->next;
        m->leaving = NULL;
        drop(d, m);
    }
    ranges_free(&d->ranges);
}
