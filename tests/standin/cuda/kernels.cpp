/* SPDX-License-Identifier: Apache-2.0
 *
 * The door to the PTX executor of tests/simt, for kernel.c. Built together with translated PTX.
 */
#include "kernels.h"

#include "ptx_rt.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT standin_kernels_find_fn standin_kernels_find;
EXPORT standin_kernels_run_fn standin_kernels_run;
EXPORT standin_kernels_view_fn standin_kernels_view;

int standin_kernels_find(const char *name, standin_kernel_info *info) {
    const ptx::Kernel *k = ptx::find_kernel(name);
    if (!k)
        return 0;
    *info = {k->static_shared, k->max_threads, k->params, k->param_bytes};
    return 1;
}

static standin_kernels_host_fn *g_host;

/* Variables of the kernels lie in this library. */
static void host(uint64_t a, uint64_t *from, uint64_t *to) {
    for (const ptx::Module *m = ptx::Module::first(); m; m = m->next)
        for (size_t i = 0; i < m->num_variables; i++) {
            const uint64_t at = reinterpret_cast<uint64_t>(m->variables[i].address);
            if (a - at < m->variables[i].bytes) {
                *from = at;
                *to = at + m->variables[i].bytes;
                return;
            }
        }
    g_host(a, from, to);
}

void standin_kernels_view(unsigned long base, size_t bytes, size_t shift, standin_kernels_host_fn *host_range) {
    g_host = host_range;
    ptx::view = {base, bytes, shift, host, 0, 0};
}

void standin_kernels_run(const char *name, const unsigned *grid, const unsigned *block, size_t shared,
                         void *const *args) {
    ptx::view.from = ptx::view.to = 0; /* host memory may have gone since */
    ptx::launch(*ptx::find_kernel(name), dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), shared,
                args);
}
