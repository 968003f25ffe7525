/* SPDX-License-Identifier: Apache-2.0
 *
 * The table: an array in order of addresses, searched by halves. It changes with registrations, not with operations.
 */
#include "daemon/device/ranges.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64u

/* Index of the first piece that begins behind p. */
static size_t behind(const struct ranges *r, const void *p) {
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)r->all[middle]->base <= (uintptr_t)p)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct range *ranges_find(const struct ranges *r, const void *ptr) {
    size_t at = behind(r, ptr);
    if (at == 0)
        return NULL;
    struct range *range = r->all[at - 1];
    return (uintptr_t)ptr - (uintptr_t)range->base < range->bytes ? range : NULL;
}

bool ranges_add(struct ranges *r, struct range *range) {
    if (r->n == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : FIRST_CAPACITY;
        struct range **grown = realloc(r->all, capacity * sizeof(*grown));
        if (!grown)
            return false;
        r->all = grown;
        r->capacity = capacity;
    }
    size_t at = behind(r, range->base);
    memmove(r->all + at + 1, r->all + at, (r->n - at) * sizeof(*r->all));
    r->all[at] = range;
    r->n++;
    return true;
}

void ranges_remove(struct ranges *r, const struct range *range) {
    size_t at = behind(r, range->base);
    if (at == 0 || r->all[at - 1] != range)
        return;
    memmove(r->all + at - 1, r->all + at, (r->n - at) * sizeof(*r->all));
    r->n--;
}

void ranges_free(struct ranges *r) {
    free(r->all);
    *r = (struct ranges){0};
}
