/* SPDX-License-Identifier: Apache-2.0
 *
 * libcudart's calls: memory, copies, pointers, handles of memory for other processes.
 */
#include "runtime.h"

#include <string.h>

API cudaError_t cudaMalloc(void **p, size_t bytes) {
    BEGIN_AS("cudaMalloc", true);
    END(standin_alloc(p, bytes, STANDIN_DEVICE));
}

API cudaError_t cudaFree(void *p) {
    BEGIN_AS("cudaFree", true);
    END(standin_free(p));
}

API cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream) {
    BEGIN("cudaMallocAsync");
    (void)stream; /* there at once: earlier than asked for */
    END(standin_alloc(p, bytes, STANDIN_POOL));
}

API cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
    BEGIN("cudaFreeAsync");
    END(p ? standin_free_later(p, stream) : 0);
}

API cudaError_t cudaMallocHost(void **p, size_t bytes) {
    BEGIN_AS("cudaMallocHost", true);
    END(standin_host_alloc(p, bytes, 0));
}

API cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    BEGIN_AS("cudaHostAlloc", true);
    END(standin_host_alloc(p, bytes, flags));
}

API cudaError_t cudaFreeHost(void *p) {
    BEGIN_AS("cudaFreeHost", true);
    END(standin_host_free(p));
}

API cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags) {
    BEGIN_AS("cudaHostRegister", true);
    END(standin_host_register(p, bytes, flags));
}

API cudaError_t cudaHostUnregister(void *p) {
    BEGIN("cudaHostUnregister");
    END(standin_host_unregister(p));
}

API cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    unsigned ignored;
    BEGIN("cudaHostGetDevicePointer");
    if (flags || !device || standin_host_flags(host, &ignored) != 0)
        END(cudaErrorInvalidValue);
    *device = host;
    END(0);
}

API cudaError_t cudaHostGetFlags(unsigned *flags, void *host) {
    BEGIN("cudaHostGetFlags");
    END(standin_host_flags(host, flags));
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    struct standin_range r;
    BEGIN("cudaPointerGetAttributes");
    if (!a)
        END(cudaErrorInvalidValue);
    memset(a, 0, sizeof(*a));
    if (!standin_find(p, &r)) { /* memory of the host that nobody registered: no error */
        a->type = cudaMemoryTypeUnregistered;
        a->device = -2;
        a->hostPointer = (void *)(uintptr_t)p;
        END(0);
    }
    const bool host = r.kind == STANDIN_HOST || r.kind == STANDIN_REGISTERED;
    a->type = host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    a->device = r.device;
    a->devicePointer = (void *)(uintptr_t)p;
    a->hostPointer = host ? (void *)(uintptr_t)p : NULL;
    END(0);
}

/* ---- copies ---- */

API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    BEGIN_AS("cudaMemcpy", true);
    END(standin_copy(to, from, bytes, (int)kind, NULL, true));
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                cudaStream_t stream) {
    BEGIN("cudaMemcpyAsync");
    END(standin_copy(to, from, bytes, (int)kind, stream, false));
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                    cudaStream_t stream) {
    BEGIN("cudaMemcpyPeerAsync");
    if (to_device < 0 || from_device < 0 || to_device >= standin_device_count() ||
        from_device >= standin_device_count())
        END(cudaErrorInvalidDevice);
    END(standin_copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream, false));
}

API cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    BEGIN_AS("cudaMemset", true);
    END(standin_set(p, value, bytes, NULL, true));
}

API cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
    BEGIN("cudaMemsetAsync");
    END(standin_set(p, value, bytes, stream, false));
}

/* ---- for other processes ---- */

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p) {
    BEGIN("cudaIpcGetMemHandle");
    END(standin_export_memory(handle, p));
}

API cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned flags) {
    BEGIN("cudaIpcOpenMemHandle");
    if (!p || flags != cudaIpcMemLazyEnablePeerAccess)
        END(cudaErrorInvalidValue);
    END(standin_import_memory(p, &handle));
}

API cudaError_t cudaIpcCloseMemHandle(void *p) {
    BEGIN_AS("cudaIpcCloseMemHandle", true);
    END(standin_close_memory(p));
}
