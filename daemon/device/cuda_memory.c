/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of clients: each allocation is mapped once, however often it is registered, and unmapped with its last use.
 *
 * An IPC handle is no name: one allocation can have several, and an address may come back with other memory behind it.
 * So the key is the process (pid and start time), the GPU and the allocation's id. What a client says of sizes is
 * checked against what the driver says of the mapping.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/device/cuda.h"

struct cuda_mapping *cuda_mapping_of(const struct device *d, const void *ptr) {
    return (struct cuda_mapping *)ranges_find(&d->ranges, ptr);
}

bool cuda_pin(void *ptr, size_t bytes) {
    if (cudaHostRegister(ptr, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return false;
}

void cuda_unpin(void *ptr) {
    if (cudaHostUnregister(ptr) != cudaSuccess)
        (void)cudaGetLastError();
}

/* Pinning takes all pages of a client's memory at once, and most host memory never meets a GPU: so not before it does.
 */
bool cuda_reach(struct device *d, const void *ptr) {
    struct cuda_mapping *m = cuda_mapping_of(d, ptr);
    if (!m || m->gpu || m->pinned)
        return true;
    m->pinned = cuda_pin(m->range.base, m->range.bytes);
    return m->pinned;
}

/* The whole allocation, and nothing but its beginning. */
static bool right_size(const struct device *d, const struct cuda_mapping *m) {
    CUdeviceptr base = 0;
    size_t size = 0;
    return d->driver.mem_get_address_range(&base, &size, (CUdeviceptr)(uintptr_t)m->range.base) == CUDA_SUCCESS &&
           base == (CUdeviceptr)(uintptr_t)m->range.base && size >= m->range.bytes;
}

static zipcclResult_t map_ipc(struct device *d, struct cuda_mapping *m, const uint8_t *bytes, const char **why) {
    cudaIpcMemHandle_t handle;
    void *base = NULL;
    _Static_assert(sizeof(handle) == DEVICE_IPC_BYTES, "size of an IPC handle");
    memcpy(&handle, bytes, sizeof(handle));
    cudaError_t e = cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        *why = cuda_gpu_check(m->mapped_on, e, "opening an IPC handle") ? m->mapped_on->why : cudaGetErrorString(e);
        return cuda_result(e);
    }
    m->range.base = base;
    if (right_size(d, m))
        return zipcclSuccess;
    (void)cudaIpcCloseMemHandle(base);
    m->range.base = NULL;
    *why = "the allocation is smaller than the buffer";
    return zipcclInvalidArgument;
}

static zipcclResult_t map_vmm(struct device *d, struct cuda_mapping *m, int fd, const char **why) {
    const struct cuda_driver *driver = &d->driver;
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = m->mapped_on->ordinal},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    *why = "the driver cannot import memory by descriptor";
    if (!driver->has_vmm)
        return zipcclInvalidUsage;
    *why = "the descriptor is of no GPU memory";
    if (driver->mem_import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS)
        return zipcclInvalidArgument;
    *why = "GPU memory cannot be mapped: is it smaller than the buffer?";
    bool reserved = driver->mem_address_reserve(&base, m->range.bytes, 0, 0, 0) == CUDA_SUCCESS;
    bool mapped = reserved && driver->mem_map(base, m->range.bytes, 0, handle, 0) == CUDA_SUCCESS;
    bool good = mapped && driver->mem_set_access(base, m->range.bytes, &access, 1) == CUDA_SUCCESS;
    (void)driver->mem_release(handle); /* the mapping keeps it */
    if (good) {
        m->range.base = (uint8_t *)(uintptr_t)base;
        return zipcclSuccess;
    }
    if (mapped)
        (void)driver->mem_unmap(base, m->range.bytes);
    if (reserved)
        (void)driver->mem_address_free(base, m->range.bytes);
    return zipcclInvalidArgument;
}

static void unmap(struct device *d, struct cuda_mapping *m) {
    if (!m->range.base)
        return;
    if (m->kind == DEVICE_MEMORY_HOST) {
        if (m->pinned)
            cuda_unpin(m->range.base);
        (void)host_release(d->host, &m->host, NULL);
        return;
    }
    if (atomic_load(&m->mapped_on->failed)) /* its context is gone, and all that it mapped */
        return;
    (void)cudaSetDevice(m->mapped_on->ordinal);
    if (m->kind == DEVICE_MEMORY_CUDA_OWN) {
        cuda_pool_unmap(d, m);
        return;
    }
    if (m->kind == DEVICE_MEMORY_CUDA_IPC) {
        if (cudaIpcCloseMemHandle(m->range.base) != cudaSuccess)
            (void)cudaGetLastError();
        return;
    }
    (void)d->driver.mem_unmap((CUdeviceptr)(uintptr_t)m->range.base, m->range.bytes);
    (void)d->driver.mem_address_free((CUdeviceptr)(uintptr_t)m->range.base, m->range.bytes);
}

