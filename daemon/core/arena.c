/* SPDX-License-Identifier: Apache-2.0
 *
 * Arenas: blocks that are filled from the front.
 */
#include "daemon/core/arena.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES 16384u

struct arena_block {
    struct arena_block *next;
    max_align_t data[];
};

void *arena_take(struct arena *a, size_t bytes) {
    bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    if (a->blocks == NULL || bytes > a->size - a->used) {
        size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        struct arena_block *b = calloc(1, sizeof *b + size);
        if (b == NULL)
            return NULL;
        b->next = a->blocks;
        a->blocks = b;
        a->used = 0;
        a->size = size;
    }
    void *p = (char *)a->blocks->data + a->used;
    a->used += bytes;
    return p;
}

void arena_drop(struct arena *a) {
    while (a->blocks != NULL) {
        struct arena_block *next = a->blocks->next;
        free(a->blocks);
        a->blocks = next;
    }
}

char *arena_text(struct arena *a, const char *text) {
    size_t n = strlen(text) + 1;
    char *copy = arena_take(a, n);
    return copy != NULL ? memcpy(copy, text, n) : (char *)"";
}
