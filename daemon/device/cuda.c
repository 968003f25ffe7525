/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device: its GPUs, and the way of jobs to them and back.
 *
 * A job goes to the GPU whose memory it touches; what touches none is the host device's. Scratch is pinned host memory,
 * or in a pool on the GPU: kernels write coded parts straight into it, and read them from it, so that the fabric sends
 * them as they are.
 * A GPU's lanes are made at its first use: a daemon that serves one of eight takes memory of that one alone.
 */
#include "daemon/device/cuda.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/device/module.h"

void cuda_notify(struct device *d) {
    uint64_t one = 1;
    ssize_t n;
    do {
        n = write(d->event_fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR);
}

zipcclResult_t cuda_result(cudaError_t e) {
    return e == cudaSuccess                 ? zipcclSuccess
           : e == cudaErrorMemoryAllocation ? zipcclOutOfMemory
           : e == cudaErrorInvalidValue     ? zipcclInvalidArgument
                                            : zipcclUnhandledDeviceError;
}

/* An error that stays comes back from a call that has no reason to fail. */
bool cuda_gpu_check(struct cuda_gpu *gpu, cudaError_t error, const char *what) {
    if (atomic_load(&gpu->failed))
        return true;
    (void)cudaGetLastError();
    cudaError_t now = gpu->ready ? cudaStreamQuery(gpu->lanes[CUDA_COPY][0].stream) : cudaSuccess;
    if (now == cudaSuccess || now == cudaErrorNotReady)
        return false;
    snprintf(gpu->why, sizeof(gpu->why), "GPU %d (%s) failed at %s: %s (%d)", gpu->ordinal, gpu->name, what,
             cudaGetErrorString(error), (int)error);
    atomic_store(&gpu->failed, true);
    return true;
}

struct cuda_gpu *cuda_gpu_of_uuid(struct device *d, const uint8_t *uuid) {
    for (unsigned i = 0; i < d->ngpus; i++) {
        if (memcmp(d->gpus[i].uuid, uuid, DEVICE_UUID_BYTES) == 0)
            return &d->gpus[i];
    }
    return NULL;
}

int cuda_gpu_number(const struct device *d, const uint8_t *uuid) {
    for (unsigned i = 0; i < d->ngpus; i++) {
        if (memcmp(d->gpus[i].uuid, uuid, DEVICE_UUID_BYTES) == 0)
            return d->gpus[i].ordinal;
    }
    return -1;
}

zipcclResult_t cuda_gpu_ready(struct cuda_gpu *gpu, const char **why) {
    int least = 0, greatest = 0;
    *why = gpu->why;
    if (atomic_load(&gpu->failed))
        return zipcclUnhandledDeviceError;
    cudaError_t e = cudaSetDevice(gpu->ordinal);
    if (gpu->ready && e == cudaSuccess)
        return zipcclSuccess;
    if (e == cudaSuccess)
        e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    for (unsigned k = 0; e == cudaSuccess && k < CUDA_KINDS; k++) {
        for (unsigned i = 0; e == cudaSuccess && i < CUDA_LANES; i++)
            e = cuda_lane_init(&gpu->lanes[k][i], gpu, k == CUDA_COPY ? least : greatest);
    }
    if (e == cudaSuccess) {
        gpu->ready = true;
        return zipcclSuccess;
    }
    (void)cudaGetLastError();
    snprintf(gpu->why, sizeof(gpu->why), "GPU %d (%s) cannot be used: %s (%d)", gpu->ordinal, gpu->name,
             cudaGetErrorString(e), (int)e);
    if (gpu->ready)
        return cuda_result(e); /* its lanes may be in use */
    for (unsigned k = 0; k < CUDA_KINDS * CUDA_LANES; k++)
        cuda_lane_free(&gpu->lanes[k / CUDA_LANES][k % CUDA_LANES]);
    memset(gpu->lanes, 0, sizeof(gpu->lanes));
    (void)cudaGetLastError();
    return cuda_result(e);
}

/* What says that there is no GPU, as opposed to one that does not work. */
static bool means_none(cudaError_t e) {
    return e == cudaErrorStubLibrary || e == cudaErrorInsufficientDriver || e == cudaErrorNoDevice;
}

static zipcclResult_t find_gpus(struct device *d, const char **why) {
    static char text[256];
    int n = 0, mps = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    *why = text;
    if (means_none(e) || (e == cudaSuccess && n == 0)) {
        snprintf(text, sizeof(text), "no GPU: %s", e == cudaSuccess ? "the driver knows none" : cudaGetErrorString(e));
        return zipcclInvalidUsage;
    }
    for (int i = 0; e == cudaSuccess && i < n && d->ngpus < CUDA_MAX_GPUS; i++) {
        struct cudaDeviceProp p;
        struct cuda_gpu *gpu = &d->gpus[d->ngpus];
        if ((e = cudaGetDeviceProperties(&p, i)) != cudaSuccess)
            break;
        gpu->device = d;
        gpu->ordinal = i;
        _Static_assert(sizeof(p.uuid) == DEVICE_UUID_BYTES, "size of a UUID");
        memcpy(gpu->uuid, &p.uuid, sizeof(gpu->uuid));
        snprintf(gpu->name, sizeof(gpu->name), "%.63s", p.name);
        d->ngpus++;
    }
    if (e == cudaSuccess && d->config.own_gpu > d->ngpus) {
        snprintf(text, sizeof(text), "there is no GPU %u", d->config.own_gpu - 1);
        return zipcclInvalidUsage;
    }
    d->own = d->config.own_gpu ? &d->gpus[d->config.own_gpu - 1] : NULL;
    if (e != cudaSuccess) {
        snprintf(text, sizeof(text), "the GPUs cannot be used: %s (%d); device = host serves without them",
                 cudaGetErrorString(e), (int)e);
        return zipcclUnhandledDeviceError;
    }
    if (cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, 0) != cudaSuccess)
        (void)cudaGetLastError(); /* an older driver */
    d->mps = mps != 0;
    return zipcclSuccess;
}

