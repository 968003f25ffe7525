/* SPDX-License-Identifier: Apache-2.0
 *
 * Start, reload, drain and end of the daemon, and the loop's periodic work.
 */
#include "daemon/core/daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "daemon/core/comm.h"
#include "daemon/core/log.h"
#include "daemon/core/metrics.h"
#include "daemon/core/peer.h"
#include "daemon/core/pending.h"
#include "daemon/core/privileges.h"
#include "daemon/core/session.h"
#include "daemon/slice.h"
#include "daemon/worker/worker.h"
#include "kernels/codec.h"
#include "proto/op.h"
#include "zipccl.h"

#define DAEMON_TICK_MS      100
#define DAEMON_INLINE_BYTES (32u << 10) /* work on less is done on the loop: handing it over costs more */
#define DAEMON_END_NS       2000000000ull

uint64_t daemon_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static void daemon_reap(uv_prepare_t *handle) {
    struct daemon *d = handle->data;
    session_reap(d);
    comm_reap(d);
    peer_reap(d);
}

static void daemon_tick(uv_timer_t *timer) {
    struct daemon *d = timer->data;
    uint64_t now = daemon_now_ns();
    session_tick(d, now);
    comm_tick(d, now);
    peer_tick(d, now);
    service_tick(d, now);
    drain_tick(d, now);
    if (!d->draining)
        return;
    bool late = now >= d->drain_deadline_ns;
    if (comm_drain(d, late) || now >= d->drain_deadline_ns + DAEMON_END_NS) {
        d->stopping = true;
        uv_stop(&d->loop);
    }
}

void daemon_drain(struct daemon *d, const char *why) {
    uint64_t now = daemon_now_ns();
    if (d->draining) {
        log_warn("%s again: ending now", why);
        d->drain_deadline_ns = now;
        return;
    }
    log_info("%s: draining for up to %g s (sessions=%u comms=%u)", why, (double)d->config.drain_timeout / 1000.0,
             d->nsessions, d->ncomms);
    events_add(d->events, EVENT_DRAIN, NULL, 0, "%s: the daemon ends", why);
    d->draining = true;
    service_stopping(d);
    d->drain_deadline_ns = now + d->config.drain_timeout * 1000000ull;
    server_close(&d->server);
    server_close(&d->admin_server);
    server_close(&d->peer_server);
    if (uv_timer_start(&d->tick, daemon_tick, 0, DAEMON_TICK_MS / 5) != 0)
        uv_stop(&d->loop);
}

static void daemon_signal(uv_signal_t *handle, int signum) {
    daemon_drain(handle->data, signum == SIGTERM ? "SIGTERM" : "SIGINT");
}

/* Applies what may change while running, and says what may not. */
static void daemon_apply(struct daemon *d, const struct config *fresh, struct config_errors *report) {
    uint64_t rate = d->config.link_rate;
    char before[160], after[160];
    for (size_t i = 0; i < config_num_keys; i++) {
        const struct config_key *key = &config_keys[i];
        config_value(&d->config, key, before, sizeof before);
        config_value(fresh, key, after, sizeof after);
        /* An empty name was filled in at start. */
        if (strcmp(before, after) == 0 || (strcmp(key->name, "node_name") == 0 && after[0] == '\0'))
            continue;
        if (!key->reload) {
            log_warn("reload: %s stays '%s', '%s' needs a restart", key->name, before, after);
            config_errors_add(report, "%s stays '%s': '%s' needs a restart", key->name, before, after);
            continue;
        }
        log_info("reload: %s changes from '%s' to '%s'", key->name, before, after);
        config_errors_add(report, "%s changes from '%s' to '%s'", key->name, before, after);
        memcpy((char *)&d->config + key->offset, (const char *)fresh + key->offset, key->size);
    }
    (void)log_set_level_name(d->config.log_level);
    if (d->fabric_ops != NULL)
        d->fabric_ops->set_link_rate(d->fabric, d->config.link_rate);
    if (d->config.link_rate != rate)
        comm_choices_alarm(d);
}

