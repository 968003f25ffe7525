/* SPDX-License-Identifier: Apache-2.0
 *
 * What bench collective prints. GB/s are 1e9 bytes a second; bandwidths are those of nccl-tests.
 */
#include "client/ctl/collective_report.h"

#include <stdio.h>
#include <stdlib.h>

#include "client/ctl/output.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

/* One arm of one size, worked out. */
struct figures {
    double p50_us, p99_us, least_us;
    double alg_bps, bus_bps;
    double ratio;   /* 0: nothing was sent */
    double link_us; /* what the capped link needs for the bytes that were sent; 0: no cap, or none sent */
};

static unsigned ranks_of(const struct ranks_plan *plan) {
    return plan->nodes * plan->per_node;
}

static double on_link_us(const struct collective_report *r, double bytes) {
    return r->daemons->link_rate_bits ? bytes * 8e6 / (double)r->daemons->link_rate_bits : 0;
}

static double middle(const double *sorted, uint32_t n) {
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static struct figures work_out(const struct collective_report *r, size_t size, unsigned arm) {
    const struct ranks_arm_result *a = &r->results[size].arms[arm];
    struct layout l = ranks_layout(r->plan, size);
    uint32_t rounds = r->results[size].rounds;
    struct figures f = {
        .p50_us = middle(a->even.us, rounds),
        .p99_us = units_percentile(a->even.us, rounds, 0.99),
        .least_us = a->even.us[0],
        .ratio = a->wire_bytes ? (double)a->raw_bytes / (double)a->wire_bytes : 0,
        .link_us = on_link_us(r, arm == RANKS_RAW ? layout_must_send(&l) : (double)a->wire_bytes),
    };
    f.alg_bps = layout_alg_bytes(&l) / f.p50_us * 1e6;
    f.bus_bps = f.alg_bps * layout_bus_factor(&l);
    return f;
}

double collective_report_p50_us(const struct collective_report *r, size_t size, unsigned arm) {
    return middle(r->results[size].arms[arm].even.us, r->results[size].rounds);
}

static void sort_times(const struct ranks_times *t, uint32_t rounds) {
    if (t->us)
        (void)units_median(t->us, rounds);
    if (t->after_us)
        (void)units_median(t->after_us, rounds);
}

void collective_report_sort(struct collective_report *r) {
    for (size_t i = 0; i < r->plan->nsizes; i++)
        for (unsigned arm = 0; arm < r->plan->arms; arm++) {
            sort_times(&r->results[i].arms[arm].even, r->results[i].rounds);
            sort_times(&r->results[i].arms[arm].late, r->results[i].rounds);
        }
}

static const char *const bits_names[] = {"equal", "near", "DIFFER"};

bool collective_report_exact(const struct collective_report *r) {
    bool exact = true;
    for (size_t i = 0; i < r->plan->nsizes; i++)
        exact = exact && r->results[i].bits != RANKS_DIFFER;
    return exact;
}

void collective_report_head(const struct collective_report *r) {
    const struct ranks_plan *plan = r->plan;
    char rate[UNITS_TEXT];
    printf("%s, %u node%s of %u rank%s", op_name((unsigned)plan->op), plan->nodes, plan->nodes > 1 ? "s" : "",
           plan->per_node, plan->per_node > 1 ? "s" : "");
    if (op_reduces(plan->op))
        printf(", %s, arm %s", redop_name((unsigned)plan->redop), arm_name((unsigned)plan->way));
    if (plan->op != zipcclOpBarrier)
        printf(", %s of %s", dtype_get(plan->dtype)->name, r->data);
    if (r->rows)
        printf(", rows of %s", r->rows);
    if (r->phases)
        printf(", phases %s", r->phases);
    if (plan->nodes > 1 && r->daemons->link_rate_bits)
        printf(", each node sends at most %s", units_rate(rate, r->daemons->link_rate_bits));
    else if (plan->nodes > 1)
        printf(", link not capped");
    printf("\n%s; %s\n", r->daemons->device, r->daemons->fabric);
    if (plan->op != zipcclOpBarrier)
        printf("size: bytes of %s\n", layout_bytes_mean(plan->op));
    printf("\n");
}

static void print_size(const struct collective_report *r, struct table *t, size_t size, unsigned arm) {
    char text[UNITS_TEXT];
    struct layout l = ranks_layout(r->plan, size);
    table_cell(t, "%s", r->plan->op == zipcclOpBarrier ? "-" : units_bytes(text, l.bytes));
    table_cell(t, "%s", r->plan->arms == 1 ? "-" : r->plan->picks[arm].name);
}

static void print_arm(const struct collective_report *r, struct table *t, size_t size, unsigned arm) {
    const struct ranks_arm_result *a = &r->results[size].arms[arm];
    struct figures f = work_out(r, size, arm), raw = work_out(r, size, RANKS_RAW);
    char text[UNITS_TEXT];
    print_size(r, t, size, arm);
    table_cell(t, "%s", codec_name(a->codec));
    table_cell(t, "%u", r->results[size].rounds);
    table_cell(t, "%s", units_seconds(text, f.p50_us / 1e6));
    table_cell(t, "%s", units_seconds(text, f.p99_us / 1e6));
    table_cell(t, "%.3f", f.alg_bps / 1e9);
    table_cell(t, "%.3f", f.bus_bps / 1e9);
    table_cell(t, "%s", units_bytes(text, a->wire_bytes));
    if (f.ratio > 0)
        table_cell(t, "%.3f", f.ratio);
    else
        table_cell(t, "-");
    table_cell(t, "%.2fx", raw.p50_us / f.p50_us);
    if (f.link_us > 0) {
        table_cell(t, "%s", units_seconds(text, f.link_us / 1e6));
        table_cell(t, "%.3f", f.p50_us / f.link_us);
    } else {
        table_cell(t, "-");
        table_cell(t, "-");
    }
    table_cell(t, "%s", bits_names[r->results[size].bits]);
}

/* OpenMPI's row; computed: the time that a capped link would leave it. */
static void print_peer(const struct collective_report *r, struct table *t, size_t size, bool computed) {
    const struct peer_result *p = &r->peer->results[size];
    struct layout l = ranks_layout(r->plan, size);
    double us = computed ? p->computed_us : p->p50_us, link_us = on_link_us(r, layout_must_send(&l));
    double alg = layout_alg_bytes(&l) / us * 1e6;
    char text[UNITS_TEXT];
    table_cell(t, "%s", r->plan->op == zipcclOpBarrier ? "-" : units_bytes(text, l.bytes));
    table_cell(t, computed ? "openmpi, computed" : "openmpi");
    table_cell(t, "-");
    table_cell(t, "%u", p->rounds);
    table_cell(t, "%s", units_seconds(text, us / 1e6));
    table_cell(t, "%s", computed ? "-" : units_seconds(text, p->p99_us / 1e6));
    table_cell(t, "%.3f", alg / 1e9);
    table_cell(t, "%.3f", alg * layout_bus_factor(&l) / 1e9);
    table_cell(t, "-");
    table_cell(t, "-");
    table_cell(t, "%.2fx", work_out(r, size, RANKS_RAW).p50_us / us);
    if (link_us > 0 && (computed || r->peer->link == PEER_SHAPED)) {
        table_cell(t, "%s", units_seconds(text, link_us / 1e6));
        table_cell(t, "%.3f", us / link_us);
    } else {
        table_cell(t, "-");
        table_cell(t, "-");
    }
    table_cell(t, "-");
}

static json_t *peer_json(const struct collective_report *r, size_t size) {
    const struct peer_result *p = &r->peer->results[size];
    struct layout l = ranks_layout(r->plan, size);
    double us = p->computed_us > 0 ? p->computed_us : p->p50_us, alg = layout_alg_bytes(&l) / p->p50_us * 1e6;
    struct figures best = work_out(r, size, r->plan->arms - 1);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:s}", "p50_us", output_real(p->p50_us), "p99_us",
                     output_real(p->p99_us), "min_us", output_real(p->least_us), "alg_gbps", output_real(alg / 1e9),
                     "bus_gbps", output_real(alg * layout_bus_factor(&l) / 1e9), "computed_us",
                     p->computed_us > 0 ? output_real(p->computed_us) : json_null(), "zipped_is_faster_by",
                     output_real(us / best.p50_us), "algorithm", r->peer->algorithm, "method",
                     peer_mpi_method(r->peer));
}

