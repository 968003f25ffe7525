/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl bench collective: an operation between daemons of its own on this machine, raw against zipped.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/collective_ranks.h"
#include "client/ctl/collective_report.h"
#include "client/ctl/ctl.h"
#include "client/ctl/output.h"
#include "client/ctl/pingpong.h"
#include "client/ctl/private_daemons.h"
#include "client/ctl/progress.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define POLL_US     10000
#define MAX_SIZE    (16ull << 30)
#define MAX_SECONDS 86400
#define MAX_LATE    100
#define PINGPONG_AT 1 /* nodes: with more, the link between them counts */

struct bench {
    const struct ctl_args *args;
    struct ranks_plan plan;
    struct tensor_list list;
    struct rows rows;
    const char *settings[CTL_MAX_REPEATS + 1]; /* of the daemons */
    size_t nsettings;
    char phases[64];
    char rate[32];
    double seconds;
};

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};
#define NUM_SIGNALS (sizeof ending_signals / sizeof *ending_signals)

static volatile sig_atomic_t caught;
static uint64_t deadline_ns;

static void catch_signal(int signal) {
    caught = signal;
}

/* Whether all is to end before it is done. */
static bool must_stop(void) {
    return caught || units_now_ns() > deadline_ns;
}

static enum ctl_exit read_counts(struct bench *b) {
    const struct ctl_args *args = b->args;
    struct ranks_plan *p = &b->plan;
    uint64_t value;
    if (!units_parse_count(ctl_get(args, "nodes"), 1, PRIVATE_MAX_DAEMONS, &value))
        return ctl_usage(args, "--nodes takes 1 to %d", PRIVATE_MAX_DAEMONS);
    p->nodes = (unsigned)value;
    if (!units_parse_count(ctl_get(args, "ranks-per-node"), 1, RANKS_MAX, &value))
        return ctl_usage(args, "--ranks-per-node takes 1 to %d", RANKS_MAX);
    p->per_node = (unsigned)value;
    if (p->nodes * p->per_node > RANKS_MAX)
        return ctl_usage(args, "%u ranks; at most %d", p->nodes * p->per_node, RANKS_MAX);
    if (ctl_has(args, "iters")) {
        if (!units_parse_count(ctl_get(args, "iters"), 1, RANKS_MAX_ITERS, &value))
            return ctl_usage(args, "--iters takes 1 to %d", RANKS_MAX_ITERS);
        p->iters = (uint32_t)value;
    }
    p->has_warmup = ctl_has(args, "warmup");
    if (p->has_warmup) {
        if (!units_parse_count(ctl_get(args, "warmup"), 0, RANKS_MAX_ITERS, &value))
            return ctl_usage(args, "--warmup takes 0 to %d", RANKS_MAX_ITERS);
        p->warmup = (uint32_t)value;
    }
    if (!units_parse_number(ctl_get(args, "timeout"), 1, MAX_SECONDS, &b->seconds))
        return ctl_usage(args, "--timeout wants seconds, got \"%s\"", ctl_get(args, "timeout"));
    return CTL_OK;
}

static enum ctl_exit no_operation(const struct ctl_args *args) {
    char known[512] = "";
    for (unsigned op = 0; op < zipcclNumOps; op++) {
        size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", op_name(op));
    }
    return ctl_usage(args, "no operation \"%s\"; one of %s", ctl_get(args, "op"), known);
}

static enum ctl_exit read_choices(struct bench *b) {
    const struct ctl_args *args = b->args;
    struct ranks_plan *p = &b->plan;
    const char *codec = ctl_get(args, "codec"), *rate = ctl_get(args, "link-rate");
    uint64_t bits;
    if (!op_from_name(ctl_get(args, "op"), &p->op))
        return no_operation(args);
    p->codec = zipcclCodecAuto;
    if (strcmp(codec, "auto") != 0 && (!codec_from_name(codec, &p->codec) || p->codec >= zipcclNumCodecs))
        return ctl_usage(args, "no codec \"%s\"; auto, tier, top7 or raw", codec);
    if (!units_parse_rate(rate, &bits))
        return ctl_usage(args, "--link-rate wants a rate as 1gbit, or none, got \"%s\"", rate);
    (void)snprintf(b->rate, sizeof b->rate, "%llu", (unsigned long long)bits);
    return CTL_OK;
}

