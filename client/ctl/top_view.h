/* SPDX-License-Identifier: Apache-2.0
 *
 * top: from two looks at the statistics to rates of each job, in order. Pure.
 */
#ifndef ZIPCCL_CTL_TOP_VIEW_H
#define ZIPCCL_CTL_TOP_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl.pb-c.h"

#define TOP_MAX_ROWS 512

/* X(name, key, text) */
#define TOP_KEYS(X)                                                                                                    \
    X(RAW, 'r', "raw")                                                                                                 \
    X(WIRE, 'w', "wire")                                                                                               \
    X(RATIO, 'x', "ratio")                                                                                             \
    X(OPS, 'o', "ops")                                                                                                 \
    X(WAIT, 'a', "wait")                                                                                               \
    X(NAME, 'n', "name")

enum top_key {
#define TOP_ENUM(name, key, text) TOP_##name,
    TOP_KEYS(TOP_ENUM)
#undef TOP_ENUM
        TOP_NUM_KEYS
};

struct top_row {
    const char *job; /* lives as long as the later statistics */
    uint32_t uid;
    double raw, wire;            /* bytes a second */
    double ops, errors;          /* a second */
    double ratio;                /* raw to wire; 0: nothing was sent */
    double wait, encode, decode; /* shares of the operations' time */
    double mean_s;               /* of an operation; 0: none ended */
};

/* Rates of every job of `after`, seconds after `before`. A counter that fell (the daemon began anew) counts from 0. */
size_t top_rows(const Zipccl__Stats *before, const Zipccl__Stats *after, double seconds,
                struct top_row rows[TOP_MAX_ROWS]);
/* Greatest first, names by alphabet. */
void top_sort(struct top_row *rows, size_t n, enum top_key key);
bool top_key_of(char c, enum top_key *key);
bool top_key_named(const char *name, enum top_key *key);
const char *top_key_name(enum top_key key);

#endif
