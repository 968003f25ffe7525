/* SPDX-License-Identifier: Apache-2.0
 *
 * Line charts as one self-contained SVG.
 */
#include "client/ctl/svg_chart.h"

#include <math.h>

#define PANEL_WIDTH  430.0
#define PANEL_HEIGHT 260.0
#define LEFT         64.0
#define TOP          96.0
#define GAP          70.0
#define RIGHT        24.0
#define BOTTOM       100.0
#define LABEL_WIDTH  52.0 /* of an x label, so that they do not touch */
#define MAX_TICKS    8

struct frame {
    const struct svg_chart *chart;
    FILE *out;
    double low, high, step; /* of y */
};

/* Text for XML. */
static void put_text(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '&')
            (void)fputs("&amp;", out);
        else if (*text == '<')
            (void)fputs("&lt;", out);
        else if (*text == '>')
            (void)fputs("&gt;", out);
        else
            (void)fputc((unsigned char)*text < ' ' ? '?' : *text, out);
    }
}

static void label(FILE *out, double x, double y, const char *attributes, const char *text) {
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    put_text(out, text);
    (void)fprintf(out, "</text>\n");
}

/* Round limits around all values and the mark. */
static void set_range(struct frame *f) {
    const struct svg_chart *c = f->chart;
    static const double steps[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000, 10000};
    double low = c->mark, high = c->mark;
    for (size_t p = 0; p < c->npanels; p++) {
        for (size_t s = 0; s < c->nseries; s++) {
            for (size_t i = 0; i < c->panels[p].npoints; i++) {
                double y = c->panels[p].y[s][i];
                if (!isfinite(y))
                    continue;
                low = y < low ? y : low;
                high = y > high ? y : high;
            }
        }
    }
    size_t i = 0;
    while (i + 1 < sizeof steps / sizeof *steps && (high - low) / steps[i] > MAX_TICKS - 2)
        i++;
    f->step = steps[i];
    f->low = (floor(low / f->step + 1e-9) - (low < c->mark ? 0 : 1)) * f->step;
    f->high = (ceil(high / f->step - 1e-9) + (high > c->mark ? 0 : 1)) * f->step;
    if (f->low < 0)
        f->low = 0;
}

static double y_of(const struct frame *f, double y) {
    return TOP + PANEL_HEIGHT * (1 - (y - f->low) / (f->high - f->low));
}

static double x_of(const struct svg_panel *p, double left, double x) {
    double from = log(p->x[0]), to = log(p->x[p->npoints - 1]);
    return left + PANEL_WIDTH * (to > from ? 0.03 + 0.94 * (log(x) - from) / (to - from) : 0.5);
}

static void draw_style(FILE *out) {
    static const char *const light[SVG_MAX_SERIES] = {"#0969da", "#bc4c00", "#1a7f37", "#8250df",
                                                      "#cf222e", "#6e5494", "#0b7a75", "#9a6700"};
    static const char *const dark[SVG_MAX_SERIES] = {"#58a6ff", "#f0883e", "#3fb950", "#bc8cff",
                                                     "#ff7b72", "#d2a8ff", "#39c5bb", "#d29922"};
    (void)fprintf(out, "<style>\n"
                       "text{font-family:system-ui,Helvetica,Arial,sans-serif;font-size:12px;fill:#1f2328}\n"
                       ".bg{fill:#ffffff}.grid{stroke:#d0d7de;stroke-width:1}.axis{stroke:#57606a;stroke-width:1}\n"
                       ".mark{stroke:#57606a;stroke-width:1.5;stroke-dasharray:2 3}.dim{fill:#57606a}\n"
                       ".line{fill:none;stroke-width:2.2;stroke-linejoin:round}\n");
    for (int i = 0; i < SVG_MAX_SERIES; i++)
        (void)fprintf(out, ".l%d{stroke:%s}.p%d{fill:%s}\n", i, light[i], i, light[i]);
    (void)fprintf(out, "@media (prefers-color-scheme:dark){\n"
                       "text{fill:#e6edf3}.bg{fill:#0d1117}.grid{stroke:#30363d}.axis,.mark{stroke:#8b949e}"
                       ".dim{fill:#8b949e}\n");
    for (int i = 0; i < SVG_MAX_SERIES; i++)
        (void)fprintf(out, ".l%d{stroke:%s}.p%d{fill:%s}\n", i, dark[i], i, dark[i]);
    (void)fprintf(out, "}\n</style>\n");
}

/* Every other line is dashed. */
static const char *dash_of(size_t series) {
    return series % 2 ? " stroke-dasharray=\"7 4\"" : "";
}

/* A circle, square, triangle or diamond. */
static void draw_mark(FILE *out, size_t series, double x, double y) {
    switch (series % 4) {
    case 0:
        (void)fprintf(out, "<circle class=\"p%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.6\"/>\n", series, x, y);
        break;
    case 1:
        (void)fprintf(out, "<rect class=\"p%zu\" x=\"%.1f\" y=\"%.1f\" width=\"6.6\" height=\"6.6\"/>\n", series,
                      x - 3.3, y - 3.3);
        break;
    case 2:
        (void)fprintf(out, "<path class=\"p%zu\" d=\"M%.1f %.1fl4.4 7.6h-8.8z\"/>\n", series, x, y - 4.6);
        break;
    default:
        (void)fprintf(out, "<path class=\"p%zu\" d=\"M%.1f %.1fl4.6 4.6l-4.6 4.6l-4.6-4.6z\"/>\n", series, x, y - 4.6);
    }
}

