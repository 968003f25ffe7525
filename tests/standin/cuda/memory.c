/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of memory that a device knows: its own (a memfd for each allocation, so that other processes can map it),
 * imported, mapped ranges, page-locked host memory, which has one address for host and device. Behind each allocation
 * lies a page that nobody may touch, new memory is full of 0xa5, and what is freed is unmapped. Its addresses are kept
 * from being used again for a while: late work on freed memory must fault, and not write to something new.
 */
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE       4096ul
#define QUARANTINE 64
#define FILLED     (256ul << 10) /* of a large allocation this much alone: pages that nobody touches cost nothing */

struct standin_memory *standin_memories;
static uint64_t g_ids;

struct standin_memory *standin_memory_at(const void *p) {
    for (struct standin_memory *m = standin_memories; m; m = m->next)
        if ((const char *)p >= (char *)m->at.base && (const char *)p < (char *)m->at.base + m->at.bytes)
            return m;
    return NULL;
}

bool standin_find(const void *p, struct standin_range *range) {
    pthread_mutex_lock(&standin_lock);
    const struct standin_memory *m = standin_memory_at(p);
    if (m)
        *range = m->at;
    pthread_mutex_unlock(&standin_lock);
    return m != NULL;
}

struct standin_memory *standin_memory_add(enum standin_kind kind, int device, void *base, size_t bytes) {
    struct standin_memory *m = calloc(1, sizeof(*m));
    if (!m)
        abort();
    m->at = (struct standin_range){kind, device, base, bytes, ++g_ids};
    m->fd = -1;
    m->next = standin_memories;
    standin_memories = m;
    return m;
}

