/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels: a shared object of translated PTX and the executor, opened at run time (kernels.cpp).
 */
#ifndef ZIPCCL_TESTS_STANDIN_KERNELS_H
#define ZIPCCL_TESTS_STANDIN_KERNELS_H

#include <stddef.h>

#define STANDIN_KERNELS_FIND "standin_kernels_find"
#define STANDIN_KERNELS_RUN  "standin_kernels_run"
#define STANDIN_KERNELS_VIEW "standin_kernels_view"

struct standin_kernel_info {
    unsigned static_shared, max_threads, params;
    const unsigned *param_bytes;
};
/* 0: no such kernel. */
typedef int standin_kernels_find_fn(const char *name, struct standin_kernel_info *info);
/* Addresses from base on stand for what lies `shift` further on. host: the range around a that kernels may touch in the
 * host's memory; it does not return where there is none. */
typedef void standin_kernels_host_fn(unsigned long a, unsigned long *from, unsigned long *to);
typedef void standin_kernels_view_fn(unsigned long base, size_t bytes, size_t shift, standin_kernels_host_fn *host);
typedef void standin_kernels_run_fn(const char *name, const unsigned *grid, const unsigned *block, size_t shared,
                                    void *const *args);

#endif
