/* SPDX-License-Identifier: Apache-2.0
 *
 * How two daemons prove to each other that they hold the same key, and how their frames are sealed from then on.
 *
 * Bytes in, bytes out: no socket, no log, no clock. A handshake is three packets, each the payload of one frame:
 *   offer   dialler to listener   versions, nonce, ephemeral X25519 public key
 *   answer  listener to dialler   version, nonce, public key, proof
 *   proof   dialler to listener   proof
 * A proof is a MAC over all packets before it, by a key of its side that comes from the shared key and the ephemeral
 * secret. Both nonces and public keys are new for each connection, so nothing that was recorded is ever valid again,
 * and who learns the shared key later cannot read what was recorded. Instead of any packet a refusal may come, which
 * says why. Without a shared key the same runs with a key of zeros: it then proves nothing, and both sides know (mode).
 */
#ifndef ZIPCCL_DAEMON_PEER_AUTH_H
#define ZIPCCL_DAEMON_PEER_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#define PEER_AUTH_VERSION_MIN 1u
#define PEER_AUTH_VERSION_MAX 1u
#define PEER_AUTH_KEY_BYTES   32u
#define PEER_AUTH_MAX_BYTES   104u /* of a packet */
#define PEER_SEAL_BYTES       16u  /* that a sealed payload is longer */

/* X(name, value, what the side that refuses says of the other, what the refused side says) */
#define PEER_REFUSALS(X)                                                                                               \
    X(KEY, 1, "key differs (peer_key_file), or a handshake was replayed",                                              \
      "key differs: it does not take this node's (peer_key_file)")                                                     \
    X(WANTS_KEY, 2, "it has no key, and this node wants one (its peer_key_file is not set)",                           \
      "it wants a key, and this node has none (peer_key_file)")                                                        \
    X(HAS_NONE, 3, "it wants a key, and this node has none (peer_key_file)",                                           \
      "it has no key, and this node wants one (its peer_key_file is not set)")                                         \
    X(VERSION, 4, "no version of the handshake in common", "no version of the handshake in common")                    \
    X(STRANGER, 5, "it is on another machine, and this node has no key (peer_key_file, or peer_auth = none)",          \
      "it takes no daemon of another machine, as it has no key (peer_key_file, or peer_auth = none)")                  \
    X(MALFORMED, 6, "its handshake makes no sense", "it says that this node's handshake makes no sense")

enum peer_refusal {
    PEER_REFUSE_NOT,
#define PEER_REFUSE_ENUM(name, value, own, other) PEER_REFUSE_##name = value,
    PEER_REFUSALS(PEER_REFUSE_ENUM)
#undef PEER_REFUSE_ENUM
};

/* One direction. Frames are numbered, so none can be left out, repeated or moved. */
struct peer_seal {
    uint8_t key[PEER_AUTH_KEY_BYTES];
    uint64_t number;
};

enum peer_auth_step { PEER_AUTH_OFFER = 1, PEER_AUTH_ANSWER, PEER_AUTH_PROOF, PEER_AUTH_REFUSE };

struct peer_auth {
    bool dialled, keyed;
    enum peer_auth_step expects;
    uint8_t key[PEER_AUTH_KEY_BYTES]; /* the shared one */
    uint8_t secret[32];               /* ephemeral */
    uint8_t proof[32];                /* that the other side must show */
    uint8_t said[72];                 /* this side's first packet, up to the proof */
    enum peer_refusal refuses;        /* whatever comes is refused, for this reason */
    struct peer_seal out, in;         /* once done */
    const char *why;                  /* where it failed; static */
};

enum peer_auth_result { PEER_AUTH_GOES_ON, PEER_AUTH_DONE, PEER_AUTH_FAILED };

/* keyed: key is a secret; else it is ignored. A packet to send first (of a dialler) is put into packet. */
void peer_auth_begin(struct peer_auth *a, bool dialled, bool keyed, const uint8_t *key, uint8_t *packet, size_t *bytes);
/* Takes a packet. What is to be sent, also where it failed, is put into reply (PEER_AUTH_MAX_BYTES); *reply_bytes is 0
 * where that is nothing. */
enum peer_auth_result peer_auth_take(struct peer_auth *a, const void *packet, size_t bytes, uint8_t *reply,
                                     size_t *reply_bytes);
/* Ends it from this side: a->why is set, and what to send, in place of any packet, is put into packet. */
void peer_auth_refuse(struct peer_auth *a, enum peer_refusal refusal, uint8_t *packet, size_t *bytes);
void peer_auth_wipe(struct peer_auth *a);

/* out: n + PEER_SEAL_BYTES. */
void peer_seal(struct peer_seal *s, uint16_t type, const void *plain, size_t n, uint8_t *out);
/* out: n - PEER_SEAL_BYTES, may be `sealed` itself. False: not what the other side sealed next. */
ZIPCCL_MUST_CHECK bool peer_unseal(struct peer_seal *s, uint16_t type, const uint8_t *sealed, size_t n, uint8_t *out);

#endif
