/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL fabric as the loop sees it: which way a message takes, and its end.
 *
 * The sender decides: what lies in device memory, and what is larger than NCCL_SMALL_BYTES in memory that the device
 * can reach, goes by NCCL; everything else by UCX. A receive is posted to UCX in any case, with room for an
 * announcement.
 *
 * Rates, weights and priorities hold for all alike, by one clock of the link: UCX's (ucx_pace.c). It is told how large
 * the announced message is and lets the announcement go when the receiver has posted, as for a message of its own of
 * that size, and when the message's time on the link has come. Behind that everything goes at once: the launch, and
 * what the nodes tell each other about its place. To wait there would hold up all that comes later in the order, on
 * both GPUs; and to ask for the receive only then would charge the link with what cannot go. Without a rate UCX sends
 * an announcement at once, and nothing else.
 */
#include "daemon/fabric/nccl.h"
#include "daemon/fabric/ucx_flow.h"

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

static int index_of(const struct nccl_comm *comm, uint32_t gpu) {
    for (uint32_t i = 0; i < comm->ngpus; i++) {
        if (comm->gpus[i] == gpu)
            return (int)i;
    }
    return -1;
}

/* What memory that is, and which of the communicator's GPUs moves it: its own or, for host memory, any. */
static enum nccl_memory memory_of(const struct nccl_comm *comm, const void *p, uint32_t tag, uint32_t *gpu) {
    const struct nccl_gpus *gpus = &comm->fabric->gpus;
    uint32_t number = 0;
    int at;
    *gpu = comm->ngpus ? tag % comm->ngpus : 0;
    switch (gpus->ops->place(gpus->owner, p, &number)) {
    case NCCL_PLACE_GPU:
        at = index_of(comm, number);
        *gpu = (uint32_t)at;
        return at >= 0 ? NCCL_DEVICE : NCCL_FOREIGN;
    case NCCL_PLACE_PINNED:
        return NCCL_PINNED;
    default:
        return NCCL_PAGEABLE;
    }
}

static bool nccl_takes(struct fabric *f, uint64_t key, const void *values) {
    const struct nccl_comm *comm = nccl_comm_find(f, key);
    uint32_t gpu;
    if (!comm)
        return false;
    switch (memory_of(comm, values, 0, &gpu)) {
    case NCCL_PINNED:
        return true;
    case NCCL_DEVICE:
        return comm->ordered;
    case NCCL_PAGEABLE: /* has no way to or from a GPU's memory */
        return comm->plain || comm->ngpus == 0;
    default:
        return false;
    }
}

static bool nccl_takes_gpu(struct fabric *f, uint64_t key, unsigned gpu) {
    const struct nccl_comm *comm = nccl_comm_find(f, key);
    return comm && comm->ordered && !comm->over && index_of(comm, gpu) >= 0;
}

static bool is_registered(const struct nccl_comm *comm, const void *memory) {
    const struct nccl_gpus *gpus = &comm->fabric->gpus;
    return gpus->ops->registered && gpus->ops->registered(gpus->owner, comm->id, memory);
}

static void put_send(struct fabric *f, struct nccl_send *send) {
    if (!send->announced || !send->ended)
        return;
    send->next = f->spare_sends;
    f->spare_sends = send;
}

void nccl_send_end(struct fabric *f, struct nccl_send *send, zipcclResult_t result) {
    send->result = result;
    send->next = NULL;
    *f->ended_sends_tail = send;
    f->ended_sends_tail = &send->next;
    nccl_wake(f);
}

void nccl_recv_end(struct fabric *f, struct nccl_recv *recv, zipcclResult_t result) {
    recv->result = result;
    recv->next = NULL;
    *f->ended_recvs_tail = recv;
    f->ended_recvs_tail = &recv->next;
    nccl_wake(f);
}

/* ---- sends ---- */

