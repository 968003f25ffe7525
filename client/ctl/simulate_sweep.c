/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl simulate --plot: speed-up over raw against the size of messages and the number of ranks.
 */
#include "client/ctl/simulate_sweep.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/output.h"
#include "client/ctl/progress.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define FIRST_SIZE  (64ull << 10)
#define LAST_SIZE   (1ull << 30)
#define LARGE_RANKS 512u /* with more, every other size is left out */

/* Which part of all points is done. */
struct work {
    double done, all;
};

void simulate_variant_name(const struct simulate_variant *v, char *out, size_t size) {
    (void)snprintf(out, size, "%s%s%s", codec_name(v->codec), v->arm == zipcclArmAuto ? "" : ", ",
                   v->arm == zipcclArmAuto ? "" : arm_name(v->arm));
}

static void show(double share, void *arg) {
    const struct work *w = arg;
    progress_show((w->done + share) / w->all, "simulate, for the plot");
}

/* All arms at one point: the speed-up of each line. */
static void run_point(const struct simulate_setup *setup, struct simulate_sweep *sweep, unsigned panel, size_t point,
                      struct work *work) {
    struct simulate_variant v[SIMULATE_MAX_VARIANTS];
    size_t n = simulate_variants(setup, v), line = 0;
    struct simulate_setup s = *setup;
    s.progress = show;
    s.progress_arg = work;
    for (size_t i = 0; i < n; i++) {
        simulate_variant_run(&s, &v[i]);
        work->done++;
    }
    const struct simulate_variant *raw = simulate_fastest(v, n, true);
    sweep->raw_s[panel][point] = raw ? raw->result.seconds : NAN;
    for (size_t i = 0; i < n; i++) {
        if (v[i].codec == zipcclCodecRaw || line == SVG_MAX_SERIES)
            continue;
        bool good = raw && v[i].end == SIMULATE_OK && v[i].result.seconds > 0;
        sweep->panels[panel].y[line++][point] = good ? raw->result.seconds / v[i].result.seconds : NAN;
    }
}

/* The setup with so many ranks, spread over two nodes at least where there are two. */
static struct simulate_setup with_ranks(const struct simulate_setup *setup, uint32_t ranks) {
    struct simulate_setup s = *setup;
    uint32_t least = setup->nodes > 1 ? 2 : 1;
    s.nodes = ranks / setup->per_node > least ? ranks / setup->per_node : least;
    s.per_node = ranks / s.nodes;
    s.root = setup->root < s.nodes * s.per_node ? setup->root : 0;
    return s;
}

static void plan_points(const struct simulate_setup *setup, struct simulate_sweep *sweep) {
    struct svg_panel *sizes = &sweep->panels[SWEEP_SIZES], *ranks = &sweep->panels[SWEEP_RANKS];
    uint32_t all = setup->nodes * setup->per_node, last = 0;
    *sizes = (struct svg_panel){.title = "By size", .x_title = "bytes of values, of each rank"};
    *ranks = (struct svg_panel){.title = "By ranks", .x_title = "ranks"};
    for (uint64_t b = FIRST_SIZE; b <= LAST_SIZE && sizes->npoints<SVG_MAX_POINTS; b *= all> LARGE_RANKS ? 4 : 2) {
        char text[UNITS_TEXT];
        sizes->x[sizes->npoints] = (double)b;
        (void)snprintf(sizes->labels[sizes->npoints++], SVG_LABEL, "%s", units_bytes(text, b));
    }
    for (uint64_t r = 2; last < all && ranks->npoints < SVG_MAX_POINTS; r *= 2) {
        struct simulate_setup s = with_ranks(setup, (uint32_t)(r < all ? r : all));
        if (r >= all) /* the last point is the cluster itself */
            s = *setup;
        if (s.nodes * s.per_node <= last) {
            last = r >= all ? all : last;
            continue;
        }
        last = s.nodes * s.per_node;
        ranks->x[ranks->npoints] = last;
        (void)snprintf(ranks->labels[ranks->npoints++], SVG_LABEL, "%u", last);
    }
}

