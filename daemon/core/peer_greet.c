/* SPDX-License-Identifier: Apache-2.0
 *
 * The first frames of a link between daemons: who is there, and does it hold the key?
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/core/config.h"
#include "daemon/core/daemon.h"
#include "daemon/core/events.h"
#include "daemon/core/log.h"
#include "daemon/core/peer_impl.h"
#include "kernels/format.h"
#include "peer.pb-c.h"
#include "proto/wire.h"

void peer_greet_refused(struct peer_link *l, const char *why) {
    struct log_often *often = &l->daemon->refused_peers;
    l->daemon->stats.counters[STATS_peers_refused]++;
    if (log_often(often, daemon_now_ns(), "daemons were refused")) {
        log_warn("peer %s: %s", peer_name(l), why);
        if (often->lines == 1) /* one a second: strangers shall not push everything else out */
            events_add(l->daemon->events, EVENT_PEER_REFUSED, NULL, 0, "peer %s: %s", peer_name(l), why);
    }
    peer_kill(l, why);
}

/* Whether both ends of the connection are this machine. */
static bool greet_is_local(int fd) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } here = {.v6 = {0}}, there = {.v6 = {0}};
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
    if (getsockname(fd, &here.any, &here_bytes) != 0 || getpeername(fd, &there.any, &there_bytes) != 0 ||
        here.v6.sin6_family != there.v6.sin6_family)
        return false;
    if (here.v6.sin6_family == AF_INET)
        return here.v4.sin_addr.s_addr == there.v4.sin_addr.s_addr ||
               (ntohl(there.v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET &&
                ntohl(here.v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET);
    return here.v6.sin6_family == AF_INET6 &&
           memcmp(&here.v6.sin6_addr, &there.v6.sin6_addr, sizeof here.v6.sin6_addr) == 0;
}

/* In the clear: a packet of the handshake. */
static bool greet_send(struct peer_link *l, const uint8_t *packet, size_t bytes) {
    zipcclResult_t rc = frame_conn_send(l->conn, WIRE_PEER_AUTH, 0, packet, bytes, NULL, 0);
    l->sent_ns = daemon_now_ns();
    if (rc != zipcclSuccess)
        peer_kill(l, frame_conn_why(l->conn));
    return rc == zipcclSuccess;
}

void peer_greet(struct peer_link *l, int fd) {
    const struct peer_key *key = &l->daemon->peer_key;
    uint8_t packet[PEER_AUTH_MAX_BYTES];
    size_t bytes;
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    bool stranger = key->local_only && !greet_is_local(fd);
    l->fd = -1;
    l->conn = frame_conn_new(fd, false);
    if (l->conn == NULL) {
        peer_kill(l, "out of memory");
        return;
    }
    frame_conn_limit(l->conn, PEER_GREET_BYTES);
    l->state = PEER_AUTH;
    l->started_ns = daemon_now_ns();
    /* One that dialled is told why once its offer is there: what it has sent must be read, or it may not see the
     * reason. One that was dialled is told in place of an offer. */
    peer_auth_begin(&l->auth, l->dialled, key->key != NULL, key->key, packet, &bytes);
    if (stranger && l->dialled)
        peer_auth_refuse(&l->auth, PEER_REFUSE_STRANGER, packet, &bytes);
    else if (stranger)
        l->auth.refuses = PEER_REFUSE_STRANGER;
    if (bytes > 0 && !greet_send(l, packet, bytes))
        return;
    if (stranger && l->dialled)
        peer_greet_refused(l, l->auth.why);
    else
        peer_watch(l);
}

static void greet_hello(struct peer_link *l) {
    struct daemon *d = l->daemon;
    Zipccl__Peer__PeerHello hello = ZIPCCL__PEER__PEER_HELLO__INIT;
    l->state = PEER_HELLO;
    hello.version_min = WIRE_VERSION_MIN;
    hello.version_max = WIRE_VERSION_MAX;
    hello.chunk_format = ZFMT_VERSION;
    hello.peer_version = WIRE_PEER_VERSION;
    hello.node = d->config.node_name;
    hello.listen = d->advertise;
    hello.instance = (ProtobufCBinaryData){.len = sizeof d->instance, .data = d->instance};
    peer_post(l, WIRE_PEER_HELLO, &hello.base);
}

void peer_greet_frame(struct peer_link *l, const struct frame *f) {
    uint8_t reply[PEER_AUTH_MAX_BYTES];
    size_t bytes;
    if (f->type != WIRE_PEER_AUTH) {
        peer_greet_refused(l, "it does not begin with the handshake of a daemon: another version, or no zipccld");
        return;
    }
    enum peer_auth_result result = peer_auth_take(&l->auth, f->payload, f->length, reply, &bytes);
    if (bytes > 0 && !greet_send(l, reply, bytes))
        return;
    if (result == PEER_AUTH_FAILED)
        peer_greet_refused(l, l->auth.why);
    else if (result == PEER_AUTH_DONE)
        greet_hello(l);
}

bool peer_greet_late(struct peer_link *l, uint64_t now_ns, uint64_t limit_ns) {
    char why[120];
    if ((l->state != PEER_AUTH && l->state != PEER_HELLO) || limit_ns == 0 || now_ns <= l->started_ns ||
        now_ns - l->started_ns <= limit_ns)
        return false;
    snprintf(why, sizeof why, "it has not greeted within %g s (peer_timeout)", (double)limit_ns / 1e9);
    peer_greet_refused(l, why);
    return true;
}
