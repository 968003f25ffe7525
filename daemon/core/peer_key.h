/* SPDX-License-Identifier: Apache-2.0
 *
 * The key that all daemons of a cluster share: its file, and where it lies in memory.
 */
#ifndef ZIPCCL_DAEMON_PEER_KEY_H
#define ZIPCCL_DAEMON_PEER_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "zipccl_types.h"

#define PEER_KEY_BYTES 32u

struct config;

/* Whom this daemon talks to. */
struct peer_key {
    uint8_t *key;    /* guarded memory, left out of dumps; NULL: none */
    bool local_only; /* no key, and no leave to do without: daemons of this machine alone */
};

/* 64 hexadecimal digits, and space around them. False: *why says what is wrong. */
ZIPCCL_MUST_CHECK bool peer_key_parse(const char *text, size_t bytes, uint8_t key[PEER_KEY_BYTES], const char **why);
/* As the configuration says. The reason of a failure is logged, as is what applies where there is no key. */
ZIPCCL_MUST_CHECK zipcclResult_t peer_key_open(struct peer_key *k, const struct config *config);
/* Whether peer_key_open would find a key, where there is to be one; root answers for whatever user owns the file. */
ZIPCCL_MUST_CHECK bool peer_key_check(const struct config *config);
void peer_key_close(struct peer_key *k); /* fine twice */
/* A new key, as peer_key_file wants it. False: not written. */
ZIPCCL_MUST_CHECK bool peer_key_print(FILE *out);

#endif
