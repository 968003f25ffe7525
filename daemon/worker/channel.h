/* SPDX-License-Identifier: Apache-2.0
 *
 * The channel between the daemon and a worker: a ring each way in shared memory, an eventfd each way, and a socket for
 * descriptors, whose end of file tells that the other side is gone.
 *
 * A ring has one writer and one reader. Neither can hold up the other: a full ring is the writer's affair. The reader
 * sets `sleeping` before it sleeps, so that a busy one costs the writer no system call.
 */
#ifndef ZIPCCL_DAEMON_WORKER_CHANNEL_H
#define ZIPCCL_DAEMON_WORKER_CHANNEL_H

#include <stdatomic.h>

#include "daemon/heartbeat.h"
#include "daemon/worker/record.h"

#define WORKER_RING_RECORDS 1024u
#define WORKER_BEATS        8u /* threads of a worker that are watched; 0: its main one */

struct worker_ring {
    _Alignas(64) _Atomic uint32_t tail; /* written; only the writer changes it */
    _Alignas(64) _Atomic uint32_t head; /* read; only the reader changes it */
    _Alignas(64) _Atomic uint32_t sleeping;
    _Alignas(64) struct worker_record records[WORKER_RING_RECORDS];
};

struct worker_shared {
    struct worker_ring to_worker, to_daemon;
    struct heartbeat beats[WORKER_BEATS];
};

struct worker_channel {
    struct worker_shared *shared;
    int shared_fd, worker_event, daemon_event; /* what wakes the worker, and the daemon */
    int socket;                                /* -1: none */
};

/* The daemon's: shared memory and eventfds, no socket. */
ZIPCCL_MUST_CHECK bool worker_channel_open(struct worker_channel *c);
/* Empty again, for a new worker; the old one is gone. */
void worker_channel_reset(struct worker_channel *c);
void worker_channel_close(struct worker_channel *c);

/* How many records fit. */
unsigned worker_ring_room(const struct worker_ring *r);
bool worker_ring_empty(const struct worker_ring *r);
/* False: full. Wakes the reader through its eventfd where it sleeps. */
ZIPCCL_MUST_CHECK bool worker_ring_push(struct worker_ring *r, const struct worker_record *record, int event);
/* False: empty, or *broken: what the other side wrote makes no sense. */
bool worker_ring_pop(struct worker_ring *r, struct worker_record *record, bool *broken);
/* Before the reader sleeps on its eventfd: false: there is something to read. */
bool worker_ring_sleep(struct worker_ring *r);
/* It is awake. */
void worker_ring_wake(struct worker_ring *r);
/* Whenever an eventfd is readable: it may be so late, when what it told of has been read. */
void worker_event_read(int event);

/* A message of `bytes` with n descriptors; false: it cannot be sent now. Both block for at most timeout_ms. */
bool worker_socket_send(int socket, const void *data, size_t bytes, const int *fds, unsigned n, int timeout_ms);
/* Exactly `bytes`, exactly n descriptors; else none is kept. */
bool worker_socket_receive(int socket, void *data, size_t bytes, int *fds, unsigned n, int timeout_ms);

#endif