/* Takes a send out of those that wait for their receive. */
static bool take_announced(struct nccl_send *send) {
    for (uint32_t i = 0; i < send->comm->nnodes; i++) {
        for (struct nccl_send **p = &send->comm->peers[i].announced; *p; p = &(*p)->next) {
            if (*p == send) {
                *p = send->next;
                return true;
            }
        }
    }
    return false;
}

static void announced(struct fabric_send *below, zipcclResult_t result) {
    struct nccl_send *send = below->arg;
    struct fabric *f = send->comm->fabric;
    send->announced = true;
    if (result && take_announced(send))
        nccl_send_end(f, send, result);
    nccl_comm_release(send->comm);
    put_send(f, send);
}

static struct nccl_send *get_send(struct fabric *f) {
    struct nccl_send *send = f->spare_sends;
    if (send) {
        f->spare_sends = send->next;
    } else if ((send = calloc(1, sizeof(*send)))) {
        send->next_of_all = f->all_sends;
        f->all_sends = send;
    }
    return send;
}

static struct nccl_peer *peer_of(struct nccl_comm *comm, const struct fabric_peer *endpoint) {
    for (uint32_t i = 0; i < comm->nnodes; i++) {
        if (i != comm->node && comm->peers[i].endpoint == endpoint)
            return &comm->peers[i];
    }
    return NULL;
}

static void announce(struct nccl_send *send) {
    send->announced = false;
    send->comm->users++;
    fabric_ucx.send(send->comm->fabric->below, &send->announce);
}

/* Announces what was held, or sends it by UCX. */
void nccl_send_held(struct nccl_comm *comm) {
    for (uint32_t i = 0; i < comm->nnodes; i++) {
        struct nccl_send **p = &comm->peers[i].announced;
        while (*p) {
            struct nccl_send *send = *p;
            if (!comm->plain || !send->held) {
                p = &send->next;
                if (send->held)
                    announce(send);
                send->held = false;
                continue;
            }
            *p = send->next;
            send->ended = true;
            ucx_flow_end(comm->fabric->below, send->user->flow, send->bytes, false); /* UCX counts it anew */
            fabric_ucx.send(comm->fabric->below, send->user);
            put_send(comm->fabric, send);
        }
    }
}

static void nccl_send(struct fabric *f, struct fabric_send *user) {
    struct nccl_comm *comm = nccl_comm_find(f, user->header.comm);
    struct nccl_peer *peer = comm ? peer_of(comm, user->peer) : NULL;
    size_t bytes[2] = {user->niov > 0 ? user->iov[0].bytes : 0, user->niov > 1 ? user->iov[1].bytes : 0};
    const void *first = bytes[0] > 0 ? user->iov[0].base : user->iov[1].base;
    uint32_t gpu = 0;
    enum nccl_memory memory = NCCL_PAGEABLE;
    if (peer && bytes[0] + bytes[1] > 0)
        memory = memory_of(comm, first, user->header.tag, &gpu);
    bool small = bytes[0] + bytes[1] <= NCCL_SMALL_BYTES;
    if (memory == NCCL_PAGEABLE || (memory == NCCL_PINNED && (small || comm->plain || comm->ngpus == 0))) {
        fabric_ucx.send(f->below, user);
        return;
    }
    /* What the fabric does not take may not come here. */
    bool refused = memory == NCCL_FOREIGN || (memory == NCCL_DEVICE && comm->plain);
    struct nccl_send *send = refused ? NULL : get_send(f);
    if (!send) {
        user->done(user, refused ? zipcclInvalidUsage : zipcclOutOfMemory);
        return;
    }
    send->user = user;
    send->comm = comm;
    send->announced = true;
    send->ended = false;
    send->held = !comm->ordered && memory != NCCL_DEVICE;
    send->enrolled = false;
    send->body = (struct nccl_announcement){++f->ids, {bytes[0], bytes[1]}, gpu, 0};
    send->bytes = bytes[0] + bytes[1];
    ucx_flow_begin(user->flow, send->bytes);
    if (memory == NCCL_DEVICE) /* two pieces are of one chunk */
        send->body.enrolled = is_registered(comm, first);
    if (comm->over || peer->left) {
        nccl_send_end(f, send, comm->over ? comm->reason : zipcclAborted);
        return;
    }
    struct nccl_send **at = &peer->announced;
    while (*at)
        at = &(*at)->next;
    send->next = NULL;
    *at = send;
    memset(&send->announce, 0, sizeof(send->announce));
    send->announce.peer = user->peer;
    send->announce.flow = user->flow;
    send->announce.carried = send->bytes;
    send->announce.header = user->header;
    send->announce.header.flags |= NCCL_ANNOUNCED;
    send->announce.iov[0] = (struct fabric_iov){&send->body, sizeof(send->body)};
    send->announce.niov = 1;
    send->announce.done = announced;
    send->announce.arg = send;
    if (!send->held)
        announce(send);
}

