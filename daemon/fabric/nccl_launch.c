/* SPDX-License-Identifier: Apache-2.0
 *
 * What a GPU's launching side does with NCCL, on one stream, in the order that it is told.
 *
 * Communicators do not block, so each call is asked for its end. A communicator is made when nothing is on the stream,
 * for it may synchronise the device; so it is by a split, which NCCL wants to be alone with the parent. A revocation
 * and an abort do not wait their turn: what is ahead of them may be what they end. The loop has a communicator revoked
 * on all GPUs (where this NCCL can) before it has it aborted on the first: freeing it may wait for the device, and so
 * for kernels that wait for another GPU's.
 */
#include "daemon/fabric/nccl_launcher.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAUSE_NS 20000

/* The loop is told, and has it aborted. */
static void note_failure(struct nccl_launcher *l, struct nccl_made *comm, zipcclResult_t result) {
    struct nccl_task *failure = comm->failure;
    if (!failure || comm->broken)
        return;
    comm->failure = NULL;
    failure->answer.what = NCCL_FAILED;
    nccl_task_answer(l, failure, result);
}

/* NCCL says that it failed. A node that aborts looks like one that is gone: what happened is told by the daemons, or by
 * UCX, if they are given time. */
static void hear_failure(struct nccl_launcher *l, struct nccl_made *comm, ncclResult_t state) {
    if (state == ncclRemoteError && comm->failed_at == 0)
        comm->failed_at = nccl_now_ns();
    else if (state != ncclRemoteError || nccl_now_ns() - comm->failed_at > NCCL_GRACE_NS)
        note_failure(l, comm, nccl_result_of(state));
}

/* It is given time. */
static bool is_in_doubt(const struct nccl_made *comm) {
    return comm && !comm->broken && comm->failure && comm->failed_at != 0;
}

static cudaEvent_t get_event(struct nccl_launcher *l) {
    cudaEvent_t event = NULL;
    if (l->nspare_events > 0)
        return l->spare_events[--l->nspare_events];
    if (l->library->cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess)
        return NULL;
    return event;
}

static void put_event(struct nccl_launcher *l, cudaEvent_t event) {
    if (event && l->nspare_events < sizeof(l->spare_events) / sizeof(l->spare_events[0]))
        l->spare_events[l->nspare_events++] = event;
    else if (event)
        (void)l->library->cudaEventDestroy(event);
}

/* Whether the GPU works: success, or no streams, or an error that stays, which comes again. */
static zipcclResult_t look(struct nccl_launcher *l) {
    nccl_launcher_streams(l);
    for (unsigned i = 0; i < 2 && l->stream; i++) {
        cudaError_t error = l->library->cudaStreamQuery(l->stream);
        if (error == cudaSuccess || error == cudaErrorNotReady)
            return zipcclSuccess;
        (void)l->library->cudaGetLastError();
    }
    return l->stream ? zipcclUnhandledDeviceError : zipcclSystemError;
}

/* ---- launches ---- */

static ncclResult_t launch_op(struct nccl_launcher *l, const struct nccl_op *op, ncclComm_t handle) {
    void *values = (void *)(uintptr_t)op->address;
    if ((op->kind & ~NCCL_OP_REGISTERED) == NCCL_OP_SEND)
        return l->library->ncclSend(values, op->bytes, ncclUint8, (int)op->peer, handle, l->stream);
    return l->library->ncclRecv(values, op->bytes, ncclUint8, (int)op->peer, handle, l->stream);
}

static ncclResult_t launch_group(struct nccl_launcher *l, const struct nccl_command *command, ncclComm_t handle) {
    ncclResult_t result = l->library->ncclGroupStart();
    if (nccl_is_bad(result))
        return result;
    for (unsigned i = 0; i < command->nops && !nccl_is_bad(result); i++)
        result = launch_op(l, &command->ops[i], handle);
    ncclResult_t end = l->library->ncclGroupEnd();
    return nccl_is_bad(result) ? result : end;
}

