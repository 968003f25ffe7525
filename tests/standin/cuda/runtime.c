/* SPDX-License-Identifier: Apache-2.0
 *
 * libcudart's calls: errors, versions, devices, entry points of the driver.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static _Thread_local int t_last;

cudaError_t runtime_end(int error) {
    if (error)
        t_last = error;
    return (cudaError_t)error;
}

API cudaError_t cudaGetLastError(void) {
    const int e = standin_failed() ? standin_failed() : t_last;
    t_last = 0;
    return (cudaError_t)e;
}

API cudaError_t cudaPeekAtLastError(void) {
    return (cudaError_t)(standin_failed() ? standin_failed() : t_last);
}

API const char *cudaGetErrorName(cudaError_t error) {
    const char *name = standin_error_name((int)error);
    return name ? name : "unrecognized error code";
}

API const char *cudaGetErrorString(cudaError_t error) {
    const char *text = standin_error_text((int)error);
    return text ? text : "unrecognized error code";
}

API cudaError_t cudaDriverGetVersion(int *version) {
    int e;
    STANDIN_ENTER(e, "cudaDriverGetVersion");
    *version = e ? 0 : STANDIN_VERSION;
    END(e);
}

API cudaError_t cudaRuntimeGetVersion(int *version) {
    int e;
    STANDIN_ENTER(e, "cudaRuntimeGetVersion");
    *version = STANDIN_VERSION;
    END(e);
}

/* ---- devices ---- */

API cudaError_t cudaGetDeviceCount(int *count) {
    if (count)
        *count = 0;
    BEGIN("cudaGetDeviceCount");
    if (!count)
        END(cudaErrorInvalidValue);
    *count = standin_device_count();
    END(0);
}

API cudaError_t cudaGetDevice(int *device) {
    BEGIN("cudaGetDevice");
    *device = standin_current_device();
    END(0);
}

API cudaError_t cudaSetDevice(int device) {
    BEGIN("cudaSetDevice");
    END(standin_set_device(device));
}

API cudaError_t cudaSetDeviceFlags(unsigned flags) {
    BEGIN("cudaSetDeviceFlags");
    (void)flags; /* how the host waits: a hint */
    END(0);
}

API cudaError_t cudaGetDeviceFlags(unsigned *flags) {
    BEGIN("cudaGetDeviceFlags");
    *flags = cudaDeviceMapHost;
    END(0);
}

API cudaError_t cudaDeviceSynchronize(void) {
    BEGIN_AS("cudaDeviceSynchronize", true);
    END(standin_device_sync(standin_current_device()));
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    BEGIN("cudaDeviceGetAttribute");
    END(standin_attribute((int)attribute, device, value));
}

static int attribute_of(int device, int attribute) {
    int value = 0;
    (void)standin_attribute(attribute, device, &value);
    return value;
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    BEGIN("cudaGetDeviceProperties");
    if (device < 0 || device >= standin_device_count())
        END(cudaErrorInvalidDevice);
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "zipccl stand-in");
    standin_uuid(device, (unsigned char *)p->uuid.bytes);
    p->totalGlobalMem = standin_devices[device].total;
    p->sharedMemPerBlock = (size_t)attribute_of(device, cudaDevAttrMaxSharedMemoryPerBlock);
    p->sharedMemPerBlockOptin = (size_t)attribute_of(device, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    p->sharedMemPerMultiprocessor = (size_t)attribute_of(device, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    p->regsPerBlock = p->regsPerMultiprocessor = attribute_of(device, cudaDevAttrMaxRegistersPerBlock);
    p->warpSize = attribute_of(device, cudaDevAttrWarpSize);
    p->maxThreadsPerBlock = attribute_of(device, cudaDevAttrMaxThreadsPerBlock);
    p->maxThreadsPerMultiProcessor = attribute_of(device, cudaDevAttrMaxThreadsPerMultiProcessor);
    p->maxBlocksPerMultiProcessor = attribute_of(device, cudaDevAttrMaxBlocksPerMultiprocessor);
    p->major = attribute_of(device, cudaDevAttrComputeCapabilityMajor);
    p->minor = attribute_of(device, cudaDevAttrComputeCapabilityMinor);
    p->multiProcessorCount = attribute_of(device, cudaDevAttrMultiProcessorCount);
    p->l2CacheSize = attribute_of(device, cudaDevAttrL2CacheSize);
    p->memoryBusWidth = attribute_of(device, cudaDevAttrGlobalMemoryBusWidth);
    p->pciBusID = attribute_of(device, cudaDevAttrPciBusId);
    p->canMapHostMemory = p->unifiedAddressing = p->concurrentKernels = p->streamPrioritiesSupported = 1;
    p->canUseHostPointerForRegisteredMem = p->hostRegisterSupported = p->ipcEventSupported = 1;
    p->asyncEngineCount = attribute_of(device, cudaDevAttrAsyncEngineCount);
    END(0);
}

API cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device) {
    BEGIN("cudaDeviceGetPCIBusId");
    if (!text || room < 13 || device < 0 || device >= standin_device_count())
        END(cudaErrorInvalidValue);
    standin_pci(device, text, room);
    END(0);
}

API cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
    char own[16];
    BEGIN("cudaDeviceGetByPCIBusId");
    for (int i = 0; i < standin_device_count(); i++) {
        standin_pci(i, own, sizeof(own));
        if (strcmp(own, text) == 0) {
            *device = i;
            END(0);
        }
    }
    END(cudaErrorInvalidDevice);
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    BEGIN("cudaDeviceGetStreamPriorityRange");
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    END(0);
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    BEGIN("cudaDeviceCanAccessPeer");
    if (device < 0 || peer < 0 || device >= standin_device_count() || peer >= standin_device_count())
        END(cudaErrorInvalidDevice);
    *can = device != peer;
    END(0);
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    BEGIN("cudaDeviceEnablePeerAccess");
    struct CUctx_st *d = &standin_devices[standin_current_device()];
    if (flags || peer < 0 || peer >= standin_device_count() || peer == d->index)
        END(cudaErrorInvalidDevice);
    pthread_mutex_lock(&standin_lock);
    e = d->peers >> peer & 1 ? cudaErrorPeerAccessAlreadyEnabled : 0;
    d->peers |= 1u << peer;
    pthread_mutex_unlock(&standin_lock);
    END(e);
}

API cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    BEGIN("cudaDeviceDisablePeerAccess");
    struct CUctx_st *d = &standin_devices[standin_current_device()];
    if (peer < 0 || peer >= standin_device_count())
        END(cudaErrorInvalidDevice);
    pthread_mutex_lock(&standin_lock);
    e = d->peers >> peer & 1 ? 0 : cudaErrorPeerAccessNotEnabled;
    d->peers &= ~(1u << peer);
    pthread_mutex_unlock(&standin_lock);
    END(e);
}

API cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    BEGIN("cudaMemGetInfo");
    const struct CUctx_st *d = &standin_devices[standin_current_device()];
    pthread_mutex_lock(&standin_lock);
    *available = d->total - d->used;
    *total = d->total;
    pthread_mutex_unlock(&standin_lock);
    END(0);
}

/* ---- the driver ---- */

static int entry_point(const char *symbol, void **function, int version, enum cudaDriverEntryPointQueryResult *status) {
    CUdriverProcAddressQueryResult found;
    const CUresult r = cuGetProcAddress(symbol, function, version, 0, &found);
    if (status)
        *status = r == CUDA_SUCCESS ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return r == CUDA_ERROR_NOT_FOUND ? 0 : (int)r; /* the status tells, as in the real one */
}

API cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                        enum cudaDriverEntryPointQueryResult *status) {
    BEGIN("cudaGetDriverEntryPoint");
    (void)flags;
    END(entry_point(symbol, function, STANDIN_VERSION, status));
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                 unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *status) {
    BEGIN("cudaGetDriverEntryPointByVersion");
    (void)flags;
    END(entry_point(symbol, function, (int)version, status));
}
