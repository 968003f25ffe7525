/* SPDX-License-Identifier: Apache-2.0
 *
 * Protobuf messages in frames: packing, and unpacking that a hostile peer cannot make expensive.
 */
#ifndef ZIPCCL_PROTO_MESSAGE_H
#define ZIPCCL_PROTO_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "proto/frame.h"

#define MESSAGE_MAX_MEMORY (4u << 20) /* that one unpacked message may take */
#define MESSAGE_MAX_NAME   255u       /* bytes of a job, node, program or address */

/* The protobuf type that a frame type carries; NULL where it carries none. */
const ProtobufCMessageDescriptor *message_descriptor(unsigned type);

/* Packs the message and sends it as one frame. The caller keeps message and fds. */
ZIPCCL_MUST_CHECK zipcclResult_t message_send(struct frame_conn *c, uint16_t type, uint32_t id,
                                              const ProtobufCMessage *message, const int *fds, uint32_t nfds);

/* Unpacks and checks the message of a frame, by the frame's type. *message is to be cast to that type
 * ((Zipccl__Hello *)m), and is freed by message_free. why: a static text for people where it fails. */
ZIPCCL_MUST_CHECK zipcclResult_t message_unpack(const struct frame *f, ProtobufCMessage **message, const char **why);
void message_free(ProtobufCMessage *message); /* NULL is fine */

/* UTF-8 without control characters and marks that turn the direction of text: what may go into logs, labels and
 * terminals. */
bool message_text_shows(const char *text);

/* Whether the values make sense, whatever the state of the receiver: ranges, lengths, printable names. */
ZIPCCL_MUST_CHECK bool message_check(unsigned type, const ProtobufCMessage *message, const char **why);

#endif
