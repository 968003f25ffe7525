/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl analyze: how well tensors compress.
 */
#include <stdlib.h>

#include "client/ctl/analyze.h"
#include "client/ctl/ctl.h"
#include "client/ctl/output.h"
#include "client/ctl/progress.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"

static void print_result(struct table *table, const struct tensor *t, const struct analyze_result *r) {
    char count[UNITS_TEXT];
    table_cell(table, "%s", t->name);
    table_cell(table, "%s", t->dtype_name);
    table_cell(table, "%s", units_count(count, t->count));
    if (t->coded) {
        table_cell(table, "%.3f", r->entropy);
        table_cell(table, "%.3f", r->limit);
    } else {
        table_cell(table, "-");
        table_cell(table, "-");
    }
    for (unsigned c = zipcclCodecRaw + 1; c < zipcclNumCodecs; c++) {
        if (r->codecs[c].used)
            table_cell(table, "%.3f", r->codecs[c].ratio);
        else
            table_cell(table, "raw");
    }
    table_cell(table, "%.2fx", r->speedup);
    table_cell(table, "%s", r->exact ? "equal" : "DIFFER");
}

static void print_head(struct table *table) {
    static const char *const head[] = {"tensor", "dtype", "values", "entropy", "limit"};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(table, "%s", head[i]);
    for (unsigned c = zipcclCodecRaw + 1; c < zipcclNumCodecs; c++)
        table_cell(table, "%s", codec_name((zipcclCodec_t)c));
    table_cell(table, "speed-up");
    table_cell(table, "bits");
}

enum ctl_exit ctl_analyze(const struct ctl_args *args) {
    struct tensor_list list = {0};
    struct table *table = table_new("llrrrrrrl");
    json_t *tensors = json_array();
    zipcclDataType_t dtype = zipcclBfloat16;
    const char *dtype_text = ctl_get(args, "dtype");
    char why[256];
    double gbps, raw = 0, coded = 0;
    bool exact = true;
    enum ctl_exit rc = CTL_OK;
    if (!units_parse_number(ctl_get(args, "link-gbps"), 1e-6, 1e6, &gbps)) {
        rc = ctl_usage(args, "--link-gbps wants a number over 0, got \"%s\"", ctl_get(args, "link-gbps"));
        goto out;
    }
    if (dtype_text && !tensor_dtype_from_name(dtype_text, &dtype)) {
        rc = ctl_usage(args, "no dtype \"%s\"; for example bf16, fp16, fp32, e4m3, e5m2", dtype_text);
        goto out;
    }
    if (!table || !tensors) {
        rc = ctl_fail(args, CTL_FAILED, "out of memory");
        goto out;
    }
    if (!tensor_list_open(&list, args->operands, args->noperands, dtype_text ? &dtype : NULL, why)) {
        rc = ctl_fail(args, CTL_FAILED, "%s", why);
        goto out;
    }
    print_head(table);
    for (size_t i = 0; i < list.n; i++) {
        struct analyze_result r;
        progress_show((double)i / (double)list.n, list.tensors[i].name);
        zipcclResult_t result = analyze_tensor(&list.tensors[i], gbps * 1e9 / 8, &r);
        if (result != zipcclSuccess) {
            progress_clear();
            rc = ctl_fail(args, CTL_FAILED, "%s: %s", list.tensors[i].name,
                          result == zipcclOutOfMemory ? "out of memory" : "a codec refused the values");
            goto out;
        }
        exact = exact && r.exact;
        raw += (double)list.tensors[i].bytes;
        coded += (double)list.tensors[i].bytes / (r.codecs[zipcclCodecTier].used ? r.codecs[zipcclCodecTier].ratio : 1);
        print_result(table, &list.tensors[i], &r);
        (void)json_array_append_new(tensors, analyze_json(&list.tensors[i], &r));
    }
    progress_clear();
    if (ctl_has(args, "json")) {
        rc = output_json(json_pack("{s:s, s:O, s:f, s:s, s:b}", "schema", "zipccl.analyze/1", "tensors", tensors,
                                   "link_gbps", gbps, "isa", codec_isa_name(codec_isa_current()), "exact", exact));
    } else {
        char from[UNITS_TEXT], to[UNITS_TEXT];
        table_print(table, stdout, 0);
        if (list.n > 1)
            printf("\nAll with tier: %s -> %s, ratio %.3f. ", units_bytes(from, (uint64_t)raw),
                   units_bytes(to, (uint64_t)coded), raw / coded);
        printf("Speed-up at %g Gbit/s on this machine (%s).\n", gbps, codec_isa_name(codec_isa_current()));
    }
    if (rc == CTL_OK && !exact)
        rc = ctl_fail(args, CTL_FAILED, "decoded bits differ from the file's");
out:
    tensor_list_free(&list);
    table_free(table);
    json_decref(tensors);
    return rc;
}
