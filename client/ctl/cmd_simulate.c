/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl simulate: the plans of an operation on a cluster of any size, under a cost model.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/output.h"
#include "client/ctl/progress.h"
#include "client/ctl/simulate_setup.h"
#include "client/ctl/simulate_sweep.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

struct run {
    struct simulate_setup setup;
    struct simulate_variant v[SIMULATE_MAX_VARIANTS];
    size_t n, at;
    const struct simulate_variant *raw, *best;
    struct simulate_sweep sweep;
    bool swept;
};

static void show(double share, void *arg) {
    const struct run *r = arg;
    char what[80] = "simulate ", *name = what + strlen(what);
    simulate_variant_name(&r->v[r->at], name, sizeof what - strlen(what));
    progress_show(((double)r->at + share) / (double)r->n, what);
}

static void run_all(struct run *r) {
    r->setup.progress = show;
    r->setup.progress_arg = r;
    r->n = simulate_variants(&r->setup, r->v);
    for (r->at = 0; r->at < r->n; r->at++) {
        show(0, r);
        simulate_variant_run(&r->setup, &r->v[r->at]);
    }
    progress_clear();
    r->raw = simulate_fastest(r->v, r->n, true);
    r->best = simulate_fastest(r->v, r->n, false);
}

static double speedup(const struct run *r, const struct simulate_variant *v) {
    return r->raw && v->result.seconds > 0 ? r->raw->result.seconds / v->result.seconds : 1;
}

static void print_head(const struct run *r) {
    const struct simulate_setup *s = &r->setup;
    char size[UNITS_TEXT] = "-", link[UNITS_TEXT], ranks[UNITS_TEXT];
    printf("%s", op_name((unsigned)s->op));
    if (s->op != zipcclOpBarrier)
        printf(" of %s %s", units_bytes(size, s->bytes), dtype_get(s->dtype)->name);
    printf(", %u node%s of %u rank%s (%s), links of %s\n\n", s->nodes, s->nodes > 1 ? "s" : "", s->per_node,
           s->per_node > 1 ? "s" : "", units_count(ranks, (uint64_t)s->nodes * s->per_node),
           units_rate(link, (uint64_t)(s->cost.link_bps * 8)));
}

static void print_row(const struct run *r, struct table *t, const struct simulate_variant *v) {
    const struct simulate_result *x = &v->result;
    char text[UNITS_TEXT];
    table_cell(t, "%s", v->arm == zipcclArmAuto ? "-" : arm_name(v->arm));
    table_cell(t, "%s", codec_name(v->codec));
    table_cell(t, "%.2f", v->ratio);
    if (v->end != SIMULATE_OK) {
        static const char *const ends[] = {"", "unmatched", "deadlock", "too large", "no plan", "no memory"};
        table_cell(t, "%s", ends[v->end]);
        for (int i = 0; i < 9; i++)
            table_cell(t, "%s", i < 8 ? "-" : "");
        return;
    }
    table_cell(t, "%s", units_seconds(text, x->seconds));
    table_cell(t, "%.2fx", speedup(r, v));
    table_cell(t, "%s", units_bytes(text, x->busiest_bytes));
    table_cell(t, "%s", units_bytes(text, x->bytes[SIMULATE_BETWEEN]));
    table_cell(t, "%s", units_bytes(text, x->bytes[SIMULATE_INSIDE]));
    table_cell(t, "%s", units_count(text, x->messages));
    table_cell(t, "%.0f %%", x->link_busy * 100);
    table_cell(t, "%.0f %%", x->loop_busy * 100);
    table_cell(t, "%.0f %%", x->worker_busy * 100);
    table_cell(t, "%s", v == r->best ? "<- wins" : "");
}

static void print_all(const struct run *r) {
    static const char *const head[] = {"arm",     "codec",        "ratio",    "time", "speed-up", "a node sends",
                                       "between", "inside nodes", "messages", "link", "loop",     "workers",
                                       ""};
    struct table *t = table_new("llrrrrrrrrrrl");
    uint32_t checked = 0;
    if (!t)
        return;
    print_head(r);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(t, "%s", head[i]);
    for (size_t i = 0; i < r->n; i++) {
        print_row(r, t, &r->v[i]);
        if (r->v[i].result.nodes_checked && (!checked || r->v[i].result.nodes_checked < checked))
            checked = r->v[i].result.nodes_checked;
    }
    table_print(t, stdout, 0);
    table_free(t);
    if (checked)
        printf("\nAll nodes do alike (the plans of %u of %u were compared): one was simulated for all.\n", checked,
               r->setup.nodes);
}