bool daemon_reload(struct daemon *d, const char *why, struct config_errors *report) {
    struct config fresh;
    bool ok = true;
    service_reloading(d);
    config_defaults(&fresh);
    if (d->config_path != NULL)
        ok = config_load(&fresh, d->config_path, report);
    for (unsigned i = 0; i < d->nsettings; i++)
        ok = config_set(&fresh, "--set", d->settings[i], report) && ok;
    ok = config_check(&fresh, report) && ok;
    if (ok) {
        log_info("%s: reloading %s", why, d->config_path != NULL ? d->config_path : "(no file)");
        daemon_apply(d, &fresh, report);
    } else {
        for (size_t i = 0; i < report->count; i++)
            log_error("reload refused, the old configuration stays: %s", report->lines[i]);
    }
    service_reloaded(d);
    events_add(d->events, EVENT_RELOAD, NULL, 0, "%s: %s, %zu %s", why, ok ? "done" : "refused", report->count,
               ok ? "changes" : "errors");
    return ok;
}

static void daemon_hangup(uv_signal_t *handle, int signum) {
    struct config_errors report = {0};
    (void)signum;
    (void)daemon_reload(handle->data, "SIGHUP", &report); /* it has logged all */
    config_errors_free(&report);
}

static void daemon_device_ready(uv_poll_t *handle, int status, int events) {
    struct daemon *d = handle->data;
    (void)status;
    (void)events;
    d->device_ops->poll(d->device);
}

static void daemon_fabric_ready(uv_poll_t *handle, int status, int events) {
    struct daemon *d = handle->data;
    (void)status;
    (void)events;
    d->fabric_ops->poll(d->fabric);
}

static zipcclResult_t daemon_watch(struct daemon *d, uv_poll_t *poll, int fd, uv_poll_cb ready) {
    if (uv_poll_init(&d->loop, poll, fd) != 0)
        return zipcclSystemError;
    poll->data = d;
    return uv_poll_start(poll, UV_READABLE, ready) == 0 ? zipcclSuccess : zipcclSystemError;
}

static void daemon_device_event(void *arg, const struct device_event *event) {
    struct daemon *d = arg;
    switch (event->kind) {
    case DEVICE_EVENT_LOST:
        d->stats.counters[STATS_workers_lost]++;
        log_error("%s", event->text);
        events_add(d->events, EVENT_WORKER_LOST, NULL, 0, "%s", event->text);
        break;
    case DEVICE_EVENT_BACK:
        log_info("%s", event->text);
        events_add(d->events, EVENT_WORKER_UP, NULL, 0, "%s", event->text);
        break;
    case DEVICE_EVENT_POOL:
        log_warn("%s", event->text);
        events_add(d->events, EVENT_POOL_FULL, NULL, 0, "%s", event->text);
        break;
    }
}

static zipcclResult_t daemon_open_device(struct daemon *d) {
    struct device_config config = {.workers = (unsigned)d->config.workers,
                                   .inline_bytes = DAEMON_INLINE_BYTES,
                                   .gpu_sms = (unsigned)d->config.gpu_sms,
                                   .gpu_pool_bytes = d->config.gpu_pool,
                                   .worker_timeout_ms = (unsigned)d->config.worker_timeout,
                                   .event = daemon_device_event,
                                   .event_arg = d};
    const char *why = "";
    zipcclResult_t rc = device_open(d->config.device, &config, &d->device_ops, &d->device, &why);
    if (rc != zipcclSuccess) {
        d->device = NULL;
        log_error("cannot open the device (device = %s): %s (result=%d)", d->config.device, why, (int)rc);
        return rc;
    }
    if (why[0] != '\0')
        log_info("device = %s: %s; buffers are in host memory", d->config.device, why);
    if (d->device_ops->measure == NULL || !d->device_ops->measure(d->device, &d->encode_bps, &d->decode_bps))
        calibrate_run(d->device_ops, d->device, &d->encode_bps, &d->decode_bps);
    return daemon_watch(d, &d->device_poll, d->device_ops->fd(d->device), daemon_device_ready);
}

/* Opens the NCCL fabric where it is asked for or fits the device. Success with no fabric: another one is to be taken.
 */
