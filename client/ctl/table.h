/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables for people: aligned columns, numbers to the right, control characters made harmless.
 */
#ifndef ZIPCCL_CTL_TABLE_H
#define ZIPCCL_CTL_TABLE_H

#include <stdint.h>
#include <stdio.h>

struct table;

/* One letter a column: 'l' left, 'r' right. NULL on no memory. */
struct table *table_new(const char *columns);
void table_free(struct table *t);
/* Adds the next cell; rows fill up by themselves. Text may come from outside: what would move the cursor becomes '?'.
 */
void table_cell(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints all with this indent. A cell that found no memory prints as "?". */
void table_print(const struct table *t, FILE *out, int indent);
/* Behind one that does not have all: "and N more WHAT: shown are WHICH". Nothing where n is 0. */
void table_left_out(FILE *out, int indent, uint32_t n, const char *what, const char *which);

#endif
