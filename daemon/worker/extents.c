/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of what is free. See extents.h.
 */
#include "daemon/worker/extents.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool extents_open(struct extents *e, size_t bytes) {
    *e = (struct extents){.list = malloc(sizeof(*e->list)), .n = 1, .capacity = 1};
    if (!e->list) {
        *e = (struct extents){0};
        return false;
    }
    e->list[0] = (struct extent){0, bytes};
    return true;
}

void extents_close(struct extents *e) {
    free(e->list);
    *e = (struct extents){0};
}

static void drop(struct extents *e, size_t i) {
    memmove(&e->list[i], &e->list[i + 1], (e->n - i - 1) * sizeof(*e->list));
    e->n--;
}

size_t extents_take(struct extents *e, size_t bytes) {
    for (size_t i = 0; i < e->n; i++) {
        struct extent *g = &e->list[i];
        size_t offset = g->offset;
        if (g->bytes < bytes)
            continue;
        g->offset += bytes;
        g->bytes -= bytes;
        if (g->bytes == 0)
            drop(e, i);
        return offset;
    }
    return SIZE_MAX;
}

static bool make_room(struct extents *e) {
    size_t capacity = e->capacity ? 2 * e->capacity : 16;
    struct extent *grown = realloc(e->list, capacity * sizeof(*grown));
    if (!grown)
        return false;
    e->list = grown;
    e->capacity = capacity;
    return true;
}

void extents_give(struct extents *e, size_t offset, size_t bytes) {
    size_t i = 0;
    while (i < e->n && e->list[i].offset < offset)
        i++;
    bool joins = i > 0 && e->list[i - 1].offset + e->list[i - 1].bytes == offset;
    bool joined = i < e->n && offset + bytes == e->list[i].offset;
    if (joins) {
        e->list[i - 1].bytes += bytes;
        if (joined) {
            e->list[i - 1].bytes += e->list[i].bytes;
            drop(e, i);
        }
    } else if (joined) {
        e->list[i].offset = offset;
        e->list[i].bytes += bytes;
    } else if (e->n < e->capacity || make_room(e)) {
        memmove(&e->list[i + 1], &e->list[i], (e->n - i) * sizeof(*e->list));
        e->list[i] = (struct extent){offset, bytes};
        e->n++;
    }
}
