/* SPDX-License-Identifier: Apache-2.0
 *
 * Daemon-to-daemon links: hello, frames, keepalive, loss. peer_dial.c: how they begin. peer_greet.c: how both sides
 * make sure of each other.
 */
#include "daemon/core/peer.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/comm.h"
#include "daemon/core/config.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/peer_impl.h"
#include "kernels/format.h"
#include "peer.pb-c.h"
#include "proto/wire.h"
#include "zipccl.h"

const char *peer_state_name(enum peer_state state) {
    static const char *const names[] = {"resolving", "connecting", "authenticating", "greeting", "up", "lost"};
    return names[state];
}

const char *peer_name(const struct peer_link *l) {
    return l->node[0] != '\0' ? l->node : l->address;
}

void peer_kill(struct peer_link *l, const char *why) {
    struct daemon *d = l->daemon;
    bool was_up = l->state == PEER_UP;
    if (l->state == PEER_DEAD)
        return;
    l->state = PEER_DEAD;
    if (l->polling)
        uv_poll_stop(&l->poll);
    if (was_up) {
        d->stats.counters[STATS_peers_lost]++;
        events_add(d->events, EVENT_PEER_LOST, NULL, 0, "%s at %s: %s", peer_name(l), l->address, why);
    }
    log_info("link to node %s ends: %s (peer=%s)", peer_name(l), why, l->address);
    comm_link_lost(l, why);
}

static void peer_free(struct peer_link *l) {
    if (l->fd >= 0)
        close(l->fd);
    frame_conn_free(l->conn);
    sodium_memzero(&l->auth, sizeof l->auth);
    free(l);
}

static void peer_closed(uv_handle_t *handle) {
    peer_free(handle->data);
}

/* A link is freed once nobody points at it: communicators hold theirs until they end. */
void peer_reap(struct daemon *d) {
    list_for_each_safe(i, &d->links) {
        struct peer_link *l = list_entry(i, struct peer_link, link);
        if (l->state != PEER_DEAD || l->ncomms > 0 || l->resolving)
            continue;
        list_del(&l->link);
        d->nlinks--;
        if (l->polling) {
            uv_close((uv_handle_t *)&l->poll, peer_closed);
        } else {
            peer_free(l);
        }
    }
}

void peer_watch(struct peer_link *l) {
    int events = UV_READABLE;
    if (l->state == PEER_CONNECTING)
        events = UV_WRITABLE;
    else if (frame_conn_wants_write(l->conn))
        events |= UV_WRITABLE;
    if (l->state != PEER_DEAD && uv_poll_start(&l->poll, events, peer_ready) != 0)
        peer_kill(l, "the loop cannot watch its socket");
}

void peer_post(struct peer_link *l, uint16_t type, const ProtobufCMessage *message) {
    uint8_t small[1024] = {0}, *bytes = small;
    size_t n = message != NULL ? protobuf_c_message_get_packed_size(message) : 0;
    if (n > FRAME_MAX_PAYLOAD - PEER_SEAL_BYTES) {
        peer_kill(l, "a message for it is larger than a frame");
        return;
    }
    if (n + PEER_SEAL_BYTES > sizeof small && (bytes = malloc(n + PEER_SEAL_BYTES)) == NULL) {
        peer_kill(l, "out of memory");
        return;
    }
    if (message != NULL)
        n = protobuf_c_message_pack(message, bytes);
    peer_seal(&l->auth.out, type, bytes, n, bytes); /* in place */
    zipcclResult_t rc = frame_conn_send(l->conn, type, 0, bytes, n + PEER_SEAL_BYTES, NULL, 0);
    if (bytes != small)
        free(bytes);
    l->sent_ns = daemon_now_ns();
    if (rc != zipcclSuccess)
        peer_kill(l, frame_conn_why(l->conn));
    else
        peer_watch(l);
}

void peer_send(struct peer_link *l, uint16_t type, const ProtobufCMessage *message) {
    if (l->state == PEER_UP)
        peer_post(l, type, message);
}

