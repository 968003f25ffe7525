/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes codec_decode: byte 0 chooses codec and dtype, bytes 1-2 the count, bytes 3-4 the dynamic part's length; the
 * rest is the chunk (bit 7 of byte 0: magic, version, codec, dtype, count and sizes are put right first, so that the
 * tables are reached). All instruction sets must agree, and the reader of groups with them.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codec_reader.h"
#include "kernels/dtype.h"
#include "kernels/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads a group at a time; each has exactly the room that it needs. */
static zipcclResult_t read_groups(zipcclCodec_t codec, zipcclDataType_t dtype, const uint8_t *s, size_t fixed,
                                  const uint8_t *d, size_t dynamic, uint8_t *out, size_t count) {
    struct codec_reader reader;
    const size_t width = dtype_get(dtype)->bytes;
    zipcclResult_t r = codec_reader_open(&reader, codec, dtype, s, fixed, d, dynamic, count);
    for (size_t at = 0; r == zipcclSuccess && at < count;) {
        const size_t n = count - at < ZFMT_GROUP ? count - at : ZFMT_GROUP;
        size_t values = 0;
        uint8_t *group = malloc(n * width);
        if (!group)
            abort();
        r = codec_reader_next(&reader, group, &values);
        if (r == zipcclSuccess && values != n)
            abort();
        memcpy(out + at * width, group, values * width);
        free(group);
        at += values;
    }
    size_t values = 1;
    if (r == zipcclSuccess && (codec_reader_next(&reader, out, &values) != zipcclSuccess || values != 0))
        abort();
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const zipcclDataType_t types[] = {zipcclBfloat16, zipcclFloat16, zipcclFloat32, zipcclFloat8e4m3,
                                             zipcclFloat8e5m2};
    if (size < 5)
        return 0;
    const zipcclCodec_t codec = (zipcclCodec_t)(data[0] % 3);
    const zipcclDataType_t dtype = types[data[0] / 3 % 5];
    const size_t count = data[1] | (size_t)data[2] << 8;
    size_t dynamic = (data[3] | (size_t)data[4] << 8) * 16;
    const bool repair = data[0] >> 7;
    data += 5;
    size -= 5;
    dynamic = dynamic < size ? dynamic : size;
    if (repair) {
        dynamic = dynamic / ZFMT_ALIGN * ZFMT_ALIGN;
        size -= (size - dynamic) % ZFMT_ALIGN;
    }
    const size_t fixed = size - dynamic, bytes = count * dtype_get(dtype)->bytes;
    uint8_t *s = malloc(fixed + 1), *d = malloc(dynamic + 1);
    uint8_t *out[2] = {malloc(bytes + 1), malloc(bytes + 1)};
    if (!s || !d || !out[0] || !out[1])
        abort();
    memcpy(s, data, fixed);
    memcpy(d, data + fixed, dynamic);
    if (repair && fixed >= sizeof(struct zfmt_header)) {
        struct zfmt_header h = {ZFMT_MAGIC, ZFMT_VERSION, (uint8_t)codec, (uint8_t)dtype, count, fixed, dynamic, 0,
                                0,          {0}};
        if (codec == zipcclCodecTop7) {
            h.base = s[40];
            h.zero = s[41] & 1;
        }
        memcpy(s, &h, sizeof(h));
    }
    zipcclResult_t first = zipcclNumResults;
    for (unsigned isa = 0; isa < CODEC_NUM_ISAS; isa++) {
        if (!codec_isa_force((enum codec_isa)isa))
            continue;
        const unsigned at = first != zipcclNumResults;
        const zipcclResult_t r = codec_decode(codec, dtype, s, fixed, d, dynamic, out[at], count, isa & 1);
        if (at && (r != first || (r == zipcclSuccess && memcmp(out[0], out[1], bytes) != 0)))
            abort();
        first = r;
        const zipcclResult_t by_group = read_groups(codec, dtype, s, fixed, d, dynamic, out[1], count);
        if (by_group != r || (r == zipcclSuccess && memcmp(out[0], out[1], bytes) != 0))
            abort();
    }
    free(s);
    free(d);
    free(out[0]);
    free(out[1]);
    return 0;
}
