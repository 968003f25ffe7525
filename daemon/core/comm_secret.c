/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that follows from a communicator's secret: keyed BLAKE2b, over a text for each purpose.
 */
#include "daemon/core/comm_secret.h"

#include <sodium.h>
#include <string.h>

_Static_assert(COMM_SECRET_BYTES >= crypto_generichash_KEYBYTES_MIN &&
                   COMM_SECRET_BYTES <= crypto_generichash_KEYBYTES_MAX,
               "the secret is a key");

void comm_secret_make(uint8_t secret[COMM_SECRET_BYTES]) {
    randombytes_buf(secret, COMM_SECRET_BYTES);
}

void comm_secret_wipe(uint8_t secret[COMM_SECRET_BYTES]) {
    sodium_memzero(secret, COMM_SECRET_BYTES);
}

uint64_t comm_secret_number(const uint8_t secret[COMM_SECRET_BYTES]) {
    static const uint8_t purpose[] = "number";
    uint8_t hash[crypto_generichash_BYTES];
    uint64_t number;
    (void)crypto_generichash(hash, sizeof hash, purpose, sizeof purpose, secret, COMM_SECRET_BYTES);
    memcpy(&number, hash, sizeof number);
    return number;
}

/* Lengths go in first: two pairs of addresses never give the same bytes. */
static void secret_token(const uint8_t *secret, const ProtobufCBinaryData *from, const ProtobufCBinaryData *to,
                         uint8_t token[FABRIC_TOKEN_BYTES]) {
    static const uint8_t purpose[] = "token";
    const uint32_t lengths[2] = {(uint32_t)from->len, (uint32_t)to->len};
    crypto_generichash_state state;
    (void)crypto_generichash_init(&state, secret, COMM_SECRET_BYTES, FABRIC_TOKEN_BYTES);
    (void)crypto_generichash_update(&state, purpose, sizeof purpose);
    (void)crypto_generichash_update(&state, (const uint8_t *)lengths, sizeof lengths);
    if (from->len > 0)
        (void)crypto_generichash_update(&state, from->data, from->len);
    if (to->len > 0)
        (void)crypto_generichash_update(&state, to->data, to->len);
    (void)crypto_generichash_final(&state, token, FABRIC_TOKEN_BYTES);
}

void comm_secret_tokens(const uint8_t secret[COMM_SECRET_BYTES], const ProtobufCBinaryData *here,
                        const ProtobufCBinaryData *there, struct fabric_tokens *tokens) {
    secret_token(secret, here, there, tokens->show);
    secret_token(secret, there, here, tokens->expect);
}
