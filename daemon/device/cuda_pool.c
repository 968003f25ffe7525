/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a GPU that is the daemon's own.
 *
 * It is mapped at two addresses, so that one of them can be registered with NCCL and the other one not: NCCL wants both
 * ends of a message to be registered, or none, and finds by the address what is. Work that reads by one address what
 * was written by the other is launched when the writing has ended, which is what CUDA asks for. Without the driver's
 * calls for that the memory has one address, and is not registered.
 */
#include "daemon/device/cuda.h"

/* Memory that network cards reach, where the GPU has such. */
static CUresult create(const struct cuda_driver *driver, int ordinal, size_t bytes,
                       CUmemGenericAllocationHandle *handle) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}};
    prop.allocFlags.gpuDirectRDMACapable = 1;
    CUresult result = driver->mem_create(handle, bytes, &prop, 0);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    prop.allocFlags.gpuDirectRDMACapable = 0;
    return driver->mem_create(handle, bytes, &prop, 0);
}

static void unmap_at(const struct cuda_driver *driver, CUdeviceptr base, size_t bytes) {
    (void)driver->mem_unmap(base, bytes);
    (void)driver->mem_address_free(base, bytes);
}

/* 0: it cannot be mapped. */
static CUdeviceptr map_at(const struct cuda_driver *driver, CUmemGenericAllocationHandle handle, int ordinal,
                          size_t bytes) {
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base = 0;
    if (driver->mem_address_reserve(&base, bytes, 0, 0, 0) != CUDA_SUCCESS)
        return 0;
    if (driver->mem_map(base, bytes, 0, handle, 0) != CUDA_SUCCESS) {
        (void)driver->mem_address_free(base, bytes);
        return 0;
    }
    if (driver->mem_set_access(base, bytes, &access, 1) == CUDA_SUCCESS)
        return base;
    unmap_at(driver, base, bytes);
    return 0;
}

static bool map_twice(const struct cuda_driver *driver, struct cuda_mapping *m) {
    const int ordinal = m->gpu->ordinal;
    const size_t bytes = m->range.bytes;
    CUmemGenericAllocationHandle handle = 0;
    if (!driver->mem_create || create(driver, ordinal, bytes, &handle) != CUDA_SUCCESS)
        return false;
    CUdeviceptr base = map_at(driver, handle, ordinal, bytes),
                alias = base ? map_at(driver, handle, ordinal, bytes) : 0;
    (void)driver->mem_release(handle); /* the mappings keep it */
    if (base && !alias)
        unmap_at(driver, base, bytes);
    if (!alias)
        return false;
    m->range.base = (uint8_t *)(uintptr_t)base;
    m->alias = (uint8_t *)(uintptr_t)alias;
    return true;
}

zipcclResult_t cuda_pool_map(struct device *d, struct cuda_mapping *m, const char **why) {
    void *base = NULL;
    *why = "it is another GPU's";
    if (d->own && d->own != m->gpu)
        return zipcclInternalError;
    if (map_twice(&d->driver, m))
        return zipcclSuccess;
    cudaError_t e = cudaMalloc(&base, m->range.bytes);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        *why = cuda_gpu_check(m->gpu, e, "memory for its pool") ? m->gpu->why : cudaGetErrorString(e);
        return cuda_result(e);
    }
    m->range.base = base;
    return zipcclSuccess;
}

void cuda_pool_unmap(struct device *d, const struct cuda_mapping *m) {
    if (!m->alias) {
        if (cudaFree(m->range.base) != cudaSuccess)
            (void)cudaGetLastError();
        return;
    }
    unmap_at(&d->driver, (CUdeviceptr)(uintptr_t)m->alias, m->range.bytes);
    unmap_at(&d->driver, (CUdeviceptr)(uintptr_t)m->range.base, m->range.bytes);
}
