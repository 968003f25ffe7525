/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast the GPU codes, with its coded parts in pinned host memory, as operations have them. A first size that a slow
 * device takes long for already is the last; a fast one gets larger ones, until launches do not matter any more.
 */
#include <poll.h>
#include <string.h>

#include "daemon/device/cuda.h"
#include "kernels/codec.h"

#define FIRST_VALUES ((size_t)128 << 10)
#define MOST_VALUES  ((size_t)16 << 20)
#define ENOUGH_NS    1000000u

struct measure {
    struct device *device;
    struct cuda_gpu *gpu;
    bool done;
};

static void job_done(struct device_job *job) {
    ((struct measure *)job->arg)->done = true;
}

/* Nanoseconds; 0 where it failed. */
static uint64_t run(struct measure *m, struct device_job *job) {
    struct pollfd fd = {.fd = m->device->epoll_fd, .events = POLLIN};
    m->done = false;
    job->done = job_done;
    job->arg = m;
    cuda_lane_submit(m->gpu, job->work == DEVICE_ENCODE ? CUDA_ENCODE : CUDA_DECODE, job);
    while (!m->done) {
        (void)poll(&fd, 1, 100);
        cuda_poll(m->device);
    }
    return job->result == zipcclSuccess ? job->ns + 1 : 0;
}

/* Values as gradients have them: few exponents, random fractions. */
static void fill(uint16_t *values, size_t n) {
    uint64_t state = 0x9e3779b97f4a7c15ull;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t bits = state >> 20;
        unsigned down = bits ? (unsigned)__builtin_ctzll(bits) : 0; /* half as many at each smaller exponent */
        values[i] =
            (uint16_t)((state >> 63) << 15 | (uint64_t)(120 - (down < 20 ? down : 20)) << 7 | (state >> 13 & 0x7f));
    }
}

/* Times one size. */
static bool measure_size(struct measure *m, size_t n, uint64_t ns[2]) {
    const struct codec_sizes bound = codec_bound(zipcclCodecTier, zipcclBfloat16, n);
    const size_t coded_bytes = bound.static_bytes + bound.dynamic_bytes;
    uint16_t *host = host_pool_alloc(&m->device->pool, n * sizeof(*host));
    uint8_t *coded = host_pool_alloc(&m->device->pool, coded_bytes);
    void *values = NULL;
    bool good = host && coded && cudaMalloc(&values, n * sizeof(*host)) == cudaSuccess;
    if (good) {
        fill(host, n);
        good = cudaMemcpy(values, host, n * sizeof(*host), cudaMemcpyHostToDevice) == cudaSuccess;
    }
    for (unsigned round = 0; good && round < 2; round++) { /* the first one pays for what is set up once */
        struct device_job job = {.work = DEVICE_ENCODE,
                                 .codec = zipcclCodecTier,
                                 .dtype = zipcclBfloat16,
                                 .src = values,
                                 .dst = coded,
                                 .dst_dynamic = coded + bound.static_bytes,
                                 .count = n};
        ns[0] = run(m, &job);
        struct device_job back = {.work = DEVICE_DECODE,
                                  .codec = zipcclCodecTier,
                                  .dtype = zipcclBfloat16,
                                  .src = coded,
                                  .src_static = job.out_static,
                                  .src_dynamic = coded + bound.static_bytes,
                                  .src_dynamic_bytes = job.out_dynamic,
                                  .dst = values,
                                  .count = n};
        ns[1] = ns[0] ? run(m, &back) : 0;
        good = ns[1] != 0;
    }
    if (values)
        (void)cudaFree(values);
    host_pool_free(&m->device->pool, host, n * sizeof(*host));
    host_pool_free(&m->device->pool, coded, coded_bytes);
    (void)cudaGetLastError();
    return good;
}

bool cuda_measure(struct device *d, uint64_t *encode_bps, uint64_t *decode_bps) {
    struct measure m = {.device = d, .gpu = d->own ? d->own : &d->gpus[0]};
    const char *why;
    if (cuda_gpu_ready(m.gpu, &why) != zipcclSuccess)
        return false;
    for (size_t n = FIRST_VALUES; n <= MOST_VALUES; n *= 8) {
        uint64_t ns[2] = {0, 0};
        if (!measure_size(&m, n, ns))
            return false;
        *encode_bps = (uint64_t)((double)n * 2e9 / (double)ns[0]);
        *decode_bps = (uint64_t)((double)n * 2e9 / (double)ns[1]);
        if (ns[0] > ENOUGH_NS)
            break;
    }
    return true;
}