static zipcclResult_t daemon_open_nccl(struct daemon *d, const struct fabric_config *config) {
    bool wanted = strcmp(d->config.fabric, "nccl") == 0;
    if (!wanted && (strcmp(d->config.fabric, "auto") != 0 || strcmp(d->device_ops->name, "cuda") != 0))
        return zipcclSuccess;
    const char *why = "this zipccld was built without NCCL";
    zipcclResult_t rc = zipcclInvalidUsage;
#ifdef ZIPCCL_HAVE_NCCL
    rc = fabric_nccl.open(config, &d->fabric, &why);
    if (rc == zipcclSuccess) {
        d->fabric_ops = &fabric_nccl;
        return zipcclSuccess;
    }
#else
    (void)config;
#endif
    if (wanted) {
        log_error("cannot open the nccl fabric: %s (fabric = auto takes ucx then; result=%d)", why, (int)rc);
        return rc;
    }
    log_warn("the nccl fabric is not there: %s; the ucx fabric is taken", why);
    return zipcclSuccess;
}

static zipcclResult_t daemon_open_fabric(struct daemon *d) {
    const struct config *c = &d->config;
    const char *why = "";
    if (strcmp(c->fabric, "none") == 0)
        return zipcclSuccess;
#ifdef ZIPCCL_NO_FABRIC
    log_error("fabric: this zipccld was built without ucx; set fabric = none");
    (void)why;
    return zipcclInvalidUsage;
#else
    const struct nccl_gpus gpus = {&nccl_gpus_workers, d->device};
    struct fabric_config config = {
        .tls = c->ucx_tls[0] != '\0' ? c->ucx_tls : NULL,
        .net_devices = c->ucx_net_devices[0] != '\0' ? c->ucx_net_devices : NULL,
        .link_rate_bits = c->link_rate,
        .gpus = d->device_ops == &device_workers ? &gpus : NULL,
    };
    zipcclResult_t rc = daemon_open_nccl(d, &config);
    if (rc == zipcclSuccess && d->fabric_ops == NULL) {
        rc = fabric_ucx.open(&config, &d->fabric, &why);
        d->fabric_ops = rc == zipcclSuccess ? &fabric_ucx : NULL;
        if (rc != zipcclSuccess)
            log_error(
                "cannot open the ucx fabric: %s (ucx_tls = '%s', ucx_net_devices = '%s'; fabric = none serves one node "
                "alone; result=%d)",
                why, c->ucx_tls, c->ucx_net_devices, (int)rc);
    }
    if (rc != zipcclSuccess) {
        d->fabric = NULL;
        return rc;
    }
    return daemon_watch(d, &d->fabric_poll, d->fabric_ops->fd(d->fabric), daemon_fabric_ready);
#endif
}

static zipcclResult_t daemon_open_signals(struct daemon *d) {
    struct {
        uv_signal_t *handle;
        int number;
        uv_signal_cb callback;
    } signals[] = {{&d->sigterm, SIGTERM, daemon_signal},
                   {&d->sigint, SIGINT, daemon_signal},
                   {&d->sighup, SIGHUP, daemon_hangup}};
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        if (uv_signal_init(&d->loop, signals[i].handle) != 0)
            return zipcclSystemError;
        signals[i].handle->data = d;
        if (uv_signal_start(signals[i].handle, signals[i].callback, signals[i].number) != 0)
            return zipcclSystemError;
    }
    return zipcclSuccess;
}

static void daemon_names(struct daemon *d, const struct daemon_options *options) {
    char host[64] = "localhost";
    d->config = options->config;
    d->config_path = options->config_path;
    d->settings = options->settings;
    d->nsettings = options->nsettings;
    if (d->config.node_name[0] == '\0') {
        (void)gethostname(host, sizeof host - 1);
        snprintf(d->config.node_name, sizeof d->config.node_name, "%s", host);
    }
    (void)log_set_level_name(d->config.log_level);
    log_init(d->config.node_name);
    if (!codec_from_name(d->config.codec, &d->codec))
        d->codec = zipcclCodecAuto;
    if (!arm_from_name(d->config.arm, &d->arm))
        d->arm = zipcclArmAuto;
    d->phases = strcmp(d->config.all_to_all_phases, "two") == 0     ? PLAN_TWO_PHASE
                : strcmp(d->config.all_to_all_phases, "sizes") == 0 ? PLAN_SIZES_FIRST
                                                                    : PLAN_STREAM;
}

