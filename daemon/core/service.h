/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon as a systemd service: what it tells the manager, and the sockets that it is given.
 *
 * Without libsystemd, or where no manager listens, all of it does nothing. Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_SERVICE_H
#define ZIPCCL_DAEMON_SERVICE_H

#include <stdint.h>

#include "daemon/core/watchdog.h"
#include "zipccl_types.h"

struct daemon;

#define SERVICE_CLIENT_NAME "client" /* FileDescriptorName= of the units */
#define SERVICE_ADMIN_NAME  "admin"

struct service {
    int client_fd, admin_fd; /* -1: not given, or taken */
    struct watchdog watchdog;
    uint64_t feed_ns, fed_ns; /* interval, 0: nobody waits; last time */
    uint64_t status_ns;       /* when the text was made last */
    char status[160], said[160];
};

/* Takes what was inherited. Wrong descriptors are logged and refused. */
ZIPCCL_MUST_CHECK zipcclResult_t service_init(struct service *s);
/* Serving; the threads of device and fabric run. Starts the watchdog. */
void service_ready(struct daemon *d);
void service_reloading(struct daemon *d);
void service_reloaded(struct daemon *d);
void service_stopping(struct daemon *d);
/* From the loop, many times a second: feeds the watchdog, keeps the status line. */
void service_tick(struct daemon *d, uint64_t now_ns);
void service_close(struct service *s);

#endif
