/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of operations.
 */
#include "proto/op.h"

#include <stddef.h>
#include <strings.h>

static const char *const g_ops[zipcclNumOps] = {
    [zipcclOpAllGather] = "all-gather",
    [zipcclOpBroadcast] = "broadcast",
    [zipcclOpBarrier] = "barrier",
};

const char *op_name(unsigned op) {
    return op < zipcclNumOps ? g_ops[op] : "?";
}

/* Equal but for case and separators: "all-gather", "all_gather" and "AllGather" are one name. */
static bool same_name(const char *a, const char *b) {
    for (;;) {
        while (*a == '-' || *a == '_')
            a++;
        while (*b == '-' || *b == '_')
            b++;
        if (strncasecmp(a, b, 1) != 0)
            return false;
        if (*a == '\0')
            return true;
        a++;
        b++;
    }
}

bool op_from_name(const char *name, zipcclOp_t *op) {
    if (!name)
        return false;
    for (unsigned i = 0; i < zipcclNumOps; i++) {
        if (same_name(name, g_ops[i])) {
            *op = (zipcclOp_t)i;
            return true;
        }
    }
    return false;
}
