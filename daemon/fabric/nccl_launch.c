/* SPDX-License-Identifier: Apache-2.0
 *
 * What a GPU's launching side does with NCCL, on one stream, in the order that it is told.
 *
 * Communicators do not block, so each call is asked for its end. A communicator is made when nothing is on the stream,
 * for it may synchronise the device; so it is by a split, which NCCL wants to be alone with the parent. What comes of
 * one is there when the parent is ready again; NCCL knows no other way to end a split than to abort the parent. A
 * revocation and an abort do not wait their turn: what is ahead of them may be
 * what they end. The loop has a communicator revoked on all GPUs (where this NCCL can) before it has it aborted on the
 * first: freeing it may wait for the device, and so for kernels that wait for another GPU's.
 */
#include "daemon/fabric/nccl_launcher.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(ncclUniqueId) == sizeof(struct nccl_unique), "size of an id");

#define LEAVE_NS 2000000000u
#define GRACE_NS 500000000u
#define PAUSE_NS 20000

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

static struct nccl_made *find(const struct nccl_launcher *l, uint64_t id) {
    struct nccl_made *comm = l->comms;
    while (comm && comm->id != id)
        comm = comm->next;
    return comm;
}

/* What NCCL says of a communicator: whether it is still busy with the last call, whether it failed. */
static ncclResult_t ask_state(const struct nccl_launcher *l, const struct nccl_made *comm) {
    ncclResult_t state = ncclSuccess, result = l->library->ncclCommGetAsyncError(comm->handle, &state);
    return is_bad(result) ? result : state;
}

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
    else if (state != ncclRemoteError || nccl_now_ns() - comm->failed_at > GRACE_NS)
        note_failure(l, comm, result_of(state));
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

/* ---- the life of a communicator ---- */

static struct nccl_made *add_comm(struct nccl_launcher *l, uint64_t id) {
    struct nccl_made *comm = calloc(1, sizeof(*comm));
    struct nccl_command none = {.comm = id, .what = NCCL_FAILED};
    struct nccl_task *failure = comm ? nccl_task_new(&none) : NULL;
    if (!failure) {
        free(comm);
        return NULL;
    }
    comm->id = id;
    comm->failure = failure;
    comm->next = l->comms;
    l->comms = comm;
    return comm;
}

/* What it launched may still be on the stream. */
static void free_comm(struct nccl_launcher *l, struct nccl_made *comm) {
    struct nccl_made **p = &l->comms;
    while (*p != comm)
        p = &(*p)->next;
    *p = comm->next;
    struct nccl_task *const lists[] = {l->flying.head, l->in_doubt.head};
    for (unsigned i = 0; i < 2; i++) {
        for (struct nccl_task *task = lists[i]; task; task = task->next)
            task->comm = task->comm == comm ? NULL : task->comm;
    }
    free(comm->failure);
    free((void *)comm->registered);
    free(comm);
}

/* Memory that NCCL may use without copies of its own. It wants the last call of the communicator to be over, which the
 * order of records sees to. */
static zipcclResult_t enroll(struct nccl_launcher *l, const struct nccl_command *command) {
    struct nccl_made *comm = find(l, command->comm);
    void *handle = NULL;
    if (!comm || comm->broken || !comm->made || !comm->failure)
        return zipcclAborted;
    if (!l->library->ncclCommRegister || !l->library->ncclCommDeregister)
        return zipcclInvalidUsage;
    void **grown = realloc((void *)comm->registered, (comm->nregistered + 1) * sizeof(*grown));
    if (!grown)
        return zipcclOutOfMemory;
    comm->registered = grown;
    /* Without an error and without a handle: it is set up to register nothing. */
    if (l->library->ncclCommRegister(comm->handle, (void *)(uintptr_t)command->ops[0].address, command->ops[0].bytes,
                                     &handle) != ncclSuccess ||
        !handle)
        return zipcclInvalidUsage;
    comm->registered[comm->nregistered++] = handle;
    return zipcclSuccess;
}

/* Before it is finalized. One that is aborted drops them itself. */
static void strike_out(struct nccl_launcher *l, struct nccl_made *comm) {
    while (comm->nregistered > 0)
        (void)l->library->ncclCommDeregister(comm->handle, comm->registered[--comm->nregistered]);
}

/* The split that is under way; NULL: none is. */
static const struct nccl_command *split_of(const struct nccl_launcher *l) {
    const struct nccl_task *head = l->begun ? l->waiting.head : NULL;
    return head && head->command.what == NCCL_SPLIT ? &head->command : NULL;
}

static void revoke(struct nccl_launcher *l, struct nccl_made *comm) {
    const struct nccl_command *split = split_of(l);
    comm->broken = true;
    if (comm->splitting || (split && split->comm == comm->id))
        return;
    if (comm->handle && l->library->ncclCommRevoke)
        (void)l->library->ncclCommRevoke(comm->handle, NCCL_REVOKE_DEFAULT);
}

