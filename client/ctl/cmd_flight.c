/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl flight: the last operations of a job on this node: what hung, and where.
 */
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/output.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"
#include "proto/result.h"

#define LAST_FOR_PEOPLE 32
#define KEPT            4096

static const char *codec_text(unsigned codec) {
    const char *name = codec_name((zipcclCodec_t)codec);
    return name ? name : "?";
}

static const char *dtype_text(unsigned dtype) {
    const struct dtype_info *info = dtype_get(dtype);
    return info ? info->name : "?";
}

static const char *arm_text(const Zipccl__FlightOp *o) {
    return o->op < zipcclNumOps && op_reduces((zipcclOp_t)o->op) ? arm_name(o->arm) : "";
}

static json_t *seconds_json(uint64_t ns) {
    return ns ? output_real((double)ns / 1e9) : json_null();
}

static json_t *op_json(const Zipccl__FlightOp *o) {
    char key[24];
    json_t *missing = json_array();
    for (size_t i = 0; i < o->n_missing; i++)
        (void)json_array_append_new(missing, json_integer(o->missing[i]));
    (void)snprintf(key, sizeof key, "%016llx", (unsigned long long)o->comm);
    const char *result = !o->end_ns ? "under way" : o->result ? result_name((zipcclResult_t)o->result) : "ok";
    return json_pack(
        "{s:I, s:s, s:I, s:s, s:s, s:s, s:s, s:I, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:s, s:b, s:o}", "id",
        (json_int_t)o->id, "communicator", key, "sequence", (json_int_t)o->seq, "op", op_name(o->op), "dtype",
        dtype_text(o->dtype), "codec", codec_text(o->codec), "arm", arm_text(o), "operations", (json_int_t)o->group,
        "rank", o->rank ? json_integer((json_int_t)o->rank - 1) : json_null(), "bytes", (json_int_t)o->bytes,
        "wire_bytes", (json_int_t)o->wire_bytes, "local_ranks", (json_int_t)o->local, "arrived", (json_int_t)o->arrived,
        "missing_ranks", missing, "start", seconds_json(o->start_ns), "last_arrival", seconds_json(o->arrived_ns),
        "end", seconds_json(o->end_ns), "result", result, "native", o->native, "where", output_text(o->where));
}

static json_t *flight_json(const Zipccl__Flight *f) {
    json_t *ops = json_array();
    for (size_t i = 0; i < f->n_ops; i++)
        (void)json_array_append_new(ops, op_json(f->ops[i]));
    return json_pack("{s:s, s:o, s:o, s:I, s:I, s:o, s:o}", "schema", "zipccl.flight/1", "node", output_text(f->node),
                     "job", output_text(f->job), "uid", (json_int_t)f->uid, "total", (json_int_t)f->total, "now",
                     seconds_json(f->now_ns), "operations", ops);
}

static void print_op(struct table *t, const Zipccl__FlightOp *o, uint64_t now_ns) {
    char text[UNITS_TEXT], clock[16] = "?";
    time_t start = (time_t)(o->start_ns / 1000000000u);
    struct tm tm;
    if (localtime_r(&start, &tm))
        (void)strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    table_cell(t, "%s.%03u", clock, (unsigned)(o->start_ns / 1000000 % 1000));
    table_cell(t, "%08llx", (unsigned long long)(o->comm & 0xffffffffu));
    if (o->rank)
        table_cell(t, "%s #%llu, rank %u", op_name(o->op), (unsigned long long)o->seq, o->rank - 1);
    else
        table_cell(t, "%s #%llu", op_name(o->op), (unsigned long long)o->seq);
    table_cell(t, "%u", o->group);
    table_cell(t, "%s", dtype_text(o->dtype));
    table_cell(t, "%s", units_bytes(text, o->bytes));
    table_cell(t, "%s %s%s", codec_text(o->codec), arm_text(o), o->native ? "(NCCL's)" : "");
    table_cell(t, "%u/%u", o->arrived, o->local);
    table_cell(t, "%s", units_seconds(text, (double)(o->arrived_ns - o->start_ns) / 1e9));
    table_cell(t, "%s", units_seconds(text, (double)((o->end_ns ? o->end_ns : now_ns) - o->start_ns) / 1e9));
    table_cell(t, "%s", !o->end_ns ? "under way" : o->result ? result_string((zipcclResult_t)o->result) : "ok");
    table_cell(t, "%s", o->where);
}

static void print_flight(const Zipccl__Flight *f) {
    static const char *const head[] = {"start", "communicator", "operation", "group", "type",   "bytes",
                                       "codec", "called",       "wait",      "took",  "result", "where"};
    struct table *t = table_new("lllrlrlrrrll");
    char total[UNITS_TEXT];
    if (!t)
        return;
    printf("node %s, job %s: %s operations so far, the last %zu:\n", f->node, f->job, units_count(total, f->total),
           f->n_ops);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(t, "%s", head[i]);
    for (size_t i = 0; i < f->n_ops; i++)
        print_op(t, f->ops[i], f->now_ns);
    if (f->n_ops)
        table_print(t, stdout, 0);
    table_free(t);
}

enum ctl_exit ctl_flight(const struct ctl_args *args) {
    struct admin *admin = NULL;
    Zipccl__Flight *flight = NULL;
    uint64_t most = ctl_has(args, "json") ? KEPT : LAST_FOR_PEOPLE;
    enum ctl_exit rc = CTL_OK;
    if (args->noperands != 1 || !*args->operands[0])
        return ctl_usage(args, "takes one job");
    if (ctl_get(args, "last") && !units_parse_count(ctl_get(args, "last"), 1, KEPT, &most))
        return ctl_usage(args, "--last is a number from 1 to %d, not \"%s\"", KEPT, ctl_get(args, "last"));
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_flight(admin, args->operands[0], (uint32_t)most, &flight);
    if (result != zipcclSuccess)
        rc = daemon_fail(args, admin, result);
    else if (ctl_has(args, "json"))
        rc = output_json(flight_json(flight));
    else
        print_flight(flight);
    if (flight)
        zipccl__flight__free_unpacked(flight, NULL);
    admin_close(admin);
    return rc;
}
