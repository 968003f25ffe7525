/* SPDX-License-Identifier: Apache-2.0
 *
 * What is free of a span of memory: pieces by offset, of which the first that is large enough is taken; neighbours that
 * are given back join.
 */
#ifndef ZIPCCL_DAEMON_WORKER_EXTENTS_H
#define ZIPCCL_DAEMON_WORKER_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>

struct extent {
    size_t offset, bytes;
};

struct extents {
    struct extent *list; /* by offset */
    size_t n, capacity;
};

/* All of it is free. False: no memory. */
bool extents_open(struct extents *e, size_t bytes);
void extents_close(struct extents *e);
/* Where so many bytes are now taken; SIZE_MAX: there is no such piece. */
size_t extents_take(struct extents *e, size_t bytes);
/* What cannot be noted for want of memory is not used again. */
void extents_give(struct extents *e, size_t offset, size_t bytes);

#endif