static void abort_comm(struct nccl_launcher *l, struct nccl_made *comm) {
    comm->broken = true;
    comm->doomed = comm->splitting;
    if (comm->doomed)
        return;
    if (comm->handle)
        (void)l->library->ncclCommAbort(comm->handle);
    free_comm(l, comm);
}

/* One that nothing happened to is finalized, with its other ranks, and destroyed. */
static void begin_to_leave(struct nccl_launcher *l, struct nccl_made *comm) {
    comm->leaves = comm->splitting;
    if (comm->leaves) {
        comm->leave_by = nccl_now_ns() + LEAVE_NS;
        return;
    }
    bool good = comm->made && comm->failure && ask_state(l, comm) == ncclSuccess;
    if (good) {
        strike_out(l, comm);
        good = !is_bad(l->library->ncclCommFinalize(comm->handle));
    }
    comm->broken = true;
    comm->leave_by = good ? nccl_now_ns() + LEAVE_NS : 0;
}

static bool leave(struct nccl_launcher *l) {
    struct nccl_task *task = l->leaving.head;
    struct nccl_made *comm = task ? find(l, task->command.comm) : NULL;
    ncclResult_t state = ncclInternalError;
    if (!task)
        return false;
    if (comm && comm->leaves && comm->splitting && nccl_now_ns() < comm->leave_by)
        return false;
    if (comm && comm->leaves && !comm->splitting)
        begin_to_leave(l, comm);
    if (comm && comm->leave_by && !comm->splitting)
        state = ask_state(l, comm);
    if (state == ncclInProgress && nccl_now_ns() < comm->leave_by)
        return false;
    (void)nccl_tasks_pop(&l->leaving);
    if (comm && comm->handle && state == ncclSuccess) {
        (void)l->library->ncclCommDestroy(comm->handle);
        comm->handle = NULL;
    }
    if (comm)
        abort_comm(l, comm);
    nccl_task_answer(l, task, zipcclSuccess);
    return true;
}

static ncclConfig_t config_of(const struct nccl_launcher *l) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (l->library->version < NCCL_VERSION_CODE)
        config.version = (unsigned)l->library->version;
    return config;
}

/* True: it is over; *result, which was zipcclAborted, is set where it was not aborted. */
static bool make(struct nccl_launcher *l, const struct nccl_command *command, zipcclResult_t *result) {
    struct nccl_made *comm = find(l, command->comm);
    ncclResult_t state = ncclSuccess;
    if (!comm || comm->broken)
        return true;
    if (!l->begun) {
        if (l->flying.head)
            return false;
        ncclConfig_t config = config_of(l);
        ncclUniqueId unique;
        memcpy(&unique, &command->unique, sizeof(unique));
        state = l->library->ncclCommInitRankConfig(&comm->handle, (int)command->nranks, unique, (int)command->rank,
                                                   &config);
        l->begun = true;
    }
    if (!is_bad(state) && comm->handle)
        state = ask_state(l, comm);
    if (state == ncclInProgress)
        return false;
    comm->made = state == ncclSuccess && comm->handle;
    *result = comm->made ? zipcclSuccess : is_bad(state) ? result_of(state) : zipcclInternalError;
    return true;
}

/* True: the parent's part of it is over, and *result as above. Then the handle is there, or never will be. */
static bool split_parent(struct nccl_launcher *l, const struct nccl_command *command, struct nccl_made *child,
                         zipcclResult_t *result) {
    struct nccl_made *parent = find(l, command->comm);
    ncclResult_t state;
    if (!l->begun && (!parent || parent->broken || !parent->made || !l->library->ncclCommSplit))
        return true;
    if (!l->begun) {
        if (l->flying.head)
            return false;
        ncclConfig_t config = config_of(l);
        config.splitShare = 0; /* an abort of the one would be the other's too */
        state = l->library->ncclCommSplit(parent->handle, command->branch.color, command->branch.key,
                                          child ? &child->handle : &l->nobody, &config);
        l->begun = true;
        if (is_bad(state)) {
            *result = result_of(state);
            return true;
        }
    }
    if (!parent)
        return true;
    state = ask_state(l, parent);
    if (state == ncclRemoteError && parent->failed_at == 0)
        parent->failed_at = nccl_now_ns();
    if (state == ncclInProgress || (state == ncclRemoteError && nccl_now_ns() - parent->failed_at < GRACE_NS))
        return false; /* others tell why, as in hear_failure */
    *result = result_of(state);
    return true;
}