/* Of reductions. */
static enum ctl_exit read_reduction(struct bench *b) {
    const struct ctl_args *args = b->args;
    struct ranks_plan *p = &b->plan;
    p->redop = zipcclSum;
    p->way = zipcclArmAuto;
    if ((ctl_has(args, "redop") || ctl_has(args, "arm")) && !op_reduces(p->op))
        return ctl_usage(args, "--redop and --arm are of operations that reduce; %s does not",
                         op_name((unsigned)p->op));
    if (!redop_from_name(ctl_get(args, "redop"), &p->redop))
        return ctl_usage(args, "no reduction \"%s\"; sum, prod, max, min, avg or premulsum", ctl_get(args, "redop"));
    if (!arm_from_name(ctl_get(args, "arm"), &p->way))
        return ctl_usage(args, "no arm \"%s\"; auto, ring, flat or hierarchical", ctl_get(args, "arm"));
    return CTL_OK;
}

static void add_pick(struct ranks_plan *p, const char *name, zipcclCodec_t codec, zipcclArm_t way) {
    p->picks[p->arms++] = (struct ranks_pick){name, codec, way};
}

/* What is run in turn. */
static enum ctl_exit set_picks(struct bench *b) {
    struct ranks_plan *p = &b->plan;
    bool reduces = op_reduces(p->op), top7 = codec_supports(zipcclCodecTop7, p->dtype);
    p->switcher = ctl_has(b->args, "switcher");
    add_pick(p, "raw", zipcclCodecRaw, p->switcher && reduces ? zipcclArmHierarchical : p->way);
    if (!p->switcher) {
        if (p->op != zipcclOpBarrier)
            add_pick(p, "zipped", p->codec, p->way);
        return CTL_OK;
    }
    if (p->op == zipcclOpBarrier || p->codec != zipcclCodecAuto || p->way != zipcclArmAuto || p->imbalance > 0 ||
        ctl_has(b->args, "peer"))
        return ctl_usage(b->args,
                         "--switcher goes with no --codec, --arm, --imbalance or --peer, and not with a barrier");
    if (!codec_supports(zipcclCodecTier, p->dtype))
        return ctl_usage(b->args, "--switcher: %s is not coded, there is nothing to choose", dtype_get(p->dtype)->name);
    add_pick(p, "tier", zipcclCodecTier, reduces ? zipcclArmHierarchical : zipcclArmAuto);
    if (top7)
        add_pick(p, "top7", zipcclCodecTop7, reduces ? zipcclArmHierarchical : zipcclArmAuto);
    if (reduces && p->redop != zipcclPreMulSum) {
        add_pick(p, "flat raw", zipcclCodecRaw, zipcclArmFlat);
        add_pick(p, "flat tier", zipcclCodecTier, zipcclArmFlat);
    }
    add_pick(p, "auto", zipcclCodecAuto, zipcclArmAuto);
    return CTL_OK;
}

static bool has_rows(zipcclOp_t op) {
    return op == zipcclOpAllToAllv || op == zipcclOpAllGatherv || op == zipcclOpReduceScatterv;
}

/* Of exchanges, and what is late. */
static enum ctl_exit read_exchange(struct bench *b) {
    static const char *const phases[] = {"stream", "two", "sizes"};
    const struct ctl_args *args = b->args;
    struct ranks_plan *p = &b->plan;
    const char *wanted = ctl_get(args, "phases");
    char why[ROWS_WHY];
    bool known = false;
    if (wanted && p->op != zipcclOpAllToAll && p->op != zipcclOpAllToAllv)
        return ctl_usage(args, "--phases is of all-to-all and all-to-all-v");
    for (size_t i = 0; wanted && i < sizeof phases / sizeof *phases; i++)
        known = known || !strcmp(wanted, phases[i]);
    if (wanted && !known)
        return ctl_usage(args, "no phases \"%s\"; stream, two or sizes", wanted);
    if (ctl_has(args, "rows") && !has_rows(p->op))
        return ctl_usage(args, "--rows is of all-to-all-v, all-gather-v and reduce-scatter-v");
    if (ctl_has(args, "imbalance") && !units_parse_number(ctl_get(args, "imbalance"), 0, MAX_LATE, &p->imbalance))
        return ctl_usage(args, "--imbalance takes 0 to %d times the operation's time", MAX_LATE);
    if (ctl_has(args, "peer") && strcmp(ctl_get(args, "peer"), "openmpi") != 0)
        return ctl_usage(args, "no peer \"%s\"; openmpi", ctl_get(args, "peer"));
    if (ctl_has(args, "peer") && op_reduces(p->op) && p->redop != zipcclSum)
        return ctl_usage(args, "--peer openmpi does sums");
    if (ctl_has(args, "peer") && !peer_mpi_can(p->op, p->dtype))
        return ctl_usage(args, "--peer openmpi sums bf16, fp32, fp64, int32, int64 and uint8");
    if (has_rows(p->op) && !rows_load(ctl_get(args, "rows"), &b->rows, why))
        return ctl_fail(args, CTL_FAILED, "%s", why);
    p->rows = has_rows(p->op) ? &b->rows : NULL;
    (void)snprintf(b->phases, sizeof b->phases, "all_to_all_phases=%s", wanted ? wanted : "");
    if (wanted)
        b->settings[b->nsettings++] = b->phases;
    return CTL_OK;
}

