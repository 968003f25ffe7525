/* SPDX-License-Identifier: Apache-2.0
 *
 * An arena: memory for the parts of one message, dropped together after it was sent.
 */
#ifndef ZIPCCL_DAEMON_ARENA_H
#define ZIPCCL_DAEMON_ARENA_H

#include <stddef.h>

struct arena_block;

/* Zero-initialised by its owner. */
struct arena {
    struct arena_block *blocks;
    size_t used, size;
};

/* Zeroed memory; NULL: none left. */
void *arena_take(struct arena *a, size_t bytes);
/* A copy; "" where no memory is left. */
char *arena_text(struct arena *a, const char *text);
void arena_drop(struct arena *a);

#endif
