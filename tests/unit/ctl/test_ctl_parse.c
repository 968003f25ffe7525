/* SPDX-License-Identifier: Apache-2.0
 *
 * What zipcclctl reads: .safetensors headers good and bad, sizes, rates, command lines; and the tables that it prints.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/ctl/ctl.h"
#include "client/ctl/safetensors.h"
#include "client/ctl/table.h"
#include "client/ctl/tensors.h"
#include "client/ctl/units.h"

/* A file of this header and data_bytes of data; on the heap in exact size, so that a sanitizer sees an overrun. */
static uint8_t *make_file(const char *header, size_t data_bytes, size_t *size) {
    size_t length = strlen(header);
    uint8_t *file = calloc(1, 8 + length + data_bytes);
    assert_non_null(file);
    for (unsigned i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)length >> (8 * i));
    memcpy(file + 8, header, length);
    *size = 8 + length + data_bytes;
    return file;
}

static zipcclResult_t parse(const char *header, size_t data_bytes, struct safetensors *out) {
    char why[SAFETENSORS_WHY];
    size_t size;
    uint8_t *file = make_file(header, data_bytes, &size);
    zipcclResult_t rc = safetensors_parse(file, size, out, why);
    assert_true(rc == zipcclSuccess || why[0]);
    free(file);
    return rc;
}

static void good_file(void **state) {
    struct safetensors s;
    (void)state;
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]},"
                         "\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
                         "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]},"
                         "\"e\":{\"dtype\":\"F8_E4M3\",\"shape\":[0,7],\"data_offsets\":[32,32]}}";
    assert_int_equal(parse(header, 32, &s), zipcclSuccess);
    assert_int_equal(s.n, 4);
    assert_string_equal(s.entries[0].name, "a");
    assert_true(s.entries[0].coded);
    assert_int_equal(s.entries[0].zipccl_dtype, zipcclBfloat16);
    assert_int_equal(s.entries[0].begin, 8 + strlen(header));
    assert_string_equal(s.entries[1].name, "b");
    assert_int_equal(s.entries[1].count, 4);
    assert_int_equal(s.entries[1].bytes, 16);
    assert_string_equal(s.entries[2].dtype, "I64");
    assert_false(s.entries[2].coded);
    assert_int_equal(s.entries[3].count, 0);
    safetensors_free(&s);
    assert_int_equal(parse("{}", 0, &s), zipcclSuccess);
    assert_int_equal(s.n, 0);
    safetensors_free(&s);
}

#define ONE(dtype, shape, offsets) "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void bad_headers(void **state) {
    static const struct {
        const char *header;
        size_t data;
    } bad[] = {
        {"", 0},
        {"[]", 0},
        {"null", 0},
        {"{", 0},
        {" {}", 0},
        {"{}x", 0},
        {"{\"t\":1}", 0},
        {"{\"t\":{}}", 0},
        {"{\"t\":{\"dtype\":\"BF16\",\"shape\":[4]}}", 8},
        {"{\"t\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8],\"x\":1}}", 8},
        {"{\"__metadata__\":3}", 0},
        {"{\"__metadata__\":{\"a\":3}}", 0},
        {ONE("\"BF17\"", "[4]", "[0,8]"), 8},
        {ONE("7", "[4]", "[0,8]"), 8},
        {ONE("\"BF16\"", "4", "[0,8]"), 8},
        {ONE("\"BF16\"", "[-4]", "[0,8]"), 8},
        {ONE("\"BF16\"", "[4.0]", "[0,8]"), 8},
        {ONE("\"BF16\"", "[\"4\"]", "[0,8]"), 8},
        {ONE("\"BF16\"", "[4]", "[0]"), 8},
        {ONE("\"BF16\"", "[4]", "[0,8,8]"), 8},
        {ONE("\"BF16\"", "[4]", "[8,0]"), 8},
        {ONE("\"BF16\"", "[4]", "[-8,0]"), 8},
        {ONE("\"BF16\"", "[4]", "[0,16]"), 16},
        {ONE("\"BF16\"", "[4]", "[0,8]"), 7},
        {ONE("\"BF16\"", "[4]", "[0,8]"), 9},
        {ONE("\"BF16\"", "[4]", "[1,9]"), 9},
        {ONE("\"BF16\"", "[4294967296,4294967296]", "[0,0]"), 0},
        {ONE("\"F64\"", "[2305843009213693952]", "[0,0]"), 0},
        {ONE("\"BF16\"", "[99999999999999999999]", "[0,8]"), 8},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
         6},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8},
        {"{\"a\":[[[[[[[[[[[[]]]]]]]]]]]]}", 0},
        {"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4},
    };
    struct safetensors s;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(bad[i].header, bad[i].data, &s) != zipcclCorruptData)
            fail_msg("accepted: %s", bad[i].header);
        assert_null(s.entries);
    }
}