static void drop(struct device *d, struct cuda_mapping *m) {
    for (struct cuda_mapping **p = &d->mappings; *p; p = &(*p)->next) {
        if (*p == m) {
            *p = m->next;
            break;
        }
    }
    if (m->range.base)
        ranges_remove(&d->ranges, &m->range);
    unmap(d, m);
    free(m);
}

static struct cuda_mapping *find(const struct device *d, const struct device_import *in, const struct cuda_gpu *gpu) {
    if (in->kind == DEVICE_MEMORY_HOST || in->kind == DEVICE_MEMORY_CUDA_OWN || in->process_start == 0)
        return NULL;
    for (struct cuda_mapping *m = d->mappings; m; m = m->next) {
        if (m->kind == in->kind && m->pid == in->pid && m->process_start == in->process_start && m->id == in->id &&
            m->gpu == gpu && m->range.bytes == in->bytes)
            return m;
    }
    return NULL;
}

static zipcclResult_t map_gpu(struct device *d, struct cuda_mapping *m, const struct device_import *in,
                              const char **why) {
    switch (in->kind) {
    case DEVICE_MEMORY_CUDA_IPC:
        return map_ipc(d, m, in->handle, why);
    case DEVICE_MEMORY_CUDA_OWN:
        return cuda_pool_map(d, m, why);
    default:
        return map_vmm(d, m, in->fd, why);
    }
}

static zipcclResult_t map(struct device *d, struct cuda_mapping *m, const struct device_import *in, const char **why) {
    if (in->kind == DEVICE_MEMORY_HOST) {
        zipcclResult_t result = host_import(d->host, in, &m->host, why);
        m->range.base = m->host.base;
        return result;
    }
    /* Of another GPU than the own one: as its peer. Where they are none, in a context on that GPU, from where copies go
     * by way of the host. */
    m->mapped_on = d->own ? d->own : m->gpu;
    zipcclResult_t result = cuda_gpu_ready(m->mapped_on, why);
    if (result == zipcclSuccess)
        result = map_gpu(d, m, in, why);
    if (result == zipcclSuccess || m->mapped_on == m->gpu || atomic_load(&m->mapped_on->failed))
        return result;
    m->mapped_on = m->gpu;
    if (cudaSetDevice(m->gpu->ordinal) == cudaSuccess)
        return map_gpu(d, m, in, why);
    (void)cudaGetLastError();
    return result;
}

zipcclResult_t cuda_import(struct device *d, const struct device_import *in, struct device_memory *out,
                           const char **why) {
    struct cuda_gpu *gpu = NULL;
    *out = (struct device_memory){0};
    if (in->kind != DEVICE_MEMORY_HOST && !(gpu = cuda_gpu_of_uuid(d, in->uuid))) {
        *why = "zipccld does not see that GPU (CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES of its unit or container)";
        return zipcclInvalidArgument;
    }
    struct cuda_mapping *m = find(d, in, gpu);
    if (!m) {
        m = calloc(1, sizeof(*m));
        *why = "no memory";
        if (!m)
            return zipcclOutOfMemory;
        m->kind = in->kind;
        m->pid = in->pid;
        m->process_start = in->process_start;
        m->id = in->id;
        m->gpu = gpu;
        m->range.bytes = in->bytes;
        m->next = d->mappings;
        d->mappings = m;
        zipcclResult_t result = map(d, m, in, why);
        if (result == zipcclSuccess && !ranges_add(&d->ranges, &m->range)) {
            *why = "no memory";
            result = zipcclOutOfMemory;
        }
        if (result != zipcclSuccess) {
            drop(d, m);
            return result;
        }
    }
    m->refs++;
    *out = (struct device_memory){
        .base = m->range.base, .bytes = m->range.bytes, .alias = m->alias, .on_gpu = gpu != NULL, .own = m};
    return zipcclSuccess;
}

bool cuda_release(struct device *d, struct device_memory *memory, struct device_call *call) {
    (void)call;
    struct cuda_mapping *m = memory->own;
    *memory = (struct device_memory){0};
    if (m && --m->refs == 0)
        drop(d, m);
    return true;
}

void cuda_mappings_free(struct device *d) {
    while (d->mappings)
        drop(d, d->mappings);
    ranges_free(&d->ranges);
}
