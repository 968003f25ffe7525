/* SPDX-License-Identifier: Apache-2.0
 *
 * A table of 64-bit handles for objects of one session. A handle holds a slot and its generation, so that one that was
 * released never names a later object. Handles are never 0. The table owns its slots, not the objects.
 */
#ifndef ZIPCCL_DAEMON_HANDLES_H
#define ZIPCCL_DAEMON_HANDLES_H

#include <stdint.h>

struct handle_slot {
    void *object; /* NULL: free */
    uint32_t generation;
    uint32_t next_free; /* slot + 1; 0: none */
};

struct handles {
    struct handle_slot *slots;
    uint32_t capacity, used, free_list, limit;
};

void handles_init(struct handles *t, uint32_t limit);
void handles_free(struct handles *t);
/* 0: the limit is reached, or no memory. */
uint64_t handles_add(struct handles *t, void *object);
/* NULL: unknown. */
void *handles_get(const struct handles *t, uint64_t handle);
void *handles_remove(struct handles *t, uint64_t handle);

#endif