/* Times of one arm with the last rank late. cost: what the lateness added beyond itself. */
struct lateness {
    double even_us, by_us, total_us, after_us, cost_us;
};

static struct lateness lateness_of(const struct collective_report *r, size_t size, unsigned arm) {
    const struct ranks_arm_result *a = &r->results[size].arms[arm];
    uint32_t rounds = r->results[size].rounds;
    struct lateness l = {.even_us = middle(a->even.us, rounds),
                         .by_us = a->late_us,
                         .total_us = middle(a->late.us, rounds),
                         .after_us = middle(a->late.after_us, rounds)};
    l.cost_us = l.total_us - l.by_us - l.even_us;
    return l;
}

static void print_lateness(const struct collective_report *r) {
    static const char *const head[] = {
        "size", "arm", "even p50", "late by", "total p50", "after last call", "after/even", "total/(even+late)"};
    struct table *t = table_new("rlrrrrrr");
    if (!t)
        return;
    printf("\nRank %u comes late by %.2f of the operation's own time:\n", ranks_of(r->plan) - 1, r->plan->imbalance);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(t, "%s", head[i]);
    for (size_t i = 0; i < r->plan->nsizes; i++)
        for (unsigned arm = 0; arm < r->plan->arms; arm++) {
            struct lateness l = lateness_of(r, i, arm);
            char text[UNITS_TEXT];
            print_size(r, t, i, arm);
            table_cell(t, "%s", units_seconds(text, l.even_us / 1e6));
            table_cell(t, "%s", units_seconds(text, l.by_us / 1e6));
            table_cell(t, "%s", units_seconds(text, l.total_us / 1e6));
            table_cell(t, "%s", units_seconds(text, l.after_us / 1e6));
            table_cell(t, "%.3f", l.after_us / l.even_us);
            table_cell(t, "%.3f", l.total_us / (l.even_us + l.by_us));
        }
    table_print(t, stdout, 0);
    table_free(t);
}

