/* SPDX-License-Identifier: Apache-2.0
 *
 * What administrators do to jobs.
 */
#ifndef ZIPCCL_DAEMON_ADMIN_JOB_H
#define ZIPCCL_DAEMON_ADMIN_JOB_H

#include <stdint.h>

#include "zipccl.pb-c.h"

struct session;

/* Changes how a job shares this node; answers with WIRE_OK or an error. */
void admin_job_set(struct session *s, uint32_t id, const Zipccl__JobSet *m);

#endif
