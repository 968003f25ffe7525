/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: creation, split, finalize, destroy, abort, revoke, and what is asked of them.
 *
 * A broken connection fails a communicator, but what it has on a stream stays there until it is aborted or revoked, as
 * kernels of the real library do.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "nccl_standin.h"

#define CONFIG_MAGIC 0xcafebeefu

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *all;

static struct ncclComm *comm_new(int nranks, int rank, const char *name, const ncclConfig_t *config) {
    struct ncclComm *comm = calloc(1, sizeof(*comm));
    int *fds = malloc(sizeof(int) * 2u * (size_t)nranks);
    if (!comm || !fds) {
        free(comm);
        free(fds);
        return NULL;
    }
    for (int i = 0; i < 2 * nranks; i++)
        fds[i] = -1;
    comm->out = fds;
    comm->in = fds + nranks;
    comm->rank = rank;
    comm->nranks = nranks;
    comm->listen = -1;
    comm->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    comm->blocking = !config || config->blocking != 0;
    snprintf(comm->name, sizeof(comm->name), "%s", name);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->turn, NULL);
    comm->device = standin_current_device();
    pthread_mutex_lock(&all_lock);
    comm->next = all;
    all = comm;
    pthread_mutex_unlock(&all_lock);
    return comm;
}

bool comm_is_known(const struct ncclComm *comm) {
    pthread_mutex_lock(&all_lock);
    const struct ncclComm *c = all;
    while (c && c != comm)
        c = c->next;
    pthread_mutex_unlock(&all_lock);
    return c != NULL;
}

bool comm_is_over(const struct ncclComm *comm) {
    return atomic_load(&comm->stopped) || atomic_load(&comm->revoked);
}

void comm_fail(struct ncclComm *comm, ncclResult_t result) {
    int before = atomic_load(&comm->state);
    while ((before == ncclSuccess || before == ncclInProgress) &&
           !atomic_compare_exchange_weak(&comm->state, &before, (int)result))
        ;
}

ncclResult_t comm_ready(const struct ncclComm *comm) {
    int state = atomic_load(&comm->state);
    if (state == ncclInProgress)
        set_error("the call before on this communicator has not ended: ask ncclCommGetAsyncError");
    return state == ncclInProgress ? ncclInvalidArgument : (ncclResult_t)state;
}

static void wait_turn(struct ncclComm *comm) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&comm->turn, &comm->lock, &until);
}

bool comm_take_turn(struct ncclComm *comm, uint64_t ticket) {
    pthread_mutex_lock(&comm->lock);
    while (comm->served != ticket && !comm_is_over(comm) && !standin_failed() && !standin_ending())
        wait_turn(comm);
    bool go = !comm_is_over(comm) && comm->served == ticket;
    comm->running += go;
    pthread_mutex_unlock(&comm->lock);
    if (!go)
        return false;
    ncclResult_t result = GATE("nccl");
    if (result != ncclSuccess)
        comm_fail(comm, result);
    return true;
}

/* Until the communicator is aborted or revoked. */
static void hang(struct ncclComm *comm) {
    struct pollfd fd = {.fd = comm->wake, .events = POLLIN};
    while (!comm_is_over(comm) && !standin_failed() && !standin_ending())
        poll(&fd, 1, LOOK_MS);
}

void comm_serve(struct ncclComm *comm, uint64_t ticket, bool ran) {
    int state = atomic_load(&comm->state);
    if (ran && state != ncclSuccess && state != ncclInProgress)
        hang(comm);
    pthread_mutex_lock(&comm->lock);
    comm->served = comm->served > ticket ? comm->served : ticket + 1;
    comm->running -= ran;
    pthread_cond_broadcast(&comm->turn);
    pthread_mutex_unlock(&comm->lock);
}

/* Until all launches are over, or the communicator is. */
static void drain(struct ncclComm *comm) {
    pthread_mutex_lock(&comm->lock);
    while (comm_is_over(comm) ? comm->running > 0 : comm->served != comm->tickets && !standin_failed())
        wait_turn(comm);
    pthread_mutex_unlock(&comm->lock);
}

