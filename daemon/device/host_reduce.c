/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions on the host. Raw inputs are combined where they lie. As soon as one is coded, a group (32 Ki values) of
 * all inputs is finished before the next: coded ones are decoded into scratch that fits the second-level cache, and
 * what does not fit at once is combined in parts, with the accumulators kept between them.
 */
#include "daemon/device/host.h"

#include <stdlib.h>

#include "kernels/codec_reader.h"
#include "kernels/dtype.h"
#include "kernels/reduce.h"

#define DECODED_BYTES ((size_t)512 << 10)          /* decoded groups that wait to be combined */
#define STAGGER       ((size_t)576)                /* between them: not all on the same sets of a cache */
#define MAX_DECODED   (DECODED_BYTES / ZFMT_GROUP) /* of one byte a value */
#define CARRY_BYTES   (ZFMT_GROUP * sizeof(float)) /* what can be coded is added up in FP32 */
#define FIRST_INPUTS  64u

bool host_scratch_init(struct host_scratch *s) {
    *s = (struct host_scratch){0};
    s->decoded = aligned_alloc(4096, (DECODED_BYTES + MAX_DECODED * STAGGER + 4095) / 4096 * 4096);
    s->group = aligned_alloc(4096, CARRY_BYTES);
    s->total = aligned_alloc(4096, CARRY_BYTES);
    return s->decoded && s->group && s->total && host_scratch_reserve(s, FIRST_INPUTS);
}

void host_scratch_free(struct host_scratch *s) {
    free(s->decoded);
    free(s->group);
    free(s->total);
    free(s->readers);
    free(s->inputs);
    *s = (struct host_scratch){0};
}

bool host_scratch_reserve(struct host_scratch *s, uint32_t inputs) {
    if (inputs <= s->capacity)
        return true;
    free(s->readers);
    free(s->inputs);
    s->readers = malloc(inputs * sizeof(*s->readers));
    s->inputs = malloc(inputs * sizeof(*s->inputs));
    s->capacity = s->readers && s->inputs ? inputs : 0;
    return s->capacity != 0;
}

static zipcclResult_t fail(struct device_job *job, uint32_t input, zipcclResult_t result) {
    if (result == zipcclCorruptData)
        job->bad_input = input;
    return result;
}

/* Sets up all inputs; opens those that are coded and says whether there is one. */
static zipcclResult_t open_inputs(struct device_job *job, struct host_scratch *s, bool *coded) {
    *coded = false;
    for (uint32_t k = 0; k < job->ninputs; k++) {
        const struct device_input *in = &job->inputs[k];
        s->inputs[k] = (struct reduce_input){.values = in->src,
                                             .scalar = in->scalar,
                                             .scaled = in->scaled,
                                             .ends_group = in->ends_group,
                                             .round_group = in->round_group};
        if (in->codec == zipcclCodecRaw)
            continue;
        *coded = true;
        if (in->verify && host_hash_parts(in->src, in->src_static, in->src_dynamic, in->src_dynamic_bytes) != in->hash)
            return fail(job, k, zipcclCorruptData);
        const zipcclResult_t r = codec_reader_open(&s->readers[k], in->codec, job->dtype, in->src, in->src_static,
                                                   in->src_dynamic, in->src_dynamic_bytes, job->count);
        if (r != zipcclSuccess)
            return fail(job, k, r);
    }
    return zipcclSuccess;
}

/* The values of all inputs from `at` on, n of them: a group, or what is left. */
static zipcclResult_t reduce_group(struct device_job *job, struct host_scratch *s, size_t at, size_t n) {
    const size_t width = dtype_get(job->dtype)->bytes, slots = DECODED_BYTES / (ZFMT_GROUP * width);
    struct reduce_carry carry = {.group = s->group, .total = s->total};
    struct reduce part = {.op = job->redop, .dtype = job->dtype, .divisor = job->divisor, .flags = job->flags};
    uint32_t first = 0;
    size_t used = 0;
    for (uint32_t k = 0; k < job->ninputs; k++) {
        if (job->inputs[k].codec == zipcclCodecRaw) {
            s->inputs[k].values = (const uint8_t *)job->inputs[k].src + at * width;
            continue;
        }
        if (used == slots) {
            part.inputs = s->inputs + first;
            part.ninputs = k - first;
            part.carry = &carry;
            part.more = true;
            const zipcclResult_t r = reduce_values(&part, NULL, n);
            if (r != zipcclSuccess)
                return r;
            first = k;
            used = 0;
        }
        uint8_t *const to = s->decoded + used++ * (ZFMT_GROUP * width + STAGGER);
        size_t values = 0;
        const zipcclResult_t r = codec_reader_next(&s->readers[k], to, &values);
        if (r != zipcclSuccess)
            return fail(job, k, r);
        s->inputs[k].values = to;
    }
    part.inputs = s->inputs + first;
    part.ninputs = job->ninputs - first;
    part.more = false;
    return reduce_values(&part, (uint8_t *)job->dst + at * width, n);
}

zipcclResult_t host_reduce(struct device_job *job, struct host_scratch *s) {
    if (!reduce_supports(job->redop, job->dtype) || job->ninputs == 0)
        return zipcclInvalidArgument;
    if (!host_scratch_reserve(s, job->ninputs))
        return zipcclOutOfMemory;
    bool coded;
    zipcclResult_t r = open_inputs(job, s, &coded);
    if (r != zipcclSuccess)
        return r;
    if (!coded) {
        const struct reduce all = {.op = job->redop,
                                   .dtype = job->dtype,
                                   .divisor = job->divisor,
                                   .inputs = s->inputs,
                                   .ninputs = job->ninputs,
                                   .flags = job->flags};
        return reduce_values(&all, job->dst, job->count);
    }
    for (size_t at = 0; r == zipcclSuccess && at < job->count; at += ZFMT_GROUP)
        r = reduce_group(job, s, at, job->count - at < ZFMT_GROUP ? job->count - at : ZFMT_GROUP);
    return r;
}