/* Sockets that systemd holds are taken as they are; else ours are made. */
static zipcclResult_t daemon_open_sockets(struct daemon *d) {
    const struct config *c = &d->config;
    struct service *s = &d->service;
    struct server_unix client = {c->socket, c->socket_group, (unsigned)c->socket_mode};
    struct server_unix admin = {c->admin_socket, "", 0600};
    int client_fd = s->client_fd, admin_fd = s->admin_fd;
    s->client_fd = s->admin_fd = -1; /* the server's from here on */
    zipcclResult_t rc = client_fd >= 0 ? server_adopt(d, &d->server, &client, client_fd, session_accepted)
                                       : server_open_unix(d, &d->server, &client, session_accepted);
    if (admin_fd >= 0 && rc != zipcclSuccess)
        close(admin_fd);
    else if (admin_fd >= 0)
        rc = server_adopt(d, &d->admin_server, &admin, admin_fd, session_accepted_admin);
    else if (rc == zipcclSuccess && admin.path[0] != '\0')
        rc = server_open_unix(d, &d->admin_server, &admin, session_accepted_admin);
    d->server.full = d->admin_server.full = session_no_room;
    return rc;
}

zipcclResult_t daemon_start(struct daemon *d, const struct daemon_options *options) {
    char device[128] = "", fabric[128] = "none";
    *d = (struct daemon){.started_ns = daemon_now_ns()};
    d->profiles.dir = -1;
    d->server = d->admin_server = d->peer_server = (struct server){.fd = -1, .lock_fd = -1, .spare_fd = -1};
    list_init(&d->sessions);
    list_init(&d->pendings);
    list_init(&d->jobs);
    list_init(&d->comms);
    list_init(&d->ids);
    list_init(&d->links);
    stats_init(&d->stats);
    d->events = calloc(1, sizeof *d->events);
    daemon_names(d, options);
    zipcclResult_t rc = zipcclInvalidArgument;
    if (service_init(&d->service) != zipcclSuccess)
        goto unstarted;
    /* The key may be root's alone; all else is opened by whom the daemon becomes. */
    if ((rc = peer_key_open(&d->peer_key, &d->config)) != zipcclSuccess ||
        (rc = privileges_drop(&d->config, d->peer_key.key != NULL)) != zipcclSuccess)
        goto unstarted;
    if (getrandom(d->instance, sizeof d->instance, 0) != (ssize_t)sizeof d->instance || uv_loop_init(&d->loop) != 0) {
        log_error("cannot start: %s", strerror(errno));
        rc = zipcclSystemError;
        goto unstarted;
    }
    uv_prepare_init(&d->loop, &d->reaper); /* these two cannot fail */
    uv_timer_init(&d->loop, &d->tick);
    d->reaper.data = d->tick.data = d;
    rc = zipcclSystemError;
    if (uv_prepare_start(&d->reaper, daemon_reap) != 0 ||
        uv_timer_start(&d->tick, daemon_tick, DAEMON_TICK_MS, DAEMON_TICK_MS) != 0)
        goto fail;
    profile_store_open(&d->profiles, &d->loop, d->config.state_directory);
    /* The Unix socket and its lock come first: a second daemon must say so, not that a port is taken. Nothing is
     * accepted before the loop runs. */
    if ((rc = daemon_open_signals(d)) != zipcclSuccess || (rc = daemon_open_sockets(d)) != zipcclSuccess ||
        (rc = server_open_tcp(d, &d->peer_server, peer_accepted)) != zipcclSuccess ||
        (rc = daemon_open_device(d)) != zipcclSuccess || (rc = daemon_open_fabric(d)) != zipcclSuccess)
        goto fail;
    struct executor_config config = {
        .device_ops = d->device_ops,
        .device = d->device,
        .fabric_ops = d->fabric_ops,
        .fabric = d->fabric,
        .chunk_bytes = d->config.chunk_bytes,
        .window = (uint32_t)d->config.window,
        .verify = d->config.verify,
        .native = d->config.nccl_native,
    };
    if ((rc = executor_new(&config, &d->executor)) != zipcclSuccess) {
        d->executor = NULL;
        log_error("cannot set up the executor (result=%d)", (int)rc);
        goto fail;
    }
    d->metrics = metrics_http_open(d);
    d->device_ops->describe(d->device, device, sizeof device);
    if (d->fabric_ops != NULL)
        d->fabric_ops->describe(d->fabric, fabric, sizeof fabric);
    log_info("zipccld %d.%d.%d serves %s (listen=%s advertise=%s device='%s' fabric='%s' encode_MBps=%llu "
             "decode_MBps=%llu)",
             ZIPCCL_MAJOR, ZIPCCL_MINOR, ZIPCCL_PATCH, d->config.socket, d->listening, d->advertise, device, fabric,
             (unsigned long long)d->encode_bps / 1000000, (unsigned long long)d->decode_bps / 1000000);
    events_add(d->events, EVENT_START, NULL, 0, "zipccld %d.%d.%d serves %s", ZIPCCL_MAJOR, ZIPCCL_MINOR, ZIPCCL_PATCH,
               d->config.socket);
    service_ready(d);
    return zipcclSuccess;
fail:
    daemon_stop(d);
    return rc;
unstarted:
    service_close(&d->service);
    peer_key_close(&d->peer_key);
    stats_free(&d->stats);
    free(d->events);
    d->events = NULL;
    return rc;
}

