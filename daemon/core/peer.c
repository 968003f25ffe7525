/* SPDX-License-Identifier: Apache-2.0
 *
 * Daemon-to-daemon links: resolve, connect, hello, frames, keepalive, loss.
 */
#include "daemon/core/peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/comm.h"
#include "daemon/core/config.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "peer.pb-c.h"
#include "proto/wire.h"
#include "zipccl.h"

static void peer_ready(uv_poll_t *poll, int status, int events);

const char *peer_state_name(enum peer_state state) {
    static const char *const names[] = {"resolving", "connecting", "greeting", "up", "lost"};
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

static void peer_closed(uv_handle_t *handle) {
    struct peer_link *l = handle->data;
    if (l->fd >= 0)
        close(l->fd);
    frame_conn_free(l->conn);
    free(l);
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
            if (l->fd >= 0)
                close(l->fd);
            frame_conn_free(l->conn);
            free(l);
        }
    }
}

static void peer_watch(struct peer_link *l) {
    int events = UV_READABLE;
    if (l->state == PEER_CONNECTING)
        events = UV_WRITABLE;
    else if (frame_conn_wants_write(l->conn))
        events |= UV_WRITABLE;
    if (l->state != PEER_DEAD && uv_poll_start(&l->poll, events, peer_ready) != 0)
        peer_kill(l, "the loop cannot watch its socket");
}

static void peer_post(struct peer_link *l, uint16_t type, const ProtobufCMessage *message) {
    zipcclResult_t rc = message != NULL ? message_send(l->conn, type, 0, message, NULL, 0)
                                        : frame_conn_send(l->conn, type, 0, NULL, 0, NULL, 0);
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

static struct peer_link *peer_new(struct daemon *d, const char *address, bool dialled) {
    if (d->nlinks >= PEER_MAX_LINKS)
        return NULL;
    struct peer_link *l = calloc(1, sizeof *l);
    if (l == NULL)
        return NULL;
    l->daemon = d;
    l->dialled = dialled;
    l->fd = -1;
    l->started_ns = l->heard_ns = l->used_ns = daemon_now_ns();
    snprintf(l->address, sizeof l->address, "%s", address);
    list_add_tail(&d->links, &l->link);
    d->nlinks++;
    return l;
}

/* The socket is connected: both sides say hello. */
static void peer_greet(struct peer_link *l, int fd) {
    struct daemon *d = l->daemon;
    Zipccl__Peer__PeerHello hello = ZIPCCL__PEER__PEER_HELLO__INIT;
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    l->fd = -1;
    l->conn = frame_conn_new(fd, false);
    if (l->conn == NULL) {
        peer_kill(l, "out of memory");
        return;
    }
    l->state = PEER_HELLO;
    hello.version_min = WIRE_VERSION_MIN;
    hello.version_max = WIRE_VERSION_MAX;
    hello.node = d->config.node_name;
    hello.listen = d->advertise;
    hello.instance = (ProtobufCBinaryData){.len = sizeof d->instance, .data = d->instance};
    peer_post(l, WIRE_PEER_HELLO, &hello.base);
}

void peer_accepted(struct daemon *d, int fd) {
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    char host[64] = "?", service[8] = "?", address[112];
    if (getpeername(fd, (struct sockaddr *)&from, &length) == 0)
        (void)getnameinfo((struct sockaddr *)&from, length, host, sizeof host, service, sizeof service,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(address, sizeof address, "%s:%s", host, service);
    struct peer_link *l = d->draining ? NULL : peer_new(d, address, false);
    if (l == NULL) {
        log_warn("connection of a daemon refused: draining, or too many links (peer=%s)", address);
        close(fd);
        return;
    }
    l->fd = fd;
    if (uv_poll_init(&d->loop, &l->poll, fd) != 0) {
        peer_kill(l, "the loop cannot watch its socket");
        return;
    }
    l->poll.data = l;
    l->polling = true;
    peer_greet(l, fd);
}

static void peer_connect(struct peer_link *l, const struct sockaddr *address, socklen_t length) {
    char why[160];
    l->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0 || (connect(l->fd, address, length) != 0 && errno != EINPROGRESS)) {
        snprintf(why, sizeof why, "cannot connect to %s: %s", l->address, strerror(errno));
        peer_kill(l, why);
        return;
    }
    if (uv_poll_init(&l->daemon->loop, &l->poll, l->fd) != 0) {
        peer_kill(l, "the loop cannot watch its socket");
        return;
    }
    l->poll.data = l;
    l->polling = true;
    l->state = PEER_CONNECTING;
    peer_watch(l);
}

static void peer_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found) {
    struct peer_link *l = request->data;
    char why[200];
    l->resolving = false;
    if (l->state == PEER_RESOLVING && status != 0) {
        snprintf(why, sizeof why, "cannot resolve '%s': %s", l->address, uv_strerror(status));
        peer_kill(l, why);
    } else if (l->state == PEER_RESOLVING) {
        peer_connect(l, found->ai_addr, found->ai_addrlen);
    }
    uv_freeaddrinfo(found);
}

struct peer_link *peer_dial(struct daemon *d, const char *address) {
    char host[96], service[8];
    unsigned port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *found = NULL;
    list_for_each(i, &d->links) {
        struct peer_link *l = list_entry(i, struct peer_link, link);
        if (l->dialled && l->state != PEER_DEAD && strcmp(l->address, address) == 0)
            return l;
    }
    if (!config_split_hostport(address, host, sizeof host, &port) || port == 0)
        return NULL;
    struct peer_link *l = peer_new(d, address, true);
    if (l == NULL)
        return NULL;
    snprintf(service, sizeof service, "%u", port);
    l->resolve.data = l;
    /* A numeric address needs no resolver, and so no thread. The result comes by the loop in either case: who dials
     * has not stored the link yet. */
    int flags = getaddrinfo(host, service, &hints, &found) == 0 ? AI_NUMERICHOST : 0;
    if (found != NULL)
        freeaddrinfo(found);
    hints.ai_flags = flags;
    if (uv_getaddrinfo(&d->loop, &l->resolve, peer_resolved, host, service, &hints) != 0) {
        list_del(&l->link);
        d->nlinks--;
        free(l);
        return NULL;
    }
    l->resolving = true;
    return l;
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
    if (memcmp(l->instance, d->instance, sizeof d->instance) == 0) {
        peer_kill(l, "this daemon dialled itself: advertise differs from what the unique id names");
        return;
    }
    l->state = PEER_UP;
    l->used_ns = daemon_now_ns();
    d->stats.counters[STATS_peers_connected]++;
    events_add(d->events, EVENT_PEER_UP, NULL, 0, "%s at %s", l->node, l->address);
    log_info("link to node %s is up (peer=%s)", l->node, l->address);
    comm_link_up(l);
}

static void peer_frame(struct peer_link *l, const struct frame *f) {
    ProtobufCMessage *m = NULL;
    const char *why = "";
    if (f->type == WIRE_PEER_PING)
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

static void peer_ready(uv_poll_t *poll, int status, int events) {
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
