/* SPDX-License-Identifier: Apache-2.0
 *
 * What every codec makes of one tensor.
 */
#include "client/ctl/analyze.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/chunks.h"
#include "client/ctl/output.h"
#include "client/ctl/units.h"
#include "kernels/layout.h"
#include "kernels/model.h"

#define ROUNDS      5
#define ROUNDS_LESS 2 /* of tensors over LARGE */
#define LARGE       (256u << 20)

double analyze_speedup(double bytes, double ratio, double encode_bps, double decode_bps, double link_bps) {
    double first = bytes < CHUNKS_BYTES ? bytes : CHUNKS_BYTES;
    double slowest = fmin(fmin(ratio * link_bps, encode_bps), decode_bps);
    if (!(bytes > 0) || !(slowest > 0))
        return 1;
    return bytes / link_bps / (bytes / slowest + first / encode_bps + first / decode_bps);
}

static zipcclResult_t try_codec(const struct tensor *t, zipcclCodec_t codec, struct chunks *chunks, void *back,
                                struct analyze_codec *out) {
    size_t coded = 0;
    int rounds = t->bytes > LARGE ? ROUNDS_LESS : ROUNDS;
    out->used = true;
    out->exact = true;
    for (int round = 0; round < rounds; round++) {
        uint64_t start = units_now_ns();
        zipcclResult_t rc = chunks_encode(chunks, codec, t->dtype, t->values, t->count, &coded);
        uint64_t middle = units_now_ns();
        if (rc != zipcclSuccess)
            return rc;
        rc = chunks_decode(chunks, codec, t->dtype, back, t->count);
        uint64_t end = units_now_ns();
        if (rc != zipcclSuccess || memcmp(back, t->values, t->bytes) != 0)
            out->exact = false;
        /* The best of the rounds: what disturbs only ever slows down. */
        out->encode_bps = fmax(out->encode_bps, (double)t->bytes * 1e9 / (double)(middle - start + 1));
        out->decode_bps = fmax(out->decode_bps, (double)t->bytes * 1e9 / (double)(end - middle + 1));
        memset(back, 0x5a, t->bytes); /* what an earlier round left must not pass for decoded */
    }
    out->ratio = coded ? (double)t->bytes / (double)coded : 1;
    return zipcclSuccess;
}

zipcclResult_t analyze_tensor(const struct tensor *t, double link_bps, struct analyze_result *out) {
    struct chunks chunks;
    zipcclResult_t rc = zipcclSuccess;
    void *back = chunks_alloc(t->bytes);
    memset(out, 0, sizeof *out);
    out->limit = out->speedup = 1;
    out->exact = true;
    if (!chunks_new(&chunks, t->bytes) || !back) {
        rc = zipcclOutOfMemory;
        goto out;
    }
    if (t->coded && t->count) {
        enum layout_kind kind = layout_kind_of(t->dtype);
        uint64_t histogram[256] = {0};
        model_histogram(kind, t->values, t->count, histogram);
        out->entropy = model_exponent_entropy(histogram);
        out->limit = model_limit_ratio(kind, out->entropy);
    }
    for (unsigned c = 0; c < zipcclNumCodecs && rc == zipcclSuccess; c++) {
        struct analyze_codec *codec = &out->codecs[c];
        /* raw is what all else is compared with, and all that is left for other types. */
        if (c == zipcclCodecRaw ? t->coded : !codec_supports((zipcclCodec_t)c, t->dtype))
            continue;
        rc = try_codec(t, (zipcclCodec_t)c, &chunks, back, codec);
        out->exact = out->exact && codec->exact;
        codec->speedup = c == zipcclCodecRaw ? 1
                                             : analyze_speedup((double)t->bytes, codec->ratio, codec->encode_bps,
                                                               codec->decode_bps, link_bps);
        out->speedup = fmax(out->speedup, codec->speedup);
    }
out:
    free(back);
    chunks_destroy(&chunks);
    return rc;
}

json_t *analyze_json(const struct tensor *t, const struct analyze_result *r) {
    json_t *codecs = json_object();
    json_t *tensor = json_pack("{s:o, s:o, s:I, s:o, s:o, s:O, s:o, s:b}", "name", output_text(t->name), "dtype",
                               output_text(t->dtype_name), "values", (json_int_t)t->count, "exponent_entropy",
                               output_real(r->entropy), "limit_ratio", output_real(r->limit), "codecs", codecs,
                               "speedup", output_real(r->speedup), "exact", r->exact);
    for (unsigned c = 0; c < zipcclNumCodecs; c++) {
        const struct analyze_codec *codec = &r->codecs[c];
        if (!codec->used)
            continue;
        (void)json_object_set_new(codecs, codec_name((zipcclCodec_t)c),
                                  json_pack("{s:o, s:b, s:o, s:o, s:o}", "ratio", output_real(codec->ratio), "exact",
                                            codec->exact, "encode_gbps", output_real(codec->encode_bps / 1e9),
                                            "decode_gbps", output_real(codec->decode_bps / 1e9), "speedup",
                                            output_real(codec->speedup)));
    }
    json_decref(codecs);
    return tensor;
}
