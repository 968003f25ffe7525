/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker process of a GPU: it does what the daemon tells it, with the CUDA module's device, until the GPU fails or
 * the daemon is gone. It takes no signals but those that end it, opens nothing by name, and keeps no descriptor but
 * its channel's.
 */
#include "daemon/worker/process.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "daemon/slice.h"
#include "daemon/worker/worker.h"

#define START_MS 20000
#define BEATS_MS 200 /* between looks at threads that are busy */
#define TURN     64u /* records before the device is looked after */

enum { EXIT_DAEMON_GONE = 0, EXIT_NOT_STARTED = 1, EXIT_GPU_FAILED = 3, EXIT_BROKEN = 4 };

void process_broken(const char *what) {
    fprintf(stderr, "zipccld --worker: what the daemon said makes no sense: %s\n", what);
    _exit(EXIT_BROKEN);
}

static void end_if_alone(struct process *p, int timeout_ms) {
    struct pollfd fd = {.fd = p->channel.socket, .events = POLLRDHUP};
    if (poll(&fd, 1, timeout_ms) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)))
        _exit(EXIT_DAEMON_GONE);
}

void process_tell(struct process *p, const struct worker_record *record) {
    while (!worker_ring_push(&p->channel.shared->to_daemon, record, p->channel.daemon_event))
        end_if_alone(p, 1);
}

void process_reply(struct process *p, uint32_t call, zipcclResult_t result, const char *why, const uint64_t value[2]) {
    struct worker_record r = {.type = WORKER_REPLY, .call = call, .reply = {.result = (uint32_t)result}};
    snprintf(r.reply.text, sizeof(r.reply.text), "%s", result != zipcclSuccess && why ? why : "");
    if (value)
        memcpy(r.reply.value, value, sizeof(r.reply.value));
    if (call)
        process_tell(p, &r);
}

static void tell_grown(struct process *p, uint64_t base, const struct process_memory *m) {
    struct worker_record r = {
        .type = WORKER_GROWN,
        .grown = {.base = base, .result = (uint32_t)m->result, .aliased = m->memory.alias != NULL}};
    snprintf(r.grown.text, sizeof(r.grown.text), "%s", m->result != zipcclSuccess && m->why ? m->why : "");
    process_tell(p, &r);
}

static void map(struct process *p, const struct worker_record *r) {
    int fd = -1;
    if (r->map.has_fd && !worker_socket_receive(p->channel.socket, &(uint8_t){0}, 1, &fd, 1, START_MS))
        process_broken("memory without its descriptor");
    if (ranges_find(&p->ranges, (const void *)(uintptr_t)r->map.base) || r->map.base == 0 || r->map.bytes == 0)
        process_broken("memory where there is some");
    struct process_memory *m = calloc(1, sizeof(*m));
    if (!m)
        process_broken("more memory than there is");
    m->range = (struct range){(uint8_t *)(uintptr_t)r->map.base, r->map.bytes};
    const struct device_import import = {.kind = (enum device_memory_kind)r->map.kind,
                                         .fd = fd,
                                         .offset = r->map.offset,
                                         .bytes = r->map.bytes,
                                         .handle = r->map.handle,
                                         .uuid = r->map.uuid,
                                         .pid = r->map.pid,
                                         .process_start = r->map.process_start,
                                         .id = r->map.id};
    m->result = p->ops->import(p->device, &import, &m->memory, &m->why);
    if (fd >= 0)
        close(fd);
    process_reply(p, r->call, m->result, m->why, NULL);
    if (import.kind == DEVICE_MEMORY_CUDA_OWN)
        tell_grown(p, r->map.base, m);
    /* The daemon forgets at once what it was told of; of other failures it hears with the first job. */
    if ((r->call || import.kind == DEVICE_MEMORY_CUDA_OWN) && m->result != zipcclSuccess)
        free(m);
    else if (!ranges_add(&p->ranges, &m->range))
        process_broken("more memory than there is");
}

static void unmap(struct process *p, const struct worker_record *r) {
    struct range *range = ranges_find(&p->ranges, (const void *)(uintptr_t)r->unmap.base);
    struct process_memory *m = (struct process_memory *)range;
    if (!range || (uint64_t)(uintptr_t)range->base != r->unmap.base)
        process_broken("the end of memory that is not known");
    ranges_remove(&p->ranges, range);
    if (m->result == zipcclSuccess)
        (void)p->ops->release(p->device, &m->memory, NULL);
    free(m);
    process_reply(p, r->call, zipcclSuccess, NULL, NULL);
}

static void stream_open(struct process *p, const struct worker_record *r) {
    if (p->opening.handles || r->stream.nevents == 0 || r->stream.nevents > WORKER_MAX_EVENTS)
        process_broken("a stream");
    p->opening.handles = malloc((size_t)r->stream.nevents * DEVICE_IPC_BYTES);
    if (!p->opening.handles)
        process_broken("more events than there is memory for");
    p->opening.number = r->stream.number;
    p->opening.nevents = r->stream.nevents;
    p->opening.have = 0;
    memcpy(p->opening.uuid, r->stream.uuid, sizeof(p->opening.uuid));
}

