/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator's secret: made by its root, told to its nodes in the table, over links that are sealed. The fabric is
 * not; what nodes show each other on it comes from the secret, so that who merely reaches the port of a fabric can
 * neither pass for a node nor speak into a communicator. Who reads the wire can: see docs/security.md.
 */
#ifndef ZIPCCL_DAEMON_COMM_SECRET_H
#define ZIPCCL_DAEMON_COMM_SECRET_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

#include "daemon/fabric/fabric.h"

#define COMM_SECRET_BYTES 32u

void comm_secret_make(uint8_t secret[COMM_SECRET_BYTES]);
void comm_secret_wipe(uint8_t secret[COMM_SECRET_BYTES]);
/* What names the communicator in messages. */
uint64_t comm_secret_number(const uint8_t secret[COMM_SECRET_BYTES]);
/* Of the connection between two nodes, from the fabric addresses of this one and the other. */
void comm_secret_tokens(const uint8_t secret[COMM_SECRET_BYTES], const ProtobufCBinaryData *here,
                        const ProtobufCBinaryData *there, struct fabric_tokens *tokens);

#endif