void collective_report_print(const struct collective_report *r) {
    static const char *const head[] = {"size",     "arm",       "codec",     "rounds",     "p50",
                                       "p99",      "alg GB/s",  "bus GB/s",  "wire bytes", "ratio",
                                       "speed-up", "link time", "time/link", "bits"};
    struct table *t = table_new("rllrrrrrrrrrrl");
    if (!t)
        return;
    collective_report_head(r);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(t, "%s", head[i]);
    for (size_t i = 0; i < r->plan->nsizes; i++) {
        for (unsigned arm = 0; arm < r->plan->arms; arm++)
            print_arm(r, t, i, arm);
        if (r->peer)
            print_peer(r, t, i, false);
        if (r->peer && r->peer->results[i].computed_us > 0)
            print_peer(r, t, i, true);
    }
    table_print(t, stdout, 0);
    table_free(t);
    if (r->peer)
        printf("\nopenmpi: %s; algorithm: %s\n", peer_mpi_method(r->peer), r->peer->algorithm);
    if (r->peer && r->peer->results[0].computed_us > 0)
        printf("openmpi, computed: not measured; the greater of its time above and of what the capped link needs for "
               "its bytes\n");
    if (r->plan->imbalance > 0)
        print_lateness(r);
    if (r->pingpong_us >= 0)
        printf("\nA bare round trip of 64 bytes over a Unix socket, two processes: p50 %.1f us\n", r->pingpong_us);
}

static json_t *late_json(const struct collective_report *r, size_t size, unsigned arm) {
    struct lateness l = lateness_of(r, size, arm);
    return json_pack("{s:o, s:o, s:o, s:o}", "by_us", output_real(l.by_us), "total_us", output_real(l.total_us),
                     "after_last_call_us", output_real(l.after_us), "cost_us", output_real(l.cost_us));
}

static json_t *arm_json(const struct collective_report *r, size_t size, unsigned arm) {
    const struct ranks_arm_result *a = &r->results[size].arms[arm];
    struct figures f = work_out(r, size, arm);
    json_t *o = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:s}", "ms", output_real(f.p50_us / 1e3),
                          "alg_gbps", output_real(f.alg_bps / 1e9), "bus_gbps", output_real(f.bus_bps / 1e9), "p50_us",
                          output_real(f.p50_us), "p99_us", output_real(f.p99_us), "min_us", output_real(f.least_us),
                          "wire_bytes", (json_int_t)a->wire_bytes, "all_wire_bytes", (json_int_t)a->all_wire_bytes,
                          "ratio", f.ratio > 0 ? output_real(f.ratio) : json_null(), "codec", codec_name(a->codec));
    if (o && f.link_us > 0) {
        (void)json_object_set_new(o, "link_ms", output_real(f.link_us / 1e3));
        (void)json_object_set_new(o, "over_link", output_real(f.p50_us / f.link_us));
    }
    if (o && r->plan->imbalance > 0)
        (void)json_object_set_new(o, "late", late_json(r, size, arm));
    return o;
}

