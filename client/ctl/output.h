/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON for programs: keys in the order in which they were set.
 */
#ifndef ZIPCCL_CTL_OUTPUT_H
#define ZIPCCL_CTL_OUTPUT_H

#include <jansson.h>
#include <math.h>

#include "client/ctl/ctl.h"

/* Prints and frees root. NULL (out of memory while it was built) or a failed write: CTL_FAILED. */
static inline enum ctl_exit output_json(json_t *root) {
    int failed = !root || json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) != 0;
    json_decref(root);
    if (failed) {
        (void)fprintf(stderr, "zipcclctl: cannot write JSON\n");
        return CTL_FAILED;
    }
    (void)fputc('\n', stdout);
    return CTL_OK;
}

/* A number that JSON can hold; what is not finite becomes null. */
static inline json_t *output_real(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* Text from outside: null where it is not UTF-8. */
static inline json_t *output_text(const char *text) {
    json_t *s = json_string(text ? text : "");
    return s ? s : json_null();
}

#endif
