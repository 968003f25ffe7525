/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows per expert.
 */
#include "client/ctl/rows.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROWS  (1ull << 40) /* of one expert: sums stay exact */
#define MAX_DEPTH 32

/* tests/data/tensors: moe_dispatch_s0160. */
static const uint64_t builtin[] = {317, 342, 216, 144, 359, 318, 120, 232};

static bool add(struct rows *r, uint64_t value, size_t *room) {
    size_t n = r->experts * r->lists + *room;
    if (n >= ROWS_MAX || value > MAX_ROWS)
        return false;
    uint64_t *grown = realloc(r->values, (n + 1) * sizeof *grown);
    if (!grown)
        return false;
    r->values = grown;
    r->values[n] = value;
    ++*room;
    return true;
}

/* n values were added as a list. */
static bool end_list(struct rows *r, size_t n) {
    if (!n || (r->lists && n != r->experts))
        return !n;
    r->experts = n;
    r->lists++;
    return true;
}

static bool from_array(struct rows *r, const json_t *array) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || !add(r, (uint64_t)json_integer_value(v), &n))
            return false;
    }
    return end_list(r, n);
}

static bool from_json(struct rows *r, json_t *v, int depth) {
    const char *key;
    json_t *inner;
    if (depth > MAX_DEPTH)
        return false;
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++)
            if (!from_json(r, json_array_get(v, i), depth + 1))
                return false;
    }
    json_object_foreach(v, key, inner) {
        bool found = !strcmp(key, "rows_per_expert") && json_is_array(inner);
        if (!(found ? from_array(r, inner) : from_json(r, inner, depth + 1)))
            return false;
    }
    return true;
}

static bool from_line(struct rows *r, const char *line) {
    size_t n = 0;
    for (;;) {
        char *end;
        while (isspace((unsigned char)*line) || *line == ',')
            line++;
        if (!*line || *line == '#')
            return end_list(r, n);
        if (!isdigit((unsigned char)*line))
            return false;
        errno = 0;
        uint64_t value = strtoull(line, &end, 10);
        if (errno || !add(r, value, &n))
            return false;
        line = end;
    }
}

static bool from_file(struct rows *r, FILE *f) {
    char *line = NULL;
    size_t size = 0;
    json_t *root = json_loadf(f, 0, NULL);
    bool ok = true;
    if (root) {
        ok = from_json(r, root, 0);
        json_decref(root);
        return ok;
    }
    rewind(f);
    while (ok && getline(&line, &size, f) > 0)
        ok = from_line(r, line);
    free(line);
    return ok;
}

static bool any_sum(const struct rows *r) {
    for (size_t i = 0; i < r->lists; i++) {
        uint64_t sum = 0;
        for (size_t e = 0; e < r->experts; e++)
            sum += r->values[i * r->experts + e];
        if (!sum)
            return false;
    }
    return r->lists > 0;
}

bool rows_load(const char *path, struct rows *rows, char why[ROWS_WHY]) {
    size_t n = 0;
    bool ok = true;
    memset(rows, 0, sizeof *rows);
    if (path) {
        FILE *f = fopen(path, "re");
        if (!f) {
            (void)snprintf(why, ROWS_WHY, "%.160s: %s", path, strerror(errno));
            return false;
        }
        ok = from_file(rows, f);
        (void)fclose(f);
    } else {
        for (size_t i = 0; i < sizeof builtin / sizeof *builtin && ok; i++)
            ok = add(rows, builtin[i], &n);
        ok = ok && end_list(rows, n);
    }
    if (ok && any_sum(rows))
        return true;
    (void)snprintf(
        why, ROWS_WHY,
        "%.120s: no lists of rows: JSON with \"rows_per_expert\" arrays, or a list of numbers a line, all of "
        "one length and not all 0",
        path ? path : "built in");
    rows_free(rows);
    return false;
}

void rows_free(struct rows *rows) {
    free(rows->values);
    memset(rows, 0, sizeof *rows);
}

double rows_share(const struct rows *rows, unsigned rank, unsigned to, unsigned n) {
    const uint64_t *list = rows->values + rank % rows->lists * rows->experts;
    size_t all = rows->experts > n ? rows->experts : n;
    uint64_t sum = 0, mine = 0;
    for (size_t e = 0; e < all; e++) {
        uint64_t value = list[e % rows->experts];
        sum += value;
        if (e * n / all == to)
            mine += value;
    }
    return sum ? (double)mine / (double)sum : 0;
}
