/* SPDX-License-Identifier: Apache-2.0
 *
 * libcudart's calls: launches, attributes of kernels, and what nvcc's host code calls to register them.
 */
#include "runtime.h"

#include <string.h>

/* What nvcc's code calls; CUDA declares these for C++ alone. */
API void **__cudaRegisterFatBinary(void *binary);
API void __cudaRegisterFatBinaryEnd(void **handle);
API void __cudaUnregisterFatBinary(void **handle);
API void __cudaRegisterFunction(void **handle, const char *host, char *device_fun, const char *name, int limit,
                                void *tid, void *bid, void *block, void *grid, int *warp);
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                   cudaStream_t stream);

static void *g_binary[1];

void **__cudaRegisterFatBinary(void *binary) {
    (void)binary; /* the device code in it is not used: the executor has its own */
    return g_binary;
}

void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle) {
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device_fun, const char *name, int limit, void *tid,
                            void *bid, void *block, void *grid, int *warp) {
    (void)handle, (void)device_fun, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    standin_kernel_register(host, name);
}

/* ---- launches ---- */

struct configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};
static _Thread_local struct configuration t_calls[4];
static _Thread_local unsigned t_depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    if (t_depth == sizeof(t_calls) / sizeof(t_calls[0]))
        return 1;
    t_calls[t_depth++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (t_depth == 0)
        END(cudaErrorMissingConfiguration);
    const struct configuration *c = &t_calls[--t_depth];
    *grid = c->grid;
    *block = c->block;
    *shared = c->shared;
    *(void **)stream = c->stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    void *k;
    const int e = standin_kernel_of(&k, host);
    *kernel = k;
    END(e);
}

static int launch(const void *fn, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    const unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
    void *kernel;
    const int e = standin_kernel_of(&kernel, fn);
    return e ? e : standin_kernel_launch(kernel, g, b, args, shared, stream);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t stream) {
    BEGIN("cudaLaunchKernel");
    END(launch(kernel, grid, block, args, shared, stream));
}

API cudaError_t cudaLaunchKernel(const void *fn, dim3 grid, dim3 block, void **args, size_t shared,
                                 cudaStream_t stream) {
    BEGIN("cudaLaunchKernel");
    END(launch(fn, grid, block, args, shared, stream));
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *fn, void **args) {
    BEGIN("cudaLaunchKernelExC");
    if (!config)
        END(cudaErrorInvalidValue);
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id != cudaLaunchAttributePriority && config->attrs[i].id != cudaLaunchAttributeIgnore)
            END(cudaErrorNotSupported);
    END(launch(fn, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream));
}

API cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host) {
    void *k;
    BEGIN("cudaGetFuncBySymbol");
    e = standin_kernel_of(&k, host);
    *function = k;
    END(e);
}

/* ---- attributes ---- */

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *fn) {
    void *kernel;
    BEGIN("cudaFuncGetAttributes");
    e = standin_kernel_of(&kernel, fn);
    if (e)
        END(e);
    memset(a, 0, sizeof(*a));
    a->numRegs = 32; /* nobody allots registers here */
    a->ptxVersion = a->binaryVersion = 90;
    END(standin_kernel_attributes(kernel, &a->sharedSizeBytes, &a->maxThreadsPerBlock, &a->maxDynamicSharedSizeBytes));
}

API cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute attribute, int value) {
    void *kernel;
    BEGIN("cudaFuncSetAttribute");
    e = standin_kernel_of(&kernel, fn);
    if (e)
        END(e);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize)
        END(standin_kernel_allow(kernel, value));
    END(attribute == cudaFuncAttributePreferredSharedMemoryCarveout ? 0 : cudaErrorInvalidValue);
}

API cudaError_t cudaFuncGetName(const char **name, const void *fn) {
    void *kernel;
    BEGIN("cudaFuncGetName");
    e = standin_kernel_of(&kernel, fn);
    if (e == 0)
        *name = standin_kernel_name(kernel);
    END(e);
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *fn, int threads, size_t shared) {
    void *kernel;
    BEGIN("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    e = standin_kernel_of(&kernel, fn);
    END(e ? e : standin_kernel_occupancy(kernel, threads, shared, blocks));
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *fn, int threads,
                                                                       size_t shared, unsigned flags) {
    void *kernel;
    BEGIN("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    (void)flags;
    e = standin_kernel_of(&kernel, fn);
    END(e ? e : standin_kernel_occupancy(kernel, threads, shared, blocks));
}
