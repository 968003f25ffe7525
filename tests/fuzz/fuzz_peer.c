/* SPDX-License-Identifier: Apache-2.0
 *
 * The handshake between daemons. Byte 0 chooses which side is attacked, and how. Without bit 1 the bytes are packets,
 * of a length each, to a side that knows a key: it may not end well. With bit 1 two sides that know the same key talk,
 * and the bytes are added to their packets: it ends well only where they changed nothing that counts. What follows is
 * given to the receiving seal.
 */
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/peer_auth.h"

#define HEAD_OF_PROOF 8u /* bytes of the last packet that no proof covers */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t size;
};

/* Adds bytes of the input to a packet; whether any that counts was changed. */
static bool disturb(struct input *in, uint8_t *packet, size_t n, size_t uncovered) {
    bool changed = false;
    for (size_t i = 0; i < n && in->size > 0; i++, in->data++, in->size--) {
        packet[i] ^= *in->data;
        changed = changed || (*in->data != 0 && i >= uncovered);
    }
    return changed;
}

static void attack(struct input *in, bool dialled, const uint8_t *key) {
    struct peer_auth a;
    uint8_t reply[PEER_AUTH_MAX_BYTES];
    size_t bytes;
    peer_auth_begin(&a, dialled, true, key, reply, &bytes);
    enum peer_auth_result r = PEER_AUTH_GOES_ON;
    while (r == PEER_AUTH_GOES_ON && in->size > 0) {
        size_t n = *in->data++;
        in->size--;
        n = n < in->size ? n : in->size;
        uint8_t *exact = malloc(n > 0 ? n : 1); /* an overrun shows */
        if (exact == NULL)
            abort();
        memcpy(exact, in->data, n);
        r = peer_auth_take(&a, exact, n, reply, &bytes);
        free(exact);
        in->data += n;
        in->size -= n;
        if (bytes > sizeof reply || r == PEER_AUTH_DONE || (r == PEER_AUTH_FAILED && a.why[0] == '\0'))
            abort();
    }
}

static void between(struct input *in, const uint8_t *key) {
    struct peer_auth dialler, listener;
    uint8_t packet[PEER_AUTH_MAX_BYTES], reply[PEER_AUTH_MAX_BYTES], none[PEER_AUTH_MAX_BYTES];
    size_t n, m, nothing;
    bool changed;
    peer_auth_begin(&listener, false, true, key, none, &nothing);
    peer_auth_begin(&dialler, true, true, key, packet, &n);
    changed = disturb(in, packet, n, 0);
    enum peer_auth_result at_listener = peer_auth_take(&listener, packet, n, reply, &m), at_dialler;
    changed = disturb(in, reply, m, 0) || changed;
    at_dialler = peer_auth_take(&dialler, reply, m, packet, &n);
    if (at_dialler == PEER_AUTH_DONE && changed)
        abort();
    if (at_dialler == PEER_AUTH_DONE) {
        changed = disturb(in, packet, n, HEAD_OF_PROOF);
        at_listener = peer_auth_take(&listener, packet, n, reply, &m);
        if (at_listener == PEER_AUTH_DONE && changed)
            abort();
    }
    if (at_dialler != PEER_AUTH_DONE || at_listener != PEER_AUTH_DONE)
        return;
    uint8_t *out = malloc(in->size + 1);
    if (out == NULL || peer_unseal(&listener.in, 41, in->data, in->size, out) ||
        peer_unseal(&dialler.in, 41, in->data, in->size, out))
        abort();
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t key[PEER_AUTH_KEY_BYTES] = {42};
    if (size == 0 || sodium_init() < 0)
        return 0;
    struct input in = {data + 1, size - 1};
    if (data[0] & 2)
        between(&in, key);
    else
        attack(&in, data[0] & 1, key);
    return 0;
}
