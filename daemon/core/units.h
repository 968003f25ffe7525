/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes, durations and rates as people write them. Pure functions, strict: the whole text must be a number with
 * one known unit, and fit; *out is untouched where false is returned.
 */
#ifndef ZIPCCL_DAEMON_UNITS_H
#define ZIPCCL_DAEMON_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes: "4096", "64KiB", "64k", "4M", "1.5GiB". Units are powers of 1024, in any case. */
bool units_parse_size(const char *text, uint64_t *bytes);
/* Milliseconds: "60" (seconds), "500ms", "1.5s", "2m" or "2min", "1h". */
bool units_parse_duration(const char *text, uint64_t *ms);
/* Bits a second: "0", "1000000", "1gbit", "100mbit", "10Gbit/s", "2.5Gbps". Units are powers of 1000, in any case. */
bool units_parse_rate(const char *text, uint64_t *bits);
/* "on", "true", "yes", "1" and their opposites. */
bool units_parse_bool(const char *text, bool *value);
/* An unsigned whole number in decimal. */
bool units_parse_uint(const char *text, uint64_t *value);

/* The shortest exact spelling; text has at least 32 bytes. */
void units_print_size(char *text, size_t size, uint64_t bytes);
void units_print_duration(char *text, size_t size, uint64_t ms);
void units_print_rate(char *text, size_t size, uint64_t bits);

#endif
