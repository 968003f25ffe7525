/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of a job on the host: codec, copies and hashes; reductions are in host_reduce.c.
 */
#define XXH_STATIC_LINKING_ONLY
#include "daemon/device/host.h"

#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t host_hash_parts(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    if (b_bytes == 0)
        return XXH3_64bits(a, a_bytes);
    if ((const uint8_t *)a + a_bytes == (const uint8_t *)b)
        return XXH3_64bits(a, a_bytes + b_bytes);
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, a, a_bytes);
    XXH3_64bits_update(&state, b, b_bytes);
    return XXH3_64bits_digest(&state);
}

size_t host_work_bytes(const struct device_job *job) {
    if (job->work == DEVICE_COPY)
        return job->count;
    const struct dtype_info *info = dtype_get(job->dtype);
    return job->count * (info ? info->bytes : 1) * (job->work == DEVICE_REDUCE ? job->ninputs : 1);
}

static void encode(struct device_job *job) {
    struct codec_sizes sizes = {0, 0};
    job->result =
        codec_encode(job->codec, job->dtype, job->src, job->count, job->dst, job->dst_dynamic, job->flags, &sizes);
    job->out_static = sizes.static_bytes;
    job->out_dynamic = sizes.dynamic_bytes;
    if (job->result == zipcclSuccess && job->verify)
        job->hash = host_hash_parts(job->dst, sizes.static_bytes, job->dst_dynamic, sizes.dynamic_bytes);
}

static void decode(struct device_job *job) {
    if (job->verify &&
        host_hash_parts(job->src, job->src_static, job->src_dynamic, job->src_dynamic_bytes) != job->hash) {
        job->result = zipcclCorruptData;
        return;
    }
    job->result = codec_decode(job->codec, job->dtype, job->src, job->src_static, job->src_dynamic,
                               job->src_dynamic_bytes, job->dst, job->count, job->flags);
}

void host_work_run(struct device_job *job, struct host_scratch *scratch) {
    uint64_t start = now_ns();
    switch (job->work) {
    case DEVICE_ENCODE:
        encode(job);
        break;
    case DEVICE_DECODE:
        decode(job);
        break;
    case DEVICE_COPY:
        /* The same place twice: a job that only hashes. */
        if (job->dst != job->src && job->count > 0)
            memmove(job->dst, job->src, job->count);
        if (job->verify)
            job->hash = XXH3_64bits(job->src, job->count);
        job->result = zipcclSuccess;
        break;
    case DEVICE_REDUCE:
        job->result = host_reduce(job, scratch);
        break;
    default:
        job->result = zipcclInternalError;
    }
    job->ns = now_ns() - start;
}
