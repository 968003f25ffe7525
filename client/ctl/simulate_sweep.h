/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl simulate --plot: speed-up over raw against the size of messages and the number of ranks.
 */
#ifndef ZIPCCL_CTL_SIMULATE_SWEEP_H
#define ZIPCCL_CTL_SIMULATE_SWEEP_H

#include <jansson.h>

#include "client/ctl/simulate_setup.h"
#include "client/ctl/svg_chart.h"

enum { SWEEP_SIZES, SWEEP_RANKS, SWEEP_NUM };

struct simulate_sweep {
    struct simulate_variant lines[SVG_MAX_SERIES]; /* coded arms; their results are of no one point */
    size_t nlines;
    struct svg_panel panels[SWEEP_NUM]; /* y: speed-up over the fastest raw arm, NAN where it was not run */
    double raw_s[SWEEP_NUM][SVG_MAX_POINTS];
};

/* Runs all points. Those too large to hold stay empty. */
void simulate_sweep_run(const struct simulate_setup *setup, struct simulate_sweep *sweep);

/* Writes the chart; false with errno where it cannot. */
bool simulate_sweep_draw(const struct simulate_setup *setup, const struct simulate_sweep *sweep, const char *path);

/* {"sizes": [...], "ranks": [...]} */
json_t *simulate_sweep_json(const struct simulate_sweep *sweep);

/* "tier, hierarchical" */
void simulate_variant_name(const struct simulate_variant *v, char *out, size_t size);

#endif
