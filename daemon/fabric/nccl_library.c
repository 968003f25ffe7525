/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads NCCL and the CUDA runtime. zipccld is not linked with either, so that it starts where they are missing; calls
 * that came with a later NCCL are used where they are there.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "daemon/fabric/nccl_library.h"

#define OLDEST 21400 /* non-blocking communicators */

/* A function pointer from dlsym, which gives data pointers. */
static bool find(void *handle, const char *name, void *function) {
    void *symbol = dlsym(handle, name);
    memcpy(function, &symbol, sizeof(symbol));
    return symbol != NULL;
}

zipcclResult_t nccl_library_load(struct nccl_library *l, const char **why) {
    static const char *const runtimes[] = {"libcudart.so.13", "libcudart.so.12"};
    *l = (struct nccl_library){0};
    for (size_t i = 0; i < sizeof(runtimes) / sizeof(runtimes[0]) && !l->cudart; i++)
        l->cudart = dlopen(runtimes[i], RTLD_NOW | RTLD_LOCAL);
    l->nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* it has threads */
    *why = !l->cudart ? "no libcudart.so.13 or 12 is found" : "no libnccl.so.2 is found";
    if (!l->cudart || !l->nccl)
        goto fail;
    bool all = true;
#define FIND(type, name, args) all = find(l->nccl, #name, (void *)&l->name) && all;
    NCCL_FUNCTIONS(FIND)
    *why = "libnccl.so.2 is older than 2.14";
    if (!all || l->ncclGetVersion(&l->version) != ncclSuccess || l->version < OLDEST)
        goto fail;
#define FIND_CUDA(type, name, args) all = find(l->cudart, #name, (void *)&l->name) && all;
    NCCL_CUDA(FIND_CUDA)
    *why = "the CUDA runtime lacks functions";
    if (!all)
        goto fail;
#define FIND_LATER(since, type, name, args)                                                                            \
    if (l->version >= (since))                                                                                         \
        (void)find(l->nccl, #name, (void *)&l->name);
    NCCL_LATER(FIND_LATER)
    *why = NULL;
    return zipcclSuccess;
fail:
    nccl_library_unload(l);
    return zipcclSystemError;
}

void nccl_library_unload(struct nccl_library *l) {
    if (l->nccl)
        dlclose(l->nccl);
    if (l->cudart)
        dlclose(l->cudart);
    *l = (struct nccl_library){0};
}
