/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that speaks to a daemon as another daemon would: it can shake hands, and then send what no daemon sends.
 */
#ifndef ZIPCCL_TESTS_E2E_IMPOSTOR_H
#define ZIPCCL_TESTS_E2E_IMPOSTOR_H

#include "daemon/core/peer_auth.h"
#include "raw.h"

struct impostor {
    int fd;
    struct peer_auth auth;
    struct raw_frame offer, answer, proof; /* what was said */
};

/* Connects and shakes hands; key NULL: none. The result as the dialler sees it. */
enum peer_auth_result impostor_connect(struct impostor *p, const char *listen, const uint8_t *key);
/* Sealed, as a daemon that is known. */
bool impostor_send(struct impostor *p, uint16_t type, const void *payload, size_t n);
bool impostor_message(struct impostor *p, uint16_t type, const ProtobufCMessage *message);
/* A hello that is in order. */
bool impostor_hello(struct impostor *p);
/* One of a daemon whose coded chunks are of this format, and whose messages of this version. */
bool impostor_hello_with(struct impostor *p, unsigned chunk_format, unsigned peer_version);
/* The next frame, unsealed; as raw_next. Fails where it was not sealed as it must be. */
int impostor_next(struct impostor *p, struct raw_frame *f, double seconds);

#endif
