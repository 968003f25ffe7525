/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that only the driver has, found through the runtime: nothing links to libcuda.
 */
#include "daemon/device/cuda.h"

/* The versions in which each call got the form that is used here. */
static bool find(const char *name, unsigned version, void *function) {
    enum cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    void *found = NULL;
    cudaError_t e = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status);
    if (e != cudaSuccess || status != cudaDriverEntryPointSuccess || !found) {
        (void)cudaGetLastError();
        return false;
    }
    *(void **)function = found;
    return true;
}

bool cuda_driver_load(struct cuda_driver *d, const char **why) {
    *d = (struct cuda_driver){0};
    if (!find("cuMemGetAddressRange", 3020, &d->mem_get_address_range)) {
        *why = "the driver has no cuMemGetAddressRange";
        return false;
    }
    d->has_vmm = find("cuMemAddressReserve", 10020, &d->mem_address_reserve) &&
                 find("cuMemAddressFree", 10020, &d->mem_address_free) &&
                 find("cuMemImportFromShareableHandle", 10020, &d->mem_import) &&
                 find("cuMemMap", 10020, &d->mem_map) && find("cuMemUnmap", 10020, &d->mem_unmap) &&
                 find("cuMemSetAccess", 10020, &d->mem_set_access) && find("cuMemRelease", 10020, &d->mem_release);
    if (!d->has_vmm || !find("cuMemCreate", 10020, &d->mem_create))
        d->mem_create = NULL;
    return true;
}