static bool is_busy(struct ncclComm *comm) {
    pthread_mutex_lock(&comm->lock);
    bool busy = comm->served != comm->tickets;
    pthread_mutex_unlock(&comm->lock);
    return busy;
}

static void stop(struct ncclComm *comm, atomic_bool *flag) {
    uint64_t one = 1;
    pthread_mutex_lock(&comm->lock);
    atomic_store(flag, true);
    ssize_t n = write(comm->wake, &one, sizeof(one));
    (void)n;
    pthread_cond_broadcast(&comm->turn);
    pthread_mutex_unlock(&comm->lock);
}

static void *helper_main(void *arg) {
    struct ncclComm *comm = arg;
    ncclResult_t result = comm->work(comm);
    int in_progress = ncclInProgress;
    snprintf(comm->error, sizeof(comm->error), "%.150s", result ? ncclGetLastError(NULL) : "");
    if (result != ncclSuccess)
        comm_fail(comm, result);
    else
        atomic_compare_exchange_strong(&comm->state, &in_progress, ncclSuccess);
    return NULL;
}

ncclResult_t comm_wait(struct ncclComm *comm) {
    if (comm->has_helper)
        pthread_join(comm->helper, NULL);
    comm->has_helper = false;
    if (comm->error[0])
        set_error("%s", comm->error);
    return (ncclResult_t)atomic_load(&comm->state);
}

/* Work that is over later: now for a blocking communicator, at the end of the group in one. */
static ncclResult_t start(struct ncclComm *comm, ncclResult_t (*work)(struct ncclComm *)) {
    comm_wait(comm);
    comm->work = work;
    atomic_store(&comm->polls, 0);
    atomic_store(&comm->state, ncclInProgress);
    if (pthread_create(&comm->helper, NULL, helper_main, comm) != 0) {
        comm_fail(comm, ncclSystemError);
        return ncclSystemError;
    }
    comm->has_helper = true;
    if (group_is_open())
        return group_add_init(comm);
    return comm->blocking ? comm_wait(comm) : ncclInProgress;
}

static void close_comm(struct ncclComm *comm, enum life life) {
    disconnect(comm);
    free(comm->out);
    comm->out = comm->in = NULL;
    atomic_store(&comm->life, life);
}

static ncclResult_t check_config(const ncclConfig_t *config) {
    if (config && (config->magic != CONFIG_MAGIC || config->size == 0 || config->version > 30000)) {
        set_error("the configuration was not initialised by NCCL_CONFIG_INITIALIZER");
        return ncclInvalidArgument;
    }
    return ncclSuccess;
}

static ncclResult_t init(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank, const ncclConfig_t *config) {
    if (!out || nranks < 1 || nranks > MAX_RANKS || rank < 0 || rank >= nranks ||
        strncmp(id->internal, "zipccl-nccl-", 12) != 0 || !memchr(id->internal, 0, NAME_BYTES - 24)) {
        set_error("unique id, rank or number of ranks are wrong");
        return ncclInvalidArgument;
    }
    *out = NULL;
    ncclResult_t result = check_config(config);
    if (result != ncclSuccess)
        return result;
    struct ncclComm *comm = comm_new(nranks, rank, id->internal, config);
    if (!comm)
        return ncclSystemError;
    *out = comm;
    result = start(comm, bootstrap);
    if (result != ncclSuccess && result != ncclInProgress) {
        close_comm(comm, DESTROYED);
        *out = NULL;
    }
    return result;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config) {
    need_version("ncclCommInitRankConfig", 21400);
    ncclResult_t result = GATE("ncclCommInitRankConfig");
    return result ? result : init(comm, nranks, &id, rank, config);
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
    ncclResult_t result = GATE("ncclCommInitRank");
    return result ? result : init(comm, nranks, &id, rank, NULL);
}

struct place {
    int32_t color, key;
};

