/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl stats: what a daemon has done, by job, operation, type and codec.
 */
#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/decisions.h"
#include "client/ctl/output.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"
#include "proto/result.h"

static const char *op_text(unsigned op) {
    const char *name = op_name(op);
    return name ? name : "?";
}

static const char *dtype_text(unsigned dtype) {
    const struct dtype_info *info = dtype_get(dtype);
    return info ? info->name : "?";
}

static const char *codec_text(unsigned codec) {
    const char *name = codec_name((zipcclCodec_t)codec);
    return name ? name : "?";
}

static double share(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : 0;
}

static json_t *quantile_json(uint64_t ns) {
    return ns ? output_real((double)ns / 1e6) : json_null();
}

static void quantile_cell(struct table *t, uint64_t ns) {
    char text[UNITS_TEXT];
    table_cell(t, "%s", ns ? units_seconds(text, (double)ns / 1e9) : "-");
}

static json_t *row_json(const Zipccl__OpStats *o) {
    return json_pack(
        "{s:o, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "job",
        output_text(o->job), "uid", (json_int_t)o->uid, "op", op_text(o->op), "dtype", dtype_text(o->dtype), "codec",
        codec_text(o->codec), "count", (json_int_t)o->count, "errors", (json_int_t)o->errors, "raw_bytes",
        (json_int_t)o->raw_bytes, "wire_bytes", (json_int_t)o->wire_bytes, "ratio",
        o->wire_bytes ? output_real(share(o->raw_bytes, o->wire_bytes)) : json_null(), "coded_from_bytes",
        (json_int_t)o->coded_from_bytes, "coded_to_bytes", (json_int_t)o->coded_to_bytes, "mean_ms",
        output_real(share(o->total_ns, o->count) / 1e6), "min_ms", output_real((double)o->min_ns / 1e6), "max_ms",
        output_real((double)o->max_ns / 1e6), "p50_ms", quantile_json(o->p50_ns), "p99_ms", quantile_json(o->p99_ns),
        "wait_share", output_real(share(o->wait_ns, o->total_ns)), "encode_share",
        output_real(share(o->encode_ns, o->total_ns)), "decode_share", output_real(share(o->decode_ns, o->total_ns)));
}

static json_t *stats_json(const Zipccl__Stats *s, bool explain) {
    json_t *rows = json_array(), *counters = json_object();
    for (size_t i = 0; i < s->n_ops; i++)
        (void)json_array_append_new(rows, row_json(s->ops[i]));
    for (size_t i = 0; i < s->n_counters; i++)
        (void)json_object_set_new(counters, s->counters[i]->name, json_integer((json_int_t)s->counters[i]->value));
    json_t *root = json_pack("{s:s, s:o, s:o, s:I, s:o}", "schema", "zipccl.stats/1", "node", output_text(s->node),
                             "ops", rows, "ops_left_out", (json_int_t)s->ops_left_out, "counters", counters);
    if (explain && root)
        (void)json_object_set_new(root, "decisions", decisions_json(s));
    return root;
}

static void print_row(struct table *t, const Zipccl__OpStats *o) {
    char text[UNITS_TEXT];
    table_cell(t, "%s", o->job);
    table_cell(t, "%s", op_text(o->op));
    table_cell(t, "%s", dtype_text(o->dtype));
    table_cell(t, "%s", codec_text(o->codec));
    table_cell(t, "%s", units_count(text, o->count));
    table_cell(t, "%s", units_bytes(text, o->raw_bytes));
    table_cell(t, "%s", units_bytes(text, o->wire_bytes));
    if (o->wire_bytes)
        table_cell(t, "%.3f", share(o->raw_bytes, o->wire_bytes));
    else
        table_cell(t, "-");
    table_cell(t, "%s", units_seconds(text, share(o->total_ns, o->count) / 1e9));
    quantile_cell(t, o->p50_ns);
    quantile_cell(t, o->p99_ns);
    table_cell(t, "%s", units_count(text, o->errors));
    table_cell(t, "%.0f%%", 100 * share(o->wait_ns, o->total_ns));
    table_cell(t, "%.0f%%", 100 * share(o->encode_ns, o->total_ns));
    table_cell(t, "%.0f%%", 100 * share(o->decode_ns, o->total_ns));
}

static void print_stats(const Zipccl__Stats *s, const char *job, bool explain) {
    static const char *const head[] = {"job",  "op",  "dtype", "codec",  "count", "raw bytes", "wire bytes", "ratio",
                                       "mean", "p50", "p99",   "errors", "wait",  "encode",    "decode"};
    struct table *t = table_new("llllrrrrrrrrrrr");
    if (!t)
        return;
    printf("node %s\n", s->node);
    if (!s->n_ops && job)
        printf("No operation of a job '%s'; zipcclctl jobs lists those that are served now.\n", job);
    else if (!s->n_ops)
        printf("No operation yet.\n");
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(t, "%s", head[i]);
    for (size_t i = 0; i < s->n_ops; i++)
        print_row(t, s->ops[i]);
    if (s->n_ops)
        table_print(t, stdout, 0);
    table_free(t);
    table_left_out(stdout, 0, s->ops_left_out, "rows", "those of later jobs (stats --job NAME has those of one)");
    if (explain) {
        printf("\n");
        decisions_print(s, stdout);
    }
}

enum ctl_exit ctl_stats(const struct ctl_args *args) {
    struct admin *admin = NULL;
    Zipccl__Stats *stats = NULL;
    enum ctl_exit rc = CTL_OK;
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    bool explain = ctl_has(args, "explain");
    if (result == zipcclSuccess)
        result = explain ? admin_decisions(admin, ctl_get(args, "job"), &stats)
                         : admin_stats(admin, ctl_get(args, "job"), &stats);
    if (result != zipcclSuccess)
        rc = daemon_fail(args, admin, result);
    else if (ctl_has(args, "json"))
        rc = output_json(stats_json(stats, explain));
    else
        print_stats(stats, ctl_get(args, "job"), explain);
    if (stats)
        zipccl__stats__free_unpacked(stats, NULL);
    admin_close(admin);
    return rc;
}
