/* SPDX-License-Identifier: Apache-2.0
 *
 * The options of zipcclctl simulate.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/simulate_setup.h"
#include "client/ctl/tensors.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define MAX_RANKS   65536u
#define MAX_SIZE    (1ull << 40)
#define MAX_GBPS    1e7
#define MAX_SECONDS 3600.0

static enum ctl_exit read_cluster(struct simulate_setup *s, const struct ctl_args *args) {
    uint64_t value;
    if (!units_parse_count(ctl_get(args, "nodes"), 1, MAX_RANKS, &value))
        return ctl_usage(args, "--nodes takes 1 to %u", MAX_RANKS);
    s->nodes = (uint32_t)value;
    if (!units_parse_count(ctl_get(args, "ranks-per-node"), 1, 1024, &value))
        return ctl_usage(args, "--ranks-per-node takes 1 to 1024");
    s->per_node = (uint32_t)value;
    if ((uint64_t)s->nodes * s->per_node > MAX_RANKS)
        return ctl_usage(args, "%llu ranks; at most %u", (unsigned long long)s->nodes * s->per_node, MAX_RANKS);
    if (!units_parse_count(ctl_get(args, "root"), 0, (uint64_t)s->nodes * s->per_node - 1, &value))
        return ctl_usage(args, "--root takes a rank, 0 to %u", s->nodes * s->per_node - 1);
    s->root = (uint32_t)value;
    s->workers_given = ctl_has(args, "workers");
    if (s->workers_given) {
        if (!units_parse_count(ctl_get(args, "workers"), 1, 65536, &value))
            return ctl_usage(args, "--workers takes 1 to 65536");
        s->cost.workers = (uint32_t)value;
    }
    return CTL_OK;
}

static enum ctl_exit read_what(struct simulate_setup *s, const struct ctl_args *args) {
    const char *op = ctl_get(args, "op"), *codec = ctl_get(args, "codec"), *arm = ctl_get(args, "arm");
    if (!op_from_name(op, &s->op))
        return ctl_usage(args, "no operation \"%s\"; for example all-gather, reduce-scatter, all-reduce, all-to-all",
                         op);
    if (op_is_pairwise(s->op) || s->op == zipcclOpAllToAllv || s->op == zipcclOpAllToAllCapped ||
        s->op == zipcclOpAllGatherv || s->op == zipcclOpReduceScatterv)
        return ctl_usage(args, "%s is not simulated: it takes counts or ranks of its own", op);
    if (!tensor_dtype_from_name(ctl_get(args, "dtype"), &s->dtype))
        return ctl_usage(args, "no dtype \"%s\"; for example bf16, fp16, fp32, e4m3, e5m2", ctl_get(args, "dtype"));
    s->codec = zipcclCodecAuto;
    if (strcmp(codec, "all") != 0 && (!codec_from_name(codec, &s->codec) || s->codec >= zipcclNumCodecs))
        return ctl_usage(args, "no codec \"%s\"; all, tier, top7 or raw", codec);
    s->arm = zipcclArmAuto;
    if (strcmp(arm, "all") != 0 && (!arm_from_name(arm, &s->arm) || s->arm == zipcclArmAuto))
        return ctl_usage(args, "no arm \"%s\"; all, ring, flat or hierarchical", arm);
    if (ctl_has(args, "arm") && s->arm != zipcclArmAuto && !op_reduces(s->op))
        return ctl_usage(args, "%s has no arms: --arm is for what reduces", op);
    return CTL_OK;
}

static enum ctl_exit read_sizes(struct simulate_setup *s, const struct ctl_args *args) {
    const char *phases = ctl_get(args, "phases");
    uint64_t value;
    if (!units_parse_size(ctl_get(args, "size"), &s->bytes) || s->bytes == 0 || s->bytes > MAX_SIZE ||
        s->bytes % dtype_get(s->dtype)->bytes)
        return ctl_usage(args, "--size wants a size as 64MiB of whole %s values, up to 1 TiB, got \"%s\"",
                         dtype_get(s->dtype)->name, ctl_get(args, "size"));
    if (simulate_count(s) == 0)
        return ctl_usage(args, "--size %s is less than one value for each of %u ranks", ctl_get(args, "size"),
                         s->nodes * s->per_node);
    if (!units_parse_size(ctl_get(args, "chunk"), &s->chunk_bytes) || s->chunk_bytes < 64 << 10 ||
        s->chunk_bytes > 64 << 20)
        return ctl_usage(args, "--chunk takes 64KiB to 64MiB");
    if (!units_parse_count(ctl_get(args, "window"), 1, 64, &value))
        return ctl_usage(args, "--window takes 1 to 64");
    s->window = (uint32_t)value;
    if (!strcmp(phases, "stream"))
        s->phases = PLAN_STREAM;
    else if (!strcmp(phases, "two"))
        s->phases = PLAN_TWO_PHASE;
    else if (!strcmp(phases, "sizes"))
        s->phases = PLAN_SIZES_FIRST;
    else
        return ctl_usage(args, "--phases takes stream, two or sizes, got \"%s\"", phases);
    return CTL_OK;
}

/* "A" or "A/B". */
static bool parse_pair(const char *text, double low, double high, double *a, double *b) {
    char copy[64];
    const char *slash = strchr(text, '/');
    if (!slash) {
        bool good = units_parse_number(text, low, high, a);
        *b = *a;
        return good;
    }
    if ((size_t)(slash - text) >= sizeof copy)
        return false;
    (void)snprintf(copy, sizeof copy, "%.*s", (int)(slash - text), text);
    return units_parse_number(copy, low, high, a) && units_parse_number(slash + 1, low, high, b);
}