/* Likewise. */
static bool split(struct nccl_launcher *l, const struct nccl_command *command, zipcclResult_t *result) {
    struct nccl_made *child = command->branch.comm ? find(l, command->branch.comm) : NULL;
    if (!split_parent(l, command, child, result))
        return false;
    if (child && *result == zipcclSuccess) {
        ncclResult_t state =
            __atomic_load_n(&child->handle, __ATOMIC_ACQUIRE) ? ask_state(l, child) : ncclInternalError;
        if (state == ncclInProgress)
            return false;
        child->made = state == ncclSuccess;
        *result = result_of(state);
    }
    if (child)
        child->splitting = false;
    if (child && child->doomed)
        abort_comm(l, child);
    return true;
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
    if (is_bad(result))
        return result;
    for (unsigned i = 0; i < command->nops && !is_bad(result); i++)
        result = launch_op(l, &command->ops[i], handle);
    ncclResult_t end = l->library->ncclGroupEnd();
    return is_bad(result) ? result : end;
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
    struct nccl_made *comm = find(l, task->command.comm);
    ncclResult_t state = ncclSuccess;
    if (!l->begun && (!comm || comm->broken || !comm->made))
        return true;
    if (!l->begun) {
        state = task->command.what == NCCL_COLLECTIVE ? launch_collective(l, &task->command, comm->handle)
                                                      : launch_group(l, &task->command, comm->handle);
        l->begun = true;
    }
    /* A communicator that was aborted meanwhile may have something on the stream all the same. */
    if (!is_bad(state) && comm && !comm->broken)
        state = ask_state(l, comm);
    if (state == ncclInProgress && comm && !comm->broken)
        return false;
    if (comm && is_bad(state))
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
        result = enroll(l, &task->command);
    else if (task->command.what == NCCL_MAKE)
        over = make(l, &task->command, &result);
    else if (task->command.what == NCCL_SPLIT)
        over = split(l, &task->command, &result);
    else
        over = launch(l, task, &flies);
    if (!over)
        return false;
    l->begun = false;
    (void)nccl_tasks_pop(&l->waiting);
    if (flies)
        fly(l, task, find(l, task->command.comm));
    else
        nccl_task_answer(l, task, result);
    return true;
}

static void look_for_failures(struct nccl_launcher *l) {
    for (struct nccl_task *task = l->flying.head; task; task = task->next) {
        struct nccl_made *comm = task->comm;
        ncclResult_t state = !comm || comm->broken || !comm->failure ? ncclSuccess : ask_state(l, comm);
        if (is_bad(state))
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
        result = result_of(l->library->ncclGetUniqueId(&unique));
    memcpy(&task->answer.unique, &unique, sizeof(unique));
    return result;
}

static void take_split(struct nccl_launcher *l, struct nccl_task *task) {
    const uint64_t id = task->command.branch.comm;
    struct nccl_made *child = id && !find(l, id) ? add_comm(l, id) : NULL;
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
    struct nccl_made *comm = find(l, command->comm);
    switch ((enum nccl_what)command->what) {
    case NCCL_MAKE_ID:
        nccl_task_answer(l, task, make_id(l, task));
        return;
    case NCCL_LOOK:
        nccl_task_answer(l, task, look(l));
        return;
    case NCCL_MAKE:
        if (!l->stream || comm || !add_comm(l, command->comm))
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
            begin_to_leave(l, comm);
        nccl_tasks_push(&l->leaving, task);
        return;
    case NCCL_REVOKE:
        if (comm)
            revoke(l, comm);
        break;
    case NCCL_ABORT:
        if (comm)
            abort_comm(l, comm);
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
    return leave(l) || busy;
}

bool nccl_launch_is_busy(const struct nccl_launcher *l) {
    return l->waiting.head || l->flying.head || l->in_doubt.head || l->copying.head || l->leaving.head;
}

static void drop(struct nccl_launcher *l, struct nccl_tasks *tasks) {
    for (struct nccl_task *task; (task = nccl_tasks_pop(tasks));)
        nccl_task_answer(l, task, zipcclAborted);
}

void nccl_launch_end(struct nccl_launcher *l) {
    const struct nccl_command *split = split_of(l);
    struct nccl_made *parent = split ? find(l, split->comm) : NULL;
    for (struct nccl_made *comm = l->comms; comm; comm = comm->next)
        revoke(l, comm);
    if (parent) /* first: it ends the split */
        abort_comm(l, parent);
    for (struct nccl_made *comm = l->comms; comm; comm = comm->next)
        comm->splitting = false;
    while (l->comms)
        abort_comm(l, l->comms);
    drop(l, &l->leaving);
    drop(l, &l->waiting);
    /* What is in the air ends, for its communicators were aborted: its memory is freed next. */
    for (uint64_t limit = nccl_now_ns() + LEAVE_NS; (l->flying.head || l->copying.head) && nccl_now_ns() < limit;) {
        (void)land(l);
        (void)end_copies(l);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    drop(l, &l->flying);
    drop(l, &l->in_doubt);
    drop(l, &l->copying);
}