/* Takes over a range of addresses; gives the oldest one back. */
static void quarantine(void *at, size_t bytes) {
    static struct {
        void *at;
        size_t bytes;
    } held[QUARANTINE];
    static unsigned next;
    if (mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
    if (held[next].at)
        munmap(held[next].at, held[next].bytes);
    held[next].at = at;
    held[next].bytes = bytes;
    next = (next + 1) % QUARANTINE;
}

void standin_memory_drop(struct standin_memory *m) {
    struct standin_memory **p = &standin_memories;
    while (*p != m)
        p = &(*p)->next;
    *p = m->next;
    if (m->share)
        munmap(m->share, PAGE);
    if (m->reserved && standin_window.bytes)
        standin_window_give(m->reserved, m->reserved_bytes);
    else if (m->reserved)
        quarantine(m->reserved, m->reserved_bytes);
    if (m->fd >= 0)
        close(m->fd);
    free(m);
}

void *standin_reserve(struct standin_memory *m, size_t bytes) {
    const size_t align = bytes >= 2 * STANDIN_MIB ? 2 * STANDIN_MIB : PAGE;
    m->mapped = (bytes + PAGE - 1) / PAGE * PAGE;
    m->reserved_bytes = m->mapped + align + PAGE;
    if (standin_window.bytes) {
        m->reserved_bytes = m->mapped + PAGE;
        m->reserved = standin_window_take(m->reserved_bytes, align);
        return m->reserved;
    }
    m->reserved = mmap(NULL, m->reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->reserved == MAP_FAILED) {
        m->reserved = NULL;
        return NULL;
    }
    return (void *)(((uintptr_t)m->reserved + align - 1) / align * align);
}

static int map_new(struct standin_memory *m, size_t bytes) {
    struct stat s;
    void *at = standin_reserve(m, bytes);
    m->fd = memfd_create("standin-gpu", MFD_CLOEXEC);
    if (!at || m->fd < 0 || ftruncate(m->fd, (off_t)(m->mapped + PAGE)) != 0 || fstat(m->fd, &s) != 0 ||
        mmap(standin_view(at), m->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->inode = s.st_ino;
    m->at.base = at;
    memset(standin_view(at), 0xa5, bytes < FILLED ? bytes : FILLED);
    return 0;
}

int standin_alloc(void **p, size_t bytes, enum standin_kind kind) {
    struct CUctx_st *d = &standin_devices[standin_current_device()];
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    *p = NULL;
    if (bytes == 0)
        return 0;
    bytes = (bytes + 511) / 512 * 512;
    pthread_mutex_lock(&standin_lock);
    int e = bytes > d->total - d->used ? CUDA_ERROR_OUT_OF_MEMORY : 0;
    if (e == 0) {
        struct standin_memory *m = standin_memory_add(kind, d->index, NULL, bytes);
        e = map_new(m, bytes);
        if (e == 0) {
            d->used += bytes;
            *p = m->at.base;
        } else {
            standin_memory_drop(m);
        }
    }
    pthread_mutex_unlock(&standin_lock);
    return e;
}

int standin_free(void *p) {
    int e = 0;
    if (!p)
        return 0;
    pthread_mutex_lock(&standin_lock);
    struct standin_memory *m = standin_memory_at(p);
    if (!m || m->at.base != p || (m->at.kind != STANDIN_DEVICE && m->at.kind != STANDIN_POOL))
        e = CUDA_ERROR_INVALID_VALUE;
    else if (m->busy)
        e = standin_rule(CUDA_ERROR_INVALID_VALUE, "buffer freed while in use by queued work",
                         "%u operations use the %zu bytes at %p", m->busy, m->at.bytes, p);
    else if (m->share && standin_importers(m->share))
        e = standin_rule(CUDA_ERROR_INVALID_VALUE, "memory freed before its importers closed it",
                         "%u processes have %p open", standin_importers(m->share), p);
    if (e == 0) {
        if (m->share)
            atomic_store(&m->share->freed, 1);
        standin_devices[m->at.device].used -= m->at.bytes;
        standin_memory_drop(m);
    }
    pthread_mutex_unlock(&standin_lock);
    return e;
}

static void free_now(void *arg) {
    (void)standin_free(*(void **)arg);
}

int standin_free_later(void *p, void *stream) {
    struct standin_range r;
    if (!standin_find(p, &r) || r.kind != STANDIN_POOL || r.base != p)
        return CUDA_ERROR_INVALID_VALUE;
    return standin_push(stream, standin_op_new(free_now, NULL, STANDIN_OP_WORK, &p, sizeof(p)));
}

/* Page-locked memory that the process owns lies in no file: no other process is to map it. */
int standin_host_alloc(void **p, size_t bytes, unsigned flags) {
    if (!p || flags & ~7u)
        return CUDA_ERROR_INVALID_VALUE;
    *p = NULL;
    if (bytes == 0)
        return 0;
    void *m = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&standin_lock);
    standin_memory_add(STANDIN_HOST, standin_current_device(), m, bytes)->flags = flags;
    pthread_mutex_unlock(&standin_lock);
    *p = m;
    return 0;
}

static int host_end(void *p, enum standin_kind kind, int otherwise) {
    int e = 0;
    pthread_mutex_lock(&standin_lock);
    struct standin_memory *m = standin_memory_at(p);
    if (!m || m->at.kind != kind || m->at.base != p)
        e = otherwise;
    else if (m->busy)
        e = standin_rule(CUDA_ERROR_INVALID_VALUE, "buffer freed while in use by queued work",
                         "%u operations use the %zu bytes of host memory at %p", m->busy, m->at.bytes, p);
    if (e == 0)
        standin_memory_drop(m);
    pthread_mutex_unlock(&standin_lock);
    return e;
}

int standin_host_free(void *p) {
    const int e = p ? host_end(p, STANDIN_HOST, CUDA_ERROR_INVALID_VALUE) : 0;
    if (e == 0)
        free(p);
    return e;
}

int standin_host_register(void *p, size_t bytes, unsigned flags) {
    int e = 0;
    if (!p || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    for (struct standin_memory *m = standin_memories; m; m = m->next)
        if ((char *)p < (char *)m->at.base + m->at.bytes && (char *)p + bytes > (char *)m->at.base)
            e = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (e == 0)
        standin_memory_add(STANDIN_REGISTERED, standin_current_device(), p, bytes)->flags = flags;
    pthread_mutex_unlock(&standin_lock);
    return e;
}

int standin_host_unregister(void *p) {
    return host_end(p, STANDIN_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

int standin_host_flags(void *p, unsigned *flags) {
    pthread_mutex_lock(&standin_lock);
    const struct standin_memory *m = standin_memory_at(p);
    const bool host = m && (m->at.kind == STANDIN_HOST || m->at.kind == STANDIN_REGISTERED);
    if (host)
        *flags = m->flags;
    pthread_mutex_unlock(&standin_lock);
    return host ? 0 : CUDA_ERROR_INVALID_VALUE;
}
