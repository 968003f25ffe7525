/* SPDX-License-Identifier: Apache-2.0
 *
 * One row for each kind of operations of a communicator; below it, for each arm, what the model predicted and what was
 * measured.
 */
#include "client/ctl/decisions.h"

#include "client/ctl/output.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define CHOICE_TEXT 48
#define AUTO        255u

static const char *codec_text(unsigned codec) {
    const char *name = codec == AUTO ? "auto" : codec_name((zipcclCodec_t)codec);
    return name ? name : "?";
}

static const char *dtype_text(unsigned dtype) {
    const struct dtype_info *info = dtype_get(dtype);
    return info ? info->name : "?";
}

/* "tier"; of a reduction "hierarchical tier". */
static const char *choice_text(char out[CHOICE_TEXT], bool reduces, unsigned arm, unsigned codec) {
    (void)snprintf(out, CHOICE_TEXT, "%s%s%s", reduces ? arm_name(arm) : "", reduces ? " " : "", codec_text(codec));
    return out;
}

static json_t *arm_json(bool reduces, unsigned arm) {
    return reduces ? json_string(arm_name(arm)) : json_null();
}

static json_t *time_json(uint64_t ns) {
    return ns ? output_real((double)ns / 1e6) : json_null();
}

static json_t *arms_json(const Zipccl__Decision *d) {
    json_t *arms = json_array();
    for (size_t i = 0; i < d->n_arms; i++) {
        const Zipccl__DecisionArm *a = d->arms[i];
        (void)json_array_append_new(
            arms, json_pack("{s:o, s:s, s:b, s:b, s:o, s:o, s:o}", "arm", arm_json(d->reduces, a->arm), "codec",
                            codec_text(a->codec), "chosen", a->codec == d->codec && a->arm == d->arm, "tried",
                            (int)a->tried, "predicted_ms", time_json(a->predicted_ns), "measured_ms",
                            time_json(a->measured_ns), "own_best_ms", time_json(a->own_ns)));
    }
    return arms;
}

static json_t *decision_json(const Zipccl__Decision *d) {
    char key[24];
    (void)snprintf(key, sizeof key, "%016llx", (unsigned long long)d->comm);
    return json_pack(
        "{s:o, s:I, s:s, s:o, s:s, s:s, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:b, s:I, s:I, s:I, s:o, s:o}", "job",
        output_text(d->job), "uid", (json_int_t)d->uid, "communicator", key, "rank",
        d->rank ? json_integer((json_int_t)d->rank - 1) : json_null(), "op", op_name(d->op), "dtype",
        dtype_text(d->dtype), "size_bytes", d->any_size ? json_null() : json_integer((json_int_t)d->size_bytes), "arm",
        arm_json(d->reduces, d->arm), "codec", codec_text(d->codec), "pinned_arm",
        d->pinned_arm == AUTO ? json_null() : json_string(arm_name(d->pinned_arm)), "pinned_codec",
        d->pinned_codec == AUTO ? json_null() : json_string(codec_text(d->pinned_codec)), "why", output_text(d->why),
        "phase", output_text(d->phase), "takes_part", (int)d->takes_part, "operations", (json_int_t)d->ops, "trials",
        (json_int_t)d->trials, "alarms", (json_int_t)d->alarms, "ratio",
        d->coded_to_bytes ? output_real((double)d->coded_from_bytes / (double)d->coded_to_bytes) : json_null(), "arms",
        arms_json(d));
}

json_t *decisions_json(const Zipccl__Stats *s) {
    json_t *rows = json_array();
    for (size_t i = 0; i < s->n_decisions; i++)
        (void)json_array_append_new(rows, decision_json(s->decisions[i]));
    return rows;
}

static void size_cell(struct table *t, const Zipccl__Decision *d) {
    char least[UNITS_TEXT];
    if (d->any_size)
        table_cell(t, "any");
    else
        table_cell(t, "%s+", units_bytes(least, d->size_bytes));
}

static void time_cell(struct table *t, uint64_t ns) {
    char text[UNITS_TEXT];
    table_cell(t, "%s", ns ? units_seconds(text, (double)ns / 1e9) : "-");
}

static void print_decision(struct table *t, const Zipccl__Decision *d) {
    char text[UNITS_TEXT], choice[CHOICE_TEXT];
    table_cell(t, "%s", d->job);
    table_cell(t, "%08llx", (unsigned long long)(d->comm & 0xffffffffu));
    if (d->rank)
        table_cell(t, "%s, rank %u", op_name(d->op), d->rank - 1);
    else
        table_cell(t, "%s", op_name(d->op));
    table_cell(t, "%s", dtype_text(d->dtype));
    size_cell(t, d);
    table_cell(t, "%s", choice_text(choice, d->reduces, d->arm, d->codec));
    table_cell(t, "%s", units_count(text, d->ops));
    if (d->coded_to_bytes)
        table_cell(t, "%.3f", (double)d->coded_from_bytes / (double)d->coded_to_bytes);
    else
        table_cell(t, "-");
    table_cell(t, "%s", d->why);
}

static void print_arms(struct table *t, const Zipccl__Decision *d) {
    char choice[CHOICE_TEXT];
    for (size_t i = 0; i < d->n_arms; i++) {
        const Zipccl__DecisionArm *a = d->arms[i];
        if (i)
            table_cell(t, "%s", "");
        else
            table_cell(t, "%08llx", (unsigned long long)(d->comm & 0xffffffffu));
        if (i)
            table_cell(t, "%s", "");
        else if (d->rank)
            table_cell(t, "%s, rank %u", op_name(d->op), d->rank - 1);
        else
            table_cell(t, "%s", op_name(d->op));
        table_cell(t, "%s", i ? "" : dtype_text(d->dtype));
        if (i)
            table_cell(t, "%s", "");
        else
            size_cell(t, d);
        table_cell(t, "%s%s", choice_text(choice, d->reduces, a->arm, a->codec),
                   a->codec == d->codec && a->arm == d->arm ? " *" : "");
        time_cell(t, a->predicted_ns);
        time_cell(t, a->measured_ns);
        time_cell(t, a->own_ns);
        table_cell(t, "%s", i ? (a->tried ? "" : "ruled out") : a->tried ? d->phase : "ruled out");
    }
}

static void head(struct table *t, const char *const *names) {
    for (; *names; names++)
        table_cell(t, "%s", *names);
}

void decisions_print(const Zipccl__Stats *s, FILE *out) {
    struct table *rows = table_new("llllllrrl"), *arms = table_new("lllllrrrl");
    if (!s->n_decisions)
        (void)fprintf(out, "No decision yet: no communicator of this node has run an operation.\n");
    if (!rows || !arms || !s->n_decisions)
        goto out;
    head(rows, (const char *const[]){"job", "communicator", "operation", "type", "size", "chosen", "operations",
                                     "ratio", "why", NULL});
    head(arms, (const char *const[]){"communicator", "operation", "type", "size", "arm", "predicted", "measured",
                                     "best here", "", NULL});
    for (size_t i = 0; i < s->n_decisions; i++) {
        print_decision(rows, s->decisions[i]);
        print_arms(arms, s->decisions[i]);
    }
    table_print(rows, out, 0);
    (void)fprintf(out, "\nArms (* chosen; measured: on the slowest node):\n");
    table_print(arms, out, 2);
out:
    table_free(rows);
    table_free(arms);
}
