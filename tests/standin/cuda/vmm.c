/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's virtual memory management: allocations as memfds that travel as descriptors, ranges of addresses,
 * mappings. A mapping is not to be touched before cuMemSetAccess.
 */
#include "core.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULE (2 * STANDIN_MIB)
#define NAME    "standin-vmm"

struct allocation {
    struct allocation *next;
    int fd, device;
    size_t bytes;
    bool imported, exportable;
    unsigned refs; /* handles and mappings */
};
struct reserved {
    struct reserved *next;
    char *base, *mapping;
    size_t bytes, mapping_bytes;
};
struct mapping {
    struct mapping *next;
    struct standin_memory *memory;
    struct allocation *of;
};
static struct allocation *g_allocations;
static struct reserved *g_reserved;
static struct mapping *g_mappings;

#define BEGIN(call) STANDIN_DRIVER_ENTER(call, false)

static struct allocation *allocation_at(CUmemGenericAllocationHandle handle) {
    for (struct allocation *a = g_allocations; a; a = a->next)
        if ((uintptr_t)a == handle)
            return a;
    return NULL;
}

static void allocation_unref(struct allocation *a) {
    struct allocation **p = &g_allocations;
    if (--a->refs)
        return;
    while (*p != a)
        p = &(*p)->next;
    *p = a->next;
    if (!a->imported)
        standin_devices[a->device].used -= a->bytes;
    close(a->fd);
    free(a);
}

static struct allocation *allocation_add(int fd, int device, size_t bytes) {
    struct allocation *a = calloc(1, sizeof(*a));
    if (!a)
        abort();
    *a = (struct allocation){.next = g_allocations, .fd = fd, .device = device, .bytes = bytes, .refs = 1};
    g_allocations = a;
    return a;
}

static bool prop_good(const CUmemAllocationProp *p) {
    return p && p->type == CU_MEM_ALLOCATION_TYPE_PINNED && p->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           p->location.id >= 0 && p->location.id < standin_device_count();
}

STANDIN_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                                      CUmemAllocationGranularity_flags option) {
    BEGIN("cuMemGetAllocationGranularity");
    (void)option;
    if (!granularity || !prop_good(prop))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULE;
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                                    unsigned long long flags) {
    BEGIN("cuMemCreate");
    if (!handle || !prop_good(prop) || flags || size == 0 || size % GRANULE)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct CUctx_st *d = &standin_devices[prop->location.id];
    pthread_mutex_lock(&standin_lock);
    const int fd = size <= d->total - d->used ? memfd_create(NAME, MFD_CLOEXEC) : -1;
    if (fd >= 0 && ftruncate(fd, (off_t)size) == 0) {
        struct allocation *a = allocation_add(fd, d->index, size);
        a->exportable = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        d->used += size;
        *handle = (uintptr_t)a;
    } else {
        if (fd >= 0)
            close(fd);
        e = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&standin_lock);
    return (CUresult)e;
}

STANDIN_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    BEGIN("cuMemRelease");
    pthread_mutex_lock(&standin_lock);
    struct allocation *a = allocation_at(handle);
    if (a)
        allocation_unref(a);
    pthread_mutex_unlock(&standin_lock);
    return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STANDIN_EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                                     CUmemAllocationHandleType type, unsigned long long flags) {
    BEGIN("cuMemExportToShareableHandle");
    pthread_mutex_lock(&standin_lock);
    const struct allocation *a = allocation_at(handle);
    if (!shareable || !a || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !a->exportable)
        e = CUDA_ERROR_INVALID_VALUE;
    else
        *(int *)shareable = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
    if (e == 0 && *(int *)shareable < 0)
        e = CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_unlock(&standin_lock);
    return (CUresult)e;
}

/* A descriptor from anywhere: it must be of our making. */
static bool fd_ours(int fd, size_t *bytes) {
    char path[48], target[64];
    struct stat s;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(path, target, sizeof(target) - 1);
    if (n < 0 || fstat(fd, &s) != 0 || s.st_size <= 0 || (size_t)s.st_size % GRANULE)
        return false;
    target[n] = 0;
    *bytes = (size_t)s.st_size;
    return strncmp(target, "/memfd:" NAME, strlen("/memfd:" NAME)) == 0;
}