/* Exchanges what all said, then the new communicator's ranks meet by themselves. */
static ncclResult_t split(struct ncclComm *comm) {
    struct ncclComm *child = atomic_load(&comm->child);
    int n = comm->nranks;
    struct place *places = calloc((size_t)n, sizeof(*places));
    struct transfer *transfers = calloc((size_t)n * 2, sizeof(*transfers));
    ncclResult_t result = ncclSystemError;
    unsigned used = 0;
    drain(comm);
    if (!places || !transfers)
        goto out;
    places[comm->rank] = (struct place){comm->color, comm->key};
    for (int r = 0; r < n; r++) {
        struct transfer t = {.peer = r, .bytes = sizeof(struct place), .call = {.function = SPLIT}};
        if (r == comm->rank)
            continue;
        t.data = (uint8_t *)&places[r];
        transfers[used++] = t;
        t.data = (uint8_t *)&places[comm->rank];
        t.send = true;
        transfers[used++] = t;
    }
    result = ncclRemoteError;
    if (!exchange(comm, transfers, used))
        goto out;
    result = ncclSuccess;
    if (!child)
        goto out;
    child->rank = child->nranks = 0;
    for (int r = 0; r < n; r++) {
        bool before = places[r].key < comm->key || (places[r].key == comm->key && r < comm->rank);
        child->nranks += places[r].color == comm->color;
        child->rank += places[r].color == comm->color && before;
    }
    result = bootstrap(child);
    int in_progress = ncclInProgress;
    if (result == ncclSuccess)
        atomic_compare_exchange_strong(&child->state, &in_progress, ncclSuccess);
out:
    free(places);
    free(transfers);
    if (child && result != ncclSuccess)
        comm_fail(child, result);
    if (child) /* not before: NCCL gives it when all is over */
        __atomic_store_n(comm->newcomm, child, __ATOMIC_RELEASE);
    atomic_store(&comm->child, NULL);
    return result;
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config) {
    need_version("ncclCommSplit", 21801);
    ncclResult_t result = COMM_ENTER(comm, "ncclCommSplit");
    if (result != ncclSuccess)
        return result;
    char name[NAME_BYTES];
    if ((result = comm_ready(comm)) != ncclSuccess || (result = check_config(config)) != ncclSuccess)
        goto out;
    if (!newcomm || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
        result = ncclInvalidArgument;
        goto out;
    }
    if (is_busy(comm))
        rule_broken("split of an idle parent", "ncclCommSplit with operations under way, rank %d", comm->rank);
    *newcomm = NULL;
    comm->newcomm = newcomm;
    comm->color = color;
    comm->key = key;
    comm->nsplits++;
    if (color != NCCL_SPLIT_NOCOLOR) {
        snprintf(name, sizeof(name), "%.50s-%d-%d", comm->name, comm->nsplits, color);
        struct ncclComm *child = comm_new(comm->nranks, comm->rank, name, config);
        result = ncclSystemError;
        if (!child)
            goto out;
        if (!config || config->blocking == NCCL_CONFIG_UNDEF_INT)
            child->blocking = comm->blocking;
        atomic_store(&child->state, ncclInProgress);
        comm_wait(comm);
        atomic_store(&comm->child, child);
    }
    result = start(comm, split);
out:
    comm_leave(comm);
    return result;
}

