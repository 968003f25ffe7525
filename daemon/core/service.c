/* SPDX-License-Identifier: Apache-2.0
 *
 * sd_notify, the watchdog's feeding, and sockets by name from LISTEN_FDS.
 */
#include "daemon/core/service.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#ifdef ZIPCCL_HAVE_SYSTEMD
#    include <systemd/sd-daemon.h>
#endif

#define SERVICE_STATUS_NS 1000000000ull

static void service_say(const char *state) {
#ifdef ZIPCCL_HAVE_SYSTEMD
    (void)sd_notify(0, state);
#else
    (void)state;
#endif
}

#ifdef ZIPCCL_HAVE_SYSTEMD
/* Where a socket belongs; NULL: nowhere. */
static int *service_place(struct service *s, const char *name) {
    if (strcmp(name, SERVICE_CLIENT_NAME) == 0)
        return &s->client_fd;
    return strcmp(name, SERVICE_ADMIN_NAME) == 0 ? &s->admin_fd : NULL;
}

zipcclResult_t service_init(struct service *s) {
    char **names = NULL;
    *s = (struct service){.client_fd = -1, .admin_fd = -1};
    int n = sd_listen_fds_with_names(1, &names);
    if (n < 0) {
        log_error("LISTEN_FDS: %s", strerror(-n));
        return zipcclSystemError;
    }
    zipcclResult_t rc = zipcclSuccess;
    for (int i = 0; i < n; i++) {
        int fd = SD_LISTEN_FDS_START + i;
        const char *name = names[i];
        int *place = service_place(s, name);
        if (place == NULL || *place >= 0 || sd_is_socket_unix(fd, SOCK_STREAM, 1, NULL, 0) <= 0) {
            log_error("LISTEN_FDS: descriptor %d, named '%s', is %s (the units name them '" SERVICE_CLIENT_NAME
                      "' and '" SERVICE_ADMIN_NAME "' by FileDescriptorName=)",
                      fd, name,
                      place == NULL ? "none that zipccld knows"
                      : *place >= 0 ? "the second of this name"
                                    : "not a listening Unix stream socket");
            rc = zipcclInvalidArgument;
            close(fd);
        } else {
            *place = fd;
        }
        free(names[i]);
    }
    free((void *)names);
    if (rc != zipcclSuccess)
        service_close(s);
    return rc;
}

static uint64_t service_watchdog_us(void) {
    uint64_t us = 0;
    return sd_watchdog_enabled(0, &us) > 0 ? us : 0;
}
#else
zipcclResult_t service_init(struct service *s) {
    *s = (struct service){.client_fd = -1, .admin_fd = -1};
    return zipcclSuccess;
}

static uint64_t service_watchdog_us(void) {
    return 0;
}
#endif

void service_close(struct service *s) {
    if (s->client_fd >= 0)
        close(s->client_fd);
    if (s->admin_fd >= 0)
        close(s->admin_fd);
    s->client_fd = s->admin_fd = -1;
}

static void service_status(struct daemon *d, const char *prefix) {
    struct service *s = &d->service;
    snprintf(s->status, sizeof s->status, "%s%u job%s, %u communicator%s, %u session%s", prefix, d->njobs,
             d->njobs == 1 ? "" : "s", d->ncomms, d->ncomms == 1 ? "" : "s", d->nsessions,
             d->nsessions == 1 ? "" : "s");
}

static void service_say_status(struct daemon *d, const char *first) {
    char text[256];
    snprintf(text, sizeof text, "%s%sSTATUS=%s", first, first[0] != '\0' ? "\n" : "", d->service.status);
    service_say(text);
    memcpy(d->service.said, d->service.status, sizeof d->service.said);
}

static void service_watch(struct daemon *d, uint64_t now_ns) {
    struct service *s = &d->service;
    char name[24];
    uint64_t limit = service_watchdog_us() * 1000;
    watchdog_init(&s->watchdog, limit);
    s->feed_ns = limit / 2;
    if (limit == 0)
        return;
    const struct heartbeat *h;
    for (unsigned i = 0; d->device_ops->heartbeat != NULL && (h = d->device_ops->heartbeat(d->device, i)) != NULL;
         i++) {
        snprintf(name, sizeof name, "worker %u", i);
        if (!watchdog_add(&s->watchdog, h, name, now_ns))
            log_warn("watchdog: %s and further ones are not watched", name);
    }
    if (d->fabric_ops != NULL && d->fabric_ops->heartbeat != NULL)
        (void)watchdog_add(&s->watchdog, d->fabric_ops->heartbeat(d->fabric), "fabric", now_ns);
    log_info("watchdog: every %.1f s, for the loop and %u threads", (double)s->feed_ns / 1e9, s->watchdog.n);
}

void service_ready(struct daemon *d) {
    service_watch(d, daemon_now_ns());
    service_status(d, "");
    service_say_status(d, "READY=1");
}

void service_reloading(struct daemon *d) {
    char text[64];
    (void)d;
    /* The manager takes a READY for the end of this reload only where its time is later. */
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, daemon_now_ns() / 1000);
    service_say(text);
}

void service_reloaded(struct daemon *d) {
    service_status(d, d->draining ? "draining: " : "");
    service_say_status(d, "READY=1");
}

void service_stopping(struct daemon *d) {
    service_status(d, "draining: ");
    service_say_status(d, "STOPPING=1");
}

void service_tick(struct daemon *d, uint64_t now_ns) {
    struct service *s = &d->service;
    if (s->feed_ns > 0 && now_ns - s->fed_ns >= s->feed_ns) {
        if (watchdog_alive(&s->watchdog, now_ns))
            service_say("WATCHDOG=1");
        s->fed_ns = now_ns;
    }
    if (now_ns - s->status_ns < SERVICE_STATUS_NS)
        return;
    s->status_ns = now_ns;
    service_status(d, d->draining ? "draining: " : "");
    if (strcmp(s->status, s->said) != 0)
        service_say_status(d, "");
}
