/* SPDX-License-Identifier: Apache-2.0
 *
 * What the process may do. Called once at start, while it has one thread and no socket.
 */
#ifndef ZIPCCL_DAEMON_PRIVILEGES_H
#define ZIPCCL_DAEMON_PRIVILEGES_H

#include <stdbool.h>

#include "zipccl_types.h"

struct config;

/* As root with a user configured: becomes that user, for good, without any capability, and makes sure of it. Whoever it
 * is: no new privileges by exec. Where it was root, or holds a secret: no memory that its user may look into or dump.
 * The reason of a failure is logged. */
ZIPCCL_MUST_CHECK zipcclResult_t privileges_drop(const struct config *config, bool secret);
/* Whether this node has the users and groups that the configuration names; those missing are logged. */
ZIPCCL_MUST_CHECK bool privileges_check(const struct config *config);

#endif
