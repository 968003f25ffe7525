/* SPDX-License-Identifier: Apache-2.0 */
#include "impostor.h"

#include <sodium.h>
#include <string.h>

#include "kernels/format.h"
#include "peer.pb-c.h"

static void keep(struct raw_frame *f, const uint8_t *bytes, size_t n) {
    f->header.length = (uint32_t)n;
    memcpy(f->payload, bytes, n);
}

enum peer_auth_result impostor_connect(struct impostor *p, const char *listen, const uint8_t *key) {
    uint8_t packet[PEER_AUTH_MAX_BYTES];
    size_t n;
    memset(p, 0, sizeof(*p));
    E2E_CHECK(sodium_init() >= 0, "libsodium");
    p->fd = raw_connect_tcp(listen);
    peer_auth_begin(&p->auth, true, key != NULL, key, packet, &n);
    keep(&p->offer, packet, n);
    E2E_CHECK(raw_send(p->fd, WIRE_PEER_AUTH, 0, packet, (uint32_t)n, NULL, 0), "offer");
    int rc = raw_next(p->fd, &p->answer, 5);
    E2E_CHECK(rc == 1 && p->answer.header.type == WIRE_PEER_AUTH, "the offer is answered with %d, type %u", rc,
              p->answer.header.type);
    enum peer_auth_result result = peer_auth_take(&p->auth, p->answer.payload, p->answer.header.length, packet, &n);
    keep(&p->proof, packet, n);
    if (n > 0)
        E2E_CHECK(raw_send(p->fd, WIRE_PEER_AUTH, 0, packet, (uint32_t)n, NULL, 0), "proof");
    return result;
}

bool impostor_send(struct impostor *p, uint16_t type, const void *payload, size_t n) {
    uint8_t sealed[8192];
    E2E_CHECK(n + PEER_SEAL_BYTES <= sizeof(sealed), "%zu", n);
    peer_seal(&p->auth.out, type, payload, n, sealed);
    return raw_send(p->fd, type, 0, sealed, (uint32_t)(n + PEER_SEAL_BYTES), NULL, 0);
}

bool impostor_message(struct impostor *p, uint16_t type, const ProtobufCMessage *message) {
    uint8_t packed[4096];
    size_t size = protobuf_c_message_get_packed_size(message);
    E2E_CHECK(size <= sizeof(packed), "%zu", size);
    protobuf_c_message_pack(message, packed);
    return impostor_send(p, type, packed, size);
}

bool impostor_hello(struct impostor *p) {
    return impostor_hello_with(p, ZFMT_VERSION, WIRE_PEER_VERSION);
}

bool impostor_hello_with(struct impostor *p, unsigned chunk_format, unsigned peer_version) {
    uint8_t instance[16] = {1, 2, 3};
    Zipccl__Peer__PeerHello hello = ZIPCCL__PEER__PEER_HELLO__INIT;
    hello.version_min = hello.version_max = WIRE_VERSION_MAX;
    hello.chunk_format = chunk_format;
    hello.peer_version = peer_version;
    hello.node = "impostor";
    hello.listen = "127.0.0.1:1";
    hello.instance = (ProtobufCBinaryData){sizeof(instance), instance};
    return impostor_message(p, WIRE_PEER_HELLO, &hello.base);
}

int impostor_next(struct impostor *p, struct raw_frame *f, double seconds) {
    static struct raw_frame sealed;
    int rc = raw_next(p->fd, &sealed, seconds);
    if (rc != 1)
        return rc;
    f->header = sealed.header;
    E2E_CHECK(peer_unseal(&p->auth.in, sealed.header.type, sealed.payload, sealed.header.length, f->payload),
              "a frame of type %u that is not sealed", sealed.header.type);
    f->header.length -= PEER_SEAL_BYTES;
    return 1;
}
