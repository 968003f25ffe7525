/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the text of metrics: OpenMetrics 1.0, or the older text format of Prometheus 0.0.4. Pure.
 *
 * A family is begun by metrics_text_family, its samples follow, the next family ends it. The text belongs to the writer
 * and never grows beyond METRICS_TEXT_MAX; where it would, or where there is no memory, `failed` is set and the text is
 * of no use.
 */
#ifndef ZIPCCL_DAEMON_METRICS_TEXT_H
#define ZIPCCL_DAEMON_METRICS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#define METRICS_TEXT_MAX (4u << 20)

enum metrics_type { METRICS_COUNTER, METRICS_GAUGE, METRICS_HISTOGRAM, METRICS_INFO };

struct metrics_text {
    char *data;
    size_t used, size;
    bool openmetrics, failed;
    const char *family;
    enum metrics_type type;
};

struct metrics_label {
    const char *name, *value;
};

/* name: without _total or _info. unit: NULL: none, else the name ends with it. */
void metrics_text_family(struct metrics_text *t, const char *name, enum metrics_type type, const char *unit,
                         const char *help);
/* suffix: of histograms "_bucket", "_sum", "_count"; "" for all others. */
void metrics_text_count(struct metrics_text *t, const char *suffix, const struct metrics_label *labels, unsigned n,
                        uint64_t value);
void metrics_text_value(struct metrics_text *t, const char *suffix, const struct metrics_label *labels, unsigned n,
                        double value);
/* Labels as text, to be used for many samples: appended to `labels`, a writer that holds nothing else. */
void metrics_text_labels(struct metrics_text *labels, const struct metrics_label *all, unsigned n);
/* A sample with labels that were made so: these bytes; the value is nanoseconds of a sum of seconds, or a count. */
void metrics_text_row(struct metrics_text *t, const char *labels, size_t bytes, uint64_t value, bool nanoseconds);
void metrics_text_end(struct metrics_text *t);
void metrics_text_free(struct metrics_text *t);

/* Whether who sent this Accept header (NULL: none) would rather have OpenMetrics than the older format. */
bool metrics_wants_openmetrics(const char *accept);

#endif