static void bad_lengths(void **state) {
    char why[SAFETENSORS_WHY];
    struct safetensors s;
    uint8_t file[16] = {0};
    (void)state;
    for (size_t size = 0; size < 8; size++)
        assert_int_equal(safetensors_parse(file, size, &s, why), zipcclCorruptData);
    for (unsigned byte = 0; byte < 8; byte++) { /* lengths over the file, over the limit, over everything */
        memset(file, 0, sizeof file);
        file[byte] = 0xff;
        file[8] = '{';
        assert_int_equal(safetensors_parse(file, sizeof file, &s, why), zipcclCorruptData);
    }
}

/* The errors of a user: another kind of file, one that was cut, a type that is not known. */
static void errors_help(void **state) {
    char why[SAFETENSORS_WHY];
    struct safetensors s;
    size_t size;
    (void)state;
    assert_int_equal(safetensors_parse("<html><body>", 12, &s, why), zipcclCorruptData);
    assert_non_null(strstr(why, "no .safetensors file"));
    uint8_t *file = make_file(ONE("\"BF16\"", "[4]", "[0,8]"), 8, &size);
    assert_int_equal(safetensors_parse(file, size - 1, &s, why), zipcclCorruptData);
    assert_non_null(strstr(why, "cut short"));
    assert_int_equal(safetensors_parse(file, 20, &s, why), zipcclCorruptData);
    assert_non_null(strstr(why, "cut short"));
    free(file);
    file = make_file(ONE("\"BF17\"", "[4]", "[0,8]"), 8, &size);
    assert_int_equal(safetensors_parse(file, size, &s, why), zipcclCorruptData);
    assert_non_null(strstr(why, "BF17"));
    free(file);
    file = make_file(ONE("\"\\u001b[2J\"", "[4]", "[0,8]"), 8, &size);
    assert_int_equal(safetensors_parse(file, size, &s, why), zipcclCorruptData);
    assert_null(strchr(why, 0x1b));
    free(file);
}

static void names_are_escaped(void **state) {
    (void)state;
    char *text = tensor_escape("a\x1b[2J\"\\\xc3\xa4z");
    assert_string_equal(text, "a\\x1b[2J\\x22\\x5c\\xc3\\xa4z");
    free(text);
}

static void sizes_and_rates(void **state) {
    static const char *const wrong[] = {"",   "x",   "-1",  "1XiB", "1e400",      "0x10",
                                        " 1", "nan", "inf", "1.5",  "9999999PiB", "+1"};
    uint64_t v, list[3];
    size_t n;
    (void)state;
    assert_true(units_parse_size("64MiB", &v) && v == 64u << 20);
    assert_true(units_parse_size("1.5 kib", &v) && v == 1536);
    assert_true(units_parse_size("1MB", &v) && v == 1000000);
    assert_true(units_parse_size("4096", &v) && v == 4096);
    assert_true(units_parse_rate("1gbit", &v) && v == 1000000000);
    assert_true(units_parse_rate("1.5 Gbit/s", &v) && v == 1500000000);
    assert_true(units_parse_rate("none", &v) && v == 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(units_parse_size(wrong[i], &v));
        assert_false(units_parse_rate(wrong[i], &v));
    }
    assert_true(units_parse_sizes("1KiB,2KiB", list, 3, &n) && n == 2 && list[1] == 2048);
    assert_false(units_parse_sizes("1,2,3,4", list, 3, &n));
    assert_false(units_parse_sizes("1,,2", list, 3, &n));
    assert_false(units_parse_sizes("0", list, 3, &n));
    assert_false(units_parse_count("11", 1, 10, &v));
    assert_true(units_parse_count("10", 1, 10, &v) && v == 10);
}