/* Adds the keys of one size. */
static void add_size(const struct collective_report *r, size_t size, json_t *to) {
    const struct ranks_plan *plan = r->plan;
    bool zips = plan->arms > 1;
    struct figures raw = work_out(r, size, RANKS_RAW), last = work_out(r, size, plan->arms - 1);
    struct layout l = ranks_layout(plan, size);
    double theory_us = on_link_us(r, layout_must_send(&l));
    (void)json_object_set_new(to, "op", json_string(op_name((unsigned)plan->op)));
    (void)json_object_set_new(to, "nodes", json_integer(plan->nodes));
    (void)json_object_set_new(to, "ranks", json_integer(ranks_of(plan)));
    (void)json_object_set_new(to, "bytes_per_rank", json_integer((json_int_t)l.bytes));
    (void)json_object_set_new(to, "rounds", json_integer(r->results[size].rounds));
    (void)json_object_set_new(to, "raw", arm_json(r, size, RANKS_RAW));
    (void)json_object_set_new(to, "zipped", zips ? arm_json(r, size, plan->arms - 1) : json_null());
    if (r->peer)
        (void)json_object_set_new(to, "openmpi", peer_json(r, size));
    if (plan->switcher)
        collective_switcher_json(r, size, to);
    (void)json_object_set_new(to, "speedup", zips ? output_real(raw.p50_us / last.p50_us) : json_null());
    (void)json_object_set_new(to, "exact", json_boolean(r->results[size].bits == RANKS_EQUAL));
    (void)json_object_set_new(to, "bits", json_string(bits_names[r->results[size].bits]));
    (void)json_object_set_new(to, "p50_us", output_real(last.p50_us));
    (void)json_object_set_new(to, "p99_us", output_real(last.p99_us));
    if (theory_us > 0) {
        (void)json_object_set_new(to, "theory_ms", output_real(theory_us / 1e3));
        (void)json_object_set_new(to, "over_theory", output_real(raw.p50_us / theory_us));
    }
}

json_t *collective_report_json(const struct collective_report *r) {
    const struct ranks_plan *plan = r->plan;
    json_t *root = json_pack("{s:s, s:s, s:o, s:s, s:I, s:o, s:o}", "schema", "zipccl.bench.collective/1", "dtype",
                             dtype_get(plan->dtype)->name, "data", output_text(r->data), "wanted_codec",
                             plan->codec == zipcclCodecAuto ? "auto" : codec_name(plan->codec), "link_rate_bits",
                             (json_int_t)r->daemons->link_rate_bits, "device", output_text(r->daemons->device),
                             "fabric", output_text(r->daemons->fabric));
    json_t *results = plan->nsizes > 1 ? json_array() : NULL;
    if (!root)
        return NULL;
    if (op_reduces(plan->op)) {
        (void)json_object_set_new(root, "redop", json_string(redop_name((unsigned)plan->redop)));
        (void)json_object_set_new(root, "wanted_arm", json_string(arm_name((unsigned)plan->way)));
    }
    if (r->rows)
        (void)json_object_set_new(root, "rows", output_text(r->rows));
    if (r->phases)
        (void)json_object_set_new(root, "phases", output_text(r->phases));
    if (plan->imbalance > 0)
        (void)json_object_set_new(root, "imbalance", output_real(plan->imbalance));
    if (r->pingpong_us >= 0)
        (void)json_object_set_new(root, "pingpong_us", output_real(r->pingpong_us));
    if (plan->nsizes == 1) {
        add_size(r, 0, root);
        return root;
    }
    for (size_t i = 0; i < plan->nsizes; i++) {
        json_t *one = json_object();
        if (one)
            add_size(r, i, one);
        (void)json_array_append_new(results, one);
    }
    (void)json_object_set_new(root, "results", results);
    return root;
}
