/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens listening sockets and accepts. The lock beside the Unix socket decides which of two daemons that start at the
 * same time may replace a stale socket file.
 */
#include "daemon/core/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/core/daemon.h"
#include "daemon/core/log.h"

#define SERVER_ACCEPTS 64 /* per wake-up: the loop serves others in between */

static void server_readable(uv_poll_t *poll, int status, int events) {
    struct server *s = poll->data;
    (void)events;
    if (status < 0) {
        log_error("listening socket failed: %s", uv_strerror(status));
        return;
    }
    for (int i = 0; i < SERVER_ACCEPTS && s->fd >= 0; i++) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            s->accepted(s->daemon, fd);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if ((errno == EMFILE || errno == ENFILE) && s->spare_fd >= 0) {
            /* Left in the queue the connection would wake the loop for ever. */
            close(s->spare_fd);
            fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0 && s->full != NULL) {
                s->full(s->daemon, fd);
            } else {
                log_warn("connection refused: no descriptors left (raise LimitNOFILE)");
                if (fd >= 0)
                    close(fd);
            }
            s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
            continue;
        }
        if (errno != EAGAIN)
            log_warn("accept: %s", strerror(errno));
        return;
    }
}

static zipcclResult_t server_watch(struct daemon *d, struct server *s) {
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (uv_poll_init(&d->loop, &s->poll, s->fd) != 0)
        return zipcclSystemError;
    s->poll.data = s;
    s->polling = true;
    return uv_poll_start(&s->poll, UV_READABLE, server_readable) == 0 ? zipcclSuccess : zipcclSystemError;
}

static void server_init(struct daemon *d, struct server *s, void (*accepted)(struct daemon *d, int fd)) {
    *s = (struct server){.fd = -1, .lock_fd = -1, .spare_fd = -1, .accepted = accepted, .daemon = d};
}

/* Takes the lock, and makes sure that nobody answers on the socket. */
static bool server_claim(struct server *s, const struct sockaddr_un *address) {
    char lock[128];
    snprintf(lock, sizeof lock, "%s.lock", address->sun_path);
    s->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock_fd < 0) {
        log_error("cannot open the lock file %s: %s", lock, strerror(errno));
        return false;
    }
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        log_error("another zipccld already serves %s (it holds %s); stop it, or give this one another socket",
                  address->sun_path, lock);
        return false;
    }
    /* A daemon whose lock file was removed still answers. */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool live = fd >= 0 && (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN);
    if (fd >= 0)
        close(fd);
    if (live) {
        log_error("another process already answers on %s; stop it, or give this daemon another socket",
                  address->sun_path);
        return false;
    }
    struct stat st;
    if (lstat(address->sun_path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode)) {
            log_error("%s exists and is not a socket", address->sun_path);
            return false;
        }
        log_info("stale socket %s replaced", address->sun_path);
        if (unlink(address->sun_path) != 0) {
            log_error("cannot remove the stale socket %s: %s", address->sun_path, strerror(errno));
            return false;
        }
    }
    return true;
}

zipcclResult_t server_open_unix(struct daemon *d, struct server *s, const struct server_unix *where,
                                void (*accepted)(struct daemon *d, int fd)) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    gid_t group = (gid_t)-1;
    server_init(d, s, accepted);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", where->path);
    if (where->group[0] != '\0') {
        const struct group *g = getgrnam(where->group);
        if (g == NULL) {
            log_error("socket_group: there is no group '%s'", where->group);
            return zipcclInvalidArgument;
        }
        group = g->gr_gid;
    }
    if (!server_claim(s, &address))
        goto fail;
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0) {
        log_error("socket: %s", strerror(errno));
        goto fail;
    }
    /* Nobody may connect between bind and chmod. */
    mode_t mask = umask(0777);
    int rc = bind(s->fd, (const struct sockaddr *)&address, sizeof address);
    umask(mask);
    if (rc != 0) {
        log_error("cannot bind %s: %s", where->path, strerror(errno));
        goto fail;
    }
    snprintf(s->path, sizeof s->path, "%s", where->path); /* ours to remove from here on */
    if (listen(s->fd, 1024) != 0) {
        log_error("listen %s: %s", where->path, strerror(errno));
        goto fail;
    }
    if (group != (gid_t)-1 && chown(where->path, (uid_t)-1, group) != 0) {
        log_error("cannot give %s to group %s: %s", where->path, where->group, strerror(errno));
        goto fail;
    }
    if (chmod(where->path, (mode_t)where->mode) != 0) {
        log_error("chmod %s: %s", where->path, strerror(errno));
        goto fail;
    }
    if (server_watch(d, s) == zipcclSuccess)
        return zipcclSuccess;
fail:
    server_close(s);
    return zipcclSystemError;
}