/* A turn of the loop a time. After one that served a client the next ones do not sleep, for a while, where its like
 * came soon before. */
void daemon_run(struct daemon *d) {
    uint64_t now = daemon_now_ns(), served_ns = 0;
    slice_set(SLICE_SHORT_NS);
    while (!d->stopping) {
        uint64_t bound = d->config.busy_poll * 1000;
        bool look = now - served_ns < bound && spin_worth(&d->spin, bound, now);
        d->served = false;
        (void)uv_run(&d->loop, look ? UV_RUN_NOWAIT : UV_RUN_ONCE);
        now = daemon_now_ns();
        if (d->served) {
            spin_waited(&d->spin, bound, now - served_ns);
            served_ns = now;
        } else if (look) {
            uint64_t before = now;
            now = spin_yield();
            spin_yielded(&d->spin, before, now);
        }
    }
}

static void daemon_close_handle(uv_handle_t *handle, void *arg) {
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

void daemon_stop(struct daemon *d) {
    d->draining = true;
    server_close(&d->server);
    server_close(&d->admin_server);
    server_close(&d->peer_server);
    service_close(&d->service);
    (void)comm_drain(d, true);
    list_for_each_safe(l, &d->sessions) session_kill(list_entry(l, struct session, link), "the daemon ends");
    uint64_t end = daemon_now_ns() + DAEMON_END_NS;
    /* Operations under way end first: the memory that they use must outlive them. */
    do {
        list_for_each_safe(l, &d->links) {
            if (d->ncomms == 0)
                peer_kill(list_entry(l, struct peer_link, link), "the daemon ends");
        }
        daemon_reap(&d->reaper);
        (void)uv_run(&d->loop, d->ncomms > 0 ? UV_RUN_ONCE : UV_RUN_NOWAIT);
    } while ((d->ncomms > 0 || d->nlinks > 0 || d->nsessions > 0) && daemon_now_ns() < end);
    if (d->ncomms > 0) {
        log_warn("%u communicators still have work under way: ending without them", d->ncomms);
        _exit(0); /* their memory cannot be freed while others may use it; the kernel takes all of it */
    }
    comm_drop_ids(d);
    metrics_http_close(d->metrics);
    uv_walk(&d->loop, daemon_close_handle, NULL);
    (void)uv_run(&d->loop, UV_RUN_DEFAULT); /* close callbacks, look-ups of users, profiles that are written */
    /* The fabric first: until it is closed it may hold receives that the executor owns. */
    if (d->fabric != NULL)
        d->fabric_ops->close(d->fabric);
    if (d->executor != NULL)
        executor_free(d->executor);
    pending_close(d);
    if (d->device != NULL)
        d->device_ops->close(d->device);
    profile_store_close(&d->profiles);
    peer_key_close(&d->peer_key);
    stats_free(&d->stats);
    free(d->events);
    d->events = NULL;
    (void)uv_loop_close(&d->loop);
}
