/* SPDX-License-Identifier: Apache-2.0
 *
 * The launching thread: the only one that calls NCCL, on one stream, in the agreed order.
 *
 * Communicators do not block, so each call is asked for its end. A communicator is made when nothing is on the stream,
 * for it may synchronise the device. An abort does not wait its turn: what is ahead of it may be what it ends. Where
 * several are to be aborted, all are revoked first (where this NCCL can), then aborted: freeing one may wait for the
 * device, and so for kernels of the others.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "daemon/fabric/nccl.h"

#define LOOK_NS  20000 /* while something is under way; ten times that after a while without an end */
#define LOOKS    50u
#define LEAVE_NS 2000000000u
#define GRACE_NS 500000000u

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void answer(struct fabric *f, struct nccl_command *command, zipcclResult_t result) {
    command->result = result;
    pthread_mutex_lock(&f->lock);
    bool first = !f->answers.head;
    nccl_queue_push(&f->answers, command);
    pthread_mutex_unlock(&f->lock);
    if (first)
        nccl_wake(f);
}

struct nccl_command *nccl_launch_answers(struct fabric *f) {
    pthread_mutex_lock(&f->lock);
    struct nccl_command *head = f->answers.head;
    nccl_queue_init(&f->answers);
    pthread_mutex_unlock(&f->lock);
    return head;
}

void nccl_launch_order(struct fabric *f, struct nccl_command *command) {
    pthread_mutex_lock(&f->lock);
    nccl_queue_push(&f->orders, command);
    pthread_cond_signal(&f->some);
    pthread_mutex_unlock(&f->lock);
}

bool nccl_launch_able(const struct fabric *f) {
    cudaError_t error = f->library.cudaStreamQuery(f->stream);
    return error == cudaSuccess || error == cudaErrorNotReady;
}

static bool is_bad(ncclResult_t result) {
    return result != ncclSuccess && result != ncclInProgress;
}

static zipcclResult_t result_of(ncclResult_t result) {
    switch (result) {
    case ncclSuccess:
    case ncclInProgress:
        return zipcclSuccess;
    case ncclRemoteError:
        return zipcclRemoteError;
    case ncclInternalError:
        return zipcclInternalError;
    default:
        return zipcclSystemError;
    }
}

/* What NCCL says of a communicator: whether it is still busy with the last call, whether it failed. */
static ncclResult_t ask_state(const struct fabric *f, const struct nccl_comm *comm) {
    ncclResult_t state = ncclSuccess, result = f->library.ncclCommGetAsyncError(comm->handle, &state);
    return is_bad(result) ? result : state;
}

/* The loop is told, and orders the abort. */
static void note_failure(struct fabric *f, struct nccl_comm *comm, zipcclResult_t result) {
    if (comm->told || comm->broken)
        return;
    comm->told = true;
    comm->failed_command = (struct nccl_command){.what = NCCL_FAILED, .comm = comm, .of = comm};
    answer(f, &comm->failed_command, result);
}

static cudaEvent_t get_event(struct fabric *f) {
    cudaEvent_t event = NULL;
    if (f->nspare_events > 0)
        return f->spare_events[--f->nspare_events];
    if (f->library.cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess)
        return NULL;
    return event;
}

static void put_event(struct fabric *f, cudaEvent_t event) {
    if (event && f->nspare_events < sizeof(f->spare_events) / sizeof(f->spare_events[0]))
        f->spare_events[f->nspare_events++] = event;
    else if (event)
        (void)f->library.cudaEventDestroy(event);
}

/* ---- the making of a communicator ---- */

/* True: it is over; *result, which was zipcclAborted, is set where it was not aborted. */
static bool make(struct fabric *f, struct nccl_comm *comm, zipcclResult_t *result) {
    ncclResult_t state = ncclSuccess;
    if (comm->broken)
        return true;
    if (!f->begun) {
        if (f->flying)
            return false;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        if (f->library.version < NCCL_VERSION_CODE)
            config.version = (unsigned)f->library.version;
        state =
            f->library.ncclCommInitRankConfig(&comm->handle, (int)comm->nnodes, comm->unique, (int)comm->node, &config);
        f->begun = true;
    }
    if (!is_bad(state) && comm->handle)
        state = ask_state(f, comm);
    if (state == ncclInProgress)
        return false;
    comm->made = state == ncclSuccess && comm->handle;
    *result = comm->made ? zipcclSuccess : is_bad(state) ? result_of(state) : zipcclInternalError;
    return true;
}