static ncclResult_t finalize(struct ncclComm *comm) {
    unsigned used = 0;
    struct transfer *transfers = calloc((size_t)comm->nranks * 2, sizeof(*transfers));
    drain(comm);
    for (int r = 0; transfers && r < comm->nranks; r++) {
        struct transfer t = {.peer = r, .call = {.function = FINALIZE}};
        if (r == comm->rank)
            continue;
        transfers[used++] = t;
        t.send = true;
        transfers[used++] = t;
    }
    bool good = transfers && exchange(comm, transfers, used);
    free(transfers);
    return good ? ncclSuccess : ncclRemoteError;
}

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    need_version("ncclCommFinalize", 21400);
    ncclResult_t result = COMM_ENTER(comm, "ncclCommFinalize");
    if (result != ncclSuccess)
        return result;
    if (group_has_ops_of(comm))
        rule_broken("call in a group", "ncclCommFinalize of a communicator with operations in the open group");
    if (comm->finalized || atomic_load(&comm->revoked))
        result = ncclInvalidUsage;
    else if ((result = comm_ready(comm)) == ncclSuccess) {
        comm->finalized = true;
        result = start(comm, finalize);
    }
    comm_leave(comm);
    return result;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm)
        return ncclSuccess;
    ncclResult_t result = COMM_ENTER(comm, "ncclCommDestroy");
    if (result != ncclSuccess)
        return result;
    if (group_has_ops_of(comm))
        rule_broken("call in a group", "ncclCommDestroy of a communicator with operations in the open group");
    for (unsigned i = 0; i < MAX_REGISTRATION; i++) {
        if (comm->registered[i].id)
            rule_broken("registered memory", "ncclCommDestroy before ncclCommDeregister, rank %d", comm->rank);
    }
    comm_wait(comm);
    drain(comm);
    close_comm(comm, DESTROYED);
    comm_leave(comm);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (!comm)
        return ncclSuccess;
    ncclResult_t result = COMM_ENTER(comm, "ncclCommAbort");
    if (result != ncclSuccess)
        return result;
    if (group_has_ops_of(comm))
        rule_broken("call in a group", "ncclCommAbort of a communicator with operations in the open group");
    stop(comm, &comm->stopped);
    struct ncclComm *child = atomic_load(&comm->child);
    if (child)
        stop(child, &child->stopped);
    comm_wait(comm);
    drain(comm);
    close_comm(comm, ABORTED);
    comm_leave(comm);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
    need_version("ncclCommRevoke", 22807);
    ncclResult_t result = COMM_ENTER(comm, "ncclCommRevoke");
    if (result != ncclSuccess)
        return result;
    if (flags != NCCL_REVOKE_DEFAULT)
        result = ncclInvalidArgument;
    else
        stop(comm, &comm->revoked);
    comm_leave(comm);
    return result;
}

/* The one call that another thread may make at any time. */
EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    if (!comm || !state)
        return ncclInvalidArgument;
    if (!comm_is_known(comm))
        rule_broken("communicator", "ncclCommGetAsyncError gets a pointer that is no communicator");
    if (atomic_load(&comm->life) != LIVE)
        rule_broken(atomic_load(&comm->life) == ABORTED ? "use after abort" : "use after destroy",
                    "ncclCommGetAsyncError, rank %d", comm->rank);
    ncclResult_t result = GATE("ncclCommGetAsyncError");
    *state = (ncclResult_t)atomic_load(&comm->state);
    int in_progress = ncclInProgress;
    if (*state == ncclInProgress && atomic_load(&comm->polls) > 0 && atomic_fetch_sub(&comm->polls, 1) == 1)
        atomic_compare_exchange_strong(&comm->state, &in_progress, ncclSuccess);
    return result;
}

static ncclResult_t ask(ncclComm_t comm, struct standin_site *site, int *out) {
    ncclResult_t result = comm_enter(comm, site);
    if (result != ncclSuccess)
        return result;
    result = comm_ready(comm);
    if (!out)
        result = ncclInvalidArgument;
    comm_leave(comm);
    return result;
}

EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    static struct standin_site site = {.name = "ncclCommCount"};
    ncclResult_t result = ask(comm, &site, count);
    if (result == ncclSuccess)
        *count = comm->nranks;
    return result;
}

EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    static struct standin_site site = {.name = "ncclCommUserRank"};
    ncclResult_t result = ask(comm, &site, rank);
    if (result == ncclSuccess)
        *rank = comm->rank;
    return result;
}

EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    static struct standin_site site = {.name = "ncclCommCuDevice"};
    ncclResult_t result = ask(comm, &site, device);
    if (result == ncclSuccess)
        *device = comm->device;
    return result;
}
