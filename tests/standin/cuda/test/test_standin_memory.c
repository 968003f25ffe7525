/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices, memory and pointers of the stand-in; virtual memory, also between processes.
 */
#include "driver_calls.h"

#define MIB (1u << 20)

static void devices(int peer) {
    struct cudaDeviceProp a, b;
    int n = 0, sms = 0, version = 0, least = 1, greatest = 1, device = -1;
    char bus[16];
    (void)peer;
    OK(cudaGetDeviceCount(&n));
    CHECK_IS(n, 3);
    OK(cudaDriverGetVersion(&version));
    CHECK_IS(version, 13000);
    OK(cudaGetDeviceProperties(&a, 0));
    OK(cudaGetDeviceProperties(&b, 2));
    CHECK(memcmp(&a.uuid, &b.uuid, sizeof(a.uuid)) != 0);
    OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 1));
    CHECK(sms > 0 && sms == a.multiProcessorCount);
    CHECK_IS(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 3), cudaErrorInvalidDevice);
    CHECK_IS(cudaSetDevice(3), cudaErrorInvalidDevice);
    CHECK_IS(cudaGetLastError(), cudaErrorInvalidDevice);
    CHECK_IS(cudaGetLastError(), cudaSuccess);
    OK(cudaDeviceGetPCIBusId(bus, sizeof(bus), 2));
    OK(cudaDeviceGetByPCIBusId(&device, bus));
    CHECK_IS(device, 2);
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(greatest < least);
    CHECK(strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") == 0);
}

/* The same uuid as the machine's second device has where all are seen. */
static void visible(int peer) {
    struct cudaDeviceProp p;
    int n = 0;
    (void)peer;
    OK(cudaGetDeviceCount(&n));
    CHECK_IS(n, 1);
    OK(cudaGetDeviceProperties(&p, 0));
    CHECK_IS(p.uuid.bytes[15], '1');
}

