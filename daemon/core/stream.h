/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams of GPUs that a session has attached: when a request of one may start, and how the client's stream hears of
 * its end.
 *
 * A request waits here, in its rank's queue, until the client's stream has come to it. It does not wait in a stream of
 * the daemon's own: what stands behind it there, of other communicators, would wait too, and the two could wait for
 * each other. Its end is a word in memory that client and daemon share. Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_STREAM_H
#define ZIPCCL_DAEMON_STREAM_H

#include "daemon/device/device.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "zipccl.pb-c.h"

struct session;

void stream_attach(struct session *s, const struct frame *f, const Zipccl__StreamAttach *m);
void stream_detach(struct session *s, uint32_t id, uint64_t handle);
void stream_close_all(struct session *s); /* the session ends */

/* Calls gate->opened once the client's stream is there. A failure sets *why (static). */
ZIPCCL_MUST_CHECK zipcclResult_t stream_wait(struct session *s, const struct wire_point *point,
                                             const struct device_gate *gate, const char **why);
/* The request is over: the client's stream goes on. An unknown stream is fine. */
void stream_signal(struct session *s, const struct wire_point *point);

#endif
