/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of many pieces of memory an address lies in: a table by address. Pieces do not overlap; each is a struct range
 * inside whatever its owner keeps of it.
 */
#ifndef ZIPCCL_DAEMON_DEVICE_RANGES_H
#define ZIPCCL_DAEMON_DEVICE_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct range {
    uint8_t *base;
    size_t bytes;
};

struct ranges {
    struct range **all; /* by base */
    size_t n, capacity;
};

/* The piece that has the address; NULL: none. */
struct range *ranges_find(const struct ranges *r, const void *ptr);
/* False: no memory. */
bool ranges_add(struct ranges *r, struct range *range);
void ranges_remove(struct ranges *r, const struct range *range); /* fine where it is not in it */
void ranges_free(struct ranges *r);

#endif
