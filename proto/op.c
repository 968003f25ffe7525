/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of operations.
 */
#include "proto/op.h"

#include <stddef.h>
#include <strings.h>

static const char *const g_ops[zipcclNumOps] = {
#define OP_NAME(name, value, text) [name] = text,
    ZIPCCL_OPS(OP_NAME)
#undef OP_NAME
};

static const char *const g_redops[zipcclNumRedOps] = {
    [zipcclSum] = "sum", [zipcclProd] = "prod", [zipcclMax] = "max",
    [zipcclMin] = "min", [zipcclAvg] = "avg",   [zipcclPreMulSum] = "premulsum",
};

static const char *const g_arms[zipcclNumArms] = {
    [zipcclArmRing] = "ring",
    [zipcclArmFlat] = "flat",
    [zipcclArmHierarchical] = "hierarchical",
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

static bool find_name(const char *name, const char *const *names, unsigned n, unsigned *found) {
    for (unsigned i = 0; name && i < n; i++) {
        if (same_name(name, names[i])) {
            *found = i;
            return true;
        }
    }
    return false;
}

bool op_from_name(const char *name, zipcclOp_t *op) {
    unsigned found;
    if (!find_name(name, g_ops, zipcclNumOps, &found))
        return false;
    *op = (zipcclOp_t)found;
    return true;
}

bool op_reduces(zipcclOp_t op) {
    return op == zipcclOpReduceScatter || op == zipcclOpReduceScatterv || op == zipcclOpAllReduce ||
           op == zipcclOpReduce;
}

bool op_exchanges(zipcclOp_t op) {
    return op == zipcclOpAllToAll || op == zipcclOpAllToAllv || op == zipcclOpAllToAllCapped || op == zipcclOpGather ||
           op == zipcclOpScatter || op == zipcclOpSend || op == zipcclOpRecv;
}

bool op_is_pairwise(zipcclOp_t op) {
    return op == zipcclOpSend || op == zipcclOpRecv;
}

bool op_has_root(zipcclOp_t op) {
    return op == zipcclOpBroadcast || op == zipcclOpReduce || op == zipcclOpGather || op == zipcclOpScatter;
}

const char *redop_name(unsigned redop) {
    return redop < zipcclNumRedOps ? g_redops[redop] : "?";
}

bool redop_from_name(const char *name, zipcclRedOp_t *redop) {
    unsigned found;
    if (!find_name(name, g_redops, zipcclNumRedOps, &found))
        return false;
    *redop = (zipcclRedOp_t)found;
    return true;
}

const char *arm_name(unsigned arm) {
    return arm == zipcclArmAuto ? "auto" : arm < zipcclNumArms ? g_arms[arm] : "?";
}

bool arm_from_name(const char *name, zipcclArm_t *arm) {
    unsigned found;
    if (name && same_name(name, "auto")) {
        *arm = zipcclArmAuto;
        return true;
    }
    if (!find_name(name, g_arms, zipcclNumArms, &found))
        return false;
    *arm = (zipcclArm_t)found;
    return true;
}