/* theirs 0: of a daemon that does not tell it yet, so the first one. */
static bool same_version(struct peer_link *l, const char *what, unsigned theirs, unsigned ours) {
    char why[240];
    if (theirs == 0)
        theirs = 1;
    if (theirs == ours)
        return true;
    snprintf(why, sizeof why, "%s do not match: node %s has %u, node %s %u; install one release on all nodes", what,
             l->node, theirs, l->daemon->config.node_name, ours);
    peer_kill(l, why);
    return false;
}

static void peer_hello(struct peer_link *l, const Zipccl__Peer__PeerHello *m) {
    struct daemon *d = l->daemon;
    char why[240];
    snprintf(l->node, sizeof l->node, "%.63s", m->node);
    snprintf(l->listen, sizeof l->listen, "%.111s", m->listen);
    memcpy(l->instance, m->instance.data, sizeof l->instance); /* the length was checked */
    if (m->version_min > WIRE_VERSION_MAX || m->version_max < WIRE_VERSION_MIN) {
        snprintf(why, sizeof why, "protocol versions do not match: node %s speaks %u to %u, node %s %u to %u", l->node,
                 m->version_min, m->version_max, d->config.node_name, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
        peer_kill(l, why);
        return;
    }
    if (!same_version(l, "formats of coded chunks", m->chunk_format, ZFMT_VERSION) ||
        !same_version(l, "protocols between daemons", m->peer_version, WIRE_PEER_VERSION))
        return;
    if (memcmp(l->instance, d->instance, sizeof d->instance) == 0) {
        peer_kill(l, "this daemon dialled itself: advertise differs from what the unique id names");
        return;
    }
    l->state = PEER_UP;
    frame_conn_limit(l->conn, FRAME_MAX_PAYLOAD);
    l->used_ns = daemon_now_ns();
    d->stats.counters[STATS_peers_connected]++;
    events_add(d->events, EVENT_PEER_UP, NULL, 0, "%s at %s", l->node, l->address);
    log_info("link to node %s is up (peer=%s)", l->node, l->address);
    comm_link_up(l);
}

/* What a frame says, unsealed. */
static void peer_message(struct peer_link *l, const struct frame *f) {
    ProtobufCMessage *m = NULL;
    const char *why = "";
    if (f->type == WIRE_PEER_PING && l->state == PEER_UP)
        return;
    if (message_descriptor(f->type) == NULL || f->type < WIRE_PEER_HELLO) {
        peer_kill(l, "it sent a frame that daemons do not send");
        return;
    }
    if ((f->type == WIRE_PEER_HELLO) != (l->state == PEER_HELLO)) {
        peer_kill(l, "its hello did not come first, or came twice");
        return;
    }
    if (message_unpack(f, &m, &why) != zipcclSuccess) {
        peer_kill(l, why);
        return;
    }
    switch (f->type) {
    case WIRE_PEER_HELLO:
        peer_hello(l, (const Zipccl__Peer__PeerHello *)m);
        break;
    case WIRE_PEER_JOIN:
        comm_peer_join(l, (const Zipccl__Peer__PeerJoin *)m);
        break;
    case WIRE_PEER_TABLE:
        comm_peer_table(l, (const Zipccl__Peer__PeerTable *)m);
        break;
    case WIRE_PEER_READY:
        comm_peer_ready(l, (const Zipccl__Peer__PeerReady *)m);
        break;
    case WIRE_PEER_GO:
        comm_peer_go(l, (const Zipccl__Peer__PeerGo *)m);
        break;
    case WIRE_PEER_ABORT:
        comm_peer_abort(l, (const Zipccl__Peer__PeerAbort *)m);
        break;
    case WIRE_PEER_LEAVE:
        comm_peer_leave(l, (const Zipccl__Peer__PeerLeave *)m);
        break;
    default:
        break;
    }
    message_free(m);
}

static void peer_frame(struct peer_link *l, const struct frame *f) {
    struct frame plain = *f;
    if (l->state == PEER_AUTH) {
        peer_greet_frame(l, f);
        return;
    }
    uint8_t *bytes = malloc(f->length + 1u);
    if (bytes == NULL) {
        peer_kill(l, "out of memory");
        return;
    }
    if (peer_unseal(&l->auth.in, f->type, f->payload, f->length, bytes)) {
        plain.payload = bytes;
        plain.length = f->length - PEER_SEAL_BYTES;
        peer_message(l, &plain);
    } else {
        peer_greet_refused(l, "a frame of it was not sealed by it, or was changed, repeated or left out on its way");
    }
    free(bytes);
}

void peer_ready(uv_poll_t *poll, int status, int events) {
    struct peer_link *l = poll->data;
    struct frame f;
    if (l->state == PEER_DEAD)
        return;
    /* A broken socket comes as a negative status: connect says why, and an established one may still hold the frame in
     * which the other side said why. */
    if (l->state == PEER_CONNECTING) {
        int error = 0;
        socklen_t length = sizeof error;
        char why[160];
        if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
            error = errno;
        if (error != 0) {
            snprintf(why, sizeof why, "cannot connect to %s: %s", l->address, strerror(error));
            peer_kill(l, why);
        } else {
            peer_greet(l, l->fd);
        }
        return;
    }
    if (events & UV_WRITABLE) {
        zipcclResult_t rc = frame_conn_flush(l->conn);
        if (rc != zipcclSuccess && rc != zipcclInProgress) {
            peer_kill(l, frame_conn_why(l->conn));
            return;
        }
    }
    zipcclResult_t read = zipcclInProgress, next = zipcclInProgress;
    if (status < 0 || (events & (UV_READABLE | UV_DISCONNECT)))
        read = frame_conn_read(l->conn);
    if (read == zipcclSuccess)
        l->heard_ns = daemon_now_ns();
    while (l->state != PEER_DEAD && (next = frame_conn_next(l->conn, &f)) == zipcclSuccess)
        peer_frame(l, &f);
    if (l->state == PEER_DEAD)
        return;
    zipcclResult_t bad = next != zipcclInProgress ? next : read;
    if (bad != zipcclSuccess && bad != zipcclInProgress)
        peer_kill(l, bad == zipcclRemoteError ? "it closed the connection: its zipccld has ended"
                                              : frame_conn_why(l->conn));
    else if (status < 0 && read != zipcclSuccess)
        peer_kill(l, "the connection broke");
    else
        peer_watch(l); /* a broken one reports again, until all that it holds is read */
}

void peer_tick(struct daemon *d, uint64_t now_ns) {
    uint64_t limit = d->config.peer_timeout * 1000000ull;
    char why[120];
    /* Where this daemon itself was away (stopped, or its machine was), what the others said lies unread: judge next
     * time. */
    bool stalled = d->peers_tick_ns != 0 && now_ns - d->peers_tick_ns > PEER_STALL_NS;
    d->peers_tick_ns = now_ns;
    list_for_each_safe(i, &d->links) {
        struct peer_link *l = list_entry(i, struct peer_link, link);
        if (l->state == PEER_DEAD)
            continue;
        if (peer_greet_late(l, now_ns, stalled ? 0 : limit))
            continue;
        if (limit != 0 && !stalled && now_ns > l->heard_ns && now_ns - l->heard_ns > limit) {
            snprintf(why, sizeof why, "nothing was heard from it for %g s (peer_timeout)",
                     (double)d->config.peer_timeout / 1000.0);
            peer_kill(l, why);
            continue;
        }
        if (l->state != PEER_UP)
            continue;
        if (l->ncomms > 0)
            l->used_ns = now_ns;
        else if (l->dialled && now_ns - l->used_ns > PEER_IDLE_NS)
            peer_kill(l, "no communicator uses it");
        /* Well within the other side's timeout, which is not known here, but like ours. */
        if (l->state == PEER_UP && now_ns > l->sent_ns && now_ns - l->sent_ns > limit / 5)
            peer_post(l, WIRE_PEER_PING, NULL);
    }
}
