/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon: what one zipccld process has, and its life from start over drain to the end.
 *
 * Everything in it belongs to the loop thread. Sessions, links and communicators are never freed in the middle of a
 * callback: they are marked dead, and daemon_reap, which runs before the loop waits, frees them.
 */
#ifndef ZIPCCL_DAEMON_DAEMON_H
#define ZIPCCL_DAEMON_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/core/config.h"
#include "daemon/core/drain.h"
#include "daemon/core/events.h"
#include "daemon/core/executor.h"
#include "daemon/core/list.h"
#include "daemon/core/log.h"
#include "daemon/core/peer.h"
#include "daemon/core/peer_key.h"
#include "daemon/core/profile_store.h"
#include "daemon/core/server.h"
#include "daemon/core/service.h"
#include "daemon/core/stats.h"
#include "proto/spin.h"

struct daemon {
    uv_loop_t loop;
    struct config config;
    const char *config_path; /* for reload; NULL: none */
    char *const *settings;   /* --set key=value, applied over the file at reload too */
    unsigned nsettings;
    uint8_t instance[16]; /* random, new at each start */
    uint64_t started_ns;
    uint64_t peers_tick_ns; /* when peer_tick ran last */
    char advertise[96];     /* host:port; fits a unique id */
    char listening[112];    /* as bound */

    bool draining, stopping;
    bool served; /* a client, in this turn of the loop */
    struct spin spin;
    uint64_t drain_deadline_ns;
    struct drain drain;    /* by an administrator: the daemon lives on */
    struct events *events; /* NULL: no memory */

    uv_prepare_t reaper;
    uv_timer_t tick;
    uv_signal_t sigterm, sigint, sighup;
    uv_poll_t device_poll, fabric_poll;

    const struct device_ops *device_ops;
    struct device *device;
    const struct fabric_ops *fabric_ops; /* NULL: none */
    struct fabric *fabric;
    struct executor *executor;
    uint64_t encode_bps, decode_bps;
    zipcclCodec_t codec;
    zipcclArm_t arm; /* of operations whose ranks pin none */
    enum plan_phases phases;

    struct service service;
    struct server server; /* clients */
    struct server admin_server;
    struct server peer_server; /* daemons */
    struct profile_store profiles;
    struct peer_key peer_key;
    struct log_often refused_peers, refused_sessions, refused_requests;
    struct list sessions, jobs, comms, ids, links;
    struct list pendings; /* requests that wait for the device */
    uint32_t nsessions, njobs, ncomms, nids, nlinks;
    uint64_t next_session;
    struct stats stats;
    struct metrics_http *metrics; /* NULL: off */
};

struct daemon_options {
    struct config config;
    const char *config_path;
    char *const *settings;
    unsigned nsettings;
};

/* Opens everything. On failure the reason is logged, and nothing is left open. */
ZIPCCL_MUST_CHECK zipcclResult_t daemon_start(struct daemon *d, const struct daemon_options *options);
/* Until a signal ends it. */
void daemon_run(struct daemon *d);
void daemon_stop(struct daemon *d);
/* Stops accepting, lets running operations end, then stops; called again: stops now. */
void daemon_drain(struct daemon *d, const char *why);

/* Reads the configuration again. why: who asked. report: what changed; where it is refused (false) the errors. */
bool daemon_reload(struct daemon *d, const char *why, struct config_errors *report);

uint64_t daemon_now_ns(void); /* CLOCK_MONOTONIC */

/* Measures the codec on the device: bytes of values a second, all workers. */
void calibrate_run(const struct device_ops *ops, struct device *device, uint64_t *encode_bps, uint64_t *decode_bps);

#endif
