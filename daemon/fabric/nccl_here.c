/* SPDX-License-Identifier: Apache-2.0
 *
 * GPUs on which this process itself makes calls of CUDA and NCCL: a worker process, or a test of the fabric alone.
 */
#include "daemon/fabric/nccl_here.h"

#include "daemon/fabric/nccl_launcher.h"

static const struct nccl_library *library_of(const void *owner) {
    return &((const struct nccl_here *)owner)->library;
}

static void here_close(void *owner) {
    struct nccl_here *here = owner;
    nccl_library_unload(&here->library);
}

static zipcclResult_t here_open(void *owner, int *version, const char **why) {
    struct nccl_here *here = owner;
    int devices = 0;
    zipcclResult_t result = nccl_library_load(&here->library, why);
    if (result)
        return result;
    *version = here->library.version;
    if (here->library.cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
        return zipcclSuccess;
    *why = "CUDA has no device";
    here_close(owner);
    return zipcclSystemError;
}

static enum nccl_place here_place(void *owner, const void *memory, uint32_t *gpu) {
    const struct nccl_library *library = library_of(owner);
    struct cudaPointerAttributes a = {0};
    if (library->cudaPointerGetAttributes(&a, memory) != cudaSuccess) {
        (void)library->cudaGetLastError(); /* else the next call would give it again */
        return NCCL_PLACE_HOST;
    }
    switch (a.type) {
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged:
        *gpu = (uint32_t)a.device;
        return NCCL_PLACE_GPU;
    case cudaMemoryTypeHost:
        return NCCL_PLACE_PINNED;
    default:
        return NCCL_PLACE_HOST;
    }
}

static void *here_alloc(void *owner, size_t bytes) {
    void *memory = NULL;
    return library_of(owner)->cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) == cudaSuccess ? memory : NULL;
}

static void here_free(void *owner, void *memory, size_t bytes) {
    (void)bytes;
    (void)library_of(owner)->cudaFreeHost(memory);
}

static struct nccl_launcher *here_launcher(void *owner, uint32_t gpu, int wake) {
    return nccl_launcher_open(library_of(owner), (int)gpu, wake);
}

const struct nccl_gpus_ops nccl_gpus_here = {
    .open = here_open,
    .close = here_close,
    .place = here_place,
    .alloc = here_alloc,
    .free = here_free,
    .launcher = here_launcher,
    .launcher_end = nccl_launcher_end,
    .launcher_close = nccl_launcher_close,
    .ask = nccl_launcher_ask,
    .hear = nccl_launcher_hear,
};