static void cuda_close(struct device *d) {
    for (unsigned g = 0; g < d->ngpus; g++) {
        struct cuda_gpu *gpu = &d->gpus[g];
        if (!gpu->ready || atomic_load(&gpu->failed))
            continue;
        (void)cudaSetDevice(gpu->ordinal);
        for (unsigned k = 0; k < CUDA_KINDS * CUDA_LANES; k++)
            (void)cudaStreamSynchronize(gpu->lanes[k / CUDA_LANES][k % CUDA_LANES].stream);
    }
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
    if (d->has_thread)
        pthread_join(d->thread, NULL);
    if (d->host)
        device_host.close(d->host);
    cuda_mappings_free(d);
    cuda_gates_free(d);
    for (unsigned g = 0; g < d->ngpus; g++) {
        struct cuda_gpu *gpu = &d->gpus[g];
        if (!gpu->ready)
            continue;
        (void)cudaSetDevice(gpu->ordinal);
        for (unsigned k = 0; k < CUDA_KINDS * CUDA_LANES; k++)
            cuda_lane_free(&gpu->lanes[k / CUDA_LANES][k % CUDA_LANES]);
    }
    host_pool_drain(&d->pool);
    if (d->epoll_fd >= 0)
        close(d->epoll_fd);
    if (d->event_fd >= 0)
        close(d->event_fd);
    pthread_cond_destroy(&d->wake);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* One descriptor for both: its own events, and those of the host device. */
static bool open_fds(struct device *d) {
    struct epoll_event own = {.events = EPOLLIN, .data.u32 = 0}, host = {.events = EPOLLIN, .data.u32 = 1};
    d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return d->event_fd >= 0 && d->epoll_fd >= 0 && epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->event_fd, &own) == 0 &&
           epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, device_host.fd(d->host), &host) == 0;
}

static zipcclResult_t cuda_open(const struct device_config *config, struct device **device, const char **why) {
    *device = NULL;
    struct device *d = calloc(1, sizeof(*d));
    *why = "no memory";
    if (!d)
        return zipcclOutOfMemory;
    d->config = *config;
    d->epoll_fd = d->event_fd = -1;
    d->pool.pin = cuda_pin;
    d->pool.unpin = cuda_unpin;
    job_queue_init(&d->done);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->wake, NULL);
    zipcclResult_t result = find_gpus(d, why);
    if (result == zipcclSuccess && !cuda_driver_load(&d->driver, why))
        result = zipcclUnhandledDeviceError;
    if (result == zipcclSuccess)
        result = device_host.open(config, &d->host, why);
    if (result == zipcclSuccess) {
        *why = "no memory, or no threads";
        sigset_t all, before; /* signals belong to the loop */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        d->has_thread = open_fds(d) && pthread_create(&d->thread, NULL, cuda_thread, d) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        result = d->has_thread ? zipcclSuccess : zipcclSystemError;
    }
    if (result != zipcclSuccess) {
        cuda_close(d);
        return result;
    }
    pthread_setname_np(d->thread, "zipccl-gpu");
    *device = d;
    return zipcclSuccess;
}

static void *cuda_alloc(struct device *d, size_t bytes) {
    return host_pool_alloc(&d->pool, bytes);
}

static void cuda_free(struct device *d, void *ptr, size_t bytes) {
    host_pool_free(&d->pool, ptr, bytes);
}

/* Where its result is, or else its values; a process that works on one GPU does there whatever it is given.
 * *reachable: the GPU can use what lies in host memory. */
static struct cuda_gpu *gpu_of_job(struct device *d, const struct device_job *job, bool *reachable) {
    struct cuda_gpu *gpu = cuda_gpu_of(d, job->dst);
    if (!gpu && job->work != DEVICE_REDUCE)
        gpu = cuda_gpu_of(d, job->src);
    for (uint32_t i = 0; job->work == DEVICE_REDUCE && !gpu && i < job->ninputs; i++)
        gpu = cuda_gpu_of(d, job->inputs[i].src);
    if (!gpu)
        return NULL;
    *reachable = cuda_reach(d, job->dst) && cuda_reach(d, job->work == DEVICE_REDUCE ? job->dst : job->src);
    for (uint32_t i = 0; job->work == DEVICE_REDUCE && i < job->ninputs; i++)
        *reachable = cuda_reach(d, job->inputs[i].src) && *reachable;
    return d->own ? d->own : gpu;
}

