/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles of memory and events between processes: 64 bytes that name a descriptor of the exporter, opened through
 * /proc. Whatever a handle says is checked; a stale or forged one is an error.
 */
#include "event.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE         4096ul
#define MEMORY_MAGIC 0x4d656d5au
#define EVENT_MAGIC  0x4576745au

struct handle {
    uint32_t magic;
    int32_t pid;
    uint64_t start; /* of the process */
    uint64_t inode;
    int32_t fd;
    int32_t device;                /* its number in the machine */
    uint64_t bytes;                /* of memory */
    uint32_t index, serial, flags; /* of an event */
    uint32_t reserved[3];
};
_Static_assert(sizeof(struct handle) == 64, "CUDA's handles have 64 bytes");

static struct standin_pool *g_pools; /* of other processes */

static uint64_t inode_of(int fd) {
    struct stat s;
    return fstat(fd, &s) == 0 ? s.st_ino : 0;
}

int standin_open_fd(pid_t pid, uint64_t start, int fd, uint64_t inode) {
    char path[64];
    if (standin_start_time(pid) != start)
        return -1;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
    const int copy = open(path, O_RDWR | O_CLOEXEC);
    if (copy >= 0 && inode_of(copy) != inode) {
        close(copy);
        return -1;
    }
    return copy;
}

static int device_of(int number) {
    for (int i = 0; i < standin_device_count(); i++)
        if (standin_devices[i].number == number)
            return i;
    return -1;
}

/* ---- memory ---- */

unsigned standin_importers(struct standin_share *share) {
    unsigned n = 0;
    for (unsigned i = 0; i < sizeof(share->importers) / sizeof(share->importers[0]); i++) {
        int pid = atomic_load(&share->importers[i].pid);
        if (pid && standin_start_time(pid) == atomic_load(&share->importers[i].start))
            n++;
        else if (pid)
            atomic_compare_exchange_strong(&share->importers[i].pid, &pid, 0);
    }
    return n;
}

static void importer_set(struct standin_share *share, bool in) {
    const int self = getpid();
    if (in)
        (void)standin_importers(share); /* strikes off the dead */
    for (unsigned i = 0; i < sizeof(share->importers) / sizeof(share->importers[0]); i++) {
        int expected = in ? 0 : self;
        if (atomic_compare_exchange_strong(&share->importers[i].pid, &expected, in ? self : 0)) {
            if (in)
                atomic_store(&share->importers[i].start, standin_start_time(self));
            return;
        }
    }
}

static int share_open(struct standin_memory *m) {
    if (m->share)
        return 0;
    void *s = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, (off_t)m->mapped);
    if (s == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->share = s;
    return 0;
}

int standin_export_memory(void *handle64, void *p) {
    struct handle h = {.magic = MEMORY_MAGIC, .pid = getpid(), .start = standin_start_time(getpid())};
    pthread_mutex_lock(&standin_lock);
    struct standin_memory *m = standin_memory_at(p);
    int e = !handle64 || !m || m->at.kind != STANDIN_DEVICE ? CUDA_ERROR_INVALID_VALUE : share_open(m);
    if (e == 0) {
        h.fd = m->fd;
        h.inode = m->inode;
        h.bytes = m->at.bytes;
        h.device = standin_devices[m->at.device].number;
        memcpy(handle64, &h, sizeof(h));
    }
    pthread_mutex_unlock(&standin_lock);
    return e;
}

