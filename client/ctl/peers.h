/* SPDX-License-Identifier: Apache-2.0
 *
 * Others' coders on the exponents of BF16 values, sign and mantissa copied: what zipccl's codec is measured against.
 * Which there are was decided when this was built.
 */
#ifndef ZIPCCL_CTL_PEERS_H
#define ZIPCCL_CTL_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PEERS_BLOCK (128u * 1024) /* values coded at a time: Huff0's greatest block, and fits the caches */

struct peer {
    const char *name; /* NULL ends the table */
    /* Codes n <= PEERS_BLOCK bytes to room for capacity; 0 where it does not pay. */
    size_t (*encode)(void *scratch, const uint8_t *from, size_t n, uint8_t *to, size_t capacity);
    bool (*decode)(void *scratch, const uint8_t *from, size_t size, uint8_t *to, size_t n);
};

extern const struct peer peers[];

/* What a peer keeps between calls, so that nothing is allocated in a measurement. NULL: no memory. */
void *peers_scratch_new(void);
void peers_scratch_free(void *scratch);

/* Greatest coded size of count values. */
size_t peers_bound(size_t count);
/* Codes count BF16 values; 0: failed. */
size_t peers_encode(const struct peer *peer, void *scratch, const void *values, size_t count, uint8_t *coded);
bool peers_decode(const struct peer *peer, void *scratch, const uint8_t *coded, void *values, size_t count);

#endif
