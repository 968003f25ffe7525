/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of sessions that wait for the device: registrations, streams, and their ends. The session is answered when
 * the device is done; one that has gone meanwhile is not, and what it asked for is given back. Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_PENDING_H
#define ZIPCCL_DAEMON_PENDING_H

#include <stdint.h>

#include "daemon/core/list.h"
#include "daemon/device/device.h"

struct daemon;
struct session;

/* Freed after ended, which takes care of the subject. */
struct pending {
    struct list link;        /* in the daemon's */
    struct session *session; /* NULL: it is gone */
    uint32_t id;             /* of the frame that is to be answered */
    void *subject;
    void (*ended)(struct pending *pending, zipcclResult_t result, const char *why);
    struct device_call call; /* for the device */
};

/* NULL: no memory. */
struct pending *pending_new(struct daemon *d, struct session *s, uint32_t id, void *subject,
                            void (*ended)(struct pending *pending, zipcclResult_t result, const char *why));
/* What the device did at once. */
void pending_end(struct pending *pending, zipcclResult_t result, const char *why);
void pending_session_gone(struct session *s);
/* The device is about to be closed: all end, aborted. */
void pending_close(struct daemon *d);

/* An `ended` for requests that are answered by an OK. */
void pending_ok(struct pending *pending, zipcclResult_t result, const char *why);

#endif