static void draw_axes(const struct frame *f, const struct svg_panel *p, double left, bool first) {
    FILE *out = f->out;
    char text[SVG_LABEL];
    int lines = (int)((f->high - f->low) / f->step + 0.5);
    for (int i = 0; i <= lines; i++) {
        double y = f->low + i * f->step;
        (void)fprintf(out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", left,
                      left + PANEL_WIDTH, y_of(f, y), y_of(f, y));
        (void)snprintf(text, sizeof text, "%.*f", f->step < 0.1 ? 2 : f->step < 1 ? 1 : 0, y);
        label(out, left - 8, y_of(f, y) + 4, "text-anchor=\"end\"", text);
    }
    double free_from = -1e9;
    for (size_t i = 0; i < p->npoints; i++) {
        double x = x_of(p, left, p->x[i]);
        (void)fprintf(out, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x, x,
                      TOP + PANEL_HEIGHT, TOP + PANEL_HEIGHT + 4);
        if (x < free_from)
            continue;
        label(out, x, TOP + PANEL_HEIGHT + 18, "text-anchor=\"middle\"", p->labels[i]);
        free_from = x + LABEL_WIDTH;
    }
    (void)fprintf(out, "<path class=\"axis\" fill=\"none\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", left, TOP,
                  TOP + PANEL_HEIGHT, left + PANEL_WIDTH);
    (void)fprintf(out, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", left,
                  left + PANEL_WIDTH, y_of(f, f->chart->mark), y_of(f, f->chart->mark));
    label(out, left, TOP - 12, "font-weight=\"600\"", p->title);
    label(out, left + PANEL_WIDTH / 2, TOP + PANEL_HEIGHT + 38, "text-anchor=\"middle\" class=\"dim\"", p->x_title);
    if (first)
        label(out, 0, 0, "text-anchor=\"middle\" class=\"dim\" transform=\"translate(18 226) rotate(-90)\"",
              f->chart->y_title);
}

static void draw_lines(const struct frame *f, const struct svg_panel *p, double left) {
    for (size_t s = 0; s < f->chart->nseries; s++) {
        bool pen = false, any = false;
        for (size_t i = 0; i < p->npoints; i++)
            any = any || isfinite(p->y[s][i]);
        if (!any)
            continue;
        (void)fprintf(f->out, "<path class=\"line l%zu\"%s d=\"", s, dash_of(s));
        for (size_t i = 0; i < p->npoints; i++) {
            bool there = isfinite(p->y[s][i]);
            if (there)
                (void)fprintf(f->out, "%s%.1f %.1f", pen ? "L" : "M", x_of(p, left, p->x[i]), y_of(f, p->y[s][i]));
            pen = there;
        }
        (void)fprintf(f->out, "\"/>\n");
        for (size_t i = 0; i < p->npoints; i++)
            if (isfinite(p->y[s][i]))
                draw_mark(f->out, s, x_of(p, left, p->x[i]), y_of(f, p->y[s][i]));
    }
}

static void draw_legend(const struct frame *f, double y) {
    double x = LEFT;
    for (size_t s = 0; s < f->chart->nseries; s++) {
        (void)fprintf(f->out, "<path class=\"line l%zu\"%s d=\"M%.1f %.1fh30\"/>\n", s, dash_of(s), x, y - 4);
        draw_mark(f->out, s, x + 15, y - 4);
        label(f->out, x + 38, y, "", f->chart->series[s]);
        x += 160;
    }
    (void)fprintf(f->out, "<path class=\"mark\" d=\"M%.1f %.1fh30\"/>\n", x, y - 4);
    label(f->out, x + 38, y, "", f->chart->mark_text);
}

void svg_chart_print(const struct svg_chart *chart, FILE *out) {
    struct frame f = {.chart = chart, .out = out};
    double width = LEFT + (double)chart->npanels * PANEL_WIDTH + ((double)chart->npanels - 1) * GAP + RIGHT;
    double height = TOP + PANEL_HEIGHT + BOTTOM;
    set_range(&f);
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
                  "role=\"img\">\n<title>",
                  width, height, width, height);
    put_text(out, chart->title);
    (void)fprintf(out, "</title>\n");
    draw_style(out);
    (void)fprintf(out, "<rect class=\"bg\" width=\"100%%\" height=\"100%%\"/>\n");
    label(out, LEFT, 30, "style=\"font-size:16px;font-weight:600\"", chart->title);
    label(out, LEFT, 52, "class=\"dim\"", chart->subtitle);
    for (size_t p = 0; p < chart->npanels; p++) {
        double left = LEFT + (double)p * (PANEL_WIDTH + GAP);
        draw_axes(&f, &chart->panels[p], left, p == 0);
        draw_lines(&f, &chart->panels[p], left);
    }
    draw_legend(&f, height - 22);
    (void)fprintf(out, "</svg>\n");
}
