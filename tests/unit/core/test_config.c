/* SPDX-License-Identifier: Apache-2.0
 *
 * Units and configuration: good and bad values, all errors listed, the shipped file agrees with the table.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/config.h"
#include "daemon/core/units.h"

static const struct {
    const char *text;
    uint64_t value; /* UINT64_MAX: refused */
} sizes[] = {{"0", 0},
             {"4096", 4096},
             {"64KiB", 65536},
             {"64k", 65536},
             {"4M", 4194304},
             {"1.5GiB", 1610612736},
             {"1 MiB", 1048576},
             {"", UINT64_MAX},
             {"-1", UINT64_MAX},
             {"1x", UINT64_MAX},
             {"1.", UINT64_MAX},
             {".5k", UINT64_MAX},
             {"0.3", UINT64_MAX},
             {"99999999999999999999", UINT64_MAX},
             {"99999999T", UINT64_MAX},
             {"1k ", UINT64_MAX}},
  durations[] = {{"60", 60000}, {"60s", 60000},  {"500ms", 500},     {"1.5s", 1500},          {"2m", 120000},
                 {"0", 0},      {"1h", 3600000}, {"1d", UINT64_MAX}, {"0.0001s", UINT64_MAX}, {"s", UINT64_MAX}},
  rates[] = {{"0", 0},
             {"1000000", 1000000},
             {"1gbit", 1000000000},
             {"100mbit", 100000000},
             {"10Gbit/s", 10000000000},
             {"2.5Gbps", 2500000000},
             {"1 gbit", 1000000000},
             {"1gb", UINT64_MAX},
             {"1gbit/", UINT64_MAX},
             {"gbit", UINT64_MAX},
             {"1e9", UINT64_MAX},
             {"0x10", UINT64_MAX},
             {"99999999999tbit", UINT64_MAX}};

#define CHECK_TABLE(table, parse)                                                                                      \
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {                                                      \
        uint64_t value = 12345;                                                                                        \
        bool ok = parse(table[i].text, &value);                                                                        \
        if (ok != (table[i].value != UINT64_MAX) || value != (ok ? table[i].value : 12345))                            \
            fail_msg("%s('%s'): %d, %llu", #parse, table[i].text, ok, (unsigned long long)value);                      \
    }

static void test_units(void **state) {
    (void)state;
    CHECK_TABLE(sizes, units_parse_size);
    CHECK_TABLE(durations, units_parse_duration);
    CHECK_TABLE(rates, units_parse_rate);
    bool b = false;
    assert_true(units_parse_bool("Yes", &b) && b);
    assert_true(units_parse_bool("off", &b) && !b);
    assert_false(units_parse_bool("maybe", &b));
    char text[32];
    units_print_rate(text, sizeof text, 2500000000);
    assert_string_equal(text, "2500Mbit/s");
    units_print_size(text, sizeof text, 4194304);
    assert_string_equal(text, "4MiB");
}

static void test_good(void **state) {
    (void)state;
    static const char text[] = "# comment\n[zipccld]\nnode_name = a\nlink_rate = 1gbit\nverify = on ; inline\n"
                               "socket_mode=0600\nlisten = [::1]:0\nop_timeout = 250ms\nlog_level = debug\n";
    struct config c;
    struct config_errors e = {0};
    config_defaults(&c);
    assert_true(config_parse(&c, "x", text, sizeof text - 1, &e));
    assert_true(config_check(&c, &e));
    assert_int_equal(e.count, 0);
    assert_string_equal(c.node_name, "a");
    assert_int_equal(c.link_rate, 1000000000);
    assert_true(c.verify);
    assert_int_equal(c.socket_mode, 0600);
    assert_int_equal(c.op_timeout, 250);
    assert_string_equal(c.log_level, "debug");
    assert_true(config_set(&c, "--set", "window = 8", &e));
    assert_int_equal(c.window, 8);
}

static const struct {
    const char *text, *error;
} bad[] = {
    {"[zipccld]\nfoo = 1\n", "f:2: unknown key 'foo'"},
    {"[zipccld]\nfo\x1b[2Jo = 1\n", "f:2: unknown key 'fo?[2Jo'"},
    {"window = 0\n", "f:1: window: bad value '0', allowed: a whole number from 1 to 64"},
    {"window = 65\n", "bad value '65'"},
    {"window = 1\nwindow = 2\n", "f:2: key 'window' is already set in line 1"},
    {"[other]\nwindow = 1\n", "unknown section [other]"},
    {"\nnonsense\n", "f:2: neither"},
    {"link_rate = fast\n", "allowed: a rate"},
    {"link_rate = 7999\n", "bad value '7999'"},
    {"codec = zip\n", "one of auto, raw, top7, tier"},
    {"socket_mode = 0999\n", "an octal mode from 0000 to 0777"},
    {"verify = maybe\n", "allowed: on or off"},
    {"listen = 1.2.3.4\n", "allowed: host:port"},
    {"listen = ::1:5\n", "allowed: host:port"},
    {"listen = a:70000\n", "allowed: host:port"},
    {"socket =\n", "non-empty text"},
    {"socket = relative\n", "not an absolute path"},
    {"node_name = 01234567890123456789012345678901234567890123456789012345678901234567890\n", "at most 63 bytes"},
    {"chunk_bytes = 1\n", "a size such as 64KiB from 64KiB to 64MiB"},
    {"advertise = a:b\n", "allowed: host or host:port"},
};

static void test_bad(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct config c;
        struct config_errors e = {0};
        config_defaults(&c);
        bool ok = config_parse(&c, "f", bad[i].text, strlen(bad[i].text), &e);
        ok = config_check(&c, &e) && ok;
        if (ok || e.count != 1 || strstr(e.lines[0], bad[i].error) == NULL)
            fail_msg("%s: ok=%d, %zu errors: %s", bad[i].text, ok, e.count, e.count > 0 ? e.lines[0] : "");
        config_errors_free(&e);
    }
}