/* zipccl's numbers of dtypes and reductions are NCCL's; FP8 reductions, which not all GPUs have, do not come here. */
_Static_assert(zipcclInt8 == (int)ncclInt8 && zipcclUint64 == (int)ncclUint64 && zipcclFloat16 == (int)ncclFloat16 &&
                   zipcclFloat64 == (int)ncclFloat64 && zipcclBfloat16 == (int)ncclBfloat16,
               "numbers of dtypes");
_Static_assert(zipcclSum == (int)ncclSum && zipcclProd == (int)ncclProd && zipcclMax == (int)ncclMax &&
                   zipcclMin == (int)ncclMin && zipcclAvg == (int)ncclAvg,
               "numbers of reductions");

static ncclResult_t launch_collective(struct nccl_launcher *l, const struct nccl_command *command, ncclComm_t handle) {
    const struct nccl_library *n = l->library;
    const struct nccl_call *c = &command->call;
    const ncclDataType_t dtype = (ncclDataType_t)c->dtype;
    const ncclRedOp_t redop = (ncclRedOp_t)c->redop;
    const int root = (int)c->root;
    const void *from = NULL;
    void *to = NULL;
    for (unsigned i = 0; i < command->nops; i++) {
        void *values = (void *)(uintptr_t)command->ops[i].address;
        if (command->ops[i].kind == NCCL_OP_SEND)
            from = values;
        else
            to = values;
    }
    switch ((zipcclOp_t)c->op) {
    case zipcclOpAllGather:
        return n->ncclAllGather(from, to, c->count, dtype, handle, l->stream);
    case zipcclOpBroadcast:
        return n->ncclBroadcast(from ? from : to, to, c->count, dtype, root, handle, l->stream);
    case zipcclOpReduceScatter:
        return n->ncclReduceScatter(from, to, c->count, dtype, redop, handle, l->stream);
    case zipcclOpAllReduce:
        return n->ncclAllReduce(from, to, c->count, dtype, redop, handle, l->stream);
    case zipcclOpReduce:
        return n->ncclReduce(from, to, c->count, dtype, redop, root, handle, l->stream);
    default:
        return ncclInvalidUsage;
    }
}

/* Puts an event behind what was launched; from then on the task is in the air. Without an event its end is that of all
 * on the stream: nothing may be on its way to or from memory when that is given back. */
static void fly(struct nccl_launcher *l, struct nccl_task *task, struct nccl_made *comm) {
    task->comm = comm;
    task->event = get_event(l);
    task->launched = task->event && l->library->cudaEventRecord(task->event, l->stream) == cudaSuccess;
    if (!task->launched && comm)
        note_failure(l, comm, zipcclSystemError);
    nccl_tasks_push(&l->flying, task);
}

static cudaError_t state_of(const struct nccl_launcher *l, const struct nccl_task *task, cudaStream_t stream) {
    cudaError_t error = task->launched ? l->library->cudaEventQuery(task->event) : l->library->cudaStreamQuery(stream);
    if (error == cudaSuccess && !task->launched)
        error = cudaErrorUnknown;
    if (error != cudaSuccess && error != cudaErrorNotReady)
        (void)l->library->cudaGetLastError();
    return error;
}

/* True: it is in the air, or cannot be: then *flies is false. The task is the head of those that wait. */
static bool launch(struct nccl_launcher *l, struct nccl_task *task, bool *flies) {
    struct nccl_made *comm = nccl_made_find(l, task->command.comm);
    ncclResult_t state = ncclSuccess;
    if (!l->begun && (!comm || comm->broken || !comm->made))
        return true;
    if (!l->begun) {
        state = task->command.what == NCCL_COLLECTIVE ? launch_collective(l, &task->command, comm->handle)
                                                      : launch_group(l, &task->command, comm->handle);
        l->begun = true;
    }
    /* A communicator that was aborted meanwhile may have something on the stream all the same. */
    if (!nccl_is_bad(state) && comm && !comm->broken)
        state = nccl_made_state(l, comm);
    if (state == ncclInProgress && comm && !comm->broken)
        return false;
    if (comm && nccl_is_bad(state))
        hear_failure(l, comm, state);
    *flies = true;
    return true;
}