static json_t *variant_json(const struct run *r, const struct simulate_variant *v) {
    const struct simulate_result *x = &v->result;
    json_t *arm = v->arm == zipcclArmAuto ? json_null() : json_string(arm_name(v->arm));
    if (v->end != SIMULATE_OK)
        return json_pack("{s:o, s:s, s:f, s:o}", "arm", arm, "codec", codec_name(v->codec), "ratio", v->ratio, "error",
                         output_text(v->why));
    return json_pack(
        "{s:o, s:s, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:I, s:b}", "arm", arm, "codec",
        codec_name(v->codec), "ratio", v->ratio, "us", x->seconds * 1e6, "speedup", speedup(r, v), "busiest_node_bytes",
        (json_int_t)x->busiest_bytes, "bytes_between_nodes", (json_int_t)x->bytes[SIMULATE_BETWEEN],
        "bytes_inside_nodes", (json_int_t)x->bytes[SIMULATE_INSIDE], "messages", (json_int_t)x->messages, "link_busy",
        x->link_busy, "loop_busy", x->loop_busy, "workers_busy", x->worker_busy, "steps", (json_int_t)x->steps,
        "events", (json_int_t)x->events, "nodes_compared", (json_int_t)x->nodes_checked, "wins", v == r->best);
}

static json_t *cost_json(const struct simulate_setup *s) {
    const struct cost *c = &s->cost;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "link_gbps", c->link_bps * 8e-9,
                     "intra_gbps", c->copy_bps * 8e-9, "reduce_gbps", c->reduce_bps * 8e-9, "encode_gbps",
                     c->encode_bps * 8e-9, "decode_gbps", c->decode_bps * 8e-9, "latency_us", c->latency_s * 1e6,
                     "overhead_us", c->overhead_s * 1e6, "gap_us", c->gap_s * 1e6, "step_us", c->step_s * 1e6,
                     "workers", (json_int_t)(s->workers_given ? c->workers : s->per_node));
}

static json_t *all_json(const struct run *r) {
    const struct simulate_setup *s = &r->setup;
    json_t *arms = json_array();
    for (size_t i = 0; i < r->n; i++)
        (void)json_array_append_new(arms, variant_json(r, &r->v[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "schema", "zipccl.simulate/1", "op",
                  op_name((unsigned)s->op), "dtype", dtype_get(s->dtype)->name, "bytes", (json_int_t)s->bytes, "nodes",
                  (json_int_t)s->nodes, "ranks", (json_int_t)s->nodes * s->per_node, "chunk_bytes",
                  (json_int_t)s->chunk_bytes, "window", (json_int_t)s->window, "cost", cost_json(s), "arms", arms);
    if (root && r->swept)
        (void)json_object_set_new(root, "sweep", simulate_sweep_json(&r->sweep));
    return root;
}

enum ctl_exit ctl_simulate(const struct ctl_args *args) {
    struct run *r = calloc(1, sizeof *r);
    const char *plot = ctl_get(args, "plot");
    if (!r)
        return ctl_fail(args, CTL_FAILED, "out of memory");
    enum ctl_exit rc = simulate_setup_read(&r->setup, args);
    if (rc == CTL_OK && plot && r->setup.arrive)
        rc = ctl_usage(args, "--plot goes over cluster sizes: without --late and --imbalance");
    if (rc != CTL_OK)
        goto out;
    run_all(r);
    if (plot) {
        simulate_sweep_run(&r->setup, &r->sweep);
        r->swept = true;
        if (!simulate_sweep_draw(&r->setup, &r->sweep, plot))
            rc = ctl_fail(args, CTL_FAILED, "%s: %s", plot, strerror(errno));
    }
    if (ctl_has(args, "json")) {
        enum ctl_exit printed = output_json(all_json(r));
        rc = rc == CTL_OK ? printed : rc;
    } else {
        print_all(r);
    }
    for (size_t i = 0; i < r->n; i++) {
        char name[64];
        simulate_variant_name(&r->v[i], name, sizeof name);
        if (r->v[i].end != SIMULATE_OK)
            rc = ctl_fail(args, CTL_FAILED, "%s: %s", name, r->v[i].why);
    }
out:
    simulate_setup_free(&r->setup);
    free(r);
    return rc;
}
