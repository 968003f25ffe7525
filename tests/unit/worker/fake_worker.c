/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_worker.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/worker/channel.h"

static struct worker_channel g_channel;
static const char *g_mode;

static void tell(const struct worker_record *r) {
    while (!worker_ring_push(&g_channel.shared->to_daemon, r, g_channel.daemon_event))
        (void)usleep(100);
}

static bool does(const char *mode) {
    return strcmp(g_mode, mode) == 0;
}

static void job(const struct worker_record *r) {
    struct worker_record done = {.type = WORKER_DONE, .done = {.slot = r->job.slot}};
    if (does("slot"))
        done.done.slot ^= 1;
    if (does("sizes"))
        done.done.out_static = 1u << 30;
    if (does("result"))
        done.done.result = 99;
    if (does("refuses")) {
        done.done.result = zipcclInvalidArgument;
        memset(done.done.text, 'x', sizeof(done.done.text)); /* without an end */
    }
    if (does("dies"))
        _exit(7);
    if (does("stops"))
        for (;;)
            pause();
    if (does("failed")) {
        const struct worker_record failed = {.type = WORKER_FAILED, .reply = {.text = "GPU 0 is broken"}};
        tell(&failed);
        _exit(3);
    }
    tell(&done);
    if (does("ring")) {
        struct worker_ring *ring = &g_channel.shared->to_daemon;
        atomic_store(&ring->tail, atomic_load(&ring->head) + 10 * WORKER_RING_RECORDS);
        tell(&done);
    }
}

/* A unique id is the sum of the bytes of all operations: so all must have come. */
static void launch(const struct worker_record *r) {
    static struct worker_record answer;
    static uint32_t missing;
    static uint64_t sum;
    if (r->type == WORKER_LAUNCH) {
        answer = (struct worker_record){.type = WORKER_ANSWER,
                                        .answer = {.comm = r->launch.comm, .number = r->launch.number}};
        missing = r->launch.nops;
        sum = 0;
        if (does("no-launch") && r->launch.what == NCCL_LAUNCH)
            _exit(7);
        if (does("fails") && r->launch.what == NCCL_LAUNCH) {
            const struct worker_record failed = {
                .type = WORKER_ANSWER,
                .answer = {.comm = r->launch.comm, .number = WORKER_UNASKED, .result = zipcclRemoteError}};
            tell(&failed);
        }
        answer.answer.number += does("wrong") ? 1000 : 0;
    }
    for (unsigned i = 0; r->type == WORKER_OPS && i < WORKER_OPS_EACH && missing > 0; i++, missing--)
        sum += r->ops[i].bytes;
    memcpy(answer.answer.unique.bytes, &sum, sizeof(sum));
    if (missing == 0)
        tell(&answer);
}

/* late: three at once. */
static void answer(struct worker_record reply) {
    static struct worker_record late[3];
    static unsigned n;
    if (does("denies")) {
        reply.reply.result = zipcclInvalidArgument;
        snprintf(reply.reply.text, sizeof(reply.reply.text), "no such handle");
    }
    if (does("late")) {
        late[n++] = reply;
        for (unsigned i = 0; n == 3 && i < n; i++)
            tell(&late[i]);
        n %= 3;
    } else if (!does("mute")) {
        tell(&reply);
    }
}

static void grow(const struct worker_record *r) {
    struct worker_record grown = {.type = WORKER_GROWN,
                                  .grown = {.base = r->map.base, .aliased = !does("one-address")}};
    if (does("no-memory")) {
        grown.grown.result = zipcclOutOfMemory;
        snprintf(grown.grown.text, sizeof(grown.grown.text), "it is full");
    }
    grown.grown.base += does("other-memory") ? 4096 : 0;
    tell(&grown);
}

static void handle(const struct worker_record *r) {
    const struct worker_record opened = {.type = WORKER_OPENED, .opened = {.number = r->gate.number}};
    const struct worker_record reply = {.type = WORKER_REPLY, .call = r->call, .reply = {.value = {5000000, 6000000}}};
    int fd;
    if (r->type == WORKER_MAP && r->map.has_fd &&
        worker_socket_receive(g_channel.socket, &(uint8_t){0}, 1, &fd, 1, 10000))
        close(fd);
    if (r->type == WORKER_MAP && r->map.kind == DEVICE_MEMORY_CUDA_OWN)
        grow(r);
    if (r->type == WORKER_JOB)
        job(r);
    if (r->type == WORKER_LAUNCH || r->type == WORKER_OPS)
        launch(r);
    if (r->type == WORKER_GATE && does("works"))
        tell(&opened);
    if (r->call)
        answer(reply);
}

int fake_worker_run(int fd) {
    struct worker_start start;
    int fds[3];
    bool broken = false;
    if (!worker_socket_receive(fd, &start, sizeof(start), fds, 3, 10000))
        return 1;
    void *shared = mmap(NULL, sizeof(*g_channel.shared), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (shared == MAP_FAILED)
        return 1;
    g_channel = (struct worker_channel){
        .shared = shared, .shared_fd = fds[0], .worker_event = fds[1], .daemon_event = fds[2], .socket = fd};
    g_mode = start.own_gpu == 1 ? getenv(FAKE_WORKER) : "works";
    if (does("exits"))
        return 9;
    for (uint32_t i = 0; i < 2 && !does("unready"); i++) {
        struct worker_record gpu = {.type = WORKER_GPU, .gpu = {.ordinal = i, .uuid = {(uint8_t)(i + 1)}}};
        snprintf(gpu.gpu.name, sizeof(gpu.gpu.name), "fake %u", i);
        tell(&gpu);
    }
    struct worker_record ready = {.type = WORKER_READY};
    if (does("unready"))
        ready.reply.result = zipcclInvalidUsage;
    snprintf(ready.reply.text, sizeof(ready.reply.text), "%s", does("unready") ? "no GPU: none here" : "");
    tell(&ready);
    for (;;) {
        struct worker_ring *ring = &g_channel.shared->to_worker;
        struct worker_record r;
        while (worker_ring_pop(ring, &r, &broken))
            handle(&r);
        struct pollfd p[] = {{.fd = g_channel.worker_event, .events = POLLIN}, {.fd = fd, .events = POLLRDHUP}};
        if (worker_ring_sleep(ring)) {
            (void)poll(p, 2, -1);
            worker_ring_wake(ring);
            worker_event_read(g_channel.worker_event);
        }
        if (p[1].revents)
            return 0;
    }
}
