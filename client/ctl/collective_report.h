/* SPDX-License-Identifier: Apache-2.0
 *
 * What bench collective prints: a table for people, JSON for programs.
 */
#ifndef ZIPCCL_CTL_COLLECTIVE_REPORT_H
#define ZIPCCL_CTL_COLLECTIVE_REPORT_H

#include <jansson.h>

#include "client/ctl/collective_ranks.h"
#include "client/ctl/peer_mpi.h"

/* auto beside what was pinned, of one size. */
struct collective_switcher {
    unsigned best;  /* of the pinned ones: the least median over all rounds */
    double settled; /* median over the second half of the rounds of auto's time by the best one's */
    double error;   /* its standard error */
    double whole;   /* time of all rounds, trials included, by the best one's */
    double first;   /* of the first RANKS_TRIALS rounds */
};

struct collective_report {
    const struct ranks_plan *plan;
    const struct private_daemons *daemons;
    const char *data;             /* name of the values */
    struct ranks_result *results; /* of each size */
    const char *rows;             /* name of the counts of a v operation, else NULL */
    const char *phases;           /* of an all-to-all, where one was asked for, else NULL */
    const struct peer_mpi *peer;  /* OpenMPI, or NULL */
    double pingpong_us;           /* negative: not measured */
    struct collective_switcher switcher[RANKS_MAX_SIZES];
};

/* Before the times are sorted: for rounds are compared one by one. */
void collective_switcher_take(struct collective_report *r);
void collective_switcher_print(const struct collective_report *r);
/* Adds the keys of one size. */
void collective_switcher_json(const struct collective_report *r, size_t size, json_t *to);

/* Sorts the times of all results; the others want it first. */
void collective_report_sort(struct collective_report *r);
void collective_report_head(const struct collective_report *r);
/* Of one arm of one size, sorted. */
double collective_report_p50_us(const struct collective_report *r, size_t size, unsigned arm);
bool collective_report_exact(const struct collective_report *r);
void collective_report_print(const struct collective_report *r);
/* One size: its keys in the object itself; several: in an array "results". NULL: no memory. */
json_t *collective_report_json(const struct collective_report *r);

#endif
