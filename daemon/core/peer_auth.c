/* SPDX-License-Identifier: Apache-2.0
 *
 * The handshake between daemons and the sealing of their frames, by libsodium: X25519, BLAKE2b, HMAC-SHA512-256,
 * ChaCha20-Poly1305.
 */
#include "daemon/core/peer_auth.h"

#include <sodium.h>
#include <string.h>

#define AUTH_MAGIC 0x7a61u /* "az" */

/* On the wire; one byte wide or read byte by byte. */
struct auth_head {
    uint8_t magic[2], step, mode; /* mode: 1 where a key is wanted; of a refusal: why */
    uint8_t version_min, version_max, reserved[2];
};
struct auth_first { /* offer, and answer up to the proof */
    struct auth_head head;
    uint8_t nonce[32], public_key[32];
};
struct auth_answer {
    struct auth_first first;
    uint8_t proof[32];
};
struct auth_proof {
    struct auth_head head;
    uint8_t proof[32];
};
_Static_assert(sizeof(struct auth_first) == sizeof(((struct peer_auth *)0)->said), "said is a first packet");
_Static_assert(sizeof(struct auth_answer) == PEER_AUTH_MAX_BYTES, "the answer is the longest packet");
_Static_assert(crypto_scalarmult_BYTES == 32 && crypto_auth_BYTES == 32 && crypto_auth_KEYBYTES == 32 &&
                   crypto_generichash_KEYBYTES == PEER_AUTH_KEY_BYTES && crypto_kdf_KEYBYTES == 32 &&
                   crypto_aead_chacha20poly1305_ietf_KEYBYTES == PEER_AUTH_KEY_BYTES &&
                   crypto_aead_chacha20poly1305_ietf_ABYTES == PEER_SEAL_BYTES,
               "sizes of libsodium");

/* Keys that come from the handshake. */
enum auth_subkey { AUTH_PROOF_OF_LISTENER = 1, AUTH_PROOF_OF_DIALLER, AUTH_TO_LISTENER, AUTH_TO_DIALLER };

static struct auth_head auth_head(enum peer_auth_step step, unsigned mode, unsigned version_min, unsigned version_max) {
    return (struct auth_head){.magic = {AUTH_MAGIC & 0xff, AUTH_MAGIC >> 8},
                              .step = (uint8_t)step,
                              .mode = (uint8_t)mode,
                              .version_min = (uint8_t)version_min,
                              .version_max = (uint8_t)version_max};
}

/* As this side tells it, or the side that was refused. */
static const char *refusal_text(unsigned code, bool refused) {
    switch (code) {
#define REFUSAL_TEXT(name, value, own, other)                                                                          \
    case value:                                                                                                        \
        return refused ? (other) : (own);
        PEER_REFUSALS(REFUSAL_TEXT)
#undef REFUSAL_TEXT
    default:
        return "it refuses this node, for a reason that is not known here";
    }
}

void peer_auth_wipe(struct peer_auth *a) {
    sodium_memzero(a->key, sizeof a->key);
    sodium_memzero(a->secret, sizeof a->secret);
    sodium_memzero(a->proof, sizeof a->proof);
}

void peer_auth_refuse(struct peer_auth *a, enum peer_refusal refusal, uint8_t *packet, size_t *bytes) {
    struct auth_head head = auth_head(PEER_AUTH_REFUSE, refusal, PEER_AUTH_VERSION_MIN, PEER_AUTH_VERSION_MAX);
    memcpy(packet, &head, sizeof head);
    *bytes = sizeof head;
    a->why = refusal_text(refusal, false);
    peer_auth_wipe(a);
}

static enum peer_auth_result auth_refuse(struct peer_auth *a, enum peer_refusal refusal, uint8_t *reply,
                                         size_t *reply_bytes) {
    peer_auth_refuse(a, refusal, reply, reply_bytes);
    return PEER_AUTH_FAILED;
}

/* This side's first packet. */
static void auth_speak(struct peer_auth *a, enum peer_auth_step step, unsigned version_min, unsigned version_max) {
    struct auth_first first = {.head = auth_head(step, a->keyed, version_min, version_max)};
    randombytes_buf(a->secret, sizeof a->secret);
    randombytes_buf(first.nonce, sizeof first.nonce);
    (void)crypto_scalarmult_base(first.public_key, a->secret); /* never fails */
    memcpy(a->said, &first, sizeof first);
}

