/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl job NAME set KEY=VALUE...: how a job shares this node.
 */
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/output.h"
#include "client/ctl/units.h"

struct share {
    uint64_t weight;      /* 0: as it is */
    const char *priority; /* NULL: as it is */
    uint64_t rate;
    bool has_rate;
};

/* False: the word is no setting, or says what is not allowed. */
static bool read_setting(const char *word, struct share *share) {
    if (strncmp(word, "weight=", 7) == 0)
        return units_parse_count(word + 7, 1, 1000, &share->weight);
    if (strncmp(word, "rate=", 5) == 0)
        return share->has_rate = units_parse_rate(word + 5, &share->rate);
    if (strncmp(word, "priority=", 9) != 0)
        return false;
    share->priority = word + 9;
    return strcmp(share->priority, "high") == 0 || strcmp(share->priority, "normal") == 0 ||
           strcmp(share->priority, "low") == 0;
}

enum ctl_exit ctl_job(const struct ctl_args *args) {
    struct share share = {0};
    struct admin *admin = NULL;
    enum ctl_exit rc = CTL_OK;
    if (args->noperands < 3 || strcmp(args->operands[1], "set") != 0)
        return ctl_usage(args, "needs a job's name, the word set, and at least one setting");
    for (size_t i = 2; i < args->noperands; i++) {
        if (!read_setting(args->operands[i], &share))
            return ctl_usage(args, "\"%s\" is none of weight=1..1000, priority=high|normal|low, rate=200mbit",
                             args->operands[i]);
    }
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_job_set(admin, args->operands[0], (uint32_t)share.weight, share.priority,
                               share.has_rate ? &share.rate : NULL);
    if (result != zipcclSuccess)
        rc = ctl_fail(args, daemon_exit(result), "%s", admin_why(admin));
    else if (ctl_has(args, "json"))
        rc = output_json(json_pack("{s:s, s:o, s:o}", "schema", "zipccl.job/1", "node", output_text(admin_node(admin)),
                                   "job", output_text(args->operands[0])));
    admin_close(admin);
    return rc;
}
