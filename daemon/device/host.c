/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device: worker threads, and the way of finished jobs back to the loop. What waits: host_queue.c.
 *
 * Workers are woken one at a time, each wakes the next while work is left; the loop's eventfd is written only when the
 * list of finished jobs was empty.
 */
#include "daemon/device/host.h"
#include "daemon/device/job_queue.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/slice.h"
#include "kernels/codec.h"

#define MAX_WORKERS     64u
#define DEFAULT_WORKERS 4u

struct worker {
    struct device *device;
    pthread_t thread;
    struct heartbeat heartbeat;
    struct host_scratch scratch;
};

struct device {
    struct device_config config;
    struct host_pool pool;
    int event_fd;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct host_queue waiting; /* under lock, as all below */
    unsigned idle;
    bool stop;

    pthread_mutex_t done_lock;
    struct job_queue done;

    struct host_scratch inline_scratch; /* of the loop thread */
    unsigned nworkers;
    struct worker workers[MAX_WORKERS];
};

static void give_back(struct device *d, struct device_job *job) {
    pthread_mutex_lock(&d->done_lock);
    bool first = !d->done.head;
    job_queue_push(&d->done, job);
    pthread_mutex_unlock(&d->done_lock);
    if (first) {
        uint64_t one = 1;
        ssize_t n;
        do {
            n = write(d->event_fd, &one, sizeof(one));
        } while (n < 0 && errno == EINTR);
    }
}

static void *worker_main(void *arg) {
    struct worker *self = arg;
    struct device *d = self->device;
    slice_set(SLICE_LONG_NS);
    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct device_job *job = host_queue_take(&d->waiting);
        if (job) {
            if (d->idle > 0 && host_queue_waits(&d->waiting))
                pthread_cond_signal(&d->wake);
            pthread_mutex_unlock(&d->lock);
            heartbeat_work(&self->heartbeat);
            host_work_run(job, &self->scratch);
            give_back(d, job);
            heartbeat_idle(&self->heartbeat);
            pthread_mutex_lock(&d->lock);
        } else if (d->stop) {
            break;
        } else {
            d->idle++;
            pthread_cond_wait(&d->wake, &d->lock);
            d->idle--;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static unsigned online_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return (unsigned)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (unsigned)n : 1;
}

static void host_close(struct device *d) {
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->wake);
    pthread_mutex_unlock(&d->lock);
    for (unsigned i = 0; i < d->nworkers; i++)
        pthread_join(d->workers[i].thread, NULL);
    for (unsigned i = 0; i < MAX_WORKERS; i++)
        host_scratch_free(&d->workers[i].scratch);
    host_scratch_free(&d->inline_scratch);
    host_queue_free(&d->waiting);
    host_pool_drain(&d->pool);
    if (d->event_fd >= 0)
        close(d->event_fd);
    pthread_cond_destroy(&d->wake);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->done_lock);
    free(d);
}

static zipcclResult_t host_open(const struct device_config *config, struct device **device, const char **why) {
    *device = NULL;
    *why = "no memory, or no threads";
    struct device *d = calloc(1, sizeof(*d));
    if (!d)
        return zipcclOutOfMemory;
    d->config = *config;
    job_queue_init(&d->done);
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->done_lock, NULL);
    pthread_cond_init(&d->wake, NULL);
    d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->event_fd < 0 || !host_queue_init(&d->waiting) || !host_scratch_init(&d->inline_scratch))
        goto fail;
    unsigned want = config->workers, cpus = online_cpus();
    if (want == 0)
        want = cpus < DEFAULT_WORKERS ? cpus : DEFAULT_WORKERS;
    if (want > MAX_WORKERS)
        want = MAX_WORKERS;
    /* Signals belong to the loop. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (d->nworkers < want) {
        struct worker *w = &d->workers[d->nworkers];
        w->device = d;
        if (!host_scratch_init(&w->scratch) || pthread_create(&w->thread, NULL, worker_main, w) != 0)
            break;
        char name[16];
        snprintf(name, sizeof(name), "zipccl-work-%u", d->nworkers % 100);
        pthread_setname_np(w->thread, name);
        d->nworkers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (d->nworkers == 0)
        goto fail;
    *device = d;
    return zipcclSuccess;
fail:
    host_close(d);
    return zipcclSystemError;
}

static void *host_alloc(struct device *d, size_t bytes) {
    return host_pool_alloc(&d->pool, bytes);
}

static void host_free(struct device *d, void *ptr, size_t bytes) {
    host_pool_free(&d->pool, ptr, bytes);
}

static bool host_submit(struct device *d, struct device_job *job) {
    if (host_work_bytes(job) < d->config.inline_bytes) {
        host_work_run(job, &d->inline_scratch);
        return true;
    }
    pthread_mutex_lock(&d->lock);
    bool was_empty = !host_queue_waits(&d->waiting);
    host_queue_push(&d->waiting, job);
    /* Where work waits already, a worker is awake or on its way, and it wakes the next. */
    if (d->idle > 0 && was_empty)
        pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
    return false;
}

static struct device_flow *host_flow_open(struct device *d, uint32_t weight, enum flow_priority priority) {
    pthread_mutex_lock(&d->lock);
    struct device_flow *flow = host_queue_flow(&d->waiting, weight, priority);
    pthread_mutex_unlock(&d->lock);
    return flow;
}

static void host_flow_set(struct device *d, struct device_flow *flow, uint32_t weight, enum flow_priority priority) {
    pthread_mutex_lock(&d->lock);
    host_queue_set(&d->waiting, flow, weight, priority);
    pthread_mutex_unlock(&d->lock);
}

static void host_flow_close(struct device *d, struct device_flow *flow) {
    pthread_mutex_lock(&d->lock);
    host_queue_close(&d->waiting, flow);
    pthread_mutex_unlock(&d->lock);
}

static int host_fd(const struct device *d) {
    return d->event_fd;
}

static void host_poll(struct device *d) {
    uint64_t count;
    ssize_t n = read(d->event_fd, &count, sizeof(count));
    (void)n; /* nothing to read: the list says what there is */
    pthread_mutex_lock(&d->done_lock);
    struct device_job *done = job_queue_take(&d->done);
    pthread_mutex_unlock(&d->done_lock);
    job_list_done(done);
}

static void host_describe(const struct device *d, char *text, size_t size) {
    snprintf(text, size, "host: %u worker%s, %s", d->nworkers, d->nworkers == 1 ? "" : "s",
             codec_isa_name(codec_isa_current()));
}

static const struct heartbeat *host_heartbeat(const struct device *d, unsigned i) {
    return i < d->nworkers ? &d->workers[i].heartbeat : NULL;
}

const struct device_ops device_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .import = host_import,
    .release = host_release,
    .alloc = host_alloc,
    .free = host_free,
    .submit = host_submit,
    .flow_open = host_flow_open,
    .flow_set = host_flow_set,
    .flow_close = host_flow_close,
    .fd = host_fd,
    .poll = host_poll,
    .describe = host_describe,
    .heartbeat = host_heartbeat,
};
