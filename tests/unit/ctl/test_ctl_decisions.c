/* SPDX-License-Identifier: Apache-2.0
 *
 * The view of decisions: what people and programs are shown of an answer of a daemon.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/ctl/decisions.h"
#include "zipccl_types.h"

/* Two kinds: a reduction that was measured, and a send that follows the model. */
struct answer {
    Zipccl__Stats stats;
    Zipccl__Decision decisions[2], *list[2];
    Zipccl__DecisionArm arms[3], *arm_list[3];
};

static void make_answer(struct answer *a) {
    zipccl__stats__init(&a->stats);
    a->stats.n_decisions = 2;
    a->stats.decisions = a->list;
    for (int i = 0; i < 2; i++) {
        zipccl__decision__init(&a->decisions[i]);
        a->list[i] = &a->decisions[i];
    }
    Zipccl__Decision *d = a->list[0];
    d->job = (char *)"train";
    d->comm = 0xabcdef0123456789u;
    d->op = zipcclOpReduceScatter;
    d->dtype = zipcclBfloat16;
    d->size_bytes = 1 << 20;
    d->reduces = d->takes_part = true;
    d->pinned_arm = zipcclArmAuto;
    d->pinned_codec = zipcclCodecAuto;
    d->arm = zipcclArmHierarchical;
    d->codec = zipcclCodecTier;
    d->why = (char *)"hierarchical tier: 6.3 ms measured against flat tier 9 ms";
    d->phase = (char *)"in force since operation 61";
    d->ops = 4321;
    d->trials = 2;
    d->alarms = 1;
    d->coded_from_bytes = 3000;
    d->coded_to_bytes = 2000;
    d->n_arms = 3;
    d->arms = a->arm_list;
    for (int i = 0; i < 3; i++) {
        zipccl__decision_arm__init(&a->arms[i]);
        a->arm_list[i] = &a->arms[i];
        a->arms[i].arm = i == 2 ? zipcclArmFlat : zipcclArmHierarchical;
        a->arms[i].codec = i == 1 ? zipcclCodecTier : zipcclCodecRaw;
        a->arms[i].tried = i < 2;
        a->arms[i].predicted_ns = 1000000u * (unsigned)(8 + i);
    }
    a->arms[1].measured_ns = 6300000;
    d = a->list[1];
    d->job = (char *)"train";
    d->rank = 6;
    d->op = zipcclOpAllToAllv;
    d->dtype = zipcclFloat32;
    d->any_size = true;
    d->pinned_arm = zipcclArmAuto;
    d->pinned_codec = d->codec = zipcclCodecTop7;
    d->why = (char *)"top7: pinned\033[31m";
    d->phase = (char *)"";
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    assert_non_null(text);
    return text;
}

static void test_json(void **state) {
    (void)state;
    struct answer a;
    make_answer(&a);
    json_t *rows = decisions_json(&a.stats);
    assert_int_equal(json_array_size(rows), 2);
    json_t *row = json_array_get(rows, 0), *arms = json_object_get(row, "arms");
    assert_string_equal(text_of(row, "communicator"), "abcdef0123456789");
    assert_string_equal(text_of(row, "op"), "reduce-scatter");
    assert_string_equal(text_of(row, "dtype"), "bf16");
    assert_string_equal(text_of(row, "arm"), "hierarchical");
    assert_string_equal(text_of(row, "codec"), "tier");
    assert_true(json_is_null(json_object_get(row, "rank")));
    assert_true(json_is_null(json_object_get(row, "pinned_codec")));
    assert_int_equal(json_integer_value(json_object_get(row, "size_bytes")), 1 << 20);
    assert_int_equal(json_integer_value(json_object_get(row, "operations")), 4321);
    assert_true(json_real_value(json_object_get(row, "ratio")) > 1.49);
    assert_int_equal(json_array_size(arms), 3);
    assert_true(json_is_true(json_object_get(json_array_get(arms, 1), "chosen")));
    assert_false(json_is_true(json_object_get(json_array_get(arms, 2), "tried")));
    assert_true(json_real_value(json_object_get(json_array_get(arms, 1), "measured_ms")) > 6.2);
    assert_true(json_is_null(json_object_get(json_array_get(arms, 0), "measured_ms")));
    row = json_array_get(rows, 1);
    assert_int_equal(json_integer_value(json_object_get(row, "rank")), 5);
    assert_true(json_is_null(json_object_get(row, "arm")));
    assert_true(json_is_null(json_object_get(row, "size_bytes")));
    assert_string_equal(text_of(row, "pinned_codec"), "top7");
    json_decref(rows);
}

static char *printed(const Zipccl__Stats *s) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    decisions_print(s, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void test_text(void **state) {
    (void)state;
    static const char *const parts[] = {"23456789",
                                        "reduce-scatter",
                                        "1 MiB+",
                                        "hierarchical tier *",
                                        "4,321",
                                        "1.500",
                                        "6.30 ms",
                                        "ruled out",
                                        "in force since",
                                        "all-to-all-v, rank 5",
                                        "top7: pinned?[31m"};
    struct answer a;
    make_answer(&a);
    char *text = printed(&a.stats);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strstr(text, parts[i]))
            fail_msg("no '%s' in:\n%s", parts[i], text);
    }
    free(text);
    a.stats.n_decisions = 0;
    text = printed(&a.stats);
    assert_non_null(strstr(text, "No decision yet"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_json), cmocka_unit_test(test_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
