/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes, rates and times: from what people type to numbers, and back.
 */
#include "client/ctl/units.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_LIST 256

struct suffix {
    const char *name;
    double factor;
};

static const struct suffix size_suffixes[] = {
    {"", 1},          {"b", 1},    {"k", 1024},       {"kib", 1024},       {"kb", 1e3}, {"m", 1048576},
    {"mib", 1048576}, {"mb", 1e6}, {"g", 1073741824}, {"gib", 1073741824}, {"gb", 1e9}, {NULL, 0},
};
static const struct suffix rate_suffixes[] = {
    {"", 1}, {"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}, {NULL, 0},
};

static bool parse_scaled(const char *text, const struct suffix *suffixes, bool per_second, uint64_t *out) {
    char *end;
    char suffix[16];
    if (!isdigit((unsigned char)*text)) /* strtod would take signs, "inf", "nan" and leading space */
        return false;
    double value = strtod(text, &end);
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        return false;
    while (*end == ' ')
        end++;
    if (strlen(end) >= sizeof suffix)
        return false;
    (void)snprintf(suffix, sizeof suffix, "%s", end);
    size_t n = strlen(suffix);
    if (per_second && n >= 2 && !strcasecmp(suffix + n - 2, "/s"))
        suffix[n - 2] = 0;
    for (const struct suffix *s = suffixes; s->name; s++) {
        if (strcasecmp(suffix, s->name))
            continue;
        value *= s->factor;
        if (!(value < 9.2e18) || value != floor(value))
            return false;
        *out = (uint64_t)value;
        return true;
    }
    return false;
}

bool units_parse_size(const char *text, uint64_t *bytes) {
    return parse_scaled(text, size_suffixes, false, bytes);
}

bool units_parse_rate(const char *text, uint64_t *bits) {
    if (!strcasecmp(text, "none")) {
        *bits = 0;
        return true;
    }
    return parse_scaled(text, rate_suffixes, true, bits);
}

bool units_parse_sizes(const char *text, uint64_t *sizes, size_t max, size_t *n) {
    char copy[MAX_LIST], *rest = copy;
    *n = 0;
    if (strlen(text) >= sizeof copy)
        return false;
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *word; (word = strsep(&rest, ","));) {
        if (*n == max || !units_parse_size(word, &sizes[*n]) || !sizes[*n])
            return false;
        ++*n;
    }
    return *n > 0;
}

bool units_parse_count(const char *text, uint64_t low, uint64_t high, uint64_t *value) {
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    unsigned long long v = strtoull(text, &end, 10);
    if (*end || v < low || v > high)
        return false;
    *value = v;
    return true;
}

bool units_parse_number(const char *text, double low, double high, double *value) {
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    double v = strtod(text, &end);
    if (*end || !(v >= low) || !(v <= high))
        return false;
    *value = v;
    return true;
}

/* Up to `places` decimals, without trailing zeros. */
static void trimmed(char out[UNITS_TEXT], double value, int places, const char *unit) {
    char number[UNITS_TEXT];
    (void)snprintf(number, sizeof number, "%.*f", places, value);
    if (strchr(number, '.')) {
        size_t n = strlen(number);
        while (number[n - 1] == '0')
            number[--n] = 0;
        if (number[n - 1] == '.')
            number[--n] = 0;
    }
    (void)snprintf(out, UNITS_TEXT, "%.20s %.10s", number, unit);
}

const char *units_bytes(char out[UNITS_TEXT], uint64_t bytes) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t i = 0;
    double value = (double)bytes;
    while (value >= 1024 && i < 5) {
        value /= 1024;
        i++;
    }
    trimmed(out, value, i ? 2 : 0, names[i]);
    return out;
}

const char *units_rate(char out[UNITS_TEXT], uint64_t bits) {
    static const char *const names[] = {"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"};
    size_t i = 0;
    double value = (double)bits;
    while (value >= 1000 && i < 4) {
        value /= 1000;
        i++;
    }
    trimmed(out, value, 2, names[i]);
    return out;
}

const char *units_seconds(char out[UNITS_TEXT], double seconds) {
    if (seconds >= 1)
        (void)snprintf(out, UNITS_TEXT, "%.2f s", seconds);
    else if (seconds >= 1e-3)
        (void)snprintf(out, UNITS_TEXT, "%.2f ms", seconds * 1e3);
    else
        (void)snprintf(out, UNITS_TEXT, "%.1f us", seconds * 1e6);
    return out;
}

const char *units_duration(char out[UNITS_TEXT], double seconds) {
    unsigned long s = (unsigned long)(seconds < 0 ? 0 : seconds);
    if (s >= 86400)
        (void)snprintf(out, UNITS_TEXT, "%lu d %lu h", s / 86400, s % 86400 / 3600);
    else if (s >= 3600)
        (void)snprintf(out, UNITS_TEXT, "%lu h %lu min", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        (void)snprintf(out, UNITS_TEXT, "%lu min %lu s", s / 60, s % 60);
    else
        (void)snprintf(out, UNITS_TEXT, "%lu s", s);
    return out;
}

const char *units_count(char out[UNITS_TEXT], uint64_t n) {
    char digits[UNITS_TEXT];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), o = 0;
    for (size_t i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            out[o++] = ',';
        out[o++] = digits[i];
    }
    out[o] = 0;
    return out;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double units_median(double *values, size_t n) {
    qsort(values, n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double units_percentile(const double *sorted, size_t n, double p) {
    size_t i = (size_t)(p * (double)n);
    return sorted[i < n ? i : n - 1];
}
