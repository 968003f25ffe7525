/* SPDX-License-Identifier: Apache-2.0
 *
 * What status, stats and the benchmark share when they speak to a daemon.
 */
#ifndef ZIPCCL_CTL_DAEMON_VIEW_H
#define ZIPCCL_CTL_DAEMON_VIEW_H

#include "client/ctl/ctl.h"
#include "client/lib/admin.h"

#define DAEMON_TIMEOUT_MS 5000

/* The exit code for a result of admin.h. */
enum ctl_exit daemon_exit(zipcclResult_t result);
/* Prints why a request failed, with a remedy; returns the exit code. */
enum ctl_exit daemon_fail(const struct ctl_args *args, const struct admin *admin, zipcclResult_t result);

#endif
