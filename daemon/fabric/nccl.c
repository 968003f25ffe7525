/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL fabric as the loop sees it: its life, and what is UCX's as it is. Messages: nccl_messages.c.
 */
#include "daemon/fabric/nccl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

void nccl_wake(struct fabric *f) {
    uint64_t one = 1;
    ssize_t n;
    do {
        n = write(f->wake, &one, sizeof(one));
    } while (n < 0 && errno == EINTR);
}

static void nccl_poll(struct fabric *f) {
    uint64_t count;
    struct nccl_answer answer;
    ssize_t n = read(f->wake, &count, sizeof(count));
    (void)n; /* nothing to read: the lists say what there is */
    fabric_ucx.poll(f->below);
    for (unsigned i = 0; i < NCCL_MAX_GPUS; i++) {
        while (f->launchers[i] && f->gpus.ops->hear(f->launchers[i], &answer)) {
            if (answer.what == NCCL_LAUNCH || answer.what == NCCL_COLLECTIVE)
                nccl_entry_launched(f, &answer);
            else if (answer.what == NCCL_COPY)
                nccl_entry_copied(f, &answer);
            else
                nccl_comm_answer(f, &answer);
        }
    }
    nccl_split_tell(f); /* first: it knows why what comes of a split fails */
    nccl_messages_tell(f);
    nccl_native_tell(f);
}

/* ---- the rest of the seam ---- */

static void free_all(struct fabric *f) {
    while (f->all_sends) {
        struct nccl_send *send = f->all_sends;
        f->all_sends = send->next_of_all;
        free(send);
    }
    while (f->all_recvs) {
        struct nccl_recv *recv = f->all_recvs;
        f->all_recvs = recv->next_of_all;
        if (recv->bounce)
            f->gpus.ops->free(f->gpus.owner, recv->bounce, NCCL_SMALL_BYTES);
        free(recv);
    }
    while (f->all_letters) {
        struct nccl_letter *letter = f->all_letters;
        f->all_letters = letter->next_of_all;
        free(letter);
    }
}

static void nccl_close(struct fabric *f) {
    /* First: what is on the streams names memory that is freed below. */
    for (unsigned i = 0; i < NCCL_MAX_GPUS; i++) {
        if (f->launchers[i])
            f->gpus.ops->launcher_end(f->launchers[i]);
    }
    for (unsigned i = 0; i < NCCL_MAX_GPUS; i++) {
        if (f->launchers[i])
            f->gpus.ops->launcher_close(f->launchers[i]);
    }
    if (f->opened)
        fabric_ucx.close(f->below);
    nccl_comm_free_all(f);
    free_all(f);
    if (f->epoll >= 0)
        close(f->epoll);
    if (f->wake >= 0)
        close(f->wake);
    if (f->gpus_opened)
        f->gpus.ops->close(f->gpus.owner);
    free(f);
}

