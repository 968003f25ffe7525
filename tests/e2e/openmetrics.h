/* SPDX-License-Identifier: Apache-2.0
 *
 * A strict reader of metrics, as OpenMetrics 1.0 and the text format of Prometheus say, and a small HTTP client.
 */
#ifndef ZIPCCL_TESTS_E2E_OPENMETRICS_H
#define ZIPCCL_TESTS_E2E_OPENMETRICS_H

#include <stdbool.h>
#include <stddef.h>

struct om_sample {
    char *name, *labels; /* labels as they stand, without braces */
    double value;
};

struct om {
    struct om_sample *samples;
    size_t n;
    char error[256];
};

/* False: the text breaks a rule; error says which, and where. Freed by om_free in both cases. */
bool om_parse(struct om *om, const char *text, bool openmetrics);
void om_free(struct om *om);
bool om_has(const struct om *om, const char *name);
/* The sum of all samples of a name whose labels have this text ("": all). */
double om_sum(const struct om *om, const char *name, const char *labels);

/* Sends `request` to a port of 127.0.0.1 and reads until the server closes. The answer, with its head; malloc'ed. NULL:
 * no connection, or nothing within `seconds`. */
char *om_http(unsigned port, const char *request, double seconds);
/* GET /metrics. The body; NULL where the answer is not a good one of this format. */
char *om_scrape(unsigned port, bool openmetrics);
int om_connect(unsigned port);

#endif