void simulate_sweep_run(const struct simulate_setup *setup, struct simulate_sweep *sweep) {
    struct simulate_variant v[SIMULATE_MAX_VARIANTS];
    size_t n = simulate_variants(setup, v);
    memset(sweep, 0, sizeof *sweep);
    plan_points(setup, sweep);
    for (size_t i = 0; i < n && sweep->nlines < SVG_MAX_SERIES; i++)
        if (v[i].codec != zipcclCodecRaw)
            sweep->lines[sweep->nlines++] = v[i];
    const struct svg_panel *sizes = &sweep->panels[SWEEP_SIZES], *ranks = &sweep->panels[SWEEP_RANKS];
    struct work work = {.all = (double)(n * (sizes->npoints + ranks->npoints))};
    for (size_t i = 0; i < sizes->npoints; i++) {
        struct simulate_setup s = *setup;
        s.bytes = (uint64_t)sizes->x[i];
        if (simulate_count(&s) == 0) /* less than a value a rank: as little as there can be */
            s.bytes = (uint64_t)s.nodes * s.per_node * dtype_get(s.dtype)->bytes;
        run_point(&s, sweep, SWEEP_SIZES, i, &work);
    }
    for (size_t i = 0; i < ranks->npoints; i++) {
        uint32_t r = (uint32_t)ranks->x[i];
        struct simulate_setup s = r == setup->nodes * setup->per_node ? *setup : with_ranks(setup, r);
        run_point(&s, sweep, SWEEP_RANKS, i, &work);
    }
    progress_clear();
}

bool simulate_sweep_draw(const struct simulate_setup *setup, const struct simulate_sweep *sweep, const char *path) {
    char title[128], subtitle[256], size[UNITS_TEXT], link[UNITS_TEXT];
    struct svg_panel panels[SWEEP_NUM];
    char titles[SWEEP_NUM][128];
    struct svg_chart chart = {.title = title,
                              .subtitle = subtitle,
                              .y_title = "speed-up over raw",
                              .nseries = sweep->nlines,
                              .panels = panels,
                              .npanels = SWEEP_NUM,
                              .mark = 1,
                              .mark_text = "the fastest raw arm"};
    uint32_t ranks = setup->nodes * setup->per_node;
    memcpy(panels, sweep->panels, sizeof panels);
    (void)snprintf(titles[0], sizeof titles[0], "%u node%s of %u rank%s", setup->nodes, setup->nodes > 1 ? "s" : "",
                   setup->per_node, setup->per_node > 1 ? "s" : "");
    (void)snprintf(titles[1], sizeof titles[1], "%s, 2 to %u ranks", units_bytes(size, setup->bytes), ranks);
    panels[0].title = titles[0];
    panels[1].title = titles[1];
    (void)snprintf(title, sizeof title, "%s, %s: simulated speed-up of coded arms", op_name((unsigned)setup->op),
                   dtype_get(setup->dtype)->name);
    (void)snprintf(subtitle, sizeof subtitle, "links of %s, encode %g and decode %g GB/s a worker, ratio %.2f (tier)",
                   units_rate(link, (uint64_t)(setup->cost.link_bps * 8)), setup->cost.encode_bps / 1e9,
                   setup->cost.decode_bps / 1e9, setup->cost.ratio[zipcclCodecTier][setup->dtype]);
    for (size_t i = 0; i < sweep->nlines; i++)
        simulate_variant_name(&sweep->lines[i], chart.series[i], SVG_LABEL);
    FILE *out = fopen(path, "we");
    if (!out)
        return false;
    svg_chart_print(&chart, out);
    bool good = !ferror(out);
    return fclose(out) == 0 && good;
}

static json_t *panel_json(const struct simulate_sweep *sweep, unsigned panel, const char *key) {
    json_t *points = json_array();
    const struct svg_panel *p = &sweep->panels[panel];
    for (size_t i = 0; i < p->npoints; i++) {
        json_t *arms = json_array();
        for (size_t k = 0; k < sweep->nlines; k++) {
            const struct simulate_variant *v = &sweep->lines[k];
            json_t *arm = v->arm == zipcclArmAuto ? json_null() : json_string(arm_name(v->arm));
            (void)json_array_append_new(arms, json_pack("{s:o, s:s, s:o}", "arm", arm, "codec", codec_name(v->codec),
                                                        "speedup", output_real(p->y[k][i])));
        }
        (void)json_array_append_new(points, json_pack("{s:I, s:o, s:o}", key, (json_int_t)p->x[i], "raw_us",
                                                      output_real(sweep->raw_s[panel][i] * 1e6), "coded", arms));
    }
    return points;
}

json_t *simulate_sweep_json(const struct simulate_sweep *sweep) {
    return json_pack("{s:o, s:o}", "sizes", panel_json(sweep, SWEEP_SIZES, "bytes"), "ranks",
                     panel_json(sweep, SWEEP_RANKS, "ranks"));
}
