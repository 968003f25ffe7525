/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers: client memory, mapped by the device. A buffer is a lease of its session; it lives until the session has
 * released it and no operation uses it. Loop thread alone; freed by the last buffer_put.
 */
#ifndef ZIPCCL_DAEMON_BUFFER_H
#define ZIPCCL_DAEMON_BUFFER_H

#include <stdint.h>

#include "daemon/core/list.h"
#include "daemon/device/device.h"
#include "proto/frame.h"
#include "zipccl.pb-c.h"

struct session;
struct job;

struct buffer {
    struct list link;        /* in its session's owned_buffers */
    struct session *session; /* NULL: the session is gone */
    struct job *job;
    uint32_t refs;  /* the session's handle or, before, its registration; and operations */
    uint64_t bytes; /* as counted for session and job */
    struct device_memory memory;
};

void buffer_register(struct session *s, const struct frame *f, const Zipccl__BufferRegister *m);
void buffer_release(struct session *s, uint32_t id, uint64_t handle);
void buffer_release_all(struct session *s); /* the session ends */
void buffer_put(struct buffer *b);          /* NULL is fine */

/* The range of a request, with its lease. handle 0 and bytes 0: none, which is fine. A failure sets *why (static). */
ZIPCCL_MUST_CHECK zipcclResult_t buffer_take(struct session *s, uint64_t handle, uint64_t offset, uint64_t bytes,
                                             struct buffer **buffer, void **base, const char **why);

#endif