static void stream_events(struct process *p, const struct worker_record *r) {
    if (!p->opening.handles)
        process_broken("events of no stream");
    for (unsigned i = 0; i < WORKER_EVENTS_EACH && p->opening.have < p->opening.nevents; i++, p->opening.have++)
        memcpy(p->opening.handles + (size_t)p->opening.have * DEVICE_IPC_BYTES, r->events[i], DEVICE_IPC_BYTES);
    if (p->opening.have < p->opening.nevents)
        return;
    struct process_stream *s = calloc(1, sizeof(*s));
    if (!s)
        process_broken("more streams than there is memory for");
    const char *why = "";
    zipcclResult_t result =
        p->ops->stream_open(p->device, p->opening.uuid, p->opening.handles, p->opening.nevents, NULL, &s->stream, &why);
    free(p->opening.handles);
    p->opening.handles = NULL;
    s->number = p->opening.number;
    if (result == zipcclSuccess) {
        s->next = p->streams;
        p->streams = s;
    } else {
        free(s);
    }
    process_reply(p, r->call, result, why, NULL);
}

static void stream_close(struct process *p, const struct worker_record *r) {
    for (struct process_stream **at = &p->streams; *at; at = &(*at)->next) {
        struct process_stream *s = *at;
        if (s->number != r->stream.number)
            continue;
        *at = s->next;
        (void)p->ops->stream_close(s->stream, NULL);
        free(s);
        break;
    }
    process_reply(p, r->call, zipcclSuccess, NULL, NULL);
}

static void tell_opened(struct process *p, uint64_t number, zipcclResult_t result, const char *why) {
    struct worker_record r = {.type = WORKER_OPENED, .opened = {.number = number, .result = (uint32_t)result}};
    snprintf(r.opened.text, sizeof(r.opened.text), "%s", why ? why : "");
    process_tell(p, &r);
}

static void gate_opened(const struct device_gate *gate, zipcclResult_t result, const char *why) {
    tell_opened(gate->owner, gate->number, result, why);
}

static void gate(struct process *p, const struct worker_record *r) {
    const struct device_gate g = {.opened = gate_opened, .owner = p, .number = r->gate.number};
    zipcclResult_t result = zipcclInvalidArgument;
    for (struct process_stream *s = p->streams; s; s = s->next) {
        if (s->number == r->gate.stream)
            result = p->ops->stream_gate(s->stream, r->gate.event, &g);
    }
    if (result != zipcclSuccess)
        tell_opened(p, r->gate.number, result, "the device cannot wait for it");
}

static void measure(struct process *p, const struct worker_record *r) {
    uint64_t bps[2] = {0, 0};
    bool good = p->ops->measure(p->device, &bps[0], &bps[1]);
    process_reply(p, r->call, good ? zipcclSuccess : zipcclUnhandledDeviceError, "it cannot be measured", bps);
}

static void ping(struct process *p, const struct worker_record *r) {
    process_reply(p, r->call, zipcclSuccess, NULL, NULL);
}

static void handle(struct process *p, const struct worker_record *r) {
    static void (*const handlers[])(struct process *, const struct worker_record *) = {
        [WORKER_MAP] = map,
        [WORKER_UNMAP] = unmap,
        [WORKER_JOB] = process_job,
        [WORKER_INPUTS] = process_inputs,
        [WORKER_STREAM_OPEN] = stream_open,
        [WORKER_EVENTS] = stream_events,
        [WORKER_STREAM_CLOSE] = stream_close,
        [WORKER_GATE] = gate,
        [WORKER_MEASURE] = measure,
        [WORKER_PING] = ping,
        [WORKER_NCCL] = process_nccl,
        [WORKER_LAUNCH] = process_launch,
        [WORKER_OPS] = process_ops,
        [WORKER_LAUNCH_END] = process_launch_end,
        [WORKER_LAUNCH_CLOSE] = process_launch_close,
    };
    if (r->type >= sizeof(handlers) / sizeof(handlers[0]))
        process_broken("an unknown record");
    handlers[r->type](p, r);
}

void process_failed(struct process *p, const char *why) {
    struct worker_record r = {.type = WORKER_FAILED, .reply = {.result = zipcclUnhandledDeviceError}};
    snprintf(r.reply.text, sizeof(r.reply.text), "%s", why);
    process_tell(p, &r);
    _exit(EXIT_GPU_FAILED);
}

/* The process that has an error that stays is of no use: the next one begins anew. */
void process_end_if_failed(struct process *p) {
    struct device_gpu gpu;
    for (unsigned i = 0; p->ops->gpu(p->device, i, &gpu); i++) {
        if (gpu.failed)
            process_failed(p, gpu.failed);
    }
}

