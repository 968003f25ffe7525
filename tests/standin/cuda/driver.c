/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda's calls: devices and contexts, look-up of entry points, pointers, host registration, stream memory
 * operations. Virtual memory management is in vmm.c.
 */
#include "core.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define ENTER(call) STANDIN_DRIVER_ENTER(call, false)

STANDIN_EXPORT CUresult cuInit(unsigned flags) {
    ENTER("cuInit");
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDriverGetVersion(int *version) {
    int e;
    STANDIN_ENTER(e, "cuDriverGetVersion");
    *version = STANDIN_VERSION;
    return (CUresult)e;
}

STANDIN_EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = standin_error_name((int)error);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STANDIN_EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = standin_error_text((int)error);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The newest version of a call; the stand-in has no older ones. */
STANDIN_EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult *status) {
    char name[128];
    ENTER("cuGetProcAddress");
    (void)version;
    (void)flags;
    void *so = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *function = NULL;
    for (int v = 3; v >= 1 && so && !*function; v--) {
        snprintf(name, sizeof(name), v > 1 ? "%s_v%d" : "%s", symbol, v);
        *function = dlsym(so, name);
    }
    if (so)
        dlclose(so);
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- devices and contexts ---- */

STANDIN_EXPORT CUresult cuDeviceGetCount(int *count) {
    ENTER("cuDeviceGetCount");
    *count = standin_device_count();
    return CUDA_SUCCESS;
}

static bool no_device(CUdevice d) {
    return d < 0 || d >= standin_device_count();
}

STANDIN_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER("cuDeviceGet");
    if (no_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
    ENTER("cuDeviceGetName");
    if (no_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)room, "zipccl stand-in");
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    ENTER("cuDeviceGetUuid");
    if (no_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    standin_uuid(device, (unsigned char *)uuid->bytes);
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDeviceGetPCIBusId(char *text, int room, CUdevice device) {
    ENTER("cuDeviceGetPCIBusId");
    if (no_device(device) || room < 13)
        return CUDA_ERROR_INVALID_VALUE;
    standin_pci(device, text, room);
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    ENTER("cuDeviceTotalMem");
    if (no_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = standin_devices[device].total;
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    ENTER("cuDeviceGetAttribute");
    return (CUresult)standin_attribute((int)attribute, device, value);
}

STANDIN_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER("cuDevicePrimaryCtxRetain");
    if (no_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *context = &standin_devices[device];
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    ENTER("cuDevicePrimaryCtxRelease");
    return no_device(device) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    ENTER("cuDevicePrimaryCtxGetState");
    if (no_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    ENTER("cuCtxGetCurrent");
    *context = &standin_devices[standin_current_device()];
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER("cuCtxSetCurrent");
    return context ? (CUresult)standin_set_device(context->index) : CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER("cuCtxGetDevice");
    *device = standin_current_device();
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuCtxSynchronize(void) {
    STANDIN_DRIVER_ENTER("cuCtxSynchronize", true);
    return (CUresult)standin_device_sync(standin_current_device());
}

/* ---- pointers ---- */

STANDIN_EXPORT CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
    struct standin_range r;
    ENTER("cuMemGetAddressRange");
    if (!standin_find((const void *)p, &r) || r.kind == STANDIN_REGISTERED)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = (uintptr_t)r.base;
    if (bytes)
        *bytes = r.bytes;
    return CUDA_SUCCESS;
}

static bool on_host(const struct standin_range *r) {
    return r->kind == STANDIN_HOST || r->kind == STANDIN_REGISTERED;
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p,
                                  const struct standin_range *r) {
    unsigned flags = 0;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = &standin_devices[r->device];
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = on_host(r) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = p;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!on_host(r))
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)p;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = r->id;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = r->device;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned char *)data = r->kind == STANDIN_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(void **)data = r->base;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = r->bytes;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)data = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        pthread_mutex_lock(&standin_lock);
        if (r->kind == STANDIN_VMM)
            flags = standin_memory_at((void *)p)->flags;
        pthread_mutex_unlock(&standin_lock);
        *(unsigned long long *)data = flags;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr p) {
    struct standin_range r;
    ENTER("cuPointerGetAttribute");
    if (!data || !standin_find((const void *)p, &r))
        return CUDA_ERROR_INVALID_VALUE;
    return pointer_attribute(data, attribute, p, &r);
}

/* What does not apply to a pointer is zero here, and no error. */
STANDIN_EXPORT CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *attributes, void **data,
                                               CUdeviceptr p) {
    struct standin_range r;
    ENTER("cuPointerGetAttributes");
    const bool known = standin_find((const void *)p, &r);
    for (unsigned i = 0; i < n; i++)
        if (!known || pointer_attribute(data[i], attributes[i], p, &r) != CUDA_SUCCESS)
            switch (attributes[i]) {
            case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                *(unsigned *)data[i] = 0;
                break;
            case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
                *(int *)data[i] = -2;
                break;
            case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            case CU_POINTER_ATTRIBUTE_MAPPED:
                *(unsigned char *)data[i] = 0;
                break;
            default:
                memset(data[i], 0, sizeof(void *));
            }
    return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuMemHostRegister(void *p, size_t bytes, unsigned flags) {
    STANDIN_DRIVER_ENTER("cuMemHostRegister", true);
    return (CUresult)standin_host_register(p, bytes, flags);
}

STANDIN_EXPORT CUresult cuMemHostUnregister(void *p) {
    ENTER("cuMemHostUnregister");
    return (CUresult)standin_host_unregister(p);
}

STANDIN_EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned flags) {
    unsigned ignored;
    ENTER("cuMemHostGetDevicePointer");
    if (flags || standin_host_flags(host, &ignored) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *device = (uintptr_t)host;
    return CUDA_SUCCESS;
}

/* ---- stream memory operations ---- */

STANDIN_EXPORT CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    ENTER("cuStreamWaitValue32");
    return (CUresult)standin_wait_value(stream, (const void *)at, value, flags, 4);
}

STANDIN_EXPORT CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    ENTER("cuStreamWriteValue32");
    (void)flags; /* orders memory more than asked for */
    return (CUresult)standin_write_value(stream, (void *)at, value, 4);
}

STANDIN_EXPORT CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags) {
    ENTER("cuStreamWaitValue64");
    return (CUresult)standin_wait_value(stream, (const void *)at, value, flags, 8);
}

STANDIN_EXPORT CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags) {
    ENTER("cuStreamWriteValue64");
    (void)flags;
    return (CUresult)standin_write_value(stream, (void *)at, value, 8);
}
