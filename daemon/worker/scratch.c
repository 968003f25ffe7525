/* SPDX-License-Identifier: Apache-2.0
 *
 * Scratch that the daemon, its fabric and all workers share: blocks of one memfd, which a worker maps, and pins for its
 * GPU, when a job there first touches them. Blocks that are given back are kept, by size class, as the host device
 * does.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/worker/supervisor.h"

#define KEEP_MAX ((size_t)512 << 20)
#define LEAST    ((size_t)1 << 30)

#ifndef MADV_POPULATE_WRITE
#    define MADV_POPULATE_WRITE 23
#endif

/* Addresses for twice the memory that there is: pages are taken as blocks are. */
bool scratch_open(struct device *d) {
    struct scratch *s = &d->scratch;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    s->bytes = pages > 0 && page > 0 ? 2 * (size_t)pages * (size_t)page : LEAST;
    s->bytes = s->bytes < LEAST ? LEAST : s->bytes;
    s->fd = memfd_create("zipccl-scratch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->fd < 0 || ftruncate(s->fd, (off_t)s->bytes) != 0 ||
        fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return false;
    void *base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, s->fd, 0);
    if (base == MAP_FAILED)
        return false;
    s->base = base;
    (void)madvise(base, s->bytes, MADV_HUGEPAGE);
    return extents_open(&s->gaps, s->bytes);
}

/* Its pages exist before it is used. */
static bool populate(uint8_t *ptr, size_t bytes) {
    if (madvise(ptr, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno == ENOMEM || errno == EHWPOISON)
        return false;
    for (size_t i = 0; i < bytes; i += 4096) /* kernels before 5.14 */
        *(volatile uint8_t *)(ptr + i) = 0;
    return true;
}

static void block_drop(struct device *d, struct memory *m) {
    struct scratch *s = &d->scratch;
    memory_untell(d, m);
    ranges_remove(&d->ranges, &m->range);
    (void)fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)m->offset, (off_t)m->range.bytes);
    /* A fabric that has registered the block looks for calls that unmap memory, and must see that its pages are gone.
     */
    if (mmap(m->range.base, m->range.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, s->fd,
             (off_t)m->offset) != MAP_FAILED)
        extents_give(&s->gaps, m->offset, m->range.bytes);
    free(m);
}

/* Whether a worker that was killed, and is not gone, may still write to it. */
static bool is_held(const struct device *d, const struct memory *m) {
    for (unsigned i = 0; i < d->nworkers; i++) {
        if (d->workers[i].state == WORKER_STUCK && m->known[i] == d->workers[i].generation)
            return true;
    }
    return false;
}

static struct memory *block_new(struct device *d, size_t bytes) {
    struct scratch *s = &d->scratch;
    struct memory *m = calloc(1, sizeof(*m));
    size_t offset = m ? extents_take(&s->gaps, bytes) : SIZE_MAX;
    if (offset == SIZE_MAX) {
        free(m);
        return NULL;
    }
    *m = (struct memory){
        .range = {s->base + offset, bytes}, .kind = DEVICE_MEMORY_HOST, .scratch = true, .offset = offset, .fd = s->fd};
    if (populate(m->range.base, bytes) && ranges_add(&d->ranges, &m->range))
        return m;
    block_drop(d, m);
    return NULL;
}

static void drain(struct device *d) {
    struct scratch *s = &d->scratch;
    for (unsigned i = 0; i < HOST_SIZE_CLASSES; i++) {
        while (s->free[i]) {
            struct memory *m = s->free[i];
            s->free[i] = m->next;
            block_drop(d, m);
        }
    }
    s->kept_bytes = 0;
}

void *workers_alloc(struct device *d, size_t bytes) {
    struct scratch *s = &d->scratch;
    unsigned index;
    if (bytes > SIZE_MAX / 4)
        return NULL;
    size_t size = host_class_size(bytes, &index);
    struct memory *m = s->free[index];
    if (m) {
        s->free[index] = m->next;
        s->kept_bytes -= size;
        return m->range.base;
    }
    /* Of other sizes too much may be kept; a new size then takes its place. */
    if (s->kept_bytes > KEEP_MAX / 2)
        drain(d);
    m = block_new(d, size);
    return m ? m->range.base : NULL;
}

void workers_free(struct device *d, void *ptr, size_t bytes) {
    struct scratch *s = &d->scratch;
    unsigned index;
    size_t size = host_class_size(bytes, &index);
    struct memory *m = ptr ? memory_of(d, ptr) : NULL;
    if (m && m->slab) {
        pool_free(d, m, ptr, bytes);
        return;
    }
    if (!m || !m->scratch)
        return;
    if (is_held(d, m)) {
        m->next = s->held;
        s->held = m;
        return;
    }
    if (s->kept_bytes + size > KEEP_MAX) {
        block_drop(d, m);
        return;
    }
    m->next = s->free[index];
    s->free[index] = m;
    s->kept_bytes += size;
}

void scratch_release(struct device *d) {
    struct memory *held = d->scratch.held, *m;
    d->scratch.held = NULL;
    while ((m = held) != NULL) {
        held = m->next;
        workers_free(d, m->range.base, m->range.bytes);
    }
}

void scratch_close(struct device *d) {
    struct scratch *s = &d->scratch;
    drain(d);
    scratch_release(d);
    drain(d);
    if (s->base)
        munmap(s->base, s->bytes);
    if (s->fd >= 0)
        close(s->fd);
    extents_close(&s->gaps);
    *s = (struct scratch){.fd = -1};
}