static enum ctl_exit read_settings(struct bench *b) {
    const struct ctl_args *args = b->args;
    for (size_t i = 0; i < args->nrepeated; i++)
        if (!strchr(args->repeated[i], '=') || private_daemons_owns(args->repeated[i]))
            return ctl_usage(args, "--set %s: %s", args->repeated[i],
                             strchr(args->repeated[i], '=') ? "that key is the benchmark's own" : "wants KEY=VALUE");
    for (size_t i = 0; i < args->nrepeated; i++)
        b->settings[b->nsettings++] = args->repeated[i];
    return CTL_OK;
}

/* Type, file and sizes, which must agree. */
static enum ctl_exit read_data(struct bench *b) {
    const struct ctl_args *args = b->args;
    struct ranks_plan *p = &b->plan;
    const char *file = ctl_get(args, "file"), *dtype = ctl_get(args, "dtype");
    char why[256];
    p->dtype = zipcclBfloat16;
    if (dtype && !tensor_dtype_from_name(dtype, &p->dtype))
        return ctl_usage(args, "no dtype \"%s\"; for example bf16, fp16, fp32, e4m3, e5m2", dtype);
    if (file) {
        char *path = (char *)file; /* which is only read */
        if (!tensor_list_open(&b->list, &path, 1, dtype ? &p->dtype : NULL, why))
            return ctl_fail(args, CTL_FAILED, "%s", why);
        for (size_t i = 0; i < b->list.n && !p->tensor; i++)
            if (b->list.tensors[i].bytes)
                p->tensor = &b->list.tensors[i];
        if (!p->tensor)
            return ctl_fail(args, CTL_FAILED, "%s holds no values", file);
        p->dtype = p->tensor->dtype;
    }
    if (!units_parse_sizes(ctl_get(args, "size"), p->sizes, RANKS_MAX_SIZES, &p->nsizes))
        return ctl_usage(args, "--size wants sizes as 1KiB,64MiB, up to 16 GiB, got \"%s\"", ctl_get(args, "size"));
    if (p->op == zipcclOpBarrier)
        p->nsizes = 1;
    for (size_t i = 0; i < p->nsizes && p->op != zipcclOpBarrier; i++)
        if (p->sizes[i] > MAX_SIZE || p->sizes[i] % dtype_get(p->dtype)->bytes)
            return ctl_usage(args, "--size takes whole %s values, up to 16 GiB", dtype_get(p->dtype)->name);
    return CTL_OK;
}

static enum ctl_exit stopped(const struct bench *b) {
    if (caught)
        return ctl_fail(b->args, CTL_FAILED, "interrupted");
    return ctl_fail(b->args, CTL_TIMEOUT, "not done after %g s; see --timeout", b->seconds);
}

/* The ranks, from fork to results. */
static enum ctl_exit run_ranks(const struct bench *b, struct private_daemons *daemons, struct ranks_result *results) {
    char why[RANKS_WHY] = "", daemon_why[PRIVATE_WHY] = "", what[64];
    enum ctl_exit rc = CTL_OK;
    enum ranks_state state;
    double share;
    struct ranks *ranks = ranks_start(&b->plan, daemons, why);
    if (!ranks)
        return ctl_fail(b->args, CTL_FAILED, "%s", why);
    (void)snprintf(what, sizeof what, "bench %s", op_name((unsigned)b->plan.op));
    while ((state = ranks_poll(ranks, &share, why)) == RANKS_RUN && !must_stop()) {
        progress_show(share, what);
        if (!private_daemons_alive(daemons, daemon_why))
            break;
        (void)usleep(POLL_US);
    }
    progress_clear();
    if (state == RANKS_FAILED && !*daemon_why)
        (void)private_daemons_alive(daemons, daemon_why);
    bool failed = *daemon_why || state == RANKS_FAILED;
    /* A terminal sends its signal to all: whatever else ended, ended by it. */
    if (failed && !caught)
        rc = ctl_fail(b->args, CTL_FAILED, "%s", *daemon_why ? daemon_why : why);
    else if (state != RANKS_DONE)
        rc = stopped(b);
    for (size_t i = 0; i < b->plan.nsizes && rc == CTL_OK; i++)
        if (!ranks_take(ranks, i, &results[i]))
            rc = ctl_fail(b->args, CTL_FAILED, "out of memory");
    ranks_stop(ranks);
    return rc;
}

