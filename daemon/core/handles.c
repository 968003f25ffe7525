/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles: slots with generations, and a list of free ones.
 */
#include "daemon/core/handles.h"

#include <stddef.h>
#include <stdlib.h>

void handles_init(struct handles *t, uint32_t limit) {
    *t = (struct handles){.limit = limit};
}

void handles_free(struct handles *t) {
    free(t->slots);
    *t = (struct handles){0};
}

uint64_t handles_add(struct handles *t, void *object) {
    if (t->used >= t->limit)
        return 0;
    if (t->free_list == 0) {
        uint32_t capacity = t->capacity > 0 ? t->capacity * 2 : 8;
        struct handle_slot *slots = realloc(t->slots, capacity * sizeof *slots);
        if (slots == NULL)
            return 0;
        for (uint32_t i = capacity; i-- > t->capacity;) {
            slots[i] = (struct handle_slot){.generation = 1, .next_free = t->free_list};
            t->free_list = i + 1;
        }
        t->slots = slots;
        t->capacity = capacity;
    }
    uint32_t index = t->free_list - 1;
    struct handle_slot *s = &t->slots[index];
    t->free_list = s->next_free;
    s->object = object;
    t->used++;
    return (uint64_t)s->generation << 32 | (index + 1);
}

static struct handle_slot *handles_slot(const struct handles *t, uint64_t handle) {
    uint32_t index = (uint32_t)handle - 1; /* 0 becomes the greatest index: out of range */
    if (index >= t->capacity)
        return NULL;
    struct handle_slot *s = &t->slots[index];
    return s->object != NULL && s->generation == (uint32_t)(handle >> 32) ? s : NULL;
}

void *handles_get(const struct handles *t, uint64_t handle) {
    struct handle_slot *s = handles_slot(t, handle);
    return s != NULL ? s->object : NULL;
}

void *handles_remove(struct handles *t, uint64_t handle) {
    struct handle_slot *s = handles_slot(t, handle);
    if (s == NULL)
        return NULL;
    void *object = s->object;
    s->object = NULL;
    s->generation++;
    s->next_free = t->free_list;
    t->free_list = (uint32_t)(s - t->slots) + 1;
    t->used--;
    return object;
}
