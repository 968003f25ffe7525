/* SPDX-License-Identifier: Apache-2.0
 *
 * Links to other daemons over TCP. This side dials the roots of communicators that it joins, and answers others.
 *
 * Loop thread alone. A link is freed by peer_reap, some time after peer_kill; pointers stay valid until then.
 */
#ifndef ZIPCCL_DAEMON_PEER_H
#define ZIPCCL_DAEMON_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/core/list.h"
#include "daemon/core/peer_auth.h"
#include "proto/frame.h"
#include "proto/message.h"

#define PEER_MAX_LINKS     4096u
#define PEER_MAX_STRANGERS 1024u          /* of those: came from outside, and have not proved who they are yet */
#define PEER_GREET_BYTES   2048u          /* the most that a frame may hold before the hello */
#define PEER_STALL_NS      500000000ull   /* between two ticks of 100 ms: this daemon itself was away */
#define PEER_IDLE_NS       60000000000ull /* a dialled link that no communicator uses is closed after */

struct daemon;

enum peer_state { PEER_RESOLVING, PEER_CONNECTING, PEER_AUTH, PEER_HELLO, PEER_UP, PEER_DEAD };

struct peer_link {
    struct list link;
    struct daemon *daemon;
    enum peer_state state;
    bool dialled;
    bool polling, closed;
    char address[112]; /* dialled, or where it came from */
    char node[64];     /* "" before the hello */
    char listen[112];
    uint8_t instance[16];
    int fd; /* while connecting */
    struct frame_conn *conn;
    struct peer_auth auth;
    uv_poll_t poll;
    uv_getaddrinfo_t resolve;
    bool resolving;
    uint64_t started_ns, heard_ns, sent_ns, used_ns;
    uint32_t ncomms; /* as root_link or as node of a root */
};

void peer_accepted(struct daemon *d, int fd); /* takes fd */
/* The link to "host:port", dialled where there is none; comm_link_up or comm_link_lost follow later, or have come.
 * NULL: no memory, too many links, or a bad address. */
struct peer_link *peer_dial(struct daemon *d, const char *address);
/* Dead links are fine: their communicators were told. */
void peer_send(struct peer_link *l, uint16_t type, const ProtobufCMessage *message);
void peer_kill(struct peer_link *l, const char *why);
void peer_reap(struct daemon *d);
void peer_tick(struct daemon *d, uint64_t now_ns);
const char *peer_state_name(enum peer_state state);
/* The node's name, or its address before it said its name. */
const char *peer_name(const struct peer_link *l);

#endif
