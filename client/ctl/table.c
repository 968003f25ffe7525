/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables for people: aligned columns, numbers to the right, control characters made harmless.
 */
#include "client/ctl/table.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct table {
    size_t ncolumns, ncells, capacity;
    char **cells;
    char columns[];
};

struct table *table_new(const char *columns) {
    size_t n = strlen(columns);
    struct table *t = calloc(1, sizeof *t + n + 1);
    if (!t)
        return NULL;
    t->ncolumns = n;
    memcpy(t->columns, columns, n + 1);
    return t;
}

void table_free(struct table *t) {
    if (!t)
        return;
    for (size_t i = 0; i < t->ncells; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t);
}

void table_cell(struct table *t, const char *format, ...) {
    char *text = NULL;
    va_list ap;
    if (t->ncells == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 64;
        char **cells = realloc(t->cells, capacity * sizeof *cells);
        if (!cells)
            return;
        t->cells = cells;
        t->capacity = capacity;
    }
    va_start(ap, format);
    if (vasprintf(&text, format, ap) < 0)
        text = NULL;
    va_end(ap);
    for (unsigned char *p = (unsigned char *)text; p && *p; p++)
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
    t->cells[t->ncells++] = text;
}

static const char *cell_text(const struct table *t, size_t i) {
    return t->cells[i] ? t->cells[i] : "?";
}

/* Characters of UTF-8 text: bytes that do not continue another. */
static int width_of(const char *text) {
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

void table_print(const struct table *t, FILE *out, int indent) {
    if (t->ncolumns == 0)
        return;
    int *widths = calloc(t->ncolumns, sizeof *widths);
    if (!widths)
        return;
    for (size_t i = 0; i < t->ncells; i++) {
        int width = width_of(cell_text(t, i));
        if (width > widths[i % t->ncolumns])
            widths[i % t->ncolumns] = width;
    }
    for (size_t i = 0; i < t->ncells; i++) {
        size_t column = i % t->ncolumns;
        const char *text = cell_text(t, i);
        bool last = column + 1 == t->ncolumns || i + 1 == t->ncells;
        int pad = widths[column] - width_of(text);
        (void)fprintf(out, "%*s", column ? 2 : indent, "");
        if (t->columns[column] == 'r')
            (void)fprintf(out, "%*s%s", pad, "", text);
        else /* nothing follows the last column: no trailing blanks */
            (void)fprintf(out, "%s%*s", text, last ? 0 : pad, "");
        if (last)
            (void)fputc('\n', out);
    }
    free(widths);
}

void table_left_out(FILE *out, int indent, uint32_t n, const char *what, const char *which) {
    if (n)
        (void)fprintf(out, "%*sand %u more %s: shown are %s\n", indent, "", n, what, which);
}
