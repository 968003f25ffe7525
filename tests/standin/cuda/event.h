/* SPDX-License-Identifier: Apache-2.0
 *
 * Events, as event.c and ipc.c see them: a slot that processes share, the pool of slots of a process.
 */
#ifndef ZIPCCL_TESTS_STANDIN_EVENT_H
#define ZIPCCL_TESTS_STANDIN_EVENT_H

#include "core.h"

#define STANDIN_SLOTS   4096
#define STANDIN_WAITERS 4

struct standin_slot {
    atomic_uint serial; /* odd: an event's; each event of a slot has another */
    atomic_uint recorded, completed;
    atomic_int recorder; /* the process of the last record */
    atomic_llong ns;     /* when it completed */
    struct {             /* importers with waits in their queues */
        atomic_int pid;
        atomic_uint count;
    } waiters[STANDIN_WAITERS];
    uint64_t reserved;
};
_Static_assert(sizeof(struct standin_slot) == 64, "the layout is shared between processes");
#define STANDIN_POOL_BYTES (STANDIN_SLOTS * sizeof(struct standin_slot))

struct standin_pool {
    struct standin_pool *next;
    struct standin_slot *slots;
    int fd;
    pid_t pid;
    uint64_t start;
    unsigned refs;
};
struct CUevent_st {
    struct CUevent_st *next;
    struct standin_pool *pool;
    struct standin_slot *slot;
    unsigned serial, flags;
    int device;
    unsigned refs; /* queued operations and calls under way */
    bool destroyed;
};
extern struct CUevent_st *standin_events;
extern struct standin_pool standin_pool; /* of this process */
struct CUevent_st *standin_event_at(const void *event);
struct CUevent_st *standin_event_make(struct standin_pool *pool, unsigned index, int device, unsigned flags);
void standin_pool_drop(struct standin_pool *pool);

#endif