static bool watch(struct fabric *f, int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    return fd >= 0 && epoll_ctl(f->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static zipcclResult_t nccl_open(const struct fabric_config *config, struct fabric **fabric, const char **why) {
    *fabric = NULL;
    *why = "it needs device = cuda";
    if (!config->gpus)
        return zipcclInvalidUsage;
    *why = "out of memory";
    struct fabric *f = calloc(1, sizeof(*f));
    if (!f)
        return zipcclOutOfMemory;
    f->epoll = f->wake = -1;
    f->launched_tail = &f->launched;
    f->copying_tail = &f->copying;
    f->ended_sends_tail = &f->ended_sends;
    f->ended_recvs_tail = &f->ended_recvs;
    f->ended_collectives_tail = &f->ended_collectives;
    f->ended_splits_tail = &f->ended_splits;
    f->gpus = *config->gpus;
    zipcclResult_t result = f->gpus.ops->open(f->gpus.owner, &f->version, why);
    f->gpus_opened = result == zipcclSuccess;
    if (result)
        goto fail;
    f->link_rate_bits = config->link_rate_bits;
    result = fabric_ucx.open(config, &f->below, why);
    f->opened = result == zipcclSuccess;
    if (result)
        goto fail;
    result = zipcclSystemError;
    *why = "no descriptors left";
    f->epoll = epoll_create1(EPOLL_CLOEXEC);
    f->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->epoll < 0 || !watch(f, f->wake) || !watch(f, fabric_ucx.fd(f->below)))
        goto fail;
    *why = NULL;
    *fabric = f;
    return zipcclSuccess;
fail:
    nccl_close(f);
    return result;
}

static const void *nccl_address(const struct fabric *f, size_t *bytes) {
    return fabric_ucx.address(f->below, bytes);
}

static zipcclResult_t nccl_connect(struct fabric *f, const void *address, size_t bytes,
                                   const struct fabric_tokens *tokens, struct fabric_peer **peer) {
    return fabric_ucx.connect(f->below, address, bytes, tokens, peer);
}

static struct fabric_flow *nccl_flow_open(struct fabric *f, const struct fabric_share *share) {
    return fabric_ucx.flow_open(f->below, share);
}

static void nccl_flow_set(struct fabric *f, struct fabric_flow *flow, const struct fabric_share *share) {
    fabric_ucx.flow_set(f->below, flow, share);
}

static void nccl_flow_close(struct fabric *f, struct fabric_flow *flow) {
    fabric_ucx.flow_close(f->below, flow);
}

static void nccl_flow_bytes(const struct fabric_flow *flow, uint64_t *queued, uint64_t *sent) {
    fabric_ucx.flow_bytes(flow, queued, sent);
}

static void nccl_disconnect(struct fabric *f, struct fabric_peer *peer) {
    fabric_ucx.disconnect(f->below, peer);
}

static void nccl_abort(struct fabric *f, uint64_t key) {
    struct nccl_comm *comm = nccl_comm_find(f, key);
    if (comm)
        nccl_comm_end(comm, zipcclAborted);
    else
        fabric_ucx.abort(f->below, key);
}

static void nccl_forget(struct fabric *f, uint64_t key) {
    struct nccl_comm *comm = nccl_comm_find(f, key);
    if (comm)
        nccl_comm_forget(comm);
    else
        fabric_ucx.forget(f->below, key);
}

static const char *nccl_why(struct fabric *f, uint64_t key) {
    const struct nccl_comm *comm = nccl_comm_find(f, key);
    return comm ? comm->why : NULL;
}

static void nccl_set_link_rate(struct fabric *f, uint64_t bits) {
    f->link_rate_bits = bits;
    fabric_ucx.set_link_rate(f->below, bits);
}

static int nccl_fd(const struct fabric *f) {
    return f->epoll;
}

static void nccl_describe(const struct fabric *f, char *text, size_t size) {
    char below[96] = "";
    int v = f->version;
    fabric_ucx.describe(f->below, below, sizeof(below));
    snprintf(text, size, "nccl %d.%d.%d, %s", v / 10000, v / 100 % 100, v % 100, below);
}

static const struct heartbeat *nccl_heartbeat(const struct fabric *f) {
    return fabric_ucx.heartbeat(f->below);
}

static void nccl_counters(const struct fabric *f, uint64_t *sent_bytes, uint64_t *received_bytes) {
    fabric_ucx.counters(f->below, sent_bytes, received_bytes);
    *sent_bytes += f->sent_bytes;
    *received_bytes += f->received_bytes;
}

const struct fabric_ops fabric_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .address = nccl_address,
    .connect = nccl_connect,
    .disconnect = nccl_disconnect,
    .join = nccl_comm_join,
    .takes = nccl_takes,
    .takes_gpu = nccl_takes_gpu,
    .send = nccl_send,
    .recv = nccl_recv,
    .collective = nccl_native,
    .by_messages = nccl_native_by_messages,
    .split = nccl_split,
    .abort = nccl_abort,
    .why = nccl_why,
    .forget = nccl_forget,
    .set_link_rate = nccl_set_link_rate,
    .flow_open = nccl_flow_open,
    .flow_set = nccl_flow_set,
    .flow_close = nccl_flow_close,
    .flow_bytes = nccl_flow_bytes,
    .fd = nccl_fd,
    .poll = nccl_poll,
    .describe = nccl_describe,
    .heartbeat = nccl_heartbeat,
    .counters = nccl_counters,
};