static void texts(void **state) {
    char out[UNITS_TEXT];
    double values[] = {3, 1, 2, 10};
    (void)state;
    assert_string_equal(units_bytes(out, 1536), "1.5 KiB");
    assert_string_equal(units_bytes(out, 64u << 20), "64 MiB");
    assert_string_equal(units_bytes(out, 100), "100 B");
    assert_string_equal(units_rate(out, 1000000000), "1 Gbit/s");
    assert_string_equal(units_count(out, 1234567), "1,234,567");
    assert_string_equal(units_count(out, 12), "12");
    assert_string_equal(units_seconds(out, 0.00125), "1.25 ms");
    assert_string_equal(units_duration(out, 3700), "1 h 1 min");
    assert_true(units_median(values, 4) == 2.5);
    assert_true(units_median(values, 3) == 2);
}

static void tables(void **state) {
    char text[256] = "";
    struct table *t = table_new("lr");
    FILE *out = fmemopen(text, sizeof text, "w");
    (void)state;
    assert_non_null(t);
    assert_non_null(out);
    table_cell(t, "name");
    table_cell(t, "n");
    table_cell(t, "a\033[1m");
    table_cell(t, "%d", 12345);
    table_print(t, out, 1);
    (void)fclose(out);
    table_free(t);
    assert_string_equal(text, " name       n\n a?[1m  12345\n");
}

static const struct ctl_option test_options[] = {
    {"size", "SIZE", "7", "a size", false},
    {"json", NULL, NULL, "a flag", false},
    {"set", "K=V", NULL, "repeats", true},
    {NULL, NULL, NULL, NULL, false},
};
static const struct ctl_args *seen;

static enum ctl_exit test_run(const struct ctl_args *args) {
    static struct ctl_args copy;
    copy = *args;
    seen = &copy;
    return CTL_OK;
}

static const struct ctl_command test_commands[] = {
    {"do it", "[FILE...]", false, "does it", NULL, test_options, test_run},
    {"plain", NULL, false, "no operands", NULL, test_options, test_run},
    {NULL, NULL, false, NULL, NULL, NULL, NULL},
};

#define RUN(...)                                                                                                       \
    ctl_main(test_commands, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)) + 1,                               \
             (char *[]){"zipcclctl", __VA_ARGS__, NULL})

static void command_lines(void **state) {
    (void)state;
    assert_int_equal(RUN("do", "it", "x", "--size=3", "--set", "a=1", "--set", "b=2", "--", "--y"), CTL_OK);
    assert_int_equal(seen->noperands, 2);
    assert_string_equal(ctl_get(seen, "size"), "3");
    assert_false(ctl_has(seen, "json"));
    assert_int_equal(seen->nrepeated, 2);
    assert_string_equal(seen->repeated[1], "b=2");
    assert_int_equal(RUN("plain", "--json"), CTL_OK);
    assert_string_equal(ctl_get(seen, "size"), "7");
    assert_true(ctl_has(seen, "json"));
    assert_int_equal(RUN("plain", "x"), CTL_USAGE);
    assert_int_equal(RUN("plain", "--size"), CTL_USAGE);
    assert_int_equal(RUN("plain", "--sise", "3"), CTL_USAGE);
    assert_int_equal(RUN("plain", "--json=1"), CTL_USAGE);
    assert_int_equal(RUN("plain", "--size", "1", "--size", "2"), CTL_USAGE);
    assert_int_equal(RUN("plain", "-j"), CTL_USAGE);
    assert_int_equal(RUN("plane"), CTL_USAGE);
    assert_int_equal(RUN("do"), CTL_USAGE);
    assert_int_equal(RUN("plain", "--help"), CTL_OK);
    assert_int_equal(RUN("--help"), CTL_OK);
    assert_int_equal(RUN("--table"), CTL_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_file),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(bad_lengths),
        cmocka_unit_test(errors_help),
        cmocka_unit_test(names_are_escaped),
        cmocka_unit_test(sizes_and_rates),
        cmocka_unit_test(texts),
        cmocka_unit_test(tables),
        cmocka_unit_test(command_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
