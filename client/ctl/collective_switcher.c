/* SPDX-License-Identifier: Apache-2.0
 *
 * bench collective --switcher: what choosing costs. auto and every pinned choice run in turn, so a machine that is
 * slower for a while is so for all of them; auto starts without having seen the operation.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/ctl/collective_report.h"
#include "client/ctl/output.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "kernels/codec.h"

#define SETTLED_FROM 2 /* one by this: the part of the rounds that trials may take */
#define FIRST_ROUNDS 20u
/* Of the rounds that count as settled, to tell how sure their median is. */
enum { PARTS = 16, PART_LEAST = 8 };

static double median_of(const double *values, uint32_t n, double *sorted) {
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = values[i];
    return units_median(sorted, n);
}

static double sum(const double *values, uint32_t n) {
    double total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += values[i];
    return total;
}

/* The median of n ratios in the order of time, and its standard error: by the medians of PARTS of them, as what
 * disturbs lasts; of few ones by how far they lie from their median, as if they did not depend on each other. They are
 * changed.
 */
static double median_and_error(double *ratios, uint32_t n, double *error) {
    double median, mean = 0, squares = 0, part[PARTS];
    if (n < PARTS * PART_LEAST) {
        median = units_median(ratios, n);
        for (uint32_t i = 0; i < n; i++)
            ratios[i] = fabs(ratios[i] - median);
        /* 1.4826: a normal deviation by the median distance; 1.2533: of a median by that of a mean. */
        *error = n ? 1.4826 * 1.2533 * units_median(ratios, n) / sqrt(n) : 0;
        return median;
    }
    for (uint32_t i = 0; i < PARTS; i++) {
        part[i] = units_median(ratios + n / PARTS * i, n / PARTS);
        mean += part[i] / PARTS;
    }
    for (uint32_t i = 0; i < PARTS; i++)
        squares += (part[i] - mean) * (part[i] - mean);
    *error = sqrt(squares / (PARTS - 1) / PARTS);
    return units_median(ratios, n);
}

static void take(const struct collective_report *r, size_t size, struct collective_switcher *s, double *room) {
    const struct ranks_result *result = &r->results[size];
    uint32_t rounds = result->rounds, from = rounds / SETTLED_FROM;
    const double *chosen = result->arms[r->plan->arms - 1].even.us, *best;
    double least = 0;
    for (unsigned arm = 0; arm + 1 < r->plan->arms; arm++) {
        double us = median_of(result->arms[arm].even.us, rounds, room);
        if (arm == 0 || us < least) {
            least = us;
            s->best = arm;
        }
    }
    best = result->arms[s->best].even.us;
    s->whole = sum(chosen, rounds) / sum(best, rounds);
    uint32_t first = rounds < FIRST_ROUNDS ? rounds : FIRST_ROUNDS;
    s->first = sum(chosen, first) / sum(best, first);
    for (uint32_t i = from; i < rounds; i++)
        room[i - from] = chosen[i] / best[i];
    s->settled = median_and_error(room, rounds - from, &s->error);
}

void collective_switcher_take(struct collective_report *r) {
    for (size_t i = 0; i < r->plan->nsizes; i++) {
        double *room = calloc(r->results[i].rounds, sizeof *room);
        if (room)
            take(r, i, &r->switcher[i], room);
        free(room);
    }
}

void collective_switcher_print(const struct collective_report *r) {
    const struct ranks_plan *plan = r->plan;
    static const char align[] = "rrrrrrrrrrrrrr"; /* with as many arms as may be */
    struct table *t = table_new(align + RANKS_MAX_ARMS - plan->arms);
    char text[UNITS_TEXT];
    if (!t)
        return;
    collective_report_head(r);
    table_cell(t, "size");
    table_cell(t, "rounds");
    for (unsigned arm = 0; arm < plan->arms; arm++)
        table_cell(t, "%s", plan->picks[arm].name);
    table_cell(t, "best");
    table_cell(t, "took");
    table_cell(t, "settled");
    table_cell(t, "error");
    table_cell(t, "first %u", FIRST_ROUNDS);
    table_cell(t, "whole");
    for (size_t i = 0; i < plan->nsizes; i++) {
        const struct collective_switcher *s = &r->switcher[i];
        table_cell(t, "%s", units_bytes(text, plan->sizes[i]));
        table_cell(t, "%u", r->results[i].rounds);
        for (unsigned arm = 0; arm < plan->arms; arm++)
            table_cell(t, "%s", units_seconds(text, collective_report_p50_us(r, i, arm) / 1e6));
        table_cell(t, "%s", plan->picks[s->best].name);
        table_cell(t, "%s", codec_name(r->results[i].arms[plan->arms - 1].codec));
        table_cell(t, "%.3f", s->settled);
        table_cell(t, "%.3f", s->error);
        table_cell(t, "%.3f", s->first);
        table_cell(t, "%.3f", s->whole);
    }
    table_print(t, stdout, 0);
    table_free(t);
    printf(
        "\nTimes are medians. took: auto's codec in the last round. settled, first %u, whole: auto's time by that of "
        "the best\npinned choice in the second half of the rounds (median of the rounds' ratios), in the first "
        "rounds and in all of\nthem (sums), what it measured for its choice included. error: the standard error of "
        "settled.\n",
        FIRST_ROUNDS);
}

void collective_switcher_json(const struct collective_report *r, size_t size, json_t *to) {
    const struct ranks_plan *plan = r->plan;
    const struct collective_switcher *s = &r->switcher[size];
    json_t *pinned = json_object();
    for (unsigned arm = 0; pinned && arm + 1 < plan->arms; arm++)
        (void)json_object_set_new(pinned, plan->picks[arm].name, output_real(collective_report_p50_us(r, size, arm)));
    (void)json_object_set_new(to, "switcher",
                              json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "pinned_p50_us", pinned, "best",
                                        plan->picks[s->best].name, "auto_p50_us",
                                        output_real(collective_report_p50_us(r, size, plan->arms - 1)), "settled",
                                        output_real(s->settled), "settled_error", output_real(s->error), "first",
                                        output_real(s->first), "whole", output_real(s->whole)));
}
