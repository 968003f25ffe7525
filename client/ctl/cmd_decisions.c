/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl decisions: which arm and codec operations take, and why.
 */
#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/decisions.h"
#include "client/ctl/output.h"

enum ctl_exit ctl_decisions(const struct ctl_args *args) {
    struct admin *admin = NULL;
    Zipccl__Stats *stats = NULL;
    enum ctl_exit rc = CTL_OK;
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_decisions(admin, ctl_get(args, "job"), &stats);
    if (result != zipcclSuccess) {
        rc = daemon_fail(args, admin, result);
    } else if (ctl_has(args, "json")) {
        rc = output_json(json_pack("{s:s, s:o, s:o}", "schema", "zipccl.decisions/1", "node", output_text(stats->node),
                                   "decisions", decisions_json(stats)));
    } else {
        printf("node %s\n", stats->node);
        decisions_print(stats, stdout);
    }
    if (stats)
        zipccl__stats__free_unpacked(stats, NULL);
    admin_close(admin);
    return rc;
}
