/* SPDX-License-Identifier: Apache-2.0
 *
 * How links to other daemons begin: accepted, or resolved and connected.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/config.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/peer_impl.h"

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

void peer_accepted(struct daemon *d, int fd) {
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    char host[64] = "?", service[8] = "?", address[112];
    if (getpeername(fd, (struct sockaddr *)&from, &length) == 0)
        (void)getnameinfo((struct sockaddr *)&from, length, host, sizeof host, service, sizeof service,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(address, sizeof address, "%s:%s", host, service);
    uint32_t strangers = 0;
    list_for_each(i, &d->links) {
        const struct peer_link *other = list_entry(i, struct peer_link, link);
        strangers += !other->dialled && (other->state == PEER_AUTH || other->state == PEER_HELLO);
    }
    struct peer_link *l = d->draining || strangers >= PEER_MAX_STRANGERS ? NULL : peer_new(d, address, false);
    if (l == NULL) {
        log_debug("connection of a daemon refused: draining, or too many links (peer=%s)", address);
        d->stats.counters[STATS_peers_refused] += !d->draining; /* that one is no fault of the other's */
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
