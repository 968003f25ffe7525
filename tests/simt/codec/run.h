/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches the codec kernels for a test: on the SIMT runtime from their source, or (CODEC_PTX) from nvcc's PTX.
 */
#ifndef ZIPCCL_TESTS_SIMT_CODEC_RUN_H
#define ZIPCCL_TESTS_SIMT_CODEC_RUN_H

#include "kernels/cuda/plan.h"

#include "simt_rt.h"

extern "C" {
#include "kernels/codec.h"
}

#include <string>
#include <vector>

/* The device's side of a batch. */
struct Batch {
    std::vector<zipccl_cuda_segment> table;
    std::vector<zipccl_cuda_result> results;
    uint64_t total_values = 0;
    unsigned grid = 3;
};

/* A PTX program has the kernels of some cases alone. */
bool have(zipcclCodec_t codec, zipcclDataType_t dtype);
bool have_reread();
/* Instructions that warps issue from here on, where they are counted (PTX): a line of name and number per value and
 * lane, and all of them. 0: not counted here. */
void count_restart();
double count_print(const char *what, uint64_t values);
void run_encode(zipcclCodec_t codec, zipcclDataType_t dtype, bool reread, Batch &batch);
void run_decode(zipcclCodec_t codec, zipcclDataType_t dtype, Batch &batch);
void run_decode_add(zipcclCodec_t codec, zipcclDataType_t dtype, bool to_fp32, unsigned inputs, Batch &batch);

#endif