static bool run_waiting(struct nccl_launcher *l) {
    struct nccl_task *task = l->waiting.head;
    zipcclResult_t result = zipcclAborted;
    bool over = true, flies = false;
    if (!task)
        return false;
    if (task->command.what == NCCL_ENROLL)
        result = nccl_made_enroll(l, &task->command);
    else if (task->command.what == NCCL_MAKE)
        over = nccl_made_make(l, &task->command, &result);
    else if (task->command.what == NCCL_SPLIT)
        over = nccl_made_split(l, &task->command, &result);
    else
        over = launch(l, task, &flies);
    if (!over)
        return false;
    l->begun = false;
    (void)nccl_tasks_pop(&l->waiting);
    if (flies)
        fly(l, task, nccl_made_find(l, task->command.comm));
    else
        nccl_task_answer(l, task, result);
    return true;
}

static void look_for_failures(struct nccl_launcher *l) {
    for (struct nccl_task *task = l->flying.head; task; task = task->next) {
        struct nccl_made *comm = task->comm;
        ncclResult_t state = !comm || comm->broken || !comm->failure ? ncclSuccess : nccl_made_state(l, comm);
        if (nccl_is_bad(state))
            hear_failure(l, comm, state);
    }
}

/* What has landed of communicators that failed, or may have: not before it is known. */
static bool land_doubted(struct nccl_launcher *l) {
    struct nccl_task *task = l->in_doubt.head;
    bool any = false;
    nccl_tasks_init(&l->in_doubt);
    while (task) {
        struct nccl_task *next = task->next;
        if (is_in_doubt(task->comm))
            hear_failure(l, task->comm, ncclRemoteError);
        if (is_in_doubt(task->comm)) {
            nccl_tasks_push(&l->in_doubt, task);
        } else {
            nccl_task_answer(l, task, zipcclAborted);
            any = true;
        }
        task = next;
    }
    return any;
}

static bool land(struct nccl_launcher *l) {
    bool any = false;
    for (struct nccl_task *task; (task = l->flying.head); any = true) {
        cudaError_t error = state_of(l, task, l->stream);
        if (error == cudaErrorNotReady)
            break;
        (void)nccl_tasks_pop(&l->flying);
        put_event(l, task->event);
        if (is_in_doubt(task->comm)) {
            nccl_tasks_push(&l->in_doubt, task);
            continue;
        }
        bool bad = !task->comm || task->comm->broken || !task->comm->failure;
        nccl_task_answer(l, task, error != cudaSuccess ? zipcclSystemError : bad ? zipcclAborted : zipcclSuccess);
    }
    look_for_failures(l);
    return land_doubted(l) || any;
}

/* ---- copies ---- */

static void start_copy(struct nccl_launcher *l, struct nccl_task *task) {
    const struct nccl_op *to = &task->command.ops[0], *from = &task->command.ops[1];
    const void *source = (const void *)(uintptr_t)from->address;
    void *target = (void *)(uintptr_t)to->address;
    if (!l->copy_stream ||
        l->library->cudaMemcpyAsync(target, source, to->bytes, cudaMemcpyHostToDevice, l->copy_stream) != cudaSuccess) {
        (void)l->library->cudaGetLastError();
        nccl_task_answer(l, task, zipcclSystemError);
        return;
    }
    task->event = get_event(l);
    task->launched = task->event && l->library->cudaEventRecord(task->event, l->copy_stream) == cudaSuccess;
    nccl_tasks_push(&l->copying, task);
}

static bool end_copies(struct nccl_launcher *l) {
    bool any = false;
    for (struct nccl_task *task; (task = l->copying.head); any = true) {
        cudaError_t error = state_of(l, task, l->copy_stream);
        if (error == cudaErrorNotReady)
            break;
        (void)nccl_tasks_pop(&l->copying);
        put_event(l, task->event);
        nccl_task_answer(l, task, error == cudaSuccess ? zipcclSuccess : zipcclSystemError);
    }
    return any;
}

/* ---- for the thread ---- */

