/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves the messages of a launch, all at once, in order for each peer and direction. A message is its call, its data
 * and, the other way, one byte when the receiver has it.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "nccl_standin.h"

enum outcome { STUCK, MOVED, ENDED, LOST };

static const char *name_of(uint32_t function) {
    static const char *const names[] = {"?",         "Send/Recv", "Broadcast", "Reduce",  "AllReduce", "ReduceScatter",
                                        "AllGather", "AlltoAll",  "Gather",    "Scatter", "Finalize",  "Split"};
    return function < sizeof(names) / sizeof(names[0]) ? names[function] : names[0];
}

static void compare(const struct ncclComm *comm, const struct transfer *t, const struct call *theirs) {
    const struct call *ours = &t->call;
    if (ours->registered != theirs->registered)
        rule_broken("registered at both ends", "rank %d and rank %d: one uses registered memory, the other does not",
                    comm->rank, t->peer);
    if (memcmp(ours, theirs, sizeof(*ours)) != 0)
        rule_broken(
            "order of calls",
            "rank %d called %s (count %llu, dtype %u, op %u, root %u), rank %d called %s (count %llu, dtype %u, "
            "op %u, root %u)",
            comm->rank, name_of(ours->function), (unsigned long long)ours->count, ours->dtype, ours->op, ours->root,
            t->peer, name_of(theirs->function), (unsigned long long)theirs->count, theirs->dtype, theirs->op,
            theirs->root);
}

/* Header, then data. */
static enum outcome move(int fd, struct transfer *t, struct call *header) {
    bool in_header = t->moved < sizeof(*header);
    char *at = in_header ? (char *)header + t->moved : (char *)t->data + (t->moved - sizeof(*header));
    size_t left = in_header ? sizeof(*header) - t->moved : t->bytes + sizeof(*header) - t->moved;
    ssize_t n = t->send ? send(fd, at, left, MSG_NOSIGNAL) : recv(fd, at, left, 0);
    if (n > 0) {
        t->moved += (size_t)n;
        return MOVED;
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? STUCK : LOST;
}

static enum outcome acknowledge(int fd, struct transfer *t) {
    char byte = 1;
    ssize_t n = t->send ? recv(fd, &byte, 1, 0) : send(fd, &byte, 1, MSG_NOSIGNAL);
    if (n == 1) {
        t->acknowledged = true;
        return ENDED;
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? STUCK : LOST;
}

static enum outcome step(struct ncclComm *comm, struct transfer *t, struct call *arriving, struct pollfd *wait) {
    int fd = t->send ? comm->out[t->peer] : comm->in[t->peer];
    enum outcome outcome = MOVED;
    bool any = false;
    while (outcome == MOVED && t->moved < sizeof(t->call) + t->bytes) {
        bool in_header = t->moved < sizeof(t->call);
        outcome = move(fd, t, t->send ? &t->call : arriving);
        any = any || outcome == MOVED;
        if (!t->send && in_header && t->moved == sizeof(t->call))
            compare(comm, t, arriving);
    }
    bool all = outcome == MOVED;
    if (all)
        outcome = acknowledge(fd, t);
    *wait = (struct pollfd){.fd = fd, .events = t->send == all ? POLLIN : POLLOUT};
    return outcome == STUCK && any ? MOVED : outcome;
}

/* Whether an earlier message to or from the same peer is under way. */
static bool is_behind(const struct transfer *transfers, unsigned i) {
    for (unsigned k = 0; k < i; k++) {
        if (transfers[k].peer == transfers[i].peer && transfers[k].send == transfers[i].send &&
            !transfers[k].acknowledged)
            return true;
    }
    return false;
}

bool exchange(struct ncclComm *comm, struct transfer *transfers, unsigned n) {
    struct call *arriving = calloc(n + 1, sizeof(*arriving));
    struct pollfd *fds = calloc(n + 1, sizeof(*fds));
    unsigned left = n;
    bool good = arriving && fds;
    while (good && left > 0) {
        unsigned nfds = 0;
        bool moved = false;
        /* Before anything is moved: memory may be gone then. */
        if (comm_is_over(comm) || standin_failed() || standin_ending()) {
            good = false;
            break;
        }
        for (unsigned i = 0; i < n && good; i++) {
            if (transfers[i].acknowledged || is_behind(transfers, i))
                continue;
            enum outcome outcome = step(comm, &transfers[i], &arriving[i], &fds[nfds]);
            nfds += outcome == STUCK;
            moved = moved || outcome == MOVED || outcome == ENDED;
            left -= outcome == ENDED;
            good = outcome != LOST;
        }
        if (moved || !good || left == 0)
            continue;
        fds[nfds] = (struct pollfd){.fd = comm->wake, .events = POLLIN};
        poll(fds, nfds + 1, LOOK_MS);
    }
    free(arriving);
    free(fds);
    if (!good && !comm_is_over(comm))
        comm_fail(comm, ncclRemoteError);
    return good;
}