static void test_all_errors(void **state) {
    (void)state;
    static const char text[] = "foo = 1\nwindow = 0\nverify = x\n";
    char line[600];
    struct config c;
    struct config_errors e = {0};
    config_defaults(&c);
    assert_false(config_parse(&c, "f", text, sizeof text - 1, &e));
    assert_int_equal(e.count, 3);
    config_errors_free(&e);
    memset(line, 'x', sizeof line);
    assert_false(config_parse(&c, "f", line, sizeof line, &e));
    assert_int_equal(e.count, 1);
    config_errors_free(&e);
    assert_false(config_parse(&c, "f", "wind\0ow=1\n", 10, &e));
    config_errors_free(&e);
    assert_false(config_set(&c, "--set", "window", &e));
    assert_false(config_load(&c, "/nonexistent/x.conf", &e));
    assert_int_equal(e.count, 2);
    config_errors_free(&e);
}

static void test_shipped_file(void **state) {
    (void)state;
    char *printed = NULL, file[32768];
    size_t bytes = 0;
    FILE *out = open_memstream(&printed, &bytes);
    config_print(out);
    fclose(out);
    FILE *in = fopen(ZIPCCL_TEST_SOURCE "/config/zipccld.conf", "r");
    assert_non_null(in);
    size_t n = fread(file, 1, sizeof file, in);
    fclose(in);
    assert_int_equal(n, bytes);
    assert_memory_equal(file, printed, n);
    free(printed);
    /* Every default, uncommented, is a value that the parser takes. */
    struct config c;
    struct config_errors e = {0};
    config_defaults(&c);
    for (size_t i = 0; i < config_num_keys; i++) {
        char set[256], value[160];
        config_value(&c, &config_keys[i], value, sizeof value);
        snprintf(set, sizeof set, "%s=%s", config_keys[i].name, value);
        if (!config_set(&c, "--set", set, &e))
            fail_msg("%s", e.lines[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units),      cmocka_unit_test(test_good),         cmocka_unit_test(test_bad),
        cmocka_unit_test(test_all_errors), cmocka_unit_test(test_shipped_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
