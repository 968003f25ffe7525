/* SPDX-License-Identifier: Apache-2.0
 *
 * Values to measure with: Gaussian ones, or a file's, repeated to size.
 */
#ifndef ZIPCCL_CTL_BENCH_DATA_H
#define ZIPCCL_CTL_BENCH_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "client/ctl/tensors.h"
#include "zipccl_types.h"

#define BENCH_SIGMA 0.02

/* N(0, 0.02^2) in a float dtype; of other dtypes the bytes of such FP32 values. The same for the same seed. */
void bench_gauss(void *out, size_t bytes, zipcclDataType_t dtype, uint64_t seed);
/* The tensor's bytes from `offset` on, round and round. */
void bench_repeat(void *out, size_t bytes, const struct tensor *t, size_t offset);

#endif
