/* SPDX-License-Identifier: Apache-2.0
 *
 * What a job enqueues on its lane's stream, and what is made of the results.
 *
 * The kernels' table goes to the GPU, and their result comes from it, by copies of a few bytes in the stream. Codec
 * kernels want values aligned to 16 bytes; others pass through scratch. So do values that lie on another GPU, which a
 * kernel here may not reach. Coded parts never do: they lie in host memory, where they may be hashed, or in this GPU's
 * pool.
 */
#include <string.h>

#include "daemon/device/cuda.h"
#include "kernels/codec.h"
#include "kernels/cuda/reduce_cuda.h"
#include "kernels/dtype.h"

#define VALUE_ALIGN   16u
#define SCRATCH_ALIGN ((size_t)256)
#define RESULT_BYTES  64u /* in front of the table */

_Static_assert(sizeof(struct zipccl_cuda_result) <= RESULT_BYTES, "room for a result");

static size_t align_up(size_t n) {
    return (n + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

static size_t value_bytes(const struct device_job *job) {
    const struct dtype_info *info = dtype_get(job->dtype);
    return job->count * (info ? info->bytes : 1);
}

/* Whether a kernel on the lane's GPU cannot count on reaching it. */
static bool is_foreign(const struct cuda_lane *lane, const void *values) {
    const struct cuda_gpu *gpu = cuda_gpu_of(lane->gpu->device, values);
    return gpu && gpu != lane->gpu;
}

/* Whether a codec kernel takes values from where they are, or puts them there. */
static bool is_direct(const struct cuda_lane *lane, const void *values) {
    return (uintptr_t)values % VALUE_ALIGN == 0 && !is_foreign(lane, values);
}

/* Whether the coded parts at `part` can be worked on: here, and by the processor where they are hashed. */
static bool is_good_part(const struct cuda_lane *lane, const void *part, bool verify) {
    const struct cuda_gpu *gpu = cuda_gpu_of(lane->gpu->device, part);
    return !gpu || (gpu == lane->gpu && !verify);
}

struct cuda_need cuda_work_need(const struct cuda_lane *lane, const struct device_job *job) {
    struct cuda_need need = {0, RESULT_BYTES};
    size_t values = align_up(value_bytes(job));
    if (job->work == DEVICE_COPY)
        return need;
    need.scratch = align_up(zipccl_cuda_workspace(1, job->count));
    if (job->work == DEVICE_REDUCE) {
        need.args += sizeof(struct zipccl_cuda_reduction) + job->ninputs * sizeof(struct zipccl_cuda_input);
        need.scratch += is_foreign(lane, job->dst) ? values : 0;
        for (uint32_t i = 0; i < job->ninputs; i++)
            need.scratch += is_foreign(lane, job->inputs[i].src) ? values : 0;
        return need;
    }
    need.args += sizeof(struct zipccl_cuda_segment);
    if (!is_direct(lane, job->work == DEVICE_ENCODE ? job->src : job->dst))
        need.scratch += values;
    return need;
}

static cudaError_t copy(const struct cuda_lane *lane, void *to, const void *from, size_t bytes) {
    return bytes > 0 && to != from ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, lane->stream) : cudaSuccess;
}

/* The table, which lies in the slot's host memory behind the result, goes to the GPU. */
static cudaError_t send_table(const struct cuda_lane *lane, const struct cuda_slot *slot, size_t bytes) {
    return copy(lane, slot->device + RESULT_BYTES, slot->host + RESULT_BYTES, bytes);
}

static cudaError_t fetch_result(const struct cuda_lane *lane, const struct cuda_slot *slot) {
    return copy(lane, slot->host, slot->device, sizeof(struct zipccl_cuda_result));
}

/* What the launchers return instead of an error of CUDA; theirs is the thread's last one. */
static cudaError_t launched(zipcclResult_t result) {
    if (result == zipcclSuccess)
        return cudaSuccess;
    cudaError_t e = cudaGetLastError();
    return e != cudaSuccess ? e : result == zipcclInvalidArgument ? cudaErrorInvalidValue : cudaErrorUnknown;
}

static cudaError_t launch_codec(struct cuda_lane *lane, struct cuda_slot *slot) {
    const struct device_job *job = slot->job;
    const bool encode = job->work == DEVICE_ENCODE;
    const unsigned sms = lane->gpu->device->config.gpu_sms;
    uint8_t *values = encode ? (uint8_t *)(uintptr_t)job->src : job->dst;
    uint8_t *aligned =
        is_direct(lane, values) ? values : lane->scratch + align_up(zipccl_cuda_workspace(1, job->count));
    const struct codec_sizes bound = codec_bound(job->codec, job->dtype, job->count);
    struct zipccl_cuda_segment *table = (void *)(slot->host + RESULT_BYTES);
    struct zipccl_cuda_segment *there = (void *)(slot->device + RESULT_BYTES);
    struct zipccl_cuda_result *result = (void *)slot->device;
    if (!is_good_part(lane, encode ? job->dst : job->src, job->verify))
        return cudaErrorInvalidValue;
    *table = (struct zipccl_cuda_segment){
        .values = aligned,
        .static_part = encode ? job->dst : (void *)(uintptr_t)job->src,
        .dynamic_part = encode ? job->dst_dynamic : (void *)(uintptr_t)job->src_dynamic,
        .count = job->count,
        .static_room = encode ? bound.static_bytes : job->src_static,
        .dynamic_room = encode ? bound.dynamic_bytes : job->src_dynamic_bytes,
    };
    cudaError_t e = encode ? copy(lane, aligned, values, value_bytes(job)) : cudaSuccess;
    if (e == cudaSuccess)
        e = send_table(lane, slot, sizeof(*table));
    if (e != cudaSuccess)
        return e;
    e = launched((encode ? zipccl_cuda_encode : zipccl_cuda_decode)(job->codec, job->dtype, there, 1, job->count,
                                                                    result, lane->scratch, sms, lane->stream));
    if (e == cudaSuccess && !encode)
        e = copy(lane, values, aligned, value_bytes(job));
    return e == cudaSuccess ? fetch_result(lane, slot) : e;
}

/* Values that are not coded are their own static part. */
static cudaError_t launch_raw(struct cuda_lane *lane, struct cuda_slot *slot) {
    const struct device_job *job = slot->job;
    slot->plain = true;
    if (job->work == DEVICE_DECODE && (job->src_static != value_bytes(job) || job->src_dynamic_bytes != 0)) {
        slot->job->result = zipcclCorruptData;
        return cudaSuccess;
    }
    return copy(lane, job->dst, job->src, value_bytes(job));
}

static cudaError_t launch_reduce(struct cuda_lane *lane, struct cuda_slot *slot) {
    const struct device_job *job = slot->job;
    struct zipccl_cuda_reduction *row = (void *)(slot->host + RESULT_BYTES);
    struct zipccl_cuda_input *inputs = (void *)(row + 1);
    const size_t table_bytes = sizeof(*row) + job->ninputs * sizeof(*inputs), bytes = value_bytes(job);
    uint8_t *spare = lane->scratch + align_up(zipccl_cuda_workspace(1, job->count));
    zipcclCodec_t codec = zipcclCodecRaw;
    cudaError_t e = cudaSuccess;
    uint8_t *dst = job->dst;
    if (is_foreign(lane, dst)) {
        dst = spare;
        spare += align_up(bytes);
    }
    for (uint32_t i = 0; e == cudaSuccess && i < job->ninputs; i++) {
        const struct device_input *in = &job->inputs[i];
        codec = in->codec != zipcclCodecRaw ? in->codec : codec;
        if (in->codec != zipcclCodecRaw && !is_good_part(lane, in->src, in->verify))
            return cudaErrorInvalidValue;
        inputs[i] = (struct zipccl_cuda_input){.src = in->src,
                                               .src_dynamic = in->src_dynamic,
                                               .static_bytes = in->src_static,
                                               .dynamic_bytes = in->src_dynamic_bytes,
                                               .scalar = in->scalar,
                                               .codec = (uint32_t)in->codec,
                                               .flags = (in->scaled ? ZIPCCL_CUDA_SCALED : 0u) |
                                                        (in->ends_group ? ZIPCCL_CUDA_ENDS_GROUP : 0u) |
                                                        (in->round_group ? ZIPCCL_CUDA_ROUND_GROUP : 0u)};
        if (is_foreign(lane, in->src)) {
            e = copy(lane, spare, in->src, bytes);
            inputs[i].src = spare;
            spare += align_up(bytes);
        }
    }
    *row = (struct zipccl_cuda_reduction){.dst = dst,
                                          .inputs = (void *)(slot->device + RESULT_BYTES + sizeof(*row)),
                                          .count = job->count,
                                          .ninputs = job->ninputs,
                                          .divisor = job->divisor};
    if (e == cudaSuccess)
        e = send_table(lane, slot, table_bytes);
    if (e != cudaSuccess)
        return e;
    e = launched(zipccl_cuda_reduce(codec, job->dtype, job->redop, (void *)(slot->device + RESULT_BYTES), 1, job->count,
                                    (void *)slot->device, lane->scratch, lane->gpu->device->config.gpu_sms,
                                    lane->stream));
    if (e == cudaSuccess)
        e = copy(lane, job->dst, dst, bytes);
    return e == cudaSuccess ? fetch_result(lane, slot) : e;
}

static cudaError_t launch_copy(struct cuda_lane *lane, struct cuda_slot *slot) {
    const struct device_job *job = slot->job;
    const struct device *d = lane->gpu->device;
    slot->plain = true;
    if (job->verify)
        slot->hash_at = !cuda_gpu_of(d, job->src) ? job->src : !cuda_gpu_of(d, job->dst) ? job->dst : NULL;
    if (job->verify && !slot->hash_at)
        return cudaErrorInvalidValue; /* hashes are made where bytes enter and leave the fabric, which is the host */
    return copy(lane, job->dst, job->src, job->count);
}

cudaError_t cuda_work_launch(struct cuda_lane *lane, struct cuda_slot *slot) {
    struct device_job *job = slot->job;
    job->result = zipcclSuccess;
    switch (job->work) {
    case DEVICE_ENCODE:
    case DEVICE_DECODE:
        return job->codec == zipcclCodecRaw ? launch_raw(lane, slot) : launch_codec(lane, slot);
    case DEVICE_REDUCE:
        return launch_reduce(lane, slot);
    case DEVICE_COPY:
        return launch_copy(lane, slot);
    }
    return cudaErrorInvalidValue;
}

/* As reduce does: the first input that is not what it should be. */
static void check_hashes(struct device_job *job) {
    for (uint32_t i = 0; i < job->ninputs; i++) {
        const struct device_input *in = &job->inputs[i];
        if (in->codec == zipcclCodecRaw || !in->verify ||
            host_hash_parts(in->src, in->src_static, in->src_dynamic, in->src_dynamic_bytes) == in->hash)
            continue;
        job->result = zipcclCorruptData;
        job->bad_input = i;
        return;
    }
}

static void finish_kernel(struct device_job *job, const struct zipccl_cuda_result *r) {
    if (r->status & ZIPCCL_CUDA_CORRUPT)
        job->result = zipcclCorruptData;
    else if (r->status & ZIPCCL_CUDA_INVALID) /* coded input is untrusted; all else comes from this daemon */
        job->result = job->work == DEVICE_DECODE ? zipcclCorruptData : zipcclInvalidArgument;
    else if (r->status)
        job->result = zipcclInternalError;
    if (job->work == DEVICE_ENCODE) {
        job->out_static = r->static_bytes;
        job->out_dynamic = r->dynamic_bytes;
    }
    if (job->work == DEVICE_REDUCE && job->result == zipcclCorruptData)
        job->bad_input = r->bad_input;
}

static void finish_hash(struct device_job *job, const struct cuda_slot *slot) {
    if (job->work == DEVICE_REDUCE)
        check_hashes(job);
    if (!job->verify || job->result != zipcclSuccess)
        return;
    if (job->work == DEVICE_COPY)
        job->hash = host_hash_parts(slot->hash_at, job->count, NULL, 0);
    else if (job->work == DEVICE_ENCODE)
        job->hash = host_hash_parts(job->dst, job->out_static, job->dst_dynamic, job->out_dynamic);
    else if (job->work == DEVICE_DECODE &&
             host_hash_parts(job->src, job->src_static, job->src_dynamic, job->src_dynamic_bytes) != job->hash)
        job->result = zipcclCorruptData;
}

void cuda_work_finish(struct cuda_slot *slot) {
    struct device_job *job = slot->job;
    float ms = 0;
    job->ns = 0;
    if (slot->result != zipcclSuccess) {
        job->result = slot->result;
        return;
    }
    if (cudaEventElapsedTime(&ms, slot->begin, slot->end) == cudaSuccess && ms > 0)
        job->ns = (uint64_t)((double)ms * 1e6);
    else
        (void)cudaGetLastError();
    if (slot->plain && job->work == DEVICE_ENCODE) {
        job->out_static = value_bytes(job);
        job->out_dynamic = 0;
    }
    if (!slot->plain)
        finish_kernel(job, (const struct zipccl_cuda_result *)(const void *)slot->host);
    if (job->result == zipcclSuccess)
        finish_hash(job, slot);
}
