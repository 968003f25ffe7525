/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings, and descriptors over the socket. See channel.h.
 */
#include "daemon/worker/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST_FDS 4u

bool worker_channel_open(struct worker_channel *c) {
    *c = (struct worker_channel){.shared_fd = -1, .worker_event = -1, .daemon_event = -1, .socket = -1};
    c->shared_fd = memfd_create("zipccl-worker", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    c->worker_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->daemon_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->shared_fd < 0 || c->worker_event < 0 || c->daemon_event < 0 ||
        ftruncate(c->shared_fd, sizeof(*c->shared)) != 0 ||
        fcntl(c->shared_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return false;
    void *shared = mmap(NULL, sizeof(*c->shared), PROT_READ | PROT_WRITE, MAP_SHARED, c->shared_fd, 0);
    if (shared == MAP_FAILED)
        return false;
    c->shared = shared;
    return true;
}

void worker_event_read(int event) {
    uint64_t count;
    ssize_t n = read(event, &count, sizeof(count));
    (void)n; /* nothing to read: nobody was woken */
}

static void ring_reset(struct worker_ring *r) {
    atomic_store(&r->tail, 0);
    atomic_store(&r->head, 0);
    atomic_store(&r->sleeping, 0);
}

void worker_channel_reset(struct worker_channel *c) {
    ring_reset(&c->shared->to_worker);
    ring_reset(&c->shared->to_daemon);
    for (unsigned i = 0; i < WORKER_BEATS; i++)
        atomic_store(&c->shared->beats[i].count, 0);
    worker_event_read(c->worker_event);
    worker_event_read(c->daemon_event);
}

void worker_channel_close(struct worker_channel *c) {
    int fds[] = {c->shared_fd, c->worker_event, c->daemon_event, c->socket};
    if (c->shared)
        munmap(c->shared, sizeof(*c->shared));
    for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    *c = (struct worker_channel){.shared_fd = -1, .worker_event = -1, .daemon_event = -1, .socket = -1};
}

static unsigned used(const struct worker_ring *r) {
    return atomic_load_explicit(&r->tail, memory_order_acquire) - atomic_load_explicit(&r->head, memory_order_acquire);
}

unsigned worker_ring_room(const struct worker_ring *r) {
    unsigned n = used(r);
    return n < WORKER_RING_RECORDS ? WORKER_RING_RECORDS - n : 0;
}

bool worker_ring_empty(const struct worker_ring *r) {
    return used(r) == 0;
}

bool worker_ring_push(struct worker_ring *r, const struct worker_record *record, int event) {
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&r->head, memory_order_acquire) >= WORKER_RING_RECORDS)
        return false;
    r->records[tail % WORKER_RING_RECORDS] = *record;
    atomic_store(&r->tail, tail + 1); /* in one order with `sleeping`: one of the two sees the other */
    if (atomic_load(&r->sleeping) && atomic_exchange(&r->sleeping, 0)) {
        uint64_t one = 1;
        ssize_t n;
        do {
            n = write(event, &one, sizeof(one));
        } while (n < 0 && errno == EINTR);
    }
    return true;
}

bool worker_ring_pop(struct worker_ring *r, struct worker_record *record, bool *broken) {
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint32_t n = atomic_load_explicit(&r->tail, memory_order_acquire) - head;
    if (n == 0)
        return false;
    if (n > WORKER_RING_RECORDS) {
        *broken = true;
        return false;
    }
    *record = r->records[head % WORKER_RING_RECORDS]; /* a copy: it is checked after this */
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return true;
}

bool worker_ring_sleep(struct worker_ring *r) {
    atomic_store(&r->sleeping, 1);
    if (atomic_load(&r->tail) == atomic_load_explicit(&r->head, memory_order_relaxed))
        return true;
    atomic_store(&r->sleeping, 0);
    return false;
}

void worker_ring_wake(struct worker_ring *r) {
    atomic_store(&r->sleeping, 0);
}

static bool wait_for(int socket, short what, int timeout_ms) {
    struct pollfd p = {.fd = socket, .events = what};
    int n;
    do {
        n = poll(&p, 1, timeout_ms);
    } while (n < 0 && errno == EINTR);
    return n > 0 && (p.revents & what);
}

bool worker_socket_send(int socket, const void *data, size_t bytes, const int *fds, unsigned n, int timeout_ms) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (n > MOST_FDS)
        return false;
    if (n > 0) {
        memset(&control, 0, sizeof(control));
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(n * sizeof(int));
        control.head =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(n * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), fds, n * sizeof(int));
    }
    for (;;) {
        ssize_t sent = sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            return (size_t)sent == bytes;
        if (errno != EINTR && (errno != EAGAIN || !wait_for(socket, POLLOUT, timeout_ms)))
            return false;
    }
}

bool worker_socket_receive(int socket, void *data, size_t bytes, int *fds, unsigned n, int timeout_ms) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t got;
    unsigned have = 0;
    int found[MOST_FDS];
    while ((got = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0) {
        if (errno != EINTR && (errno != EAGAIN || !wait_for(socket, POLLIN, timeout_ms)))
            return false;
    }
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned here = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (unsigned i = 0; i < here && have < MOST_FDS; i++)
            memcpy(&found[have++], CMSG_DATA(h) + i * sizeof(int), sizeof(int));
    }
    bool good = (size_t)got == bytes && have == n && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
    for (unsigned i = 0; i < have; i++) {
        if (good)
            fds[i] = found[i];
        else
            close(found[i]);
    }
    return good;
}
