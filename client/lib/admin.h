/* SPDX-License-Identifier: Apache-2.0
 *
 * What zipcclctl asks of a daemon: status, statistics, records and admin requests, over a session that runs no
 * collectives. An admin belongs to one thread. Internal: not installed.
 */
#ifndef ZIPCCL_CLIENT_ADMIN_H
#define ZIPCCL_CLIENT_ADMIN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "zipccl.pb-c.h"
#include "zipccl_types.h"

struct admin;

/* socket NULL: $ZIPCCL_SOCKET, else the default. timeout_ms bounds this and each later request. *admin is set also
 * where it fails, so that admin_why can tell; NULL only without memory. The caller frees it in any case. */
ZIPCCL_MUST_CHECK zipcclResult_t admin_open(const char *socket, int timeout_ms, struct admin **admin);
void admin_close(struct admin *admin); /* NULL is fine */

/* *status is freed by zipccl__status__free_unpacked(status, NULL). */
ZIPCCL_MUST_CHECK zipcclResult_t admin_status(struct admin *admin, Zipccl__Status **status);
/* job NULL or "": all jobs. *stats is freed by zipccl__stats__free_unpacked(stats, NULL). */
ZIPCCL_MUST_CHECK zipcclResult_t admin_stats(struct admin *admin, const char *job, Zipccl__Stats **stats);
/* Same, with the decisions of the switchers. */
ZIPCCL_MUST_CHECK zipcclResult_t admin_decisions(struct admin *admin, const char *job, Zipccl__Stats **stats);

/* The youngest operations of a job (most 0: all that are kept). Replies are freed by zipccl__..._free_unpacked. */
ZIPCCL_MUST_CHECK zipcclResult_t admin_flight(struct admin *admin, const char *job, uint32_t most,
                                              Zipccl__Flight **flight);
/* Events with an id above `after`. */
ZIPCCL_MUST_CHECK zipcclResult_t admin_events(struct admin *admin, uint64_t after, Zipccl__Events **events);
ZIPCCL_MUST_CHECK zipcclResult_t admin_config(struct admin *admin, Zipccl__ConfigReply **config);

/* For root and the daemon's own user alone: else zipcclPermissionDenied. job "": the node. */
ZIPCCL_MUST_CHECK zipcclResult_t admin_log_level(struct admin *admin, const char *level, Zipccl__AdminReply **done);
ZIPCCL_MUST_CHECK zipcclResult_t admin_reload(struct admin *admin, Zipccl__AdminReply **done);
ZIPCCL_MUST_CHECK zipcclResult_t admin_drain(struct admin *admin, const char *job, uint64_t timeout_ms, bool cancel,
                                             Zipccl__AdminReply **done);
/* How a job shares the node; weight 0, priority NULL, rate_bits NULL: as it is. */
ZIPCCL_MUST_CHECK zipcclResult_t admin_job_set(struct admin *admin, const char *job, uint32_t weight,
                                               const char *priority, const uint64_t *rate_bits,
                                               Zipccl__AdminReply **done);

/* Who serves the socket, as the kernel says; pid 0: it is in another PID namespace. False: not connected. */
bool admin_peer(const struct admin *admin, pid_t *pid, uid_t *uid);
/* ZIPCCL_VERSION_CODE of the daemon; 0: not connected. */
unsigned admin_version(const struct admin *admin);

/* Why the last call failed, for people; never NULL, admin NULL included. */
const char *admin_why(const struct admin *admin);
/* The socket that it speaks to, and the daemon's name for its node ("" before the hello). */
const char *admin_socket(const struct admin *admin);
const char *admin_node(const struct admin *admin);

#endif