void peer_auth_begin(struct peer_auth *a, bool dialled, bool keyed, const uint8_t *key, uint8_t *packet,
                     size_t *bytes) {
    *a = (struct peer_auth){
        .dialled = dialled, .keyed = keyed, .expects = dialled ? PEER_AUTH_ANSWER : PEER_AUTH_OFFER, .why = ""};
    if (keyed)
        memcpy(a->key, key, sizeof a->key);
    *bytes = 0;
    if (!dialled)
        return;
    auth_speak(a, PEER_AUTH_OFFER, PEER_AUTH_VERSION_MIN, PEER_AUTH_VERSION_MAX);
    memcpy(packet, a->said, sizeof a->said);
    *bytes = sizeof a->said;
}

/* From the shared key, the ephemeral secret and both first packets: proofs and the keys of both directions. False: the
 * other side's public key is none. */
static bool auth_derive(struct peer_auth *a, const struct auth_first *offer, const struct auth_first *answer,
                        uint8_t *proof_of_listener, uint8_t *proof_of_dialler) {
    static const char context[crypto_kdf_CONTEXTBYTES] = "zipcclpl";
    const struct auth_first *theirs = a->dialled ? answer : offer;
    uint8_t shared[crypto_scalarmult_BYTES], root[crypto_kdf_KEYBYTES], said[64], mac_key[crypto_auth_KEYBYTES];
    crypto_generichash_state hash;
    bool ok = crypto_scalarmult(shared, a->secret, theirs->public_key) == 0;
    if (ok) {
        /* Everything that was said, in one number. */
        (void)crypto_generichash_init(&hash, NULL, 0, sizeof said);
        (void)crypto_generichash_update(&hash, (const uint8_t *)offer, sizeof *offer);
        (void)crypto_generichash_update(&hash, (const uint8_t *)answer, sizeof *answer);
        (void)crypto_generichash_final(&hash, said, sizeof said);
        /* The shared key keys the hash: without it, nothing follows from the rest. */
        (void)crypto_generichash_init(&hash, a->key, sizeof a->key, sizeof root);
        (void)crypto_generichash_update(&hash, shared, sizeof shared);
        (void)crypto_generichash_update(&hash, said, sizeof said);
        (void)crypto_generichash_final(&hash, root, sizeof root);
        (void)crypto_kdf_derive_from_key(mac_key, sizeof mac_key, AUTH_PROOF_OF_LISTENER, context, root);
        (void)crypto_auth(proof_of_listener, said, sizeof said, mac_key);
        (void)crypto_kdf_derive_from_key(mac_key, sizeof mac_key, AUTH_PROOF_OF_DIALLER, context, root);
        (void)crypto_auth(proof_of_dialler, said, sizeof said, mac_key);
        (void)crypto_kdf_derive_from_key(a->dialled ? a->out.key : a->in.key, sizeof a->in.key, AUTH_TO_LISTENER,
                                         context, root);
        (void)crypto_kdf_derive_from_key(a->dialled ? a->in.key : a->out.key, sizeof a->in.key, AUTH_TO_DIALLER,
                                         context, root);
    }
    sodium_memzero(shared, sizeof shared);
    sodium_memzero(root, sizeof root);
    sodium_memzero(mac_key, sizeof mac_key);
    return ok;
}

static enum peer_auth_result auth_take_offer(struct peer_auth *a, const struct auth_first *offer, uint8_t *reply,
                                             size_t *reply_bytes) {
    struct auth_answer answer;
    unsigned version =
        offer->head.version_max < PEER_AUTH_VERSION_MAX ? offer->head.version_max : PEER_AUTH_VERSION_MAX;
    if (version < PEER_AUTH_VERSION_MIN || version < offer->head.version_min)
        return auth_refuse(a, PEER_REFUSE_VERSION, reply, reply_bytes);
    auth_speak(a, PEER_AUTH_ANSWER, version, version);
    memcpy(&answer.first, a->said, sizeof answer.first);
    if (!auth_derive(a, offer, &answer.first, answer.proof, a->proof))
        return auth_refuse(a, PEER_REFUSE_MALFORMED, reply, reply_bytes);
    memcpy(reply, &answer, sizeof answer);
    *reply_bytes = sizeof answer;
    a->expects = PEER_AUTH_PROOF;
    return PEER_AUTH_GOES_ON;
}

