/* SPDX-License-Identifier: Apache-2.0
 *
 * The device `cuda` of the daemon: a worker process for each GPU, and a host device for what touches none. No call of
 * CUDA is made in this process.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/worker/supervisor.h"
#include "daemon/worker/worker.h"

#define MEASURE_NS       60000000000ull
#define CLOSE_NS         2000000000ull
#define DEFAULT_LIMIT_MS 10000u
#define DEFAULT_REAP_MS  10000u
#define MOST_TEXTS       256u

/* Of descriptors; below: a worker's socket; from ID_EVENT on: its eventfd. */
enum { ID_HOST = WORKER_MAX, ID_NOTIFY, ID_TIMER, ID_EVENT };

uint64_t workers_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

const char *workers_text(struct device *d, const char *text) {
    for (struct text *t = d->texts; t; t = t->next) {
        if (strncmp(t->text, text, sizeof(t->text) - 1) == 0)
            return t->text;
    }
    struct text *t = d->ntexts < MOST_TEXTS ? calloc(1, sizeof(*t)) : NULL;
    if (!t)
        return "the GPU's worker has failed too often for its reasons to be kept: see the log";
    snprintf(t->text, sizeof(t->text), "%s", text);
    t->next = d->texts;
    d->texts = t;
    d->ntexts++;
    return t->text;
}

void workers_notify(struct device *d) {
    uint64_t one = 1;
    ssize_t n;
    if (d->looking) /* and will see it */
        return;
    do {
        n = write(d->notify_fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR);
}

static bool watch(struct device *d, int fd, uint32_t id) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = id};
    return fd >= 0 && epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool open_channel(struct device *d, struct worker *w) {
    return worker_channel_open(&w->channel) && watch(d, w->channel.daemon_event, ID_EVENT + w->ordinal);
}

/* A descriptor for each buffer is kept, for workers that come to need it. */
static void raise_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static void workers_close(struct device *d) {
    uint64_t end = workers_now_ns() + CLOSE_NS;
    for (unsigned i = 0; i < d->nworkers; i++)
        worker_dismiss(&d->workers[i]);
    for (unsigned i = 0; i < d->nworkers; i++)
        worker_close(&d->workers[i], end);
    scratch_close(d);
    workers_memory_free(d);
    workers_gates_free(d);
    workers_flows_free(d);
    if (d->host)
        device_host.close(d->host);
    while (d->texts) {
        struct text *t = d->texts;
        d->texts = t->next;
        free(t);
    }
    int fds[] = {d->timer_fd, d->notify_fd, d->epoll_fd};
    for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    free(d);
}

/* The first worker tells which GPUs there are; then the others start. */
static zipcclResult_t start_workers(struct device *d, const char **why) {
    static char text[WORKER_TEXT_BYTES];
    struct worker *first = &d->workers[0];
    worker_init(first, d, 0);
    d->nworkers = 1;
    d->discovering = true;
    *why = "no worker process can be started";
    if (!open_channel(d, first) || !worker_spawn(first))
        return zipcclSystemError;
    while (first->state == WORKER_STARTING || first->state == WORKER_DYING)
        worker_step(first);
    if (first->state != WORKER_UP || !first->known) {
        /* READY's own result; else it died before. */
        bool said = first->reply.type == WORKER_READY;
        snprintf(text, sizeof(text), "%s",
                 first->cause[0] ? first->cause : "the worker of the first GPU does not start");
        *why = text;
        zipcclResult_t result = (zipcclResult_t)first->reply.reply.result;
        return said && result != zipcclSuccess ? result : zipcclUnhandledDeviceError;
    }
    d->discovering = false;
    *why = "no worker process can be started";
    for (unsigned i = 1; i < d->nworkers; i++) {
        if (!open_channel(d, &d->workers[i]) || !worker_spawn(&d->workers[i]))
            return zipcclSystemError;
    }
    /* One that fails is tried again, and said in status. */
    for (unsigned i = 1; i < d->nworkers; i++) {
        const char *later;
        while (d->workers[i].state == WORKER_STARTING)
            worker_step(&d->workers[i]);
        (void)worker_await(&d->workers[i], &later);
    }
    return zipcclSuccess;
}

static zipcclResult_t workers_open(const struct device_config *config, struct device **device, const char **why) {
    *device = NULL;
    *why = "no memory";
    struct device *d = calloc(1, sizeof(*d));
    if (!d)
        return zipcclOutOfMemory;
    d->config = *config;
    d->timeout_ns = (config->worker_timeout_ms ? config->worker_timeout_ms : DEFAULT_LIMIT_MS) * 1000000ull;
    d->reap_ns = (config->worker_reap_ms ? config->worker_reap_ms : DEFAULT_REAP_MS) * 1000000ull;
    d->reap = config->reap ? config->reap : waitpid;
    d->epoll_fd = d->notify_fd = d->timer_fd = d->scratch.fd = -1;
    job_queue_init(&d->done);
    raise_descriptors();
    zipcclResult_t result = device_host.open(config, &d->host, why);
    if (result == zipcclSuccess) {
        d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        d->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        d->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        *why = "no memory, or no descriptors";
        result = zipcclSystemError;
        if (watch(d, device_host.fd(d->host), ID_HOST) && watch(d, d->notify_fd, ID_NOTIFY) &&
            watch(d, d->timer_fd, ID_TIMER) && scratch_open(d))
            result = start_workers(d, why);
    }
    if (result != zipcclSuccess) {
        workers_close(d);
        return result;
    }
    *device = d;
    return zipcclSuccess;
}

static int workers_fd(const struct device *d) {
    return d->epoll_fd;
}

static void read_count(int fd) {
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof(count));
    (void)n; /* nothing to read: the lists say what there is */
}

