/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA module without CUDA: it checks what it is given, and codes the first period by the CPU codec. FAKE_CUDA says
 * what goes wrong: none (no device), open, run, bits.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench_cuda.h"
#include "kernels/codec.h"

static bool wanted(const char *fault) {
    const char *given = getenv("FAKE_CUDA");
    return given && strcmp(given, fault) == 0;
}

enum bench_cuda_answer bench_cuda_open(char text[BENCH_CUDA_TEXT]) {
    snprintf(text, BENCH_CUDA_TEXT, wanted("none") || wanted("open") ? "the driver says no" : "Fake GPU");
    return wanted("none") ? BENCH_CUDA_NO_DEVICE : wanted("open") ? BENCH_CUDA_FAILED : BENCH_CUDA_OK;
}

/* What is wrong with the segments, or NULL. */
static const char *look_at_segments(const struct bench_cuda *b) {
    size_t bytes = 0;
    for (size_t i = 0; i < b->nsegments; i++) {
        const struct bench_cuda_segment *s = &b->segments[i];
        const struct codec_sizes bound = codec_bound(b->codec, b->dtype, s->count);
        if (s->static_room < bound.static_bytes || s->dynamic_room < bound.dynamic_bytes)
            return "a room is too small";
        if (s->count == 0 || s->count > 1ull << 31)
            return "a count is wrong";
        bytes += s->count * b->value_bytes;
        if (i + 1 < b->nsegments && bytes % 16)
            return "a segment is not aligned";
    }
    return bytes == b->bytes ? NULL : "the segments are not all values";
}

enum bench_cuda_answer bench_cuda_run(struct bench_cuda *b, char text[BENCH_CUDA_TEXT]) {
    const char *wrong = wanted("run") ? "out of memory" : look_at_segments(b);
    const size_t count = b->period / b->value_bytes;
    const struct codec_sizes bound = codec_bound(b->codec, b->dtype, count);
    uint8_t *parts = malloc(bound.static_bytes + bound.dynamic_bytes);
    struct codec_sizes sizes = {0};
    if (!wrong && (!parts || codec_encode(b->codec, b->dtype, b->values, count, parts, parts + bound.static_bytes, 0,
                                          &sizes) != zipcclSuccess))
        wrong = "the values cannot be read";
    free(parts);
    if (wrong) {
        snprintf(text, BENCH_CUDA_TEXT, "%s", wrong);
        return BENCH_CUDA_FAILED;
    }
    b->coded = (sizes.static_bytes + sizes.dynamic_bytes) * b->bytes / b->period;
    b->exact = !wanted("bits");
    for (b->rounds = 0; b->rounds < 3; b->rounds++) {
        b->copy_bps[b->rounds] = 100e9 * (double)(b->rounds + 1);
        b->encode_bps[b->rounds] = 10e9 * (double)(3 - b->rounds);
        b->decode_bps[b->rounds] = 1e9;
    }
    return BENCH_CUDA_OK;
}
