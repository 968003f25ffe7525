/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the launching side of a GPU: its thread and what passes between it and the loop (nccl_launcher.c), its
 * communicators (nccl_made.c), what it launches (nccl_launch.c).
 */
#ifndef ZIPCCL_DAEMON_FABRIC_NCCL_LAUNCHER_H
#define ZIPCCL_DAEMON_FABRIC_NCCL_LAUNCHER_H

#include <pthread.h>

#include "daemon/fabric/nccl_launch.h"
#include "daemon/fabric/nccl_library.h"

/* A record on its way here and, answered, back. */
struct nccl_task {
    struct nccl_task *next;
    struct nccl_made *comm; /* what it launched belongs to; NULL: to one that is gone */
    cudaEvent_t event;      /* behind what it launched */
    bool launched;          /* the event is on the stream */
    struct nccl_answer answer;
    struct nccl_command command; /* as much of it as is used */
};

struct nccl_tasks {
    struct nccl_task *head, **tail;
};

/* A communicator, as this GPU has it. */
struct nccl_made {
    struct nccl_made *next;
    uint64_t id;
    ncclComm_t handle;
    bool made, broken;
    bool splitting;    /* it comes of a split that is not over: NCCL may write its handle */
    bool doomed;       /* it is to be aborted then */
    bool leaves;       /* or to leave */
    void **registered; /* handles */
    unsigned nregistered;
    struct nccl_task *failure;    /* to tell of it; NULL: it is told */
    uint64_t leave_by, failed_at; /* ns */
};

struct nccl_launcher {
    const struct nccl_library *library;
    int gpu, wake;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct nccl_tasks orders, answers; /* under the lock, as the next */
    bool stop;

    /* the thread's */
    struct nccl_made *comms;
    struct nccl_tasks waiting; /* in order; the head may have begun */
    bool begun;
    ncclComm_t nobody; /* what a GPU gets that is in no communicator of a split */
    struct nccl_tasks flying, copying, leaving;
    struct nccl_tasks in_doubt;       /* landed, of communicators of which NCCL says that another node is gone */
    cudaStream_t stream, copy_stream; /* NULL: the GPU gives none */
    cudaEvent_t spare_events[64];
    unsigned nspare_events;
};

static inline void nccl_tasks_init(struct nccl_tasks *q) {
    q->head = NULL;
    q->tail = &q->head;
}

static inline void nccl_tasks_push(struct nccl_tasks *q, struct nccl_task *task) {
    task->next = NULL;
    *q->tail = task;
    q->tail = &task->next;
}

static inline struct nccl_task *nccl_tasks_pop(struct nccl_tasks *q) {
    struct nccl_task *task = q->head;
    if (task && !(q->head = task->next))
        q->tail = &q->head;
    return task;
}

/* nccl_launcher.c, as in struct nccl_gpus_ops */
struct nccl_launcher *nccl_launcher_open(const struct nccl_library *library, int gpu, int wake);
void nccl_launcher_end(struct nccl_launcher *l);
void nccl_launcher_close(struct nccl_launcher *l);
ZIPCCL_MUST_CHECK bool nccl_launcher_ask(struct nccl_launcher *l, const struct nccl_command *command);
bool nccl_launcher_hear(struct nccl_launcher *l, struct nccl_answer *answer);

/* nccl_launcher.c, the thread */
/* Makes its streams where it has none. Without them records fail. */
void nccl_launcher_streams(struct nccl_launcher *l);
struct nccl_task *nccl_task_new(const struct nccl_command *command); /* NULL: no memory */
void nccl_task_answer(struct nccl_launcher *l, struct nccl_task *task, zipcclResult_t result);
uint64_t nccl_now_ns(void);

#define NCCL_LEAVE_NS 2000000000u /* for one to be finalized */
#define NCCL_GRACE_NS 500000000u  /* for others to tell why NCCL says that another node is gone */

static inline bool nccl_is_bad(ncclResult_t result) {
    return result != ncclSuccess && result != ncclInProgress;
}

/* nccl_made.c, the thread */
zipcclResult_t nccl_result_of(ncclResult_t result);
struct nccl_made *nccl_made_find(const struct nccl_launcher *l, uint64_t id); /* NULL: there is none */
ncclResult_t nccl_made_state(const struct nccl_launcher *l, const struct nccl_made *comm);
struct nccl_made *nccl_made_add(struct nccl_launcher *l, uint64_t id); /* NULL: no memory */
/* Steps of the head of those that wait. True: it is over; *result, which was zipcclAborted, is set where it was not
 * aborted. */
bool nccl_made_make(struct nccl_launcher *l, const struct nccl_command *command, zipcclResult_t *result);
bool nccl_made_split(struct nccl_launcher *l, const struct nccl_command *command, zipcclResult_t *result);
const struct nccl_command *nccl_made_splitting(const struct nccl_launcher *l); /* a split that has begun; or NULL */
zipcclResult_t nccl_made_enroll(struct nccl_launcher *l, const struct nccl_command *command);
void nccl_made_revoke(struct nccl_launcher *l, struct nccl_made *comm);
void nccl_made_abort(struct nccl_launcher *l, struct nccl_made *comm);
void nccl_made_begin_to_leave(struct nccl_launcher *l, struct nccl_made *comm);
bool nccl_made_leave(struct nccl_launcher *l); /* true: one has left */

/* nccl_launch.c, the thread */
void nccl_launch_take(struct nccl_launcher *l, struct nccl_task *task); /* begins it, or puts it where it waits */
bool nccl_launch_run(struct nccl_launcher *l);                          /* true: something went on */
bool nccl_launch_is_busy(const struct nccl_launcher *l);
void nccl_launch_end(struct nccl_launcher *l); /* all of it */

#endif
