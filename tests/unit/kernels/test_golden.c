/* SPDX-License-Identifier: Apache-2.0
 *
 * Golden chunks: tests/data/golden pins the coded form byte for byte. NAME.chunk holds, for the input that the name
 * tells, the static part and the dynamic part one after the other. Run with the argument --write to make the files anew
 * after a change of the format or of the encoder rule.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/kernels/chunks.h"

#define COUNT 2500u /* four full blocks and a short one */

static bool g_write;

static void golden_path(char *path, size_t n, zipcclCodec_t codec, zipcclDataType_t t, enum input in) {
    static const char *const inputs[NUM_INPUTS] = {"random",      "narrow",  "zero",    "const", "zeros",
                                                   "alternating", "counter", "special", "wide"};
    snprintf(path, n, "%s/golden/%s-%s-%s.chunk", ZIPCCL_TEST_DATA, codec_name(codec), dtype_get(t)->name, inputs[in]);
}

static void check_corrupt(zipcclCodec_t codec, zipcclDataType_t t, uint8_t *file, const struct codec_sizes *sizes,
                          uint8_t *dst) {
    /* One wrong byte in each: magic, version, count, sizes, reserved, mode, group table. */
    static const size_t places[] = {0, 4, 8, 16, 24, 34, 127, 128, 256, 260, 264, 271};
    for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        file[places[i]] ^= 0x80;
        assert_int_equal(codec_decode(codec, t, file, sizes->static_bytes, file + sizes->static_bytes,
                                      sizes->dynamic_bytes, dst, COUNT, 0),
                         zipcclCorruptData);
        file[places[i]] ^= 0x80;
    }
}

static void check_one(zipcclCodec_t codec, zipcclDataType_t t, enum input in) {
    static _Alignas(64) uint8_t src[4 * COUNT], dst[4 * COUNT], coded[1u << 17], dynamic[1u << 17], file[1u << 17];
    char path[4096];
    struct codec_sizes sizes;
    golden_path(path, sizeof(path), codec, t, in);
    fill(src, t, COUNT, in, 7);
    assert_int_equal(codec_encode(codec, t, src, COUNT, coded, dynamic, 0, &sizes), zipcclSuccess);
    const size_t total = sizes.static_bytes + sizes.dynamic_bytes;
    memcpy(coded + sizes.static_bytes, dynamic, sizes.dynamic_bytes);
    FILE *f = fopen(path, g_write ? "wb" : "rb");
    assert_non_null(f);
    if (g_write)
        assert_int_equal(fwrite(coded, 1, total, f), total);
    else
        assert_int_equal(fread(file, 1, sizeof(file), f), total);
    assert_int_equal(fclose(f), 0);
    if (g_write)
        return;
    assert_memory_equal(file, coded, total);
    assert_int_equal(
        codec_decode(codec, t, file, sizes.static_bytes, file + sizes.static_bytes, sizes.dynamic_bytes, dst, COUNT, 0),
        zipcclSuccess);
    assert_memory_equal(dst, src, (size_t)COUNT * dtype_get(t)->bytes);
    check_corrupt(codec, t, file, &sizes, dst);
}

static void test_golden(void **state) {
    (void)state;
    for (unsigned isa = 0; isa < CODEC_NUM_ISAS; isa++) {
        if (!codec_isa_force((enum codec_isa)isa))
            continue;
        for (unsigned codec = zipcclCodecTop7; codec <= zipcclCodecTier; codec++) {
            for (unsigned t = 0; t < NUM_FLOATS; t++) {
                for (unsigned in = 0; in < NUM_INPUTS; in++)
                    check_one((zipcclCodec_t)codec, g_floats[t], (enum input)in);
            }
        }
    }
}

int main(int argc, char **argv) {
    g_write = argc > 1 && strcmp(argv[1], "--write") == 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