static enum ctl_exit read_rates(struct simulate_setup *s, const struct ctl_args *args) {
    const struct {
        const char *name;
        double *bps;
    } rates[] = {{"link-gbps", &s->cost.link_bps},
                 {"intra-gbps", &s->cost.copy_bps},
                 {"reduce-gbps", &s->cost.reduce_bps},
                 {"encode-gbps", &s->cost.encode_bps},
                 {"decode-gbps", &s->cost.decode_bps}};
    double encode, decode;
    if (!parse_pair(ctl_get(args, "codec-gbps"), 1e-3, MAX_GBPS, &encode, &decode))
        return ctl_usage(args, "--codec-gbps wants ENCODE/DECODE in Gbit/s, or one number, got \"%s\"",
                         ctl_get(args, "codec-gbps"));
    s->cost.encode_bps = encode * 1e9 / 8;
    s->cost.decode_bps = decode * 1e9 / 8;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        const char *text = ctl_get(args, rates[i].name);
        double gbps;
        if (!text)
            continue;
        if (!units_parse_number(text, 1e-3, MAX_GBPS, &gbps))
            return ctl_usage(args, "--%s wants Gbit/s, got \"%s\"", rates[i].name, text);
        *rates[i].bps = gbps * 1e9 / 8;
    }
    if (!ctl_has(args, "reduce-gbps"))
        s->cost.reduce_bps = s->cost.copy_bps;
    if (ctl_has(args, "ratio")) {
        double top7, tier;
        if (!parse_pair(ctl_get(args, "ratio"), 0.9, 1000, &top7, &tier))
            return ctl_usage(args, "--ratio wants TOP7/TIER, or one number, got \"%s\"", ctl_get(args, "ratio"));
        s->cost.ratio[zipcclCodecTop7][s->dtype] = top7;
        s->cost.ratio[zipcclCodecTier][s->dtype] = tier;
    }
    return CTL_OK;
}

static enum ctl_exit read_delays(struct simulate_setup *s, const struct ctl_args *args) {
    const struct {
        const char *name;
        double *seconds;
    } delays[] = {{"latency-us", &s->cost.latency_s},
                  {"overhead-us", &s->cost.overhead_s},
                  {"gap-us", &s->cost.gap_s},
                  {"step-us", &s->cost.step_s}};
    for (size_t i = 0; i < sizeof delays / sizeof *delays; i++) {
        const char *text = ctl_get(args, delays[i].name);
        double us;
        if (!units_parse_number(text, 0, 1e6, &us))
            return ctl_usage(args, "--%s wants microseconds, got \"%s\"", delays[i].name, text);
        *delays[i].seconds = us * 1e-6;
    }
    s->cost.handshake_s = s->cost.latency_s; /* one way more */
    return CTL_OK;
}

/* "5ms", "200us", "1.5s". */
static bool parse_time(const char *text, double *seconds) {
    static const struct {
        const char *suffix;
        double unit;
    } units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}; /* "s" last: the others end in it too */
    char number[32];
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t all = strlen(text), tail = strlen(units[i].suffix);
        if (all <= tail || all - tail >= sizeof number || strcmp(text + all - tail, units[i].suffix) != 0)
            continue;
        (void)snprintf(number, sizeof number, "%.*s", (int)(all - tail), text);
        if (!units_parse_number(number, 0, 1e9, seconds))
            return false;
        *seconds *= units[i].unit;
        return *seconds <= MAX_SECONDS;
    }
    return false;
}

/* A number from 0 to 1 that is the rank's own. */
static double share_of(uint32_t rank) {
    uint64_t h = (rank + 1) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 31) * 0xbf58476d1ce4e5b9ull;
    return (double)(h >> 11) * 0x1p-53;
}

static enum ctl_exit read_arrivals(struct simulate_setup *s, const struct ctl_args *args) {
    const char *imbalance = ctl_get(args, "imbalance");
    double seconds = 0;
    if (!imbalance && args->nrepeated == 0)
        return CTL_OK;
    if (imbalance && !parse_time(imbalance, &seconds))
        return ctl_usage(args, "--imbalance wants a time as 5ms, got \"%s\"", imbalance);
    uint32_t nranks = s->nodes * s->per_node;
    s->arrive = calloc(nranks, sizeof *s->arrive);
    if (!s->arrive)
        return ctl_fail(args, CTL_FAILED, "out of memory");
    for (uint32_t r = 0; r < nranks; r++)
        s->arrive[r] = seconds * share_of(r);
    for (size_t i = 0; i < args->nrepeated; i++) {
        const char *equals = strchr(args->repeated[i], '=');
        char rank[16];
        uint64_t r;
        (void)snprintf(rank, sizeof rank, "%.*s", (int)(equals ? equals - args->repeated[i] : 0), args->repeated[i]);
        if (!equals || !units_parse_count(rank, 0, nranks - 1, &r) || !parse_time(equals + 1, &seconds))
            return ctl_usage(args, "--late wants RANK=TIME as 3=5ms, of ranks 0 to %u, got \"%s\"", nranks - 1,
                             args->repeated[i]);
        s->arrive[r] = seconds;
    }
    return CTL_OK;
}

enum ctl_exit simulate_setup_read(struct simulate_setup *setup, const struct ctl_args *args) {
    static enum ctl_exit (*const readers[])(struct simulate_setup *, const struct ctl_args *) = {
        read_cluster, read_what, read_sizes, read_rates, read_delays, read_arrivals};
    enum ctl_exit rc = CTL_OK;
    *setup = (struct simulate_setup){0};
    cost_defaults(&setup->cost);
    for (size_t i = 0; i < sizeof readers / sizeof *readers && rc == CTL_OK; i++)
        rc = readers[i](setup, args);
    return rc;
}

void simulate_setup_free(struct simulate_setup *setup) {
    free(setup->arrive);
    setup->arrive = NULL;
}