static int import_map(struct standin_memory *m, const struct handle *h, int fd) {
    struct stat s;
    void *at = standin_reserve(m, h->bytes);
    m->fd = fd;
    m->inode = h->inode;
    if (fstat(fd, &s) != 0 || (uint64_t)s.st_size != m->mapped + PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!at || mmap(standin_view(at), m->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->at.base = at;
    const int e = share_open(m);
    if (e)
        return e;
    if (atomic_load(&m->share->freed))
        return CUDA_ERROR_INVALID_VALUE;
    importer_set(m->share, true);
    return 0;
}

static int import_new(void **p, const struct handle *h) {
    const int fd = standin_open_fd(h->pid, h->start, h->fd, h->inode), device = device_of(h->device);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct standin_memory *m =
        standin_memory_add(STANDIN_IMPORT, device < 0 ? standin_current_device() : device, NULL, h->bytes);
    const int e = import_map(m, h, fd);
    if (e) {
        standin_memory_drop(m);
        return e;
    }
    m->refs = 1;
    *p = m->at.base;
    return 0;
}

int standin_import_memory(void **p, const void *handle64) {
    struct handle h;
    memcpy(&h, handle64, sizeof(h));
    if (h.magic != MEMORY_MAGIC || h.bytes == 0 || h.bytes > 1ull << 46)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.pid == getpid())
        return standin_rule(CUDA_ERROR_INVALID_CONTEXT, "handle opened by its exporter", "of %llu bytes",
                            (unsigned long long)h.bytes);
    pthread_mutex_lock(&standin_lock);
    struct standin_memory *m = standin_memories;
    while (m && !(m->at.kind == STANDIN_IMPORT && m->inode == h.inode && m->at.bytes == h.bytes))
        m = m->next;
    int e = 0;
    if (m) { /* the second open of a context gives the same address */
        m->refs++;
        *p = m->at.base;
    } else {
        e = import_new(p, &h);
    }
    pthread_mutex_unlock(&standin_lock);
    return e;
}

int standin_close_memory(void *p) {
    int e = 0;
    pthread_mutex_lock(&standin_lock);
    struct standin_memory *m = standin_memory_at(p);
    if (!m || m->at.kind != STANDIN_IMPORT || m->at.base != p)
        e = CUDA_ERROR_INVALID_VALUE;
    else if (m->refs == 1 && m->busy)
        e = standin_rule(CUDA_ERROR_INVALID_VALUE, "buffer freed while in use by queued work",
                         "%u operations use the imported %zu bytes at %p", m->busy, m->at.bytes, p);
    if (e == 0 && --m->refs == 0) {
        importer_set(m->share, false);
        standin_memory_drop(m);
    }
    pthread_mutex_unlock(&standin_lock);
    return e;
}

/* ---- events ---- */

int standin_export_event(void *handle64, void *event) {
    struct handle h = {.magic = EVENT_MAGIC, .pid = getpid(), .start = standin_start_time(getpid())};
    pthread_mutex_lock(&standin_lock);
    const struct CUevent_st *e = standin_event_at(event);
    const bool good = handle64 && e && e->pool == &standin_pool && (e->flags & cudaEventInterprocess);
    if (good) {
        h.fd = standin_pool.fd;
        h.inode = inode_of(h.fd);
        h.index = (uint32_t)(e->slot - standin_pool.slots);
        h.serial = e->serial;
        h.flags = e->flags;
        h.device = standin_devices[e->device].number;
        memcpy(handle64, &h, sizeof(h));
    }
    pthread_mutex_unlock(&standin_lock);
    return good ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

/* Under the lock. */
static struct standin_pool *pool_get(const struct handle *h) {
    struct stat s;
    for (struct standin_pool *p = g_pools; p; p = p->next)
        if (p->pid == h->pid && p->start == h->start) {
            p->refs++;
            return p;
        }
    const int fd = standin_open_fd(h->pid, h->start, h->fd, h->inode);
    if (fd < 0)
        return NULL;
    void *m = fstat(fd, &s) == 0 && s.st_size == (off_t)STANDIN_POOL_BYTES
                  ? mmap(NULL, STANDIN_POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                  : MAP_FAILED;
    close(fd);
    if (m == MAP_FAILED)
        return NULL;
    struct standin_pool *p = calloc(1, sizeof(*p));
    if (!p)
        abort();
    *p = (struct standin_pool){.next = g_pools, .slots = m, .fd = -1, .pid = h->pid, .start = h->start, .refs = 1};
    g_pools = p;
    return p;
}

void standin_pool_drop(struct standin_pool *pool) {
    struct standin_pool **p = &g_pools;
    if (--pool->refs)
        return;
    while (*p != pool)
        p = &(*p)->next;
    *p = pool->next;
    munmap(pool->slots, STANDIN_POOL_BYTES);
    free(pool);
}

int standin_import_event(void **event, const void *handle64) {
    struct handle h;
    memcpy(&h, handle64, sizeof(h));
    if (!event || h.magic != EVENT_MAGIC || h.index >= STANDIN_SLOTS)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.pid == getpid())
        return standin_rule(CUDA_ERROR_INVALID_CONTEXT, "handle opened by its exporter", "of event slot %u", h.index);
    int e = CUDA_ERROR_MAP_FAILED;
    const int device = device_of(h.device);
    pthread_mutex_lock(&standin_lock);
    struct standin_pool *pool = pool_get(&h);
    if (pool && atomic_load(&pool->slots[h.index].serial) != h.serial) {
        e = standin_rule(CUDA_ERROR_INVALID_HANDLE, "event opened after its exporter destroyed it",
                         "slot %u of process %d", h.index, (int)h.pid);
        standin_pool_drop(pool);
    } else if (pool) {
        *event = standin_event_make(pool, h.index, device < 0 ? standin_current_device() : device, h.flags);
        e = 0;
    }
    pthread_mutex_unlock(&standin_lock);
    return e;
}