static void workers_poll(struct device *d) {
    struct epoll_event events[2 * WORKER_MAX + 4];
    d->looking = true;
    int n = epoll_wait(d->epoll_fd, events, sizeof(events) / sizeof(events[0]), 0);
    for (int i = 0; i < n; i++) {
        uint32_t id = events[i].data.u32;
        if (id == ID_NOTIFY) {
            read_count(d->notify_fd);
        } else if (id == ID_TIMER) {
            read_count(d->timer_fd);
            workers_tick(d);
        } else if (id >= ID_EVENT && id - ID_EVENT < d->nworkers) {
            worker_event_read(d->workers[id - ID_EVENT].channel.daemon_event);
        } else if (id < d->nworkers) {
            worker_look(&d->workers[id]); /* what it said last */
            worker_kill(&d->workers[id], "%s", "");
            workers_tick(d);
        }
    }
    for (unsigned i = 0; i < d->nworkers; i++)
        worker_look(&d->workers[i]);
    d->looking = false;
    device_host.poll(d->host);
    job_list_done(job_queue_take(&d->done));
    workers_errands_run(d);
    workers_gates_run(d);
}

static void workers_describe(const struct device *d, char *text, size_t size) {
    unsigned down = 0;
    const struct worker *bad = NULL;
    for (unsigned i = 0; i < d->nworkers; i++) {
        if (d->workers[i].state == WORKER_UP)
            continue;
        down++;
        bad = bad ? bad : &d->workers[i];
    }
    if (bad)
        snprintf(text, size, "cuda: %u of %u GPUs without a worker: %s", down, d->nworkers,
                 bad->why ? bad->why : "it starts");
    else
        snprintf(text, size, "cuda: %u GPU%s, %s, %s", d->nworkers, d->nworkers == 1 ? "" : "s", d->workers[0].name,
                 d->mps ? "MPS" : "no MPS: trainers' kernels and ours take turns");
}

static const struct heartbeat *workers_heartbeat(const struct device *d, unsigned i) {
    return i < d->nworkers ? &d->workers[i].channel.shared->beats[0] : device_host.heartbeat(d->host, i - d->nworkers);
}

static bool workers_on_gpu(const struct device *d, const void *ptr) {
    const struct memory *m = memory_of(d, ptr);
    return m && m->home;
}

static int workers_gpu_of(const struct device *d, const void *ptr) {
    const struct memory *m = memory_of(d, ptr);
    return m && m->home ? (int)m->home->ordinal : -1;
}

static int workers_gpu_number(const struct device *d, const uint8_t *uuid) {
    const struct worker *w = worker_of_uuid(d, uuid);
    return w ? (int)w->ordinal : -1;
}

static bool workers_measure(struct device *d, uint64_t *encode_bps, uint64_t *decode_bps) {
    struct worker *w = &d->workers[0];
    struct worker_record r = {.type = WORKER_MEASURE};
    const char *why;
    uint64_t limit = d->timeout_ns;
    if (!worker_await(w, &why))
        return false;
    d->timeout_ns = MEASURE_NS; /* it is one piece of work */
    bool good = worker_call(w, &r, MEASURE_NS, &why) == zipcclSuccess;
    d->timeout_ns = limit;
    *encode_bps = w->reply.reply.value[0];
    *decode_bps = w->reply.reply.value[1];
    return good && *encode_bps > 0 && *decode_bps > 0;
}

static bool workers_gpu(const struct device *d, unsigned i, struct device_gpu *out) {
    if (i >= d->nworkers)
        return false;
    const struct worker *w = &d->workers[i];
    *out = (struct device_gpu){.ordinal = i,
                               .mps = d->mps,
                               .worker = w->pid,
                               .restarts = w->restarts,
                               .pool_bytes = w->pool.bytes,
                               .pool_used_bytes = w->pool.used,
                               .pool_missed_bytes = w->pool.missed,
                               .failed = w->state == WORKER_UP ? NULL
                                         : w->why              ? w->why
                                                               : "its worker starts"};
    memcpy(out->uuid, w->uuid, sizeof(out->uuid));
    memcpy(out->name, w->name, sizeof(out->name));
    return true;
}

const struct device_ops device_workers = {
    .name = "cuda",
    .open = workers_open,
    .close = workers_close,
    .import = workers_import,
    .release = workers_release,
    .alloc = workers_alloc,
    .free = workers_free,
    .submit = workers_submit,
    .flow_open = workers_flow_open,
    .flow_set = workers_flow_set,
    .flow_close = workers_flow_close,
    .fd = workers_fd,
    .poll = workers_poll,
    .describe = workers_describe,
    .heartbeat = workers_heartbeat,
    .on_gpu = workers_on_gpu,
    .gpu_of = workers_gpu_of,
    .alloc_on = pool_alloc,
    .gpu_number = workers_gpu_number,
    .stream_open = workers_stream_open,
    .stream_gate = workers_stream_gate,
    .stream_close = workers_stream_close,
    .measure = workers_measure,
    .gpu = workers_gpu,
};

zipcclResult_t device_open(const char *name, const struct device_config *config, const struct device_ops **ops,
                           struct device **device, const char **why) {
    static const char nothing[] = "";
    const char *host_why;
    *why = nothing;
    if (strcmp(name, "host") != 0) {
        zipcclResult_t result = zipcclInvalidUsage;
        *ops = &device_workers;
        if (device_has_cuda(why))
            result = device_workers.open(config, device, why);
        if (result == zipcclSuccess)
            *why = nothing;
        if (result != zipcclInvalidUsage || strcmp(name, "auto") != 0)
            return result;
    }
    *ops = &device_host;
    zipcclResult_t result = device_host.open(config, device, &host_why);
    if (result != zipcclSuccess)
        *why = host_why;
    return result;
}
