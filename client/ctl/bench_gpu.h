/* SPDX-License-Identifier: Apache-2.0
 *
 * bench codec on a GPU: loads the CUDA module, and measures by it.
 */
#ifndef ZIPCCL_CTL_BENCH_GPU_H
#define ZIPCCL_CTL_BENCH_GPU_H

#include "client/ctl/bench_codec.h"
#include "client/ctl/bench_cuda.h"

/* Values that are made on the host; the GPU repeats them. */
#define BENCH_GPU_PERIOD ((size_t)64 << 20)

/* text: the GPU's name, or why there is none, in words for people. */
bool bench_gpu_open(char text[BENCH_CUDA_TEXT]);
/* As bench_codec_run, each case by itself: b->values holds up to BENCH_GPU_PERIOD bytes, memcpy is a copy on the GPU.
 * text: why it failed. */
bool bench_gpu_run(struct bench_codec *b, char text[BENCH_CUDA_TEXT]);

#endif