/* Whether one of the device's threads is busy. */
static bool show_beats(struct process *p) {
    const struct heartbeat *h;
    bool busy = false;
    for (unsigned i = 0; i + 1 < WORKER_BEATS && (h = p->ops->heartbeat(p->device, i)) != NULL; i++) {
        uint64_t count = heartbeat_read(h);
        atomic_store_explicit(&p->channel.shared->beats[i + 1].count, count, memory_order_relaxed);
        busy = busy || heartbeat_busy(count);
    }
    return busy;
}

static void loop(struct process *p) {
    struct worker_ring *ring = &p->channel.shared->to_worker;
    struct heartbeat *own = &p->channel.shared->beats[0];
    struct pollfd fds[] = {{.fd = p->channel.worker_event, .events = POLLIN},
                           {.fd = p->ops->fd(p->device), .events = POLLIN},
                           {.fd = p->channel.socket, .events = POLLRDHUP},
                           {.fd = -1, .events = POLLIN}};
    struct worker_record record;
    bool broken = false;
    for (;;) {
        heartbeat_work(own);
        for (unsigned i = 0; i < TURN && worker_ring_pop(ring, &record, &broken); i++)
            handle(p, &record);
        if (broken)
            process_broken("its ring");
        if (fds[1].revents)
            p->ops->poll(p->device);
        if (fds[3].revents)
            process_launches_hear(p);
        fds[3].fd = p->launches.wake; /* from the first launch on */
        process_end_if_failed(p);
        bool busy = show_beats(p), sleeps = worker_ring_sleep(ring);
        if (sleeps)
            heartbeat_idle(own);
        if (poll(fds, 4, !sleeps ? 0 : busy ? BEATS_MS : -1) < 0)
            fds[0].revents = fds[1].revents = fds[2].revents = fds[3].revents = 0;
        worker_ring_wake(ring);
        if (fds[0].revents)
            worker_event_read(p->channel.worker_event);
        if (fds[2].revents & (POLLRDHUP | POLLHUP | POLLERR))
            return;
    }
}

/* Its channel, and what it is to do. */
static bool begin(struct process *p, int fd, struct worker_start *start) {
    int fds[3] = {-1, -1, -1};
    p->channel = (struct worker_channel){.socket = fd};
    if (!worker_socket_receive(fd, start, sizeof(*start), fds, 3, START_MS) ||
        start->record_bytes != WORKER_RECORD_BYTES)
        return false;
    p->channel.shared_fd = fds[0];
    p->channel.worker_event = fds[1];
    p->channel.daemon_event = fds[2];
    void *shared = mmap(NULL, sizeof(*p->channel.shared), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (shared == MAP_FAILED)
        return false;
    p->channel.shared = shared;
    /* The daemon's end is this one's, even if it is busy with the GPU just then. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != start->daemon)
        return false;
    return start->dumpable || prctl(PR_SET_DUMPABLE, 0) == 0;
}

static void tell_gpus(struct process *p) {
    struct device_gpu gpu;
    for (unsigned i = 0; p->ops->gpu(p->device, i, &gpu); i++) {
        struct worker_record r = {.type = WORKER_GPU, .gpu = {.ordinal = gpu.ordinal, .mps = gpu.mps}};
        memcpy(r.gpu.uuid, gpu.uuid, sizeof(r.gpu.uuid));
        memcpy(r.gpu.name, gpu.name, sizeof(r.gpu.name));
        process_tell(p, &r);
    }
}

int worker_run(int fd) {
    static struct process process; /* large */
    struct process *p = &process;
    struct worker_start start = {0};
    const char *why = "";
    if (!begin(p, fd, &start)) {
        fprintf(stderr, "zipccld --worker is started by zipccld alone\n");
        return EXIT_NOT_STARTED;
    }
    /* A terminal and systemd send theirs to all processes of the daemon, which drains first and ends its workers
     * itself.
     */
    static const int ignored[] = {SIGPIPE, SIGINT, SIGTERM, SIGHUP};
    for (unsigned i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        signal(ignored[i], SIG_IGN);
    char name[16];
    snprintf(name, sizeof(name), "zipccld-gpu%u", start.own_gpu - 1);
    (void)prctl(PR_SET_NAME, name); /* else it would be "exe" */
    slice_set(SLICE_SHORT_NS);
    const struct device_config config = {.workers = 1, .gpu_sms = start.gpu_sms, .own_gpu = start.own_gpu};
    zipcclResult_t result = device_load_cuda(&config, &p->ops, &p->device, &why);
    if (result == zipcclSuccess)
        tell_gpus(p);
    struct worker_record ready = {.type = WORKER_READY, .reply = {.result = (uint32_t)result}};
    snprintf(ready.reply.text, sizeof(ready.reply.text), "%s", result != zipcclSuccess ? why : "");
    process_tell(p, &ready);
    if (result != zipcclSuccess)
        return EXIT_NOT_STARTED;
    p->own_gpu = start.own_gpu - 1;
    p->launches.wake = -1;
    loop(p);
    process_launches_close(p);
    while (p->streams) {
        struct process_stream *s = p->streams;
        p->streams = s->next;
        (void)p->ops->stream_close(s->stream, NULL);
        free(s);
    }
    p->ops->close(p->device);
    return EXIT_DAEMON_GONE;
}