static enum peer_auth_result auth_take_answer(struct peer_auth *a, const struct auth_answer *answer, uint8_t *reply,
                                              size_t *reply_bytes) {
    struct auth_first offer;
    struct auth_proof mine = {
        .head = auth_head(PEER_AUTH_PROOF, a->keyed, answer->first.head.version_min, answer->first.head.version_max)};
    memcpy(&offer, a->said, sizeof offer);
    unsigned version = answer->first.head.version_min;
    if (version != answer->first.head.version_max || version < PEER_AUTH_VERSION_MIN || version > PEER_AUTH_VERSION_MAX)
        return auth_refuse(a, PEER_REFUSE_VERSION, reply, reply_bytes);
    if (!auth_derive(a, &offer, &answer->first, a->proof, mine.proof))
        return auth_refuse(a, PEER_REFUSE_MALFORMED, reply, reply_bytes);
    if (sodium_memcmp(a->proof, answer->proof, sizeof answer->proof) != 0)
        return auth_refuse(a, PEER_REFUSE_KEY, reply, reply_bytes);
    memcpy(reply, &mine, sizeof mine);
    *reply_bytes = sizeof mine;
    peer_auth_wipe(a);
    return PEER_AUTH_DONE;
}

enum peer_auth_result peer_auth_take(struct peer_auth *a, const void *packet, size_t bytes, uint8_t *reply,
                                     size_t *reply_bytes) {
    union {
        struct auth_head head;
        struct auth_first offer;
        struct auth_answer answer;
        struct auth_proof proof;
    } p;
    static const size_t sizes[] = {[PEER_AUTH_OFFER] = sizeof p.offer,
                                   [PEER_AUTH_ANSWER] = sizeof p.answer,
                                   [PEER_AUTH_PROOF] = sizeof p.proof,
                                   [PEER_AUTH_REFUSE] = sizeof p.head};
    *reply_bytes = 0;
    memset(&p, 0, sizeof p);
    if (bytes >= sizeof p.head && bytes <= sizeof p)
        memcpy(&p, packet, bytes);
    if (p.head.magic[0] != (AUTH_MAGIC & 0xff) || p.head.magic[1] != AUTH_MAGIC >> 8 || p.head.reserved[0] != 0 ||
        p.head.reserved[1] != 0 || (p.head.step != a->expects && p.head.step != PEER_AUTH_REFUSE) ||
        bytes != sizes[p.head.step])
        return auth_refuse(a, PEER_REFUSE_MALFORMED, reply, reply_bytes);
    if (p.head.step == PEER_AUTH_REFUSE) {
        a->why = refusal_text(p.head.mode, true);
        peer_auth_wipe(a);
        return PEER_AUTH_FAILED;
    }
    if (a->refuses != PEER_REFUSE_NOT)
        return auth_refuse(a, a->refuses, reply, reply_bytes);
    if (p.head.mode != a->keyed)
        return auth_refuse(a, a->keyed ? PEER_REFUSE_WANTS_KEY : PEER_REFUSE_HAS_NONE, reply, reply_bytes);
    switch ((enum peer_auth_step)p.head.step) {
    case PEER_AUTH_OFFER:
        return auth_take_offer(a, &p.offer, reply, reply_bytes);
    case PEER_AUTH_ANSWER:
        return auth_take_answer(a, &p.answer, reply, reply_bytes);
    default:
        break;
    }
    if (sodium_memcmp(a->proof, p.proof.proof, sizeof a->proof) != 0)
        return auth_refuse(a, PEER_REFUSE_KEY, reply, reply_bytes);
    peer_auth_wipe(a);
    return PEER_AUTH_DONE;
}

/* The type travels in the clear, and is sealed with the payload. */
static void seal_prepare(const struct peer_seal *s, uint16_t type, uint8_t *nonce, uint8_t *extra) {
    memset(nonce, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
    for (unsigned i = 0; i < 8; i++)
        nonce[i] = (uint8_t)(s->number >> (8 * i));
    extra[0] = (uint8_t)type;
    extra[1] = (uint8_t)(type >> 8);
}

void peer_seal(struct peer_seal *s, uint16_t type, const void *plain, size_t n, uint8_t *out) {
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES], extra[2];
    seal_prepare(s, type, nonce, extra);
    (void)crypto_aead_chacha20poly1305_ietf_encrypt(out, NULL, plain, n, extra, sizeof extra, NULL, nonce, s->key);
    s->number++;
}

bool peer_unseal(struct peer_seal *s, uint16_t type, const uint8_t *sealed, size_t n, uint8_t *out) {
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES], extra[2];
    if (n < PEER_SEAL_BYTES)
        return false;
    seal_prepare(s, type, nonce, extra);
    if (crypto_aead_chacha20poly1305_ietf_decrypt(out, NULL, NULL, sealed, n, extra, sizeof extra, nonce, s->key) != 0)
        return false;
    s->number++;
    return true;
}
