/* SPDX-License-Identifier: Apache-2.0
 *
 * The door to the PTX executor of tests/simt, for kernel.c. Built together with translated PTX.
 */
#include "kernels.h"

#include "ptx_rt.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT standin_kernels_find_fn standin_kernels_find;
EXPORT standin_kernels_run_fn standin_kernels_run;

int standin_kernels_find(const char *name, standin_kernel_info *info) {
    const ptx::Kernel *k = ptx::find_kernel(name);
    if (!k)
        return 0;
    *info = {k->static_shared, k->max_threads, k->params, k->param_bytes};
    return 1;
}

void standin_kernels_run(const char *name, const unsigned *grid, const unsigned *block, size_t shared,
                         void *const *args) {
    ptx::launch(*ptx::find_kernel(name), dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), shared,
                args);
}
