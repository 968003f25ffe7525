/* SPDX-License-Identifier: Apache-2.0
 *
 * Draining by an administrator: the node, or one job of it, takes no new operations; those that run may end until a
 * deadline; the daemon lives on, and takes work again after a cancel. Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_DRAIN_H
#define ZIPCCL_DAEMON_DRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct daemon;
struct job;

/* Part of whatever is drained: zero is not draining. */
struct drain {
    bool on;
    uint64_t deadline_ns;
};

/* job NULL: the node. Failing communicators that are idle is done at once, the others by drain_tick. */
void drain_begin(struct daemon *d, struct job *job, uint64_t timeout_ms);
bool drain_cancel(struct daemon *d, struct job *job); /* false: it was not drained */
void drain_tick(struct daemon *d, uint64_t now_ns);
/* Why no new work is taken, also where the daemon ends; NULL: it is. job NULL: asks for the node alone. */
const char *drain_why(const struct daemon *d, const struct job *job, char *text, size_t size);
/* "running", "draining" (communicators are still alive), "drained". */
const char *drain_state(const struct daemon *d, const struct job *job);

#endif