zipcclResult_t server_adopt(struct daemon *d, struct server *s, const struct server_unix *where, int fd,
                            void (*accepted)(struct daemon *d, int fd)) {
    struct sockaddr_un bound = {.sun_family = AF_UNIX};
    socklen_t length = sizeof bound;
    server_init(d, s, accepted);
    s->fd = fd;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &length) != 0) {
        log_error("cannot use an inherited socket: %s", strerror(errno));
    } else if (server_watch(d, s) == zipcclSuccess) {
        if (where->path[0] != '\0' && strncmp(bound.sun_path, where->path, sizeof bound.sun_path) != 0)
            log_warn("systemd's socket %.*s is served, not %s of the configuration", (int)sizeof bound.sun_path,
                     bound.sun_path, where->path);
        return zipcclSuccess;
    }
    server_close(s);
    return zipcclSystemError;
}

/* The first address of an interface that is up and no loopback; loopback where there is none. */
static void server_primary_address(char *text, size_t size) {
    struct ifaddrs *all = NULL;
    snprintf(text, size, "127.0.0.1");
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
            (i->ifa_flags & IFF_LOOPBACK))
            continue;
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, text, (socklen_t)size);
        break;
    }
    freeifaddrs(all);
}

/* The first address of this interface, as numbers; IPv4 goes first. False: there is no such interface, or it has none.
 */
static bool server_interface_address(const char *name, char *text, size_t size) {
    struct ifaddrs *all = NULL;
    bool found = false;
    if (if_nametoindex(name) == 0 || getifaddrs(&all) != 0)
        return false;
    for (int family = AF_INET; !found; family = AF_INET6) {
        for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
            if (i->ifa_addr == NULL || i->ifa_addr->sa_family != family || strcmp(i->ifa_name, name) != 0)
                continue;
            socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
            const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
            found = (family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) &&
                    getnameinfo(i->ifa_addr, length, text, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0;
        }
        if (family == AF_INET6)
            break;
    }
    freeifaddrs(all);
    return found;
}

static void server_join_hostport(char *text, size_t size, const char *host, unsigned port) {
    snprintf(text, size, strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host, port);
}

/* What others dial, from the configuration and what was bound. */
static void server_advertise(struct daemon *d, const char *listen_host, unsigned port) {
    char host[96];
    unsigned given;
    if (config_split_hostport(d->config.advertise, host, sizeof host, &given)) {
        server_join_hostport(d->advertise, sizeof d->advertise, host, given != 0 ? given : port);
        return;
    }
    if (d->config.advertise[0] != '\0')
        snprintf(host, sizeof host, "%s", d->config.advertise);
    else if (strcmp(listen_host, "0.0.0.0") == 0 || strcmp(listen_host, "::") == 0)
        server_primary_address(host, sizeof host);
    else
        snprintf(host, sizeof host, "%s", listen_host);
    server_join_hostport(d->advertise, sizeof d->advertise, host, port);
}

zipcclResult_t server_open_tcp(struct daemon *d, struct server *s, void (*accepted)(struct daemon *d, int fd)) {
    char name[96], host[96], service[8];
    unsigned port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    server_init(d, s, accepted);
    if (!config_split_hostport(d->config.listen, name, sizeof name, &port))
        return zipcclInvalidArgument;
    if (!server_interface_address(name, host, sizeof host))
        memcpy(host, name, sizeof host);
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc != 0) {
        log_error("listen: cannot resolve '%s': %s", host, gai_strerror(rc));
        return zipcclInvalidArgument;
    }
    s->fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0) {
        log_error("socket: %s", strerror(errno));
        goto fail;
    }
    int one = 1;
    (void)setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(s->fd, found->ai_addr, found->ai_addrlen) != 0 || listen(s->fd, 1024) != 0) {
        log_error("cannot listen on %s: %s", d->config.listen, strerror(errno));
        goto fail;
    }
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound = {.v6 = {0}};
    socklen_t length = sizeof bound;
    if (getsockname(s->fd, &bound.any, &length) != 0)
        goto fail;
    port = bound.v6.sin6_family == AF_INET6 ? ntohs(bound.v6.sin6_port) : ntohs(bound.v4.sin_port);
    server_join_hostport(d->listening, sizeof d->listening, host, port);
    server_advertise(d, host, port);
    freeaddrinfo(found);
    found = NULL;
    if (server_watch(d, s) == zipcclSuccess)
        return zipcclSuccess;
fail:
    if (found != NULL)
        freeaddrinfo(found);
    server_close(s);
    return zipcclSystemError;
}

void server_close(struct server *s) {
    if (s->polling) {
        s->polling = false;
        uv_poll_stop(&s->poll);
        uv_close((uv_handle_t *)&s->poll, NULL);
    }
    /* The file goes first: who finds none starts a new daemon, who connects to a dead one is only refused. */
    if (s->path[0] != '\0')
        unlink(s->path);
    s->path[0] = '\0';
    if (s->fd >= 0)
        close(s->fd);
    if (s->spare_fd >= 0)
        close(s->spare_fd);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    s->fd = s->spare_fd = s->lock_fd = -1;
}
