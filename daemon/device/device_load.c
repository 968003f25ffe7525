/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device is a module of its own, loaded here, so that a node without CUDA's runtime needs none to start.
 */
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device/device.h"
#include "daemon/device/module.h"

#define MODULE "libzipccl_cuda.so"

/* Where it may lie: beside the program's own folder, as in a build and below any prefix, or where it was installed. */
static const char *const module_dirs[] = {"../lib/zipccl", ZIPCCL_MODULE_FROM_BIN, ZIPCCL_MODULE_DIR};

static char load_why[512]; /* of the last load; the daemon opens one device */

/* False, with load_why: nowhere. */
static bool find_module(char *path, size_t size) {
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[n > 0 ? n : 0] = '\0';
    const char *dir = dirname(self);
    for (size_t i = 0; i < sizeof(module_dirs) / sizeof(module_dirs[0]); i++) {
        if (module_dirs[i][0] == '/')
            snprintf(path, size, "%s/%s", module_dirs[i], MODULE);
        else
            snprintf(path, size, "%s/%s/%s", dir, module_dirs[i], MODULE);
        if (access(path, F_OK) == 0)
            return true;
    }
    snprintf(load_why, sizeof(load_why), "this zipccld comes without its CUDA module, %s", MODULE);
    return false;
}

bool device_has_cuda(const char **why) {
    char path[2 * PATH_MAX];
    *why = load_why;
    if (!find_module(path, sizeof(path)))
        return false;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL); /* not initialised: no call of it is made */
    if (!driver)
        snprintf(load_why, sizeof(load_why), "no GPU: there is no driver (libcuda.so.1)");
    else
        dlclose(driver);
    return driver != NULL;
}

static void *load_module(void) {
    char path[2 * PATH_MAX];
    if (!find_module(path, sizeof(path)))
        return NULL;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        const char *error = dlerror();
        snprintf(load_why, sizeof(load_why), "the CUDA module cannot be loaded: %.400s", error ? error : "unknown");
    }
    return module;
}

zipcclResult_t device_load_cuda(const struct device_config *config, const struct device_ops **ops,
                                struct device **device, const char **why) {
    *why = load_why;
    void *module = load_module();
    if (!module)
        return zipcclInvalidUsage;
    device_module_fn *get = NULL;
    *(void **)&get = dlsym(module, DEVICE_MODULE_SYMBOL);
    *ops = get ? get(sizeof(struct device_ops), sizeof(struct device_job)) : NULL;
    if (!*ops) {
        snprintf(load_why, sizeof(load_why), "%s is of another zipccld than this one", MODULE);
        return zipcclVersionMismatch;
    }
    /* Never unloaded: the driver keeps threads. */
    return (*ops)->open(config, device, why);
}