static bool cuda_submit(struct device *d, struct device_job *job) {
    bool reachable = true;
    struct cuda_gpu *gpu = gpu_of_job(d, job, &reachable);
    job->why = NULL;
    if (!gpu)
        return device_host.submit(d->host, job);
    if (!reachable || atomic_load(&gpu->failed)) {
        job->result = reachable ? zipcclUnhandledDeviceError : zipcclOutOfMemory;
        job->why = reachable ? gpu->why : "host memory of a rank cannot be pinned for the GPU (ulimit -l)";
        return true;
    }
    if (job->count == 0 && job->work != DEVICE_ENCODE && job->work != DEVICE_DECODE) {
        job->result = zipcclSuccess;
        job->ns = 0;
        return true;
    }
    cuda_lane_submit(gpu,
                     job->work == DEVICE_COPY     ? CUDA_COPY
                     : job->work == DEVICE_ENCODE ? CUDA_ENCODE
                                                  : CUDA_DECODE,
                     job);
    return false;
}

static int cuda_fd(const struct device *d) {
    return d->epoll_fd;
}

void cuda_poll(struct device *d) {
    uint64_t count;
    device_host.poll(d->host);
    ssize_t n = read(d->event_fd, &count, sizeof(count));
    (void)n; /* nothing to read: the lists say what there is */
    pthread_mutex_lock(&d->lock);
    struct device_job *done = job_queue_take(&d->done);
    pthread_mutex_unlock(&d->lock);
    cuda_lanes_fill(d); /* before callbacks, so that the GPUs have work meanwhile */
    job_list_done(done);
    cuda_gates_run(d);
}

static void cuda_describe(const struct device *d, char *text, size_t size) {
    unsigned failed = 0;
    const struct cuda_gpu *bad = NULL;
    for (unsigned i = 0; i < d->ngpus; i++) {
        if (atomic_load(&d->gpus[i].failed)) {
            failed++;
            bad = &d->gpus[i];
        }
    }
    if (bad)
        snprintf(text, size, "cuda: %u of %u GPUs failed: %s", failed, d->ngpus, bad->why);
    else
        snprintf(text, size, "cuda: %u GPU%s, %s, %s", d->ngpus, d->ngpus == 1 ? "" : "s", d->gpus[0].name,
                 d->mps ? "MPS" : "no MPS: trainers' kernels and ours take turns");
}

static const struct heartbeat *cuda_heartbeat(const struct device *d, unsigned i) {
    return i == 0 ? &d->heartbeat : device_host.heartbeat(d->host, i - 1);
}

static bool cuda_on_gpu(const struct device *d, const void *ptr) {
    return cuda_gpu_of(d, ptr) != NULL;
}

/* Jobs share the workers; what is launched on a GPU goes in the order of its coming. */
static struct device_flow *cuda_flow_open(struct device *d, uint32_t weight, enum flow_priority priority) {
    return device_host.flow_open(d->host, weight, priority);
}

static void cuda_flow_set(struct device *d, struct device_flow *flow, uint32_t weight, enum flow_priority priority) {
    device_host.flow_set(d->host, flow, weight, priority);
}

static void cuda_flow_close(struct device *d, struct device_flow *flow) {
    device_host.flow_close(d->host, flow);
}

static bool cuda_gpu(const struct device *d, unsigned i, struct device_gpu *out) {
    if (i >= d->ngpus)
        return false;
    const struct cuda_gpu *gpu = &d->gpus[i];
    *out = (struct device_gpu){.ordinal = (unsigned)gpu->ordinal,
                               .mps = d->mps,
                               .worker = getpid(),
                               .failed = atomic_load(&gpu->failed) ? gpu->why : NULL};
    memcpy(out->uuid, gpu->uuid, sizeof(out->uuid));
    memcpy(out->name, gpu->name, sizeof(out->name));
    return true;
}

static const struct device_ops device_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .import = cuda_import,
    .release = cuda_release,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .submit = cuda_submit,
    .flow_open = cuda_flow_open,
    .flow_set = cuda_flow_set,
    .flow_close = cuda_flow_close,
    .fd = cuda_fd,
    .poll = cuda_poll,
    .describe = cuda_describe,
    .heartbeat = cuda_heartbeat,
    .on_gpu = cuda_on_gpu,
    .reach = cuda_reach,
    .gpu_number = cuda_gpu_number,
    .stream_open = cuda_stream_open,
    .stream_gate = cuda_stream_gate,
    .stream_close = cuda_stream_close,
    .measure = cuda_measure,
    .gpu = cuda_gpu,
};

__attribute__((visibility("default"))) const struct device_ops *zipccl_device_module(size_t ops_bytes,
                                                                                     size_t job_bytes);

const struct device_ops *zipccl_device_module(size_t ops_bytes, size_t job_bytes) {
    return ops_bytes == sizeof(struct device_ops) && job_bytes == sizeof(struct device_job) ? &device_cuda : NULL;
}
