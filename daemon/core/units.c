/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses and prints sizes, durations and rates. Decimal fractions are exact integers times the unit, not floating
 * point.
 */
#include "daemon/core/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    uint64_t factor;
};

/* digits[.digits]unit, times the unit's factor. The fraction must come out whole. */
static bool units_parse(const char *text, const struct unit *units, uint64_t *out) {
    uint64_t whole = 0, fraction = 0, divisor = 1;
    const char *p = text;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (__builtin_mul_overflow(whole, 10u, &whole) || __builtin_add_overflow(whole, (uint64_t)(*p - '0'), &whole))
            return false;
    }
    if (*p == '.') {
        p++;
        if (*p < '0' || *p > '9')
            return false;
        for (; *p >= '0' && *p <= '9'; p++) {
            if (divisor >= 1000000000u)
                return false;
            divisor *= 10;
            fraction = fraction * 10 + (uint64_t)(*p - '0');
        }
    }
    while (*p == ' ')
        p++;
    for (const struct unit *u = units; u->name != NULL; u++) {
        if (strcasecmp(p, u->name) != 0)
            continue;
        uint64_t value, part;
        if (__builtin_mul_overflow(whole, u->factor, &value) || __builtin_mul_overflow(fraction, u->factor, &part))
            return false;
        if (part % divisor != 0 || __builtin_add_overflow(value, part / divisor, &value))
            return false;
        *out = value;
        return true;
    }
    return false;
}

bool units_parse_size(const char *text, uint64_t *bytes) {
    static const struct unit units[] = {
        {"", 1},           {"b", 1},          {"k", 1u << 10},    {"kb", 1u << 10},    {"kib", 1u << 10},
        {"m", 1u << 20},   {"mb", 1u << 20},  {"mib", 1u << 20},  {"g", 1u << 30},     {"gb", 1u << 30},
        {"gib", 1u << 30}, {"t", 1ull << 40}, {"tb", 1ull << 40}, {"tib", 1ull << 40}, {NULL, 0},
    };
    return units_parse(text, units, bytes);
}

bool units_parse_duration(const char *text, uint64_t *ms) {
    static const struct unit units[] = {
        {"", 1000}, {"ms", 1}, {"s", 1000}, {"sec", 1000}, {"m", 60000}, {"min", 60000}, {"h", 3600000}, {NULL, 0},
    };
    return units_parse(text, units, ms);
}

bool units_parse_rate(const char *text, uint64_t *bits) {
    static const struct unit units[] = {
        {"", 1},
        {"bit", 1},
        {"bit/s", 1},
        {"bps", 1},
        {"kbit", 1000},
        {"kbit/s", 1000},
        {"kbps", 1000},
        {"mbit", 1000000},
        {"mbit/s", 1000000},
        {"mbps", 1000000},
        {"gbit", 1000000000},
        {"gbit/s", 1000000000},
        {"gbps", 1000000000},
        {"tbit", 1000000000000ull},
        {"tbit/s", 1000000000000ull},
        {"tbps", 1000000000000ull},
        {NULL, 0},
    };
    return units_parse(text, units, bits);
}

bool units_parse_bool(const char *text, bool *value) {
    static const char *const names[2][4] = {{"off", "false", "no", "0"}, {"on", "true", "yes", "1"}};
    for (int v = 0; v < 2; v++) {
        for (int i = 0; i < 4; i++) {
            if (strcasecmp(text, names[v][i]) == 0) {
                *value = v != 0;
                return true;
            }
        }
    }
    return false;
}

bool units_parse_uint(const char *text, uint64_t *value) {
    static const struct unit units[] = {{"", 1}, {NULL, 0}};
    return strpbrk(text, ". ") == NULL && units_parse(text, units, value);
}

static void units_print(char *text, size_t size, uint64_t value, const struct unit *units, const char *zero) {
    if (value == 0) {
        snprintf(text, size, "%s", zero);
        return;
    }
    for (const struct unit *u = units; u->name != NULL; u++) {
        if (value % u->factor == 0) {
            snprintf(text, size, "%" PRIu64 "%s", value / u->factor, u->name);
            return;
        }
    }
}

void units_print_size(char *text, size_t size, uint64_t bytes) {
    static const struct unit units[] = {{"TiB", 1ull << 40}, {"GiB", 1u << 30}, {"MiB", 1u << 20},
                                        {"KiB", 1u << 10},   {"", 1},           {NULL, 0}};
    units_print(text, size, bytes, units, "0");
}

void units_print_duration(char *text, size_t size, uint64_t ms) {
    static const struct unit units[] = {{"s", 1000}, {"ms", 1}, {NULL, 0}};
    units_print(text, size, ms, units, "0");
}

void units_print_rate(char *text, size_t size, uint64_t bits) {
    static const struct unit units[] = {
        {"Gbit/s", 1000000000}, {"Mbit/s", 1000000}, {"kbit/s", 1000}, {"bit/s", 1}, {NULL, 0}};
    units_print(text, size, bits, units, "0");
}
