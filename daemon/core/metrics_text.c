/* SPDX-License-Identifier: Apache-2.0
 *
 * The text formats of metrics: lines, escapes, and which of the two a client wants.
 */
#include "daemon/core/metrics_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TEXT_FIRST 16384u

/* Room for that many bytes more. */
static bool text_room(struct metrics_text *t, size_t bytes) {
    if (t->failed)
        return false;
    if (t->size - t->used >= bytes)
        return true;
    size_t size = t->size < TEXT_FIRST ? TEXT_FIRST : t->size;
    while (size - t->used < bytes && size < METRICS_TEXT_MAX)
        size *= 2;
    char *data = size - t->used >= bytes ? realloc(t->data, size) : NULL;
    if (data == NULL) {
        t->failed = true;
        return false;
    }
    t->data = data;
    t->size = size;
    return true;
}

static void text_bytes(struct metrics_text *t, const char *text, size_t bytes) {
    if (!text_room(t, bytes))
        return;
    memcpy(t->data + t->used, text, bytes);
    t->used += bytes;
}

static void text_add(struct metrics_text *t, const char *text) {
    text_bytes(t, text, strlen(text));
}

/* Both formats escape alike in label values; in help, the older one leaves quotes as they are. */
static void text_escaped(struct metrics_text *t, const char *text, bool quotes) {
    for (const char *p = text; *p != '\0';) {
        size_t plain = strcspn(p, quotes ? "\\\n\"" : "\\\n");
        text_bytes(t, p, plain);
        p += plain;
        if (*p == '\0')
            return;
        text_add(t, *p == '\n' ? "\\n" : *p == '"' ? "\\\"" : "\\\\");
        p++;
    }
}

static void text_name(struct metrics_text *t, bool sample) {
    text_add(t, t->family);
    /* OpenMetrics names the family without what its samples end with, the older format with it. */
    if (t->openmetrics && !sample)
        return;
    if (t->type == METRICS_COUNTER)
        text_add(t, "_total");
    else if (t->type == METRICS_INFO)
        text_add(t, "_info");
}

static void text_meta(struct metrics_text *t, const char *what) {
    text_add(t, what);
    text_name(t, false);
    text_add(t, " ");
}

void metrics_text_family(struct metrics_text *t, const char *name, enum metrics_type type, const char *unit,
                         const char *help) {
    static const char *const types[] = {"counter", "gauge", "histogram", "info"};
    t->family = name;
    t->type = type;
    text_meta(t, "# TYPE ");
    text_add(t, type == METRICS_INFO && !t->openmetrics ? "gauge" : types[type]);
    text_add(t, "\n");
    if (unit != NULL && t->openmetrics) {
        text_meta(t, "# UNIT ");
        text_add(t, unit);
        text_add(t, "\n");
    }
    text_meta(t, "# HELP ");
    text_escaped(t, help, t->openmetrics);
    text_add(t, "\n");
}

void metrics_text_labels(struct metrics_text *labels, const struct metrics_label *all, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        text_add(labels, i == 0 ? "{" : ",");
        text_add(labels, all[i].name);
        text_add(labels, "=\"");
        text_escaped(labels, all[i].value, true);
        text_add(labels, "\"");
    }
    if (n > 0)
        text_add(labels, "}");
}

static void text_end_of_line(struct metrics_text *t, const char *value) {
    text_add(t, " ");
    text_add(t, value);
    text_add(t, "\n");
}

static void text_sample(struct metrics_text *t, const char *suffix, const struct metrics_label *labels, unsigned n,
                        const char *value) {
    text_name(t, true);
    text_add(t, suffix);
    metrics_text_labels(t, labels, n);
    text_end_of_line(t, value);
}

void metrics_text_row(struct metrics_text *t, const char *labels, size_t bytes, uint64_t value, bool nanoseconds) {
    char text[40];
    if (nanoseconds)
        snprintf(text, sizeof text, "%" PRIu64 ".%09" PRIu64, value / 1000000000, value % 1000000000);
    else
        snprintf(text, sizeof text, "%" PRIu64, value);
    text_name(t, true);
    text_bytes(t, labels, bytes);
    text_end_of_line(t, text);
}

void metrics_text_count(struct metrics_text *t, const char *suffix, const struct metrics_label *labels, unsigned n,
                        uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    text_sample(t, suffix, labels, n, text);
}

void metrics_text_value(struct metrics_text *t, const char *suffix, const struct metrics_label *labels, unsigned n,
                        double value) {
    char text[32];
    snprintf(text, sizeof text, "%.9g", value);
    text_sample(t, suffix, labels, n, text);
}

void metrics_text_end(struct metrics_text *t) {
    if (t->openmetrics)
        text_add(t, "# EOF\n");
}

void metrics_text_free(struct metrics_text *t) {
    free(t->data);
    *t = (struct metrics_text){0};
}

/* The value of a parameter of a media range that ends at `end`; false: it has none. */
static bool accept_parameter(const char *p, const char *end, const char *name, char *value, size_t size) {
    while (p < end && (p = memchr(p, ';', (size_t)(end - p))) != NULL) {
        for (p++; p < end && (*p == ' ' || *p == '\t'); p++)
            ;
        size_t n = strlen(name), used = 0;
        if ((size_t)(end - p) <= n || strncasecmp(p, name, n) != 0 || p[n] != '=')
            continue;
        for (p += n + 1; p < end && *p != ';' && *p != ' ' && used + 1 < size; p++) {
            if (*p != '"')
                value[used++] = *p;
        }
        value[used] = '\0';
        return true;
    }
    return false;
}

bool metrics_wants_openmetrics(const char *accept) {
    double open = 0, plain = 0;
    for (const char *p = accept; p != NULL && *p != '\0';) {
        char value[16];
        p += strspn(p, " \t,");
        const char *end = p + strcspn(p, ",");
        size_t type = strcspn(p, "; \t,");
        double q = accept_parameter(p, end, "q", value, sizeof value) ? strtod(value, NULL) : 1;
        bool known = !accept_parameter(p, end, "version", value, sizeof value) || strcmp(value, "1.0.0") == 0 ||
                     strcmp(value, "0.0.1") == 0;
        if (type == 28 && strncasecmp(p, "application/openmetrics-text", type) == 0 && known && q > open)
            open = q;
        else if ((type == 10 && strncasecmp(p, "text/plain", type) == 0) || (type == 6 && strncmp(p, "text/*", 6) == 0))
            plain = q > plain ? q : plain;
        p = end;
    }
    return open > 0 && open >= plain;
}
