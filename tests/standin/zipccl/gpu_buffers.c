/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_buffers.h"

#include <cuda.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VMM_STEP ((size_t)2 << 20)

void gpu_ok(const char *file, int line, const char *what, cudaError_t e) {
    if (e != cudaSuccess)
        e2e_fail(file, line, what, "%s (%d)", cudaGetErrorString(e), (int)e);
}

bool gpu_standin(void) {
    return getenv("ZIPCCL_STANDIN_DEVICES") != NULL;
}

/* The driver's calls, as a trainer's allocator finds them. */
static void *driver_call(const char *name) {
    void *call = NULL;
    enum cudaDriverEntryPointQueryResult status;
    CUDA_OK(cudaGetDriverEntryPointByVersion(name, &call, 12000, cudaEnableDefault, &status));
    E2E_CHECK(call && status == cudaDriverEntryPointSuccess, "%s", name);
    return call;
}
static void new_vmm(struct gpu_memory *m) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    int device = 0;
    CUDA_OK(cudaGetDevice(&device));
    prop.location.id = access.location.id = device;
    m->bytes = (m->bytes + VMM_STEP - 1) / VMM_STEP * VMM_STEP;
    *(void **)&create = driver_call("cuMemCreate");
    *(void **)&reserve = driver_call("cuMemAddressReserve");
    *(void **)&map = driver_call("cuMemMap");
    *(void **)&set_access = driver_call("cuMemSetAccess");
    E2E_CHECK(
        create(&handle, m->bytes, &prop, 0) == CUDA_SUCCESS && reserve(&base, m->bytes, 0, 0, 0) == CUDA_SUCCESS &&
            map(base, m->bytes, 0, handle, 0) == CUDA_SUCCESS && set_access(base, m->bytes, &access, 1) == CUDA_SUCCESS,
        "%zu bytes of VMM", m->bytes);
    m->base = (uint8_t *)(uintptr_t)base;
    m->handle = handle;
}

static void free_vmm(struct gpu_memory *m) {
    CUresult (*unmap)(CUdeviceptr, size_t), (*release)(CUmemGenericAllocationHandle),
        (*free_range)(CUdeviceptr, size_t);
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)m->base;
    *(void **)&unmap = driver_call("cuMemUnmap");
    *(void **)&release = driver_call("cuMemRelease");
    *(void **)&free_range = driver_call("cuMemAddressFree");
    E2E_CHECK(unmap(base, m->bytes) == CUDA_SUCCESS && release(m->handle) == CUDA_SUCCESS &&
                  free_range(base, m->bytes) == CUDA_SUCCESS,
              "%p", (void *)m->base);
}

void gpu_memory_new(struct gpu_memory *m, enum gpu_kind kind, size_t bytes, cudaStream_t stream) {
    void *base = NULL;
    *m = (struct gpu_memory){.kind = kind, .bytes = bytes};
    if (kind == GPU_VMM) {
        new_vmm(m);
        return;
    }
    if (kind == GPU_MALLOC)
        CUDA_OK(cudaMalloc(&base, bytes));
    else if (kind == GPU_POOL)
        CUDA_OK(cudaMallocAsync(&base, bytes, stream));
    else if (kind == GPU_ZIPCCL)
        E2E_OK(NULL, zipcclMemAlloc(&base, bytes));
    else
        CUDA_OK(cudaMallocHost(&base, bytes));
    E2E_CHECK(base, "%zu bytes", bytes);
    m->base = base;
}

void gpu_memory_free(struct gpu_memory *m, cudaStream_t stream) {
    E2E_OK(NULL, zipcclCudaForget(m->base));
    if (m->kind == GPU_VMM)
        free_vmm(m);
    else if (m->kind == GPU_MALLOC)
        CUDA_OK(cudaFree(m->base));
    else if (m->kind == GPU_POOL)
        CUDA_OK(cudaFreeAsync(m->base, stream));
    else if (m->kind == GPU_ZIPCCL)
        E2E_OK(NULL, zipcclMemFree(m->base));
    else
        CUDA_OK(cudaFreeHost(m->base));
}

pid_t gpu_worker(pid_t daemon, unsigned gpu) {
    pid_t found = 0;
    DIR *dir = opendir("/proc");
    E2E_CHECK(dir, "/proc");
    for (const struct dirent *e; !found && (e = readdir(dir)) != NULL;) {
        char path[300];
        unsigned number = 0;
        int pid = 0, parent = 0;
        char state = 0;
        snprintf(path, sizeof(path), "/proc/%.20s/stat", e->d_name);
        FILE *f = e->d_name[0] >= '1' && e->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (f && fscanf(f, "%d (zipccld-gpu%u) %c %d", &pid, &number, &state, &parent) == 4 && parent == (int)daemon &&
            number == gpu && state != 'Z')
            found = pid;
        if (f)
            fclose(f);
    }
    closedir(dir);
    return found;
}

void gpu_rank_begin(struct gpu_rank *g, int device) {
    int n = 0;
    CUDA_OK(cudaGetDeviceCount(&n));
    CUDA_OK(cudaSetDevice(device % n));
    CUDA_OK(cudaStreamCreateWithFlags(&g->cuda, cudaStreamNonBlocking));
    E2E_OK(NULL, zipcclStreamFromCuda(&g->stream, g->cuda));
}

void gpu_rank_end(struct gpu_rank *g) {
    E2E_OK(NULL, zipcclStreamDestroy(g->stream));
    CUDA_OK(cudaStreamDestroy(g->cuda));
}

static void move(struct gpu_buffers *b, uint8_t *to, const uint8_t *from, size_t bytes) {
    CUDA_OK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, b->cuda));
}

static void carry(struct any_buffers *any) {
    struct gpu_buffers *b = (struct gpu_buffers *)(void *)any;
    move(b, b->send.base, any->send.data, any->send.capacity);
    move(b, b->recv.base, any->recv.data, any->recv.capacity);
}

void gpu_buffers_new(struct gpu_buffers *b, const struct gpu_rank *g, enum gpu_kind send, enum gpu_kind recv,
                     size_t bytes) {
    any_buffers_new(&b->any, MEMORY_FOREIGN, MEMORY_FOREIGN, bytes);
    b->cuda = g->cuda;
    gpu_memory_new(&b->send, send, b->any.send.capacity, g->cuda);
    gpu_memory_new(&b->recv, recv, b->any.recv.capacity, g->cuda);
    b->any.there_send = b->send.base;
    b->any.there_recv = b->recv.base;
    b->any.carry = carry;
}

void gpu_buffers_free(struct gpu_buffers *b) {
    gpu_memory_free(&b->send, b->cuda);
    gpu_memory_free(&b->recv, b->cuda);
    any_buffers_free(&b->any);
}

void gpu_fetch(struct gpu_buffers *b) {
    move(b, b->any.send.data, b->send.base, b->any.send.capacity);
    move(b, b->any.recv.data, b->recv.base, b->any.recv.capacity);
}
