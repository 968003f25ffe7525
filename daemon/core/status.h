/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of zipcclctl: status and statistics, made from what is in memory. Never blocks. Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_STATUS_H
#define ZIPCCL_DAEMON_STATUS_H

#include <stdint.h>

#include "zipccl.pb-c.h"

struct session;
struct daemon;
struct arena;

void status_send(struct session *s, uint32_t id);
void status_stats(struct session *s, uint32_t id, const Zipccl__StatsRequest *request);
/* status_records.c */
void status_flight(struct session *s, uint32_t id, const Zipccl__FlightRequest *request);
void status_events(struct session *s, uint32_t id, const Zipccl__EventsRequest *request);
void status_config(struct session *s, uint32_t id);
/* status_decisions.c: adds what the switchers of the communicators of a job ("": of all) have chosen, and why. */
void status_decisions(struct daemon *d, const char *job, struct arena *a, Zipccl__Stats *m);

#endif
