/* SPDX-License-Identifier: Apache-2.0
 *
 * What status, stats and the benchmark share when they speak to a daemon.
 */
#include "client/ctl/daemon_view.h"

enum ctl_exit daemon_exit(zipcclResult_t result) {
    switch (result) {
    case zipcclSuccess:
        return CTL_OK;
    case zipcclDaemonUnavailable:
    case zipcclRemoteError:
        return CTL_DAEMON_DOWN;
    case zipcclTimeout:
        return CTL_TIMEOUT;
    case zipcclPermissionDenied:
        return CTL_DENIED;
    default:
        return CTL_FAILED;
    }
}

enum ctl_exit daemon_fail(const struct ctl_args *args, const struct admin *admin, zipcclResult_t result) {
    enum ctl_exit rc = ctl_fail(args, daemon_exit(result), "%s", admin_why(admin));
    if (rc == CTL_DENIED)
        (void)fprintf(stderr, "Join the group that owns the socket (socket_group in zipccld.conf), or ask as root.\n");
    return rc;
}
