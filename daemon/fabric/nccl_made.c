/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators as a GPU's launching side has them: how they are made, also by a split, and how they end.
 *
 * What comes of a split is there when the parent is ready again, and until then NCCL may write its handle: so it stays
 * until then, whatever happens to it. NCCL knows no other way to end a split than to abort the parent.
 */
#include "daemon/fabric/nccl_launcher.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(ncclUniqueId) == sizeof(struct nccl_unique), "size of an id");

zipcclResult_t nccl_result_of(ncclResult_t result) {
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

struct nccl_made *nccl_made_find(const struct nccl_launcher *l, uint64_t id) {
    struct nccl_made *comm = l->comms;
    while (comm && comm->id != id)
        comm = comm->next;
    return comm;
}

/* What NCCL says of a communicator: whether it is still busy with the last call, whether it failed. */
ncclResult_t nccl_made_state(const struct nccl_launcher *l, const struct nccl_made *comm) {
    ncclResult_t state = ncclSuccess, result = l->library->ncclCommGetAsyncError(comm->handle, &state);
    return nccl_is_bad(result) ? result : state;
}

struct nccl_made *nccl_made_add(struct nccl_launcher *l, uint64_t id) {
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
zipcclResult_t nccl_made_enroll(struct nccl_launcher *l, const struct nccl_command *command) {
    struct nccl_made *comm = nccl_made_find(l, command->comm);
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
const struct nccl_command *nccl_made_splitting(const struct nccl_launcher *l) {
    const struct nccl_task *head = l->begun ? l->waiting.head : NULL;
    return head && head->command.what == NCCL_SPLIT ? &head->command : NULL;
}

void nccl_made_revoke(struct nccl_launcher *l, struct nccl_made *comm) {
    const struct nccl_command *split = nccl_made_splitting(l);
    comm->broken = true;
    if (comm->splitting || (split && split->comm == comm->id))
        return;
    if (comm->handle && l->library->ncclCommRevoke)
        (void)l->library->ncclCommRevoke(comm->handle, NCCL_REVOKE_DEFAULT);
}

void nccl_made_abort(struct nccl_launcher *l, struct nccl_made *comm) {
    comm->broken = true;
    comm->doomed = comm->splitting;
    if (comm->doomed)
        return;
    if (comm->handle)
        (void)l->library->ncclCommAbort(comm->handle);
    free_comm(l, comm);
}

/* One that nothing happened to is finalized, with its other ranks, and destroyed. */
void nccl_made_begin_to_leave(struct nccl_launcher *l, struct nccl_made *comm) {
    comm->leaves = comm->splitting;
    if (comm->leaves) {
        comm->leave_by = nccl_now_ns() + NCCL_LEAVE_NS;
        return;
    }
    bool good = comm->made && comm->failure && nccl_made_state(l, comm) == ncclSuccess;
    if (good) {
        strike_out(l, comm);
        good = !nccl_is_bad(l->library->ncclCommFinalize(comm->handle));
    }
    comm->broken = true;
    comm->leave_by = good ? nccl_now_ns() + NCCL_LEAVE_NS : 0;
}

bool nccl_made_leave(struct nccl_launcher *l) {
    struct nccl_task *task = l->leaving.head;
    struct nccl_made *comm = task ? nccl_made_find(l, task->command.comm) : NULL;
    ncclResult_t state = ncclInternalError;
    if (!task)
        return false;
    if (comm && comm->leaves && comm->splitting && nccl_now_ns() < comm->leave_by)
        return false;
    if (comm && comm->leaves && !comm->splitting)
        nccl_made_begin_to_leave(l, comm);
    if (comm && comm->leave_by && !comm->splitting)
        state = nccl_made_state(l, comm);
    if (state == ncclInProgress && nccl_now_ns() < comm->leave_by)
        return false;
    (void)nccl_tasks_pop(&l->leaving);
    if (comm && comm->handle && state == ncclSuccess) {
        (void)l->library->ncclCommDestroy(comm->handle);
        comm->handle = NULL;
    }
    if (comm)
        nccl_made_abort(l, comm);
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
bool nccl_made_make(struct nccl_launcher *l, const struct nccl_command *command, zipcclResult_t *result) {
    struct nccl_made *comm = nccl_made_find(l, command->comm);
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
    if (!nccl_is_bad(state) && comm->handle)
        state = nccl_made_state(l, comm);
    if (state == ncclInProgress)
        return false;
    comm->made = state == ncclSuccess && comm->handle;
    *result = comm->made ? zipcclSuccess : nccl_is_bad(state) ? nccl_result_of(state) : zipcclInternalError;
    return true;
}

/* True: the parent's part of it is over, and *result as above. Then the handle is there, or never will be. */
static bool split_parent(struct nccl_launcher *l, const struct nccl_command *command, struct nccl_made *child,
                         zipcclResult_t *result) {
    struct nccl_made *parent = nccl_made_find(l, command->comm);
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
        if (nccl_is_bad(state)) {
            *result = nccl_result_of(state);
            return true;
        }
    }
    if (!parent)
        return true;
    state = nccl_made_state(l, parent);
    if (state == ncclRemoteError && parent->failed_at == 0)
        parent->failed_at = nccl_now_ns();
    if (state == ncclInProgress || (state == ncclRemoteError && nccl_now_ns() - parent->failed_at < NCCL_GRACE_NS))
        return false; /* others tell why, as in hear_failure */
    *result = nccl_result_of(state);
    return true;
}

/* Likewise. */
bool nccl_made_split(struct nccl_launcher *l, const struct nccl_command *command, zipcclResult_t *result) {
    struct nccl_made *child = command->branch.comm ? nccl_made_find(l, command->branch.comm) : NULL;
    if (!split_parent(l, command, child, result))
        return false;
    if (child && *result == zipcclSuccess) {
        ncclResult_t state =
            __atomic_load_n(&child->handle, __ATOMIC_ACQUIRE) ? nccl_made_state(l, child) : ncclInternalError;
        if (state == ncclInProgress)
            return false;
        child->made = state == ncclSuccess;
        *result = nccl_result_of(state);
    }
    if (child)
        child->splitting = false;
    if (child && child->doomed)
        nccl_made_abort(l, child);
    return true;
}