/* ---- launches ---- */

static ncclResult_t send_one(struct fabric *f, const struct nccl_send *send, int peer, ncclComm_t handle) {
    ncclResult_t result = ncclSuccess;
    for (unsigned i = 0; i < 2 && !is_bad(result); i++) {
        size_t bytes = i < send->user->niov ? send->user->iov[i].bytes : 0;
        if (bytes > 0)
            result = f->library.ncclSend(send->user->iov[i].base, bytes, ncclUint8, peer, handle, f->stream);
    }
    return result;
}

static ncclResult_t recv_one(struct fabric *f, const struct nccl_recv *recv, int peer, ncclComm_t handle) {
    ncclResult_t result = ncclSuccess;
    char *at = recv->user->buffer;
    for (unsigned i = 0; i < 2 && !is_bad(result); i++) {
        size_t bytes = recv->body.bytes[i];
        if (bytes > 0)
            result = f->library.ncclRecv(at, bytes, ncclUint8, peer, handle, f->stream);
        at += bytes;
    }
    return result;
}

static ncclResult_t launch_group(struct fabric *f, const struct nccl_entry *entry) {
    ncclComm_t handle = entry->comm->handle;
    ncclResult_t result = f->library.ncclGroupStart();
    if (is_bad(result))
        return result;
    for (unsigned i = 0; i < entry->nsends && !is_bad(result); i++)
        result = send_one(f, entry->sends[i], (int)entry->peer, handle);
    for (unsigned i = 0; i < entry->nrecvs && !is_bad(result); i++)
        result = recv_one(f, entry->recvs[i], (int)entry->peer, handle);
    ncclResult_t end = f->library.ncclGroupEnd();
    return is_bad(result) ? result : end;
}

/* Puts the event behind what was launched; from then on the entry is in the air. */
static void fly(struct fabric *f, struct nccl_entry *entry) {
    entry->next = NULL;
    *f->flying_tail = entry;
    f->flying_tail = &entry->next;
    entry->event = get_event(f);
    entry->launched = entry->event && f->library.cudaEventRecord(entry->event, f->stream) == cudaSuccess;
}

/* True: it is in the air, or cannot be: then *flies is false. */
static bool launch(struct fabric *f, struct nccl_entry *entry, bool *flies) {
    struct nccl_comm *comm = entry->comm;
    ncclResult_t state = ncclSuccess;
    if (!f->begun && (comm->broken || !comm->made))
        return true;
    if (!f->begun) {
        state = launch_group(f, entry);
        f->begun = true;
    }
    /* A communicator that was aborted meanwhile may have something on the stream all the same. */
    if (!is_bad(state) && !comm->broken)
        state = ask_state(f, comm);
    if (state == ncclInProgress)
        return false;
    if (is_bad(state))
        note_failure(f, comm, result_of(state));
    fly(f, entry);
    *flies = true;
    return true;
}

static bool run_waiting(struct fabric *f) {
    struct nccl_command *command = f->waiting.head;
    zipcclResult_t result = zipcclAborted;
    bool over, flies = false;
    if (!command)
        return false;
    if (command->what == NCCL_MAKE_ID) {
        result = result_of(f->library.ncclGetUniqueId(&command->comm->unique));
        over = true;
    } else if (command->what == NCCL_MAKE) {
        over = make(f, command->comm, &result);
    } else {
        over = launch(f, command->of, &flies);
    }
    if (!over)
        return false;
    f->begun = false;
    (void)nccl_queue_pop(&f->waiting); /* first: an answer is in a queue of its own */
    if (!flies)
        answer(f, command, result);
    return true;
}

/* ---- ends ---- */

