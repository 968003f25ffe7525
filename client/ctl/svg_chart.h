/* SPDX-License-Identifier: Apache-2.0
 *
 * Line charts as one self-contained SVG: panels side by side with a logarithmic x axis and one legend.
 */
#ifndef ZIPCCL_CTL_SVG_CHART_H
#define ZIPCCL_CTL_SVG_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define SVG_MAX_POINTS 32
#define SVG_MAX_SERIES 8
#define SVG_LABEL      24

struct svg_panel {
    const char *title, *x_title;
    size_t npoints;
    double x[SVG_MAX_POINTS]; /* over 0, ascending */
    char labels[SVG_MAX_POINTS][SVG_LABEL];
    double y[SVG_MAX_SERIES][SVG_MAX_POINTS]; /* NAN: none */
};

struct svg_chart {
    const char *title, *subtitle, *y_title;
    size_t nseries;
    char series[SVG_MAX_SERIES][SVG_LABEL];
    const struct svg_panel *panels;
    size_t npanels; /* 1 or 2 */
    double mark;    /* a line across, as what "no gain" means */
    const char *mark_text;
};

/* Readable on light and dark: colours follow the viewer's scheme, and lines differ in mark and dash too. */
void svg_chart_print(const struct svg_chart *chart, FILE *out);

#endif