static zipcclResult_t make_id(struct nccl_launcher *l, struct nccl_task *task) {
    ncclUniqueId unique = {0};
    zipcclResult_t result = look(l);
    if (result == zipcclSuccess)
        result = nccl_result_of(l->library->ncclGetUniqueId(&unique));
    memcpy(&task->answer.unique, &unique, sizeof(unique));
    return result;
}

static void take_split(struct nccl_launcher *l, struct nccl_task *task) {
    const uint64_t id = task->command.branch.comm;
    struct nccl_made *child = id && !nccl_made_find(l, id) ? nccl_made_add(l, id) : NULL;
    if (id && !child) {
        nccl_task_answer(l, task, zipcclSystemError);
        return;
    }
    if (child)
        child->splitting = true;
    nccl_tasks_push(&l->waiting, task);
}

void nccl_launch_take(struct nccl_launcher *l, struct nccl_task *task) {
    const struct nccl_command *command = &task->command;
    struct nccl_made *comm = nccl_made_find(l, command->comm);
    switch ((enum nccl_what)command->what) {
    case NCCL_MAKE_ID:
        nccl_task_answer(l, task, make_id(l, task));
        return;
    case NCCL_LOOK:
        nccl_task_answer(l, task, look(l));
        return;
    case NCCL_MAKE:
        if (!l->stream || comm || !nccl_made_add(l, command->comm))
            nccl_task_answer(l, task, zipcclSystemError);
        else
            nccl_tasks_push(&l->waiting, task);
        return;
    case NCCL_SPLIT:
        take_split(l, task);
        return;
    case NCCL_LAUNCH:
    case NCCL_COLLECTIVE:
    case NCCL_ENROLL:
        nccl_tasks_push(&l->waiting, task);
        return;
    case NCCL_COPY:
        start_copy(l, task);
        return;
    case NCCL_LEAVE:
        if (comm)
            nccl_made_begin_to_leave(l, comm);
        nccl_tasks_push(&l->leaving, task);
        return;
    case NCCL_REVOKE:
        if (comm)
            nccl_made_revoke(l, comm);
        break;
    case NCCL_ABORT:
        if (comm)
            nccl_made_abort(l, comm);
        break;
    case NCCL_FAILED: /* not asked for */
        break;
    }
    nccl_task_answer(l, task, zipcclSuccess);
}

bool nccl_launch_run(struct nccl_launcher *l) {
    bool busy = run_waiting(l);
    busy = land(l) || busy;
    busy = end_copies(l) || busy;
    return nccl_made_leave(l) || busy;
}

bool nccl_launch_is_busy(const struct nccl_launcher *l) {
    return l->waiting.head || l->flying.head || l->in_doubt.head || l->copying.head || l->leaving.head;
}

static void drop(struct nccl_launcher *l, struct nccl_tasks *tasks) {
    for (struct nccl_task *task; (task = nccl_tasks_pop(tasks));)
        nccl_task_answer(l, task, zipcclAborted);
}

void nccl_launch_end(struct nccl_launcher *l) {
    const struct nccl_command *split = nccl_made_splitting(l);
    const uint64_t parent = split ? split->comm : 0;
    for (struct nccl_made *comm = l->comms; comm; comm = comm->next)
        nccl_made_revoke(l, comm);
    for (struct nccl_made *comm = l->comms, *next; comm; comm = next) {
        next = comm->next;
        if (comm->id == parent) /* first: it ends the split */
            nccl_made_abort(l, comm);
    }
    for (struct nccl_made *comm = l->comms; comm; comm = comm->next)
        comm->splitting = false;
    while (l->comms)
        nccl_made_abort(l, l->comms);
    drop(l, &l->leaving);
    drop(l, &l->waiting);
    /* What is in the air ends, for its communicators were aborted: its memory is freed next. */
    for (uint64_t limit = nccl_now_ns() + NCCL_LEAVE_NS;
         (l->flying.head || l->copying.head) && nccl_now_ns() < limit;) {
        (void)land(l);
        (void)end_copies(l);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    drop(l, &l->flying);
    drop(l, &l->in_doubt);
    drop(l, &l->copying);
}
