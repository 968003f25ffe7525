/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes, rates and times: from what people type to numbers, and back.
 */
#ifndef ZIPCCL_CTL_UNITS_H
#define ZIPCCL_CTL_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define UNITS_TEXT 32

/* "64MiB", "1.5 KiB", "4096", "1MB" (decimal), any case. False where it is no size, is negative or passes 2^63. */
bool units_parse_size(const char *text, uint64_t *bytes);
/* "1gbit", "1.5 Gbit/s", "100mbit", "1000000000" (bits a second), "0" or "none". */
bool units_parse_rate(const char *text, uint64_t *bits);
/* "64KiB,1MiB": up to max sizes greater than 0. False where one is wrong or there are too many. */
bool units_parse_sizes(const char *text, uint64_t *sizes, size_t max, size_t *n);
/* A number from low to high. */
bool units_parse_count(const char *text, uint64_t low, uint64_t high, uint64_t *value);
bool units_parse_number(const char *text, double low, double high, double *value);

/* All write at most UNITS_TEXT bytes to out and return it. */
const char *units_bytes(char out[UNITS_TEXT], uint64_t bytes);    /* "1.5 MiB" */
const char *units_rate(char out[UNITS_TEXT], uint64_t bits);      /* "1 Gbit/s" */
const char *units_seconds(char out[UNITS_TEXT], double seconds);  /* "1.25 ms" */
const char *units_duration(char out[UNITS_TEXT], double seconds); /* "2 d 3 h", "4 min 5 s" */
const char *units_count(char out[UNITS_TEXT], uint64_t n);        /* "1,234,567" */

static inline uint64_t units_now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The median of n > 0 values; sorts them. */
double units_median(double *values, size_t n);
/* The value below which the share p of n sorted values lies. */
double units_percentile(const double *sorted, size_t n, double p);

#endif
