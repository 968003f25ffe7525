/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the parts of the links to other daemons: peer.c, peer_dial.c, peer_greet.c.
 */
#ifndef ZIPCCL_DAEMON_PEER_IMPL_H
#define ZIPCCL_DAEMON_PEER_IMPL_H

#include "daemon/core/peer.h"

void peer_watch(struct peer_link *l);
/* Seals and sends; for links that have authenticated. */
void peer_post(struct peer_link *l, uint16_t type, const ProtobufCMessage *message);
void peer_ready(uv_poll_t *poll, int status, int events);

/* peer_greet.c. The socket is connected (and is conn's from here on): each side makes sure of the other, then both say
 * hello. */
void peer_greet(struct peer_link *l, int fd);
void peer_greet_frame(struct peer_link *l, const struct frame *f); /* of a link that authenticates */
/* Ends a link to a daemon that is not what it must be; logged, within bounds, as a warning. */
void peer_greet_refused(struct peer_link *l, const char *why);
/* Ends a link that takes too long to become one, however much it says. True: it did. limit_ns 0: not now. */
bool peer_greet_late(struct peer_link *l, uint64_t now_ns, uint64_t limit_ns);

#endif