/* After the daemons have ended: each has the machine to itself. */
static enum ctl_exit run_peer(const struct bench *b, uint64_t link_rate_bits, struct collective_report *report,
                              struct peer_mpi *peer) {
    char why[PEER_WHY] = "";
    const char *rows = b->plan.rows ? ctl_get(b->args, "rows") : NULL;
    bool ok = peer_mpi_run(&b->plan, report->results, rows, link_rate_bits, must_stop, peer, why);
    if (ok)
        report->peer = peer;
    return ok ? CTL_OK : must_stop() ? stopped(b) : ctl_fail(b->args, CTL_FAILED, "%s", why);
}

static enum ctl_exit run_all(const struct bench *b, struct collective_report *report, struct private_daemons *daemons,
                             struct peer_mpi *peer) {
    char why[PRIVATE_WHY] = "";
    enum ctl_exit rc = CTL_OK;
    if (!private_daemons_start(daemons, b->plan.nodes, b->rate, b->settings, b->nsettings, must_stop, why))
        rc = must_stop() ? stopped(b) : ctl_fail(b->args, CTL_FAILED, "%s", why);
    if (rc == CTL_OK)
        rc = run_ranks(b, daemons, report->results);
    if (rc == CTL_OK && b->plan.nodes == PINGPONG_AT)
        report->pingpong_us = pingpong_us();
    if (rc != CTL_OK && !caught)
        private_daemons_print_logs(daemons, stderr);
    if (!private_daemons_stop(daemons, why) && rc == CTL_OK)
        rc = ctl_fail(b->args, CTL_FAILED, "%s", why);
    if (rc == CTL_OK && ctl_has(b->args, "peer"))
        rc = run_peer(b, daemons->link_rate_bits, report, peer);
    return rc;
}

static enum ctl_exit run_guarded(const struct bench *b, struct collective_report *report,
                                 struct private_daemons *daemons, struct peer_mpi *peer) {
    struct sigaction old[NUM_SIGNALS], act = {.sa_handler = catch_signal};
    caught = 0;
    deadline_ns = units_now_ns() + (uint64_t)(b->seconds * 1e9);
    for (size_t i = 0; i < NUM_SIGNALS; i++)
        (void)sigaction(ending_signals[i], &act, &old[i]);
    enum ctl_exit rc = run_all(b, report, daemons, peer);
    for (size_t i = 0; i < NUM_SIGNALS; i++)
        (void)sigaction(ending_signals[i], &old[i], NULL);
    return rc;
}

enum ctl_exit ctl_bench_collective(const struct ctl_args *args) {
    struct bench b = {.args = args};
    struct private_daemons *daemons = calloc(1, sizeof *daemons);
    struct peer_mpi peer = {0};
    struct collective_report report = {.plan = &b.plan, .daemons = daemons, .data = "gauss", .pingpong_us = -1};
    if (!daemons)
        return ctl_fail(args, CTL_FAILED, "out of memory");
    enum ctl_exit rc = read_counts(&b);
    if (rc == CTL_OK)
        rc = read_choices(&b);
    if (rc == CTL_OK)
        rc = read_data(&b);
    if (rc == CTL_OK)
        rc = read_reduction(&b);
    if (rc == CTL_OK)
        rc = read_exchange(&b);
    if (rc == CTL_OK)
        rc = set_picks(&b);
    if (rc == CTL_OK)
        rc = read_settings(&b);
    if (rc != CTL_OK)
        goto out;
    if (b.plan.tensor)
        report.data = b.plan.tensor->name;
    if (b.plan.rows)
        report.rows = ctl_has(args, "rows") ? ctl_get(args, "rows") : "a training step";
    report.phases = ctl_get(args, "phases");
    report.results = calloc(b.plan.nsizes, sizeof *report.results);
    if (!report.results) {
        rc = ctl_fail(args, CTL_FAILED, "out of memory");
        goto out;
    }
    rc = run_guarded(&b, &report, daemons, &peer);
    if (caught) /* all is tidy: end as the signal would have it */
        (void)raise(caught);
    if (rc != CTL_OK)
        goto out;
    if (b.plan.switcher)
        collective_switcher_take(&report);
    collective_report_sort(&report);
    if (ctl_has(args, "json"))
        rc = output_json(collective_report_json(&report));
    else if (b.plan.switcher)
        collective_switcher_print(&report);
    else
        collective_report_print(&report);
    if (rc == CTL_OK && !collective_report_exact(&report))
        rc = ctl_fail(args, CTL_FAILED, "bits differ");
out:
    for (size_t i = 0; report.results && i < b.plan.nsizes; i++)
        ranks_result_free(&report.results[i]);
    free(report.results);
    free(daemons);
    tensor_list_free(&b.list);
    rows_free(&b.rows);
    peer_mpi_free(&peer);
    return rc;
}
