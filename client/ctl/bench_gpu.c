/* SPDX-License-Identifier: Apache-2.0
 *
 * The module is a library of its own, so that this program starts where there is no CUDA. It lies beside the program,
 * as in a build, or where it was installed, and stays loaded.
 */
#include "client/ctl/bench_gpu.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/units.h"
#include "kernels/dtype.h"

#define SEGMENT_BYTES ((size_t)1 << 30) /* a chunk has at most 2^31 values */

static struct {
    enum bench_cuda_answer (*open)(char text[BENCH_CUDA_TEXT]);
    enum bench_cuda_answer (*run)(struct bench_cuda *b, char text[BENCH_CUDA_TEXT]);
} module;

static void *load(char text[BENCH_CUDA_TEXT]) {
    char path[PATH_MAX + sizeof BENCH_CUDA_MODULE];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    char *slash = NULL;
    if (n > 0) {
        path[n] = 0;
        slash = strrchr(path, '/');
    }
    if (slash) {
        (void)snprintf(slash + 1, sizeof BENCH_CUDA_MODULE, "%s", BENCH_CUDA_MODULE);
        void *beside = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (beside)
            return beside;
    }
    void *installed = dlopen(ZIPCCL_MODULES "/" BENCH_CUDA_MODULE, RTLD_NOW | RTLD_LOCAL);
    if (!installed) {
        const char *why = dlerror();
        (void)snprintf(text, BENCH_CUDA_TEXT, "no CUDA module, which a build with nvcc has: %s",
                       why ? why : "not found");
    }
    return installed;
}

bool bench_gpu_open(char text[BENCH_CUDA_TEXT]) {
    void *library = load(text);
    if (!library)
        return false;
    *(void **)&module.open = dlsym(library, "bench_cuda_open");
    *(void **)&module.run = dlsym(library, "bench_cuda_run");
    if (!module.open || !module.run) {
        (void)snprintf(text, BENCH_CUDA_TEXT, "%s is of another version", BENCH_CUDA_MODULE);
        return false;
    }
    char answer[BENCH_CUDA_TEXT] = "";
    const enum bench_cuda_answer a = module.open(answer);
    (void)snprintf(text, BENCH_CUDA_TEXT, "%s%.200s", a == BENCH_CUDA_NO_DEVICE ? "no GPU here: " : "", answer);
    return a == BENCH_CUDA_OK;
}

static bool run_case(struct bench_codec *b, struct bench_case *c, struct bench_cuda *cuda, char text[BENCH_CUDA_TEXT]) {
    struct bench_cuda_segment *segments = calloc(cuda->nsegments, sizeof *segments);
    bool ok = false;
    if (!segments) {
        (void)snprintf(text, BENCH_CUDA_TEXT, "out of memory");
        return false;
    }
    for (size_t i = 0; i < cuda->nsegments; i++) {
        const size_t left = b->bytes - i * SEGMENT_BYTES;
        segments[i].count = (left < SEGMENT_BYTES ? left : SEGMENT_BYTES) / cuda->value_bytes;
        const struct codec_sizes bound = codec_bound(c->codec, b->dtype, segments[i].count);
        segments[i].static_room = bound.static_bytes;
        segments[i].dynamic_room = bound.dynamic_bytes;
    }
    cuda->codec = c->codec;
    cuda->segments = segments;
    if (module.run(cuda, text) == BENCH_CUDA_OK && cuda->rounds > 0) {
        ok = true;
        c->exact = cuda->exact;
        c->ratio = cuda->coded ? (double)b->bytes / (double)cuda->coded : 0;
        b->rounds = cuda->rounds;
        double scratch[BENCH_CUDA_MAX_ROUNDS];
        c->encode = bench_rate_of(cuda->encode_bps, cuda->copy_bps, cuda->rounds, scratch);
        c->decode = bench_rate_of(cuda->decode_bps, cuda->copy_bps, cuda->rounds, scratch);
        b->memcpy = bench_rate_of(cuda->copy_bps, cuda->copy_bps, cuda->rounds, scratch);
    }
    cuda->segments = NULL;
    free(segments);
    return ok;
}

bool bench_gpu_run(struct bench_codec *b, char text[BENCH_CUDA_TEXT]) {
    double *bps = calloc(3 * BENCH_CUDA_MAX_ROUNDS, sizeof *bps);
    struct bench_cuda cuda = {
        .dtype = b->dtype,
        .value_bytes = dtype_get(b->dtype)->bytes,
        .values = b->values,
        .period = b->bytes < BENCH_GPU_PERIOD ? b->bytes : BENCH_GPU_PERIOD,
        .bytes = b->bytes,
        .nsegments = (b->bytes + SEGMENT_BYTES - 1) / SEGMENT_BYTES,
        .min_seconds = b->min_seconds,
        .copy_bps = bps,
        .encode_bps = bps ? bps + BENCH_CUDA_MAX_ROUNDS : NULL,
        .decode_bps = bps ? bps + 2 * BENCH_CUDA_MAX_ROUNDS : NULL,
    };
    bool ok = bps != NULL;
    if (!ok)
        (void)snprintf(text, BENCH_CUDA_TEXT, "out of memory");
    for (size_t i = 0; ok && i < b->ncases; i++)
        ok = run_case(b, &b->cases[i], &cuda, text);
    free(bps);
    return ok;
}
