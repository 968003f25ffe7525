/* SPDX-License-Identifier: Apache-2.0
 *
 * Unique ids, and how the ranks of a communicator find each other: abstract Unix sockets named by the id and the rank.
 */
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "nccl_standin.h"

#define ID_PREFIX "zipccl-nccl-"

struct hello {
    int32_t rank, nranks, version;
    char gpu[96]; /* host and device: no two ranks may share one */
};

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    uint64_t random[2];
    ncclResult_t result = GATE("ncclGetUniqueId");
    if (result != ncclSuccess)
        return result;
    if (!id)
        return ncclInvalidArgument;
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return ncclSystemError;
    memset(id, 0, sizeof(*id));
    snprintf(id->internal, sizeof(id->internal), ID_PREFIX "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return ncclSuccess;
}

static socklen_t set_address(struct sockaddr_un *address, const char *name, int rank) {
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    int n = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "%s-%d", name, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Moves all of it, or says false: the other side is gone, or this communicator is aborted. */
static bool move_all(struct ncclComm *comm, int fd, void *data, size_t bytes, bool send_it) {
    for (size_t moved = 0; moved < bytes;) {
        char *at = (char *)data + moved;
        ssize_t n = send_it ? send(fd, at, bytes - moved, MSG_NOSIGNAL) : recv(fd, at, bytes - moved, 0);
        if (n > 0) {
            moved += (size_t)n;
            continue;
        }
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            return false;
        struct pollfd fds[2] = {{.fd = fd, .events = send_it ? POLLOUT : POLLIN}, {.fd = comm->wake, .events = POLLIN}};
        poll(fds, 2, -1);
        if (fds[1].revents)
            return false;
    }
    return true;
}

/* One attempt; the descriptor, or -1. */
static int connect_to(const char *name, int rank) {
    struct sockaddr_un address;
    socklen_t length = set_address(&address, name, rank);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, length) != 0) {
        close(fd);
        return -1;
    }
    if (fd >= 0)
        fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void set_hello(const struct ncclComm *comm, struct hello *hello) {
    char bus[32] = "?", host[64] = "host";
    const char *given = getenv("NCCL_HOSTID");
    if (!given || !*given)
        gethostname(host, sizeof(host) - 1);
    if (cuDeviceGetPCIBusId(bus, sizeof(bus), comm->device) != CUDA_SUCCESS)
        snprintf(bus, sizeof(bus), "device %d", comm->device);
    *hello = (struct hello){.rank = comm->rank, .nranks = comm->nranks, .version = library_version()};
    snprintf(hello->gpu, sizeof(hello->gpu), "%.60s/%.31s", given && *given ? given : host, bus);
}

static ncclResult_t check_hello(const struct hello *mine, const struct hello *theirs) {
    if (theirs->nranks != mine->nranks)
        set_error("rank %d says %d ranks, rank %d says %d", mine->rank, mine->nranks, theirs->rank, theirs->nranks);
    else if (theirs->version != mine->version)
        set_error("rank %d runs version %d, rank %d version %d", mine->rank, mine->version, theirs->rank,
                  theirs->version);
    else if (strcmp(theirs->gpu, mine->gpu) == 0)
        set_error("Duplicate GPU detected: ranks %d and %d both on %s", mine->rank, theirs->rank, mine->gpu);
    else
        return ncclSuccess;
    return ncclInvalidUsage;
}

/* Accepts who calls; number of ranks that are connected to us afterwards. */
static int accept_some(struct ncclComm *comm, const struct hello *mine, int connected, ncclResult_t *result) {
    int fd;
    while ((fd = accept4(comm->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct hello theirs;
        if (!move_all(comm, fd, &theirs, sizeof(theirs), false) || theirs.rank < 0 || theirs.rank >= comm->nranks ||
            comm->in[theirs.rank] >= 0) {
            close(fd);
            continue;
        }
        comm->in[theirs.rank] = fd;
        connected++;
        theirs.gpu[sizeof(theirs.gpu) - 1] = '\0';
        ncclResult_t checked = check_hello(mine, &theirs);
        *result = checked != ncclSuccess ? checked : *result;
    }
    return connected;
}

static ncclResult_t connect_mesh(struct ncclComm *comm) {
    struct hello mine;
    ncclResult_t result = ncclSuccess;
    int connected = 0;
    set_hello(comm, &mine);
    for (;;) {
        int missing = 0;
        for (int r = 0; r < comm->nranks; r++) {
            if (r == comm->rank || comm->out[r] >= 0)
                continue;
            comm->out[r] = connect_to(comm->name, r);
            if (comm->out[r] < 0)
                missing++;
            else if (!move_all(comm, comm->out[r], &mine, sizeof(mine), true))
                return ncclRemoteError;
        }
        connected = accept_some(comm, &mine, connected, &result);
        if (missing == 0 && connected == comm->nranks - 1)
            return result;
        struct pollfd fds[2] = {{.fd = comm->listen, .events = POLLIN}, {.fd = comm->wake, .events = POLLIN}};
        poll(fds, 2, missing ? 2 : -1);
        if (fds[1].revents)
            return ncclInvalidUsage; /* aborted */
    }
}

ncclResult_t bootstrap(struct ncclComm *comm) {
    struct sockaddr_un address;
    socklen_t length = set_address(&address, comm->name, comm->rank);
    comm->listen = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (comm->listen < 0)
        return ncclSystemError;
    if (bind(comm->listen, (struct sockaddr *)&address, length) != 0 || listen(comm->listen, MAX_RANKS) != 0) {
        set_error("rank %d is there twice", comm->rank);
        return ncclInvalidUsage;
    }
    int32_t worst = connect_mesh(comm);
    /* All are told how all fared: nobody goes on alone. */
    int32_t mine = worst;
    for (int r = 0; r < comm->nranks; r++) {
        if (comm->out[r] >= 0 && !move_all(comm, comm->out[r], &mine, sizeof(mine), true))
            worst = worst ? worst : ncclRemoteError;
    }
    for (int r = 0; r < comm->nranks; r++) {
        int32_t theirs = ncclRemoteError;
        if (comm->in[r] < 0)
            continue;
        if (!move_all(comm, comm->in[r], &theirs, sizeof(theirs), false))
            theirs = ncclRemoteError;
        worst = worst ? worst : theirs;
    }
    close(comm->listen);
    comm->listen = -1;
    return (ncclResult_t)worst;
}

void disconnect(struct ncclComm *comm) {
    for (int r = 0; r < comm->nranks; r++) {
        if (comm->out[r] >= 0)
            close(comm->out[r]);
        if (comm->in[r] >= 0)
            close(comm->in[r]);
        comm->out[r] = comm->in[r] = -1;
    }
    if (comm->listen >= 0)
        close(comm->listen);
    if (comm->wake >= 0)
        close(comm->wake);
    comm->listen = comm->wake = -1;
}