STANDIN_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                                       CUmemAllocationHandleType type) {
    BEGIN("cuMemImportFromShareableHandle");
    size_t bytes;
    const int fd = (int)(intptr_t)os_handle;
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !fd_ours(fd, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&standin_lock);
    struct allocation *a = allocation_add(own, standin_current_device(), bytes);
    a->imported = a->exportable = true;
    *handle = (uintptr_t)a;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

/* ---- addresses ---- */

static bool reserve(struct reserved *r, size_t align) {
    if (standin_window.bytes) {
        r->base = standin_window_take(r->bytes, align);
        return r->base;
    }
    r->mapping_bytes = r->bytes + align;
    r->mapping = mmap(NULL, r->mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->mapping == MAP_FAILED)
        return false;
    r->base = (char *)(((uintptr_t)r->mapping + align - 1) / align * align);
    return true;
}

STANDIN_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                            unsigned long long flags) {
    BEGIN("cuMemAddressReserve");
    (void)addr; /* a wish */
    if (!ptr || flags || size == 0 || size % GRANULE || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    const size_t align = alignment > GRANULE ? alignment : GRANULE;
    struct reserved *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    r->bytes = size;
    pthread_mutex_lock(&standin_lock);
    if (!reserve(r, align)) {
        pthread_mutex_unlock(&standin_lock);
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    r->next = g_reserved;
    g_reserved = r;
    pthread_mutex_unlock(&standin_lock);
    *ptr = (uintptr_t)r->base;
    return CUDA_SUCCESS;
}

static struct mapping *mapping_in(CUdeviceptr ptr, size_t size) {
    for (struct mapping *m = g_mappings; m; m = m->next)
        if ((uintptr_t)m->memory->at.base < ptr + size && (uintptr_t)m->memory->at.base + m->memory->at.bytes > ptr)
            return m;
    return NULL;
}

static bool is_reserved(CUdeviceptr ptr, size_t size) {
    for (const struct reserved *r = g_reserved; r; r = r->next)
        if (ptr >= (uintptr_t)r->base && size <= r->bytes && ptr - (uintptr_t)r->base <= r->bytes - size)
            return true;
    return false;
}

STANDIN_EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    BEGIN("cuMemAddressFree");
    pthread_mutex_lock(&standin_lock);
    struct reserved **p = &g_reserved, *r;
    while (*p && (*p)->base != (char *)ptr)
        p = &(*p)->next;
    r = *p;
    if (!r || r->bytes != size || mapping_in(ptr, size)) {
        e = CUDA_ERROR_INVALID_VALUE;
    } else {
        *p = r->next;
        if (r->mapping)
            munmap(r->mapping, r->mapping_bytes);
        free(r);
    }
    pthread_mutex_unlock(&standin_lock);
    return (CUresult)e;
}

STANDIN_EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                                 unsigned long long flags) {
    BEGIN("cuMemMap");
    pthread_mutex_lock(&standin_lock);
    struct allocation *a = allocation_at(handle);
    struct mapping *m = NULL;
    if (!a || flags || offset || size == 0 || size % GRANULE || size > a->bytes || ptr % GRANULE ||
        !is_reserved(ptr, size) || mapping_in(ptr, size))
        e = CUDA_ERROR_INVALID_VALUE;
    else if (mmap(standin_view((void *)ptr), size, PROT_NONE, MAP_SHARED | MAP_FIXED, a->fd, 0) == MAP_FAILED)
        e = CUDA_ERROR_OUT_OF_MEMORY;
    if (e == 0) {
        m = calloc(1, sizeof(*m));
        if (!m)
            abort();
        m->memory = standin_memory_add(STANDIN_VMM, a->device, (void *)ptr, size);
        m->memory->flags = a->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
        m->of = a;
        m->next = g_mappings;
        g_mappings = m;
        a->refs++;
    }
    pthread_mutex_unlock(&standin_lock);
    return (CUresult)e;
}

STANDIN_EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    BEGIN("cuMemSetAccess");
    pthread_mutex_lock(&standin_lock);
    if (!desc || count == 0 || !is_reserved(ptr, size))
        e = CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; e == 0 && at < size; at += GRANULE)
        if (!mapping_in(ptr + at, 1))
            e = CUDA_ERROR_INVALID_VALUE;
    const int protection = e || desc->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? PROT_NONE
                           : desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                             : PROT_READ | PROT_WRITE;
    if (e == 0 && mprotect(standin_view((void *)ptr), size, protection) != 0)
        e = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&standin_lock);
    return (CUresult)e;
}

static void unmap(struct mapping *m) {
    struct mapping **p = &g_mappings;
    while (*p != m)
        p = &(*p)->next;
    *p = m->next;
    if (mmap(standin_view(m->memory->at.base), m->memory->at.bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
    standin_memory_drop(m->memory);
    allocation_unref(m->of);
    free(m);
}

STANDIN_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    BEGIN("cuMemUnmap");
    struct mapping *m;
    pthread_mutex_lock(&standin_lock);
    if (!mapping_in(ptr, size))
        e = CUDA_ERROR_INVALID_VALUE;
    for (m = g_mappings; m && e == 0; m = m->next) {
        const uintptr_t base = (uintptr_t)m->memory->at.base, end = base + m->memory->at.bytes;
        if (base < ptr + size && end > ptr && (base < ptr || end > ptr + size))
            e = CUDA_ERROR_INVALID_VALUE; /* a part of a mapping */
        else if (base < ptr + size && end > ptr && m->memory->busy)
            e = standin_rule(CUDA_ERROR_INVALID_VALUE, "buffer freed while in use by queued work",
                             "%u operations use the mapped %zu bytes at %p", m->memory->busy, m->memory->at.bytes,
                             m->memory->at.base);
    }
    while (e == 0 && (m = mapping_in(ptr, size)))
        unmap(m);
    pthread_mutex_unlock(&standin_lock);
    return (CUresult)e;
}

STANDIN_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    BEGIN("cuMemRetainAllocationHandle");
    pthread_mutex_lock(&standin_lock);
    const struct mapping *m = mapping_in((uintptr_t)addr, 1);
    if (m && handle) {
        m->of->refs++;
        *handle = (uintptr_t)m->of;
    } else {
        e = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&standin_lock);
    return (CUresult)e;
}

STANDIN_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                               CUmemGenericAllocationHandle handle) {
    BEGIN("cuMemGetAllocationPropertiesFromHandle");
    pthread_mutex_lock(&standin_lock);
    const struct allocation *a = allocation_at(handle);
    if (a && prop) {
        memset(prop, 0, sizeof(*prop));
        prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop->location.id = a->device;
        prop->requestedHandleTypes = a->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    } else {
        e = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&standin_lock);
    return (CUresult)e;
}