static bool land(struct fabric *f) {
    bool any = false;
    for (struct nccl_entry *entry; (entry = f->flying); any = true) {
        cudaError_t error = entry->launched ? f->library.cudaEventQuery(entry->event) : cudaErrorUnknown;
        if (error == cudaErrorNotReady)
            break;
        if (!(f->flying = entry->next))
            f->flying_tail = &f->flying;
        put_event(f, entry->event);
        if (error != cudaSuccess)
            (void)f->library.cudaGetLastError();
        bool bad = entry->comm->broken || entry->comm->told;
        answer(f, &entry->command, error != cudaSuccess ? zipcclSystemError : bad ? zipcclAborted : zipcclSuccess);
    }
    for (struct nccl_entry *entry = f->flying; entry; entry = entry->next) {
        struct nccl_comm *comm = entry->comm;
        ncclResult_t state = comm->broken || comm->told ? ncclSuccess : ask_state(f, comm);
        /* A node that aborts looks like one that is gone: what happened is told by the daemons, or by UCX. */
        if (state == ncclRemoteError && comm->failed_at == 0)
            comm->failed_at = now_ns();
        else if (is_bad(state) && (state != ncclRemoteError || now_ns() - comm->failed_at > GRACE_NS))
            note_failure(f, comm, result_of(state));
    }
    return any;
}

static void start_copy(struct fabric *f, struct nccl_recv *recv) {
    recv->event = get_event(f);
    if (!recv->event ||
        f->library.cudaMemcpyAsync(recv->user->buffer, recv->bounce, recv->user->bytes, cudaMemcpyHostToDevice,
                                   f->copy_stream) != cudaSuccess ||
        f->library.cudaEventRecord(recv->event, f->copy_stream) != cudaSuccess) {
        (void)f->library.cudaGetLastError();
        put_event(f, recv->event);
        answer(f, &recv->command, zipcclSystemError);
        return;
    }
    recv->next = NULL;
    *f->copying_tail = recv;
    f->copying_tail = &recv->next;
}

static bool end_copies(struct fabric *f) {
    bool any = false;
    for (struct nccl_recv *recv; (recv = f->copying); any = true) {
        cudaError_t error = f->library.cudaEventQuery(recv->event);
        if (error == cudaErrorNotReady)
            break;
        if (!(f->copying = recv->next))
            f->copying_tail = &f->copying;
        put_event(f, recv->event);
        answer(f, &recv->command, error == cudaSuccess ? zipcclSuccess : zipcclSystemError);
    }
    return any;
}

/* A communicator that nothing happened to is finalized, with its other nodes, and destroyed. */
static void begin_to_leave(struct fabric *f, struct nccl_command *command) {
    struct nccl_comm *comm = command->comm;
    bool good = comm->made && !comm->told && ask_state(f, comm) == ncclSuccess &&
                !is_bad(f->library.ncclCommFinalize(comm->handle));
    comm->broken = true;
    comm->leave_by = good ? now_ns() + LEAVE_NS : 0;
    nccl_queue_push(&f->leaving, command);
}

static bool leave(struct fabric *f) {
    struct nccl_command *command = f->leaving.head;
    struct nccl_comm *comm = command ? command->comm : NULL;
    ncclResult_t state = ncclInternalError;
    if (!command)
        return false;
    if (comm->leave_by)
        state = ask_state(f, comm);
    if (state == ncclInProgress && now_ns() < comm->leave_by)
        return false;
    (void)nccl_queue_pop(&f->leaving);
    if (comm->handle && state == ncclSuccess)
        (void)f->library.ncclCommDestroy(comm->handle);
    else if (comm->handle)
        (void)f->library.ncclCommAbort(comm->handle);
    comm->handle = NULL;
    answer(f, command, zipcclSuccess);
    return true;
}

static void abort_all(struct fabric *f, struct nccl_queue *aborts) {
    struct nccl_command *command;
    for (command = aborts->head; command; command = command->next) {
        struct nccl_comm *comm = command->comm;
        comm->broken = true;
        if (comm->handle && f->library.ncclCommRevoke)
            (void)f->library.ncclCommRevoke(comm->handle, NCCL_REVOKE_DEFAULT);
    }
    while ((command = nccl_queue_pop(aborts))) {
        struct nccl_comm *comm = command->comm;
        if (comm->handle)
            (void)f->library.ncclCommAbort(comm->handle);
        comm->handle = NULL;
        answer(f, command, zipcclSuccess);
    }
}

/* ---- the thread ---- */

