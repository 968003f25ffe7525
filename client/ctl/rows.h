/* SPDX-License-Identifier: Apache-2.0
 *
 * How many rows each rank sends to each expert: the counts of an uneven all-to-all.
 */
#ifndef ZIPCCL_CTL_ROWS_H
#define ZIPCCL_CTL_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROWS_MAX 65536
#define ROWS_WHY 256

/* Lists of one length, one after another; rank r uses list r modulo their number. */
struct rows {
    uint64_t *values;
    size_t experts, lists;
};

/* From a file: JSON that holds "rows_per_expert" arrays anywhere (as the manifest of the tensors does), or text with a
 * list a line. path NULL: the counts of a real training step, eight experts. False: why says so. */
bool rows_load(const char *path, struct rows *rows, char why[ROWS_WHY]);
void rows_free(struct rows *rows);
/* The share of list `rank` that goes to rank `to` of n: experts are dealt out in order. n > experts: they repeat. */
double rows_share(const struct rows *rows, unsigned rank, unsigned to, unsigned n);

#endif