static void none(int peer) {
    int n = 1;
    (void)peer;
    CHECK_IS(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    CHECK_IS(n, 0);
}

static void memory(int peer) {
    struct cudaPointerAttributes a;
    size_t available, total, after;
    uint8_t *p, *q, *host, back[300], own[300];
    (void)peer;
    OK(cudaSetDevice(1));
    OK(cudaMemGetInfo(&available, &total));
    CHECK_IS(total, 64 * MIB);
    OK(cudaMalloc((void **)&p, 300));
    OK(cudaMalloc((void **)&q, 3 * MIB));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after + 300 + 3 * MIB <= available);
    CHECK_IS(cudaMalloc((void **)&host, 64 * MIB), cudaErrorMemoryAllocation);
    for (unsigned i = 0; i < sizeof(own); i++)
        own[i] = (uint8_t)(i * 7);
    OK(cudaMemcpy(p, own, sizeof(own), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(q + 17, p, sizeof(own), cudaMemcpyDefault));
    OK(cudaMemset(q + 18, 0x5a, 2));
    OK(cudaMemcpy(back, q + 17, sizeof(own), cudaMemcpyDeviceToHost));
    CHECK(back[0] == own[0] && back[1] == 0x5a && back[2] == 0x5a && memcmp(back + 3, own + 3, 297) == 0);
    CHECK_IS(cudaMemcpy(q + 3 * MIB - 1, p, 2, cudaMemcpyDefault), cudaErrorInvalidValue);
    CHECK_IS(cudaMemcpy(p, own, 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    OK(cudaPointerGetAttributes(&a, p + 5));
    CHECK(a.type == cudaMemoryTypeDevice && a.device == 1 && a.devicePointer == p + 5 && !a.hostPointer);
    OK(cudaPointerGetAttributes(&a, own));
    CHECK(a.type == cudaMemoryTypeUnregistered && a.devicePointer == NULL);
    CHECK_IS(cudaFree(p + 1), cudaErrorInvalidValue);
    OK(cudaFree(p));
    OK(cudaFree(q));
    OK(cudaFree(NULL));
    OK(cudaMemGetInfo(&after, &total));
    CHECK_IS(after, available);
}

static void host_memory(int peer) {
    struct cudaPointerAttributes a;
    uint8_t *p, *own = aligned_alloc(4096, 8192);
    void *device;
    unsigned flags;
    (void)peer;
    OK(cudaHostAlloc((void **)&p, 100, cudaHostAllocMapped | cudaHostAllocPortable));
    OK(cudaHostGetFlags(&flags, p));
    CHECK_IS(flags, cudaHostAllocMapped | cudaHostAllocPortable);
    OK(cudaHostGetDevicePointer(&device, p + 3, 0));
    CHECK(device == p + 3);
    OK(cudaFreeHost(p));
    OK(cudaHostRegister(own, 8192, cudaHostRegisterMapped));
    CHECK_IS(cudaHostRegister(own + 4096, 4096, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaPointerGetAttributes(&a, own + 8191));
    CHECK(a.type == cudaMemoryTypeHost && a.hostPointer == own + 8191 && a.devicePointer == own + 8191);
    CHECK_IS(cudaHostUnregister(own + 1), cudaErrorHostMemoryNotRegistered);
    OK(cudaHostUnregister(own));
    CHECK_IS(cudaHostUnregister(own), cudaErrorHostMemoryNotRegistered);
    CHECK_IS(cudaHostGetDevicePointer(&device, own, 0), cudaErrorInvalidValue);
    free(own);
}

static unsigned char legacy_capable(const void *p) {
    unsigned char capable = 9;
    OK(DRIVER(cuPointerGetAttribute, "cuPointerGetAttribute")(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                                              (CUdeviceptr)(uintptr_t)p));
    return capable;
}

static void pointers(int peer) {
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
    unsigned type = 0;
    int device = 7;
    unsigned long long first, second;
    unsigned char capable = 9;
    void *out[] = {&type, &device, &first, &capable};
    uint8_t *p, *pool;
    CUdeviceptr base;
    size_t bytes;
    void *missing = &missing;
    enum cudaDriverEntryPointQueryResult found;
    (void)peer;
    OK(cudaMalloc((void **)&p, 1000));
    OK(DRIVER(cuMemGetAddressRange, "cuMemGetAddressRange")(&base, &bytes, (CUdeviceptr)(uintptr_t)(p + 999)));
    CHECK(base == (uintptr_t)p && bytes >= 1000);
    OK(DRIVER(cuPointerGetAttributes, "cuPointerGetAttributes")(4, which, out, (CUdeviceptr)(uintptr_t)p));
    CHECK(type == CU_MEMORYTYPE_DEVICE && device == 0 && capable == 1);
    OK(cudaFree(p));
    OK(cudaMalloc((void **)&p, 1000));
    out[2] = &second;
    OK(DRIVER(cuPointerGetAttributes, "cuPointerGetAttributes")(4, which, out, (CUdeviceptr)(uintptr_t)p));
    CHECK(first != second);
    OK(DRIVER(cuPointerGetAttributes, "cuPointerGetAttributes")(4, which, out, (CUdeviceptr)(uintptr_t)&type));
    CHECK(type == 0 && device == -2 && capable == 0);
    OK(cudaMallocAsync((void **)&pool, 1000, NULL));
    CHECK(legacy_capable(p) == 1 && legacy_capable(pool) == 0);
    cudaIpcMemHandle_t handle;
    CHECK_IS(cudaIpcGetMemHandle(&handle, pool), cudaErrorInvalidValue);
    OK(cudaFreeAsync(pool, NULL));
    OK(cudaStreamSynchronize(NULL));
    OK(cudaFree(p));
    OK(cudaGetDriverEntryPointByVersion("cuNoSuchCall", &missing, 12000, cudaEnableDefault, &found));
    CHECK(found == cudaDriverEntryPointSymbolNotFound && missing == NULL);
}

/* ---- virtual memory ---- */

static CUmemAllocationProp prop_of(int device) {
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    return p;
}

static void map_at(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle h) {
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(DRIVER(cuMemMap, "cuMemMap")(at, bytes, 0, h, 0));
    OK(DRIVER(cuMemSetAccess, "cuMemSetAccess")(at, bytes, &access, 1));
}

static CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr at = 0;
    OK(DRIVER(cuMemAddressReserve, "cuMemAddressReserve")(&at, bytes, 0, 0, 0));
    return at;
}

static void unmap_and_free(CUdeviceptr at, size_t bytes) {
    OK(DRIVER(cuMemUnmap, "cuMemUnmap")(at, bytes));
    OK(DRIVER(cuMemAddressFree, "cuMemAddressFree")(at, bytes));
}

/* As an expandable segment: two allocations in one range, the first one shared. */
static void vmm_exporter(int peer) {
    const CUmemAllocationProp prop = prop_of(0);
    CUmemGenericAllocationHandle h[2];
    size_t granule = 0;
    int fd = -1;
    OK(DRIVER(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity")(&granule, &prop,
                                                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK_IS(granule, 2 * MIB);
    CHECK_IS(DRIVER(cuMemCreate, "cuMemCreate")(&h[0], granule + 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr at = reserve(4 * granule);
    for (unsigned i = 0; i < 2; i++) {
        OK(DRIVER(cuMemCreate, "cuMemCreate")(&h[i], granule, &prop, 0));
        map_at(at + i * granule, granule, h[i]);
    }
    CHECK_IS(DRIVER(cuMemMap, "cuMemMap")(at, granule, 0, h[1], 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_IS(legacy_capable((void *)at), 0);
    cudaIpcMemHandle_t handle;
    CHECK_IS(cudaIpcGetMemHandle(&handle, (void *)at), cudaErrorInvalidValue);
    OK(cudaMemset((void *)at, 0x11, granule));
    OK(cudaDeviceSynchronize());
    OK(DRIVER(cuMemExportToShareableHandle,
              "cuMemExportToShareableHandle")(&fd, h[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    peer_send_fd(peer, fd);
    close(fd);
    for (unsigned i = 0; i < 2; i++)
        OK(DRIVER(cuMemRelease, "cuMemRelease")(h[i]));
    peer_meet(peer); /* the importer wrote */
    uint8_t byte = 0;
    OK(cudaMemcpy(&byte, (char *)at + granule - 1, 1, cudaMemcpyDeviceToHost));
    CHECK_IS(byte, 0x22);
    unmap_and_free(at, 4 * granule);
}

static void vmm_importer(int peer) {
    CUmemGenericAllocationHandle h;
    const int fd = peer_receive_fd(peer);
    uint8_t byte = 0;
    CHECK_IS(DRIVER(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle")(
                 &h, (void *)(intptr_t)peer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
             CUDA_ERROR_INVALID_VALUE);
    OK(DRIVER(cuMemImportFromShareableHandle,
              "cuMemImportFromShareableHandle")(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    const CUdeviceptr at = reserve(2 * MIB);
    map_at(at, 2 * MIB, h);
    OK(DRIVER(cuMemRelease, "cuMemRelease")(h));
    OK(cudaMemcpy(&byte, (void *)at, 1, cudaMemcpyDeviceToHost));
    CHECK_IS(byte, 0x11);
    OK(cudaMemset((char *)at + 2 * MIB - 1, 0x22, 1));
    OK(cudaDeviceSynchronize());
    peer_meet(peer);
    unmap_and_free(at, 2 * MIB);
}

static void devices_are_counted(void **state) {
    (void)state;
    forked_passes(devices, "ZIPCCL_STANDIN_DEVICES=3", NULL);
    forked_passes(visible, "ZIPCCL_STANDIN_DEVICES=3", "CUDA_VISIBLE_DEVICES=1", NULL);
    forked_passes(none, "ZIPCCL_STANDIN_DEVICES=0", NULL);
}

static void memory_works(void **state) {
    (void)state;
    forked_passes(memory, "ZIPCCL_STANDIN_MEMORY=64", NULL);
    forked_passes(host_memory, NULL);
    forked_passes(pointers, NULL);
}

static void virtual_memory(void **state) {
    (void)state;
    forked_pair_passes(vmm_exporter, vmm_importer, NULL);
    forked_pair_passes(vmm_exporter, vmm_importer, "ZIPCCL_STANDIN_SEPARATE=1", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_counted),
        cmocka_unit_test(memory_works),
        cmocka_unit_test(virtual_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