/* ---- receives ---- */

static void tell_drop(struct nccl_comm *comm, uint32_t node, uint64_t id) {
    struct nccl_control control = {.kind = NCCL_DROP, .n = 1, .ids = {id}};
    nccl_comm_tell(comm, node, &control);
}

static zipcclResult_t take_announcement(struct nccl_recv *recv) {
    struct fabric_recv *user = recv->user;
    struct nccl_comm *comm = recv->comm;
    uint32_t node = user->header.node;
    if (recv->below.bytes != sizeof(recv->body) || node >= comm->nnodes || node == comm->node)
        return zipcclCorruptData;
    memmove(&recv->body, recv->below.buffer, sizeof(recv->body));
    if (recv->below.buffer == user->buffer)
        memcpy(user->buffer, recv->saved, sizeof(recv->saved)); /* the message may be shorter */
    uint64_t total = recv->body.bytes[0] + recv->body.bytes[1];
    if (comm->over)
        return comm->reason;
    user->bytes = total;
    if (total < recv->body.bytes[0] || total > user->capacity || recv->memory == NCCL_PAGEABLE) {
        tell_drop(comm, node, recv->body.id);
        return total >= recv->body.bytes[0] && total <= user->capacity ? zipcclInvalidUsage : zipcclLimitExceeded;
    }
    recv->enrolled = recv->body.enrolled == 1 && recv->memory == NCCL_DEVICE && is_registered(comm, user->buffer);
    nccl_order_matched(comm, recv, node);
    return zipcclSuccess;
}

static void arrived(struct fabric_recv *below, zipcclResult_t result) {
    struct nccl_recv *recv = below->arg;
    struct fabric_recv *user = recv->user;
    struct fabric *f = recv->comm->fabric;
    user->header = below->header;
    user->header.flags &= (uint8_t)~NCCL_ANNOUNCED;
    user->bytes = below->bytes;
    if (result == zipcclSuccess && (below->header.flags & NCCL_ANNOUNCED)) {
        result = take_announcement(recv);
        if (result)
            nccl_recv_end(f, recv, result);
        return;
    }
    if (result != zipcclSuccess && recv->comm->over)
        result = recv->comm->reason;
    else if (result == zipcclLimitExceeded && below->bytes <= user->capacity)
        result = zipcclInvalidUsage; /* not this fabric's: too large for a bounce */
    else if (result == zipcclSuccess && below->bytes > user->capacity)
        result = zipcclLimitExceeded;
    if (result == zipcclSuccess && below->bytes > 0 && recv->memory == NCCL_DEVICE) {
        if (nccl_entry_copy(f, recv))
            return;
        result = zipcclOutOfMemory;
    }
    if (result == zipcclSuccess && below->bytes > 0 && below->buffer != user->buffer)
        memcpy(user->buffer, below->buffer, below->bytes);
    nccl_recv_end(f, recv, result);
}

