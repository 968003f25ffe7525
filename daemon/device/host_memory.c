/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the host device: clients' memfds mapped here, and a pool of scratch.
 * A page fault costs as much as copying the page many times over, so everything is faulted in before use and scratch is
 * kept when it is given back.
 */
#include "daemon/device/host.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE      ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
#define KEEP_MAX  ((size_t)512 << 20) /* scratch kept for reuse */

#ifndef MADV_POPULATE_WRITE
#    define MADV_POPULATE_WRITE 23
#endif

zipcclResult_t host_import(struct device *device, const struct device_import *import, struct device_memory *out,
                           const char **why) {
    const int fd = import->fd;
    const size_t bytes = import->bytes;
    (void)device;
    struct stat st;
    *why = NULL;
    *out = (struct device_memory){0};
    if (import->kind != DEVICE_MEMORY_HOST) {
        *why = "this zipccld has no GPU, and cannot use its memory";
        return zipcclInvalidUsage;
    }
    if (bytes == 0) {
        *why = "buffer of no bytes";
        return zipcclInvalidArgument;
    }
    /* A file that could shrink would fault us later, whatever its size now. */
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
        *why = "descriptor is not a memfd";
        return zipcclInvalidArgument;
    }
    if (!(seals & F_SEAL_SHRINK)) {
        *why = "memfd is not sealed against shrinking";
        return zipcclInvalidArgument;
    }
    if (fstat(fd, &st) != 0 || st.st_size < 0 || import->offset > (uint64_t)st.st_size ||
        (uint64_t)st.st_size - import->offset < bytes) {
        *why = "memfd is smaller than the buffer";
        return zipcclInvalidArgument;
    }
    /* Mapped whole where its pages exist. A sparse one would be allocated here, on the loop thread and on this daemon's
     * account: its pages come as they are used. */
    int populate = (uint64_t)st.st_blocks * 512 >= bytes ? MAP_POPULATE : 0;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | populate, fd, (off_t)import->offset);
    if (base == MAP_FAILED) {
        *why = errno == EPERM || errno == EACCES ? "memfd is not writable" : "memory cannot be mapped";
        return errno == ENOMEM                     ? zipcclOutOfMemory
               : errno == EPERM || errno == EACCES ? zipcclInvalidArgument
                                                   : zipcclSystemError;
    }
    out->base = base;
    out->bytes = bytes;
    return zipcclSuccess;
}

bool host_release(struct device *device, struct device_memory *memory, struct device_call *call) {
    (void)device, (void)call;
    if (memory->base)
        munmap(memory->base, memory->bytes);
    *memory = (struct device_memory){0};
    return true;
}

/* Eight classes an octave, so that at most an eighth is wasted. Class 0: one page. */
size_t host_class_size(size_t bytes, unsigned *index) {
    size_t pages = bytes ? (bytes + PAGE - 1) / PAGE : 1;
    unsigned shift = 0;
    while (((pages - 1) >> shift) >= 16)
        shift++;
    size_t rounded = ((pages - 1) >> shift) + 1; /* 1..16 in units of 2^shift pages; 9..16 where shift > 0 */
    *index = shift * 8 + (unsigned)rounded - 1;
    return (rounded << shift) * PAGE;
}

static void *map_scratch(size_t bytes) {
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE, room = bytes + align - PAGE;
    uint8_t *base = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    uint8_t *ptr = (uint8_t *)(((uintptr_t)base + align - 1) & ~(uintptr_t)(align - 1));
    if (ptr > base)
        munmap(base, (size_t)(ptr - base));
    if (base + room > ptr + bytes)
        munmap(ptr + bytes, (size_t)(base + room - (ptr + bytes)));
    if (align == HUGE_PAGE)
        madvise(ptr, bytes, MADV_HUGEPAGE);
    if (madvise(ptr, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == ENOMEM || errno == EHWPOISON) {
            munmap(ptr, bytes);
            return NULL;
        }
        for (size_t i = 0; i < bytes; i += PAGE) /* kernels before 5.14 */
            *(volatile uint8_t *)(ptr + i) = 0;
    }
    return ptr;
}

void *host_pool_alloc(struct host_pool *pool, size_t bytes) {
    if (bytes > SIZE_MAX / 4)
        return NULL;
    unsigned index;
    size_t size = host_class_size(bytes, &index);
    struct host_block *block = pool->free[index];
    if (block) {
        pool->free[index] = block->next;
        pool->kept_bytes -= size;
        return block;
    }
    /* Of other sizes too much may be kept; a new size then takes its place. */
    if (pool->kept_bytes > KEEP_MAX / 2)
        host_pool_drain(pool);
    void *ptr = map_scratch(size);
    if (ptr && pool->pin && !pool->pin(ptr, size)) {
        munmap(ptr, size);
        return NULL;
    }
    return ptr;
}

static void unmap(struct host_pool *pool, void *ptr, size_t size) {
    if (pool->unpin)
        pool->unpin(ptr);
    munmap(ptr, size);
}

void host_pool_free(struct host_pool *pool, void *ptr, size_t bytes) {
    if (!ptr)
        return;
    unsigned index;
    size_t size = host_class_size(bytes, &index);
    if (pool->kept_bytes + size > KEEP_MAX) {
        unmap(pool, ptr, size);
        return;
    }
    struct host_block *block = ptr;
    block->next = pool->free[index];
    pool->free[index] = block;
    pool->kept_bytes += size;
}

void host_pool_drain(struct host_pool *pool) {
    for (unsigned i = 0; i < HOST_SIZE_CLASSES; i++) {
        size_t size = (size_t)(i < 16 ? i + 1 : i % 8 + 9) * PAGE << (i < 16 ? 0 : i / 8 - 1);
        while (pool->free[i]) {
            struct host_block *block = pool->free[i];
            pool->free[i] = block->next;
            unmap(pool, block, size);
        }
    }
    pool->kept_bytes = 0;
}