static void wait_for_more(struct fabric *f, unsigned looks) {
    struct timespec until;
    if (!f->waiting.head && !f->flying && !f->copying && !f->leaving.head) {
        pthread_cond_wait(&f->some, &f->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += looks < LOOKS ? LOOK_NS : 10 * LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&f->some, &f->lock, &until);
}

/* looks: in vain, since something ended. False: it is to end. */
static bool take_orders(struct fabric *f, unsigned looks) {
    struct nccl_queue aborts, copies, leaves;
    struct nccl_command *command;
    nccl_queue_init(&aborts);
    nccl_queue_init(&copies);
    nccl_queue_init(&leaves);
    pthread_mutex_lock(&f->lock);
    if (!f->orders.head && !f->stop && looks > 0)
        wait_for_more(f, looks);
    while ((command = nccl_queue_pop(&f->orders)))
        nccl_queue_push(command->what == NCCL_ABORT   ? &aborts
                        : command->what == NCCL_COPY  ? &copies
                        : command->what == NCCL_LEAVE ? &leaves
                                                      : &f->waiting,
                        command);
    bool go = !f->stop;
    pthread_mutex_unlock(&f->lock);
    abort_all(f, &aborts);
    while ((command = nccl_queue_pop(&copies)))
        start_copy(f, command->of);
    while ((command = nccl_queue_pop(&leaves)))
        begin_to_leave(f, command);
    return go;
}

static void *launch_main(void *arg) {
    struct fabric *f = arg;
    unsigned looks = 0;
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns */
    (void)f->library.cudaSetDevice(f->device);
    while (take_orders(f, looks)) {
        bool busy = run_waiting(f);
        busy = land(f) || busy;
        busy = end_copies(f) || busy;
        busy = leave(f) || busy;
        looks = busy ? 0 : looks + 1;
    }
    while (f->leaving.head) {
        f->leaving.head->comm->leave_by = 0;
        (void)leave(f);
    }
    for (struct nccl_command *command; (command = nccl_queue_pop(&f->waiting));)
        answer(f, command, zipcclAborted);
    /* What is in the air ends, for its communicators were aborted: its memory is freed next. */
    for (uint64_t limit = now_ns() + LEAVE_NS; (f->flying || f->copying) && now_ns() < limit;) {
        (void)land(f);
        (void)end_copies(f);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    while (f->flying) {
        struct nccl_entry *entry = f->flying;
        f->flying = entry->next;
        answer(f, &entry->command, zipcclAborted);
    }
    return NULL;
}

bool nccl_launch_start(struct fabric *f) {
    pthread_condattr_t attributes;
    nccl_queue_init(&f->orders);
    nccl_queue_init(&f->answers);
    nccl_queue_init(&f->waiting);
    nccl_queue_init(&f->leaving);
    f->flying_tail = &f->flying;
    f->copying_tail = &f->copying;
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&f->some, &attributes);
    pthread_condattr_destroy(&attributes);
    f->has_lock = true;
    if (f->library.cudaSetDevice(f->device) != cudaSuccess ||
        f->library.cudaStreamCreateWithPriority(&f->stream, cudaStreamNonBlocking, 0) != cudaSuccess ||
        f->library.cudaStreamCreateWithPriority(&f->copy_stream, cudaStreamNonBlocking, 0) != cudaSuccess)
        return false;
    sigset_t all, before; /* signals belong to the loop */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    f->started = pthread_create(&f->thread, NULL, launch_main, f) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (f->started)
        pthread_setname_np(f->thread, "zipccl-nccl");
    return f->started;
}

void nccl_launch_stop(struct fabric *f) {
    if (!f->has_lock)
        return;
    if (f->started) {
        for (struct nccl_comm *comm = f->comms; comm; comm = comm->next) {
            if (!comm->over) {
                comm->over = true;
                comm->abort_command = (struct nccl_command){.what = NCCL_ABORT, .comm = comm, .of = comm};
                nccl_launch_order(f, &comm->abort_command);
            }
        }
        pthread_mutex_lock(&f->lock);
        f->stop = true;
        pthread_cond_signal(&f->some);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
    }
    while (f->nspare_events > 0)
        (void)f->library.cudaEventDestroy(f->spare_events[--f->nspare_events]);
    if (f->stream)
        (void)f->library.cudaStreamDestroy(f->stream);
    if (f->copy_stream)
        (void)f->library.cudaStreamDestroy(f->copy_stream);
    pthread_cond_destroy(&f->some);
    pthread_mutex_destroy(&f->lock);
}