/* With a bounce where it is for device memory; NULL: no memory. */
static struct nccl_recv *get_recv(struct fabric *f, bool bounce) {
    struct nccl_recv **at = &f->spare_recvs;
    while (*at && bounce && !(*at)->bounce)
        at = &(*at)->next;
    struct nccl_recv *recv = *at;
    if (recv) {
        *at = recv->next;
        return recv;
    }
    recv = calloc(1, sizeof(*recv));
    void *memory = NULL;
    if (recv && bounce && !(memory = f->gpus.ops->alloc(f->gpus.owner, NCCL_SMALL_BYTES))) {
        free(recv);
        return NULL;
    }
    if (recv) {
        recv->bounce = memory;
        recv->next_of_all = f->all_recvs;
        f->all_recvs = recv;
    }
    return recv;
}

static void nccl_recv(struct fabric *f, struct fabric_recv *user) {
    struct nccl_comm *comm = nccl_comm_find(f, user->comm);
    if (!comm) {
        fabric_ucx.recv(f->below, user);
        return;
    }
    uint32_t gpu = 0;
    enum nccl_memory memory = user->capacity > 0 ? memory_of(comm, user->buffer, user->tag, &gpu) : NCCL_PINNED;
    struct nccl_recv *recv = memory == NCCL_FOREIGN ? NULL : get_recv(f, memory == NCCL_DEVICE);
    if (!recv) {
        user->done(user, memory == NCCL_FOREIGN ? zipcclInvalidUsage : zipcclOutOfMemory);
        return;
    }
    recv->user = user;
    recv->comm = comm;
    recv->memory = memory;
    recv->gpu = gpu;
    comm->users++;
    if (comm->over) {
        nccl_recv_end(f, recv, comm->reason);
        return;
    }
    memset(&recv->below, 0, sizeof(recv->below));
    recv->below.peer = user->peer;
    recv->below.comm = user->comm;
    recv->below.node = user->node;
    recv->below.channel = user->channel;
    recv->below.seq = user->seq;
    recv->below.tag = user->tag;
    recv->below.buffer = user->buffer;
    recv->below.capacity = user->capacity;
    if (memory == NCCL_DEVICE) {
        recv->below.buffer = recv->bounce;
        recv->below.capacity = NCCL_SMALL_BYTES;
    } else if (user->capacity < sizeof(recv->body)) {
        recv->below.buffer = &recv->body;
        recv->below.capacity = sizeof(recv->body);
    } else {
        memcpy(recv->saved, user->buffer, sizeof(recv->saved));
    }
    recv->below.done = arrived;
    recv->below.arg = recv;
    fabric_ucx.recv(f->below, &recv->below);
}

/* ---- ends ---- */

static void tell_sends(struct fabric *f) {
    struct nccl_send *send = f->ended_sends;
    f->ended_sends = NULL;
    f->ended_sends_tail = &f->ended_sends;
    while (send) {
        struct nccl_send *next = send->next;
        struct fabric_send *user = send->user;
        zipcclResult_t result = send->result;
        const uint64_t moved = result ? 0 : send->body.bytes[0] + send->body.bytes[1];
        f->sent_bytes += moved;
        ucx_flow_end(f->below, user->flow, send->bytes, moved > 0);
        send->ended = true;
        put_send(f, send);
        user->done(user, result);
        send = next;
    }
}

static void tell_recvs(struct fabric *f) {
    struct nccl_recv *recv = f->ended_recvs;
    f->ended_recvs = NULL;
    f->ended_recvs_tail = &f->ended_recvs;
    while (recv) {
        struct nccl_recv *next = recv->next;
        struct fabric_recv *user = recv->user;
        zipcclResult_t result = recv->result;
        nccl_comm_release(recv->comm);
        recv->next = f->spare_recvs;
        f->spare_recvs = recv;
        user->done(user, result);
        recv = next;
    }
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
    tell_sends(f);
    tell_recvs(f);
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
