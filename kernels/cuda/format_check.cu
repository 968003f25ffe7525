/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles the wire format as CUDA C++, on host and device: its layout assertions hold on both sides of the bus.
 */
#include "kernels/format.h"

static __device__ __constant__ struct zfmt_header format_check_header;

extern "C" __global__ void zipccl_format_check(unsigned *size) {
    *size = static_cast<unsigned>(sizeof format_check_header);
}
