/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of zipcclctl: status and statistics, made from what is in memory. Never blocks. Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_STATUS_H
#define ZIPCCL_DAEMON_STATUS_H

#include <stdint.h>

struct session;

void status_send(struct session *s, uint32_t id);
void status_stats(struct session *s, uint32_t id, const char *job);

#endif
