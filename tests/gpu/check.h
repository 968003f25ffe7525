/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests on a device do with a call of CUDA that fails: say where, and end.
 */
#ifndef ZIPCCL_TESTS_GPU_CHECK_H
#define ZIPCCL_TESTS_GPU_CHECK_H

#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

#define CHECK(e)                                                                                                       \
    do {                                                                                                               \
        const cudaError_t r_ = (e);                                                                                    \
        if (r_ != cudaSuccess) {                                                                                       \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(r_));                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
