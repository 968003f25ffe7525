/* SPDX-License-Identifier: Apache-2.0
 *
 * Listening sockets: Unix sockets for clients and administrators, made here with a lock or inherited, and the TCP
 * socket for daemons.
 *
 * A struct server lies in struct daemon, belongs to the loop thread and owns its descriptors until server_close.
 */
#ifndef ZIPCCL_DAEMON_SERVER_H
#define ZIPCCL_DAEMON_SERVER_H

#include <stdbool.h>
#include <uv.h>

#include "zipccl_types.h"

struct daemon;

struct server {
    uv_poll_t poll;
    bool polling;
    int fd;       /* -1: closed */
    int lock_fd;  /* of the Unix socket, -1: none */
    int spare_fd; /* given up for a moment to refuse a client where descriptors have run out */
    char path[104];
    void (*accepted)(struct daemon *d, int fd); /* takes fd, as does: */
    void (*full)(struct daemon *d, int fd);     /* where descriptors have run out; NULL: it is closed */
    struct daemon *daemon;
};

/* A Unix socket. group: "": the daemon's own. */
struct server_unix {
    const char *path, *group;
    unsigned mode;
};

/* The reason of a failure is logged. */
ZIPCCL_MUST_CHECK zipcclResult_t server_open_unix(struct daemon *d, struct server *s, const struct server_unix *where,
                                                  void (*accepted)(struct daemon *d, int fd));
/* Serves a listening Unix socket that somebody else made and will remove; takes fd. where: what the configuration
 * says, to tell where it differs. */
ZIPCCL_MUST_CHECK zipcclResult_t server_adopt(struct daemon *d, struct server *s, const struct server_unix *where,
                                              int fd, void (*accepted)(struct daemon *d, int fd));
/* Also sets d->listening and d->advertise. */
ZIPCCL_MUST_CHECK zipcclResult_t server_open_tcp(struct daemon *d, struct server *s,
                                                 void (*accepted)(struct daemon *d, int fd));
/* Stops listening, removes the Unix socket. Fine on one that never opened, or twice. */
void server_close(struct server *s);

#endif
