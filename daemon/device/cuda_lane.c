/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes: streams with a few jobs launched on each, and the thread that sees them end.
 *
 * The loop thread launches, and never waits for a GPU: what finds no room waits in the lane's queue. Scratch grows when
 * a job needs more than any before it, once the lane has nothing under way; in the steady state nothing is allocated.
 * The thread looks at the first event of each lane; between looks it yields at first, then sleeps, longer the longer
 * nothing has ended.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/cuda.h"

#define FIRST_ARGS   ((size_t)4096)
#define YIELD_NS     30000u
#define LEAST_NAP_NS 5000u
#define MOST_NAP_NS  100000u

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void free_args(struct cuda_lane *lane) {
    for (unsigned i = 0; i < CUDA_DEPTH; i++) {
        struct cuda_slot *slot = &lane->slots[i];
        if (slot->host)
            (void)cudaFreeHost(slot->host);
        if (slot->device)
            (void)cudaFree(slot->device);
        slot->host = slot->device = NULL;
    }
    lane->args_bytes = 0;
}

/* Nothing of the lane is under way. */
static cudaError_t grow_args(struct cuda_lane *lane, size_t bytes) {
    free_args(lane);
    for (unsigned i = 0; i < CUDA_DEPTH; i++) {
        struct cuda_slot *slot = &lane->slots[i];
        void *host = NULL, *device = NULL;
        cudaError_t e = cudaHostAlloc(&host, bytes, cudaHostAllocPortable);
        if (e == cudaSuccess)
            e = cudaMalloc(&device, bytes);
        slot->host = host;
        slot->device = device;
        if (e != cudaSuccess)
            return e;
    }
    lane->args_bytes = bytes;
    return cudaSuccess;
}

static cudaError_t grow_scratch(struct cuda_lane *lane, size_t bytes) {
    void *memory = NULL;
    if (lane->scratch)
        (void)cudaFree(lane->scratch);
    lane->scratch = NULL;
    lane->scratch_bytes = 0;
    cudaError_t e = cudaMalloc(&memory, bytes);
    if (e == cudaSuccess) {
        lane->scratch = memory;
        lane->scratch_bytes = bytes;
    }
    return e;
}

cudaError_t cuda_lane_init(struct cuda_lane *lane, struct cuda_gpu *gpu, int priority) {
    lane->gpu = gpu;
    job_queue_init(&lane->waiting);
    cudaError_t e = cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking, priority);
    for (unsigned i = 0; e == cudaSuccess && i < CUDA_DEPTH; i++) {
        e = cudaEventCreateWithFlags(&lane->slots[i].begin, cudaEventDefault);
        if (e == cudaSuccess)
            e = cudaEventCreateWithFlags(&lane->slots[i].end, cudaEventDefault);
    }
    return e == cudaSuccess ? grow_args(lane, FIRST_ARGS) : e;
}

/* The stream has run empty, or its context is gone. */
void cuda_lane_free(struct cuda_lane *lane) {
    free_args(lane);
    if (lane->scratch)
        (void)cudaFree(lane->scratch);
    for (unsigned i = 0; i < CUDA_DEPTH; i++) {
        if (lane->slots[i].begin)
            (void)cudaEventDestroy(lane->slots[i].begin);
        if (lane->slots[i].end)
            (void)cudaEventDestroy(lane->slots[i].end);
    }
    if (lane->stream)
        (void)cudaStreamDestroy(lane->stream);
    lane->stream = NULL;
}

static void give_back(struct device *d, struct device_job *job) {
    pthread_mutex_lock(&d->lock);
    job_queue_push(&d->done, job);
    pthread_mutex_unlock(&d->lock);
    cuda_notify(d);
}

static void fail_job(struct cuda_lane *lane, struct device_job *job, cudaError_t e, const char *what) {
    job->result = cuda_result(e);
    job->why = cuda_gpu_check(lane->gpu, e, what) ? lane->gpu->why : cudaGetErrorString(e);
    give_back(lane->gpu->device, job);
}

static unsigned under_way(struct cuda_lane *lane) {
    struct device *d = lane->gpu->device;
    pthread_mutex_lock(&d->lock);
    unsigned n = lane->n;
    pthread_mutex_unlock(&d->lock);
    return n;
}

/* Room to launch the job. cudaErrorNotReady: not yet. */
static cudaError_t make_room(struct cuda_lane *lane, const struct device_job *job, unsigned n) {
    struct cuda_need need = cuda_work_need(lane, job);
    if (need.scratch <= lane->scratch_bytes && need.args <= lane->args_bytes)
        return n < CUDA_DEPTH ? cudaSuccess : cudaErrorNotReady;
    if (n > 0)
        return cudaErrorNotReady;
    cudaError_t e = cudaSuccess;
    if (need.scratch > lane->scratch_bytes)
        e = grow_scratch(lane, need.scratch + need.scratch / 4);
    if (e == cudaSuccess && need.args > lane->args_bytes)
        e = grow_args(lane, 2 * need.args);
    return e;
}

static cudaError_t launch(struct cuda_lane *lane, struct cuda_slot *slot, struct device_job *job) {
    slot->job = job;
    slot->hash_at = NULL;
    slot->plain = false;
    slot->result = zipcclSuccess;
    job->why = NULL;
    cudaError_t e = cudaEventRecord(slot->begin, lane->stream);
    if (e == cudaSuccess)
        e = cuda_work_launch(lane, slot);
    /* Also behind a launch that failed in the middle: what was enqueued may still touch the job's memory. */
    cudaError_t recorded = cudaEventRecord(slot->end, lane->stream);
    slot->result = e == cudaSuccess ? zipcclSuccess : cuda_result(e);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        job->why = cuda_gpu_check(lane->gpu, e, "launching work") ? lane->gpu->why : cudaGetErrorString(e);
    }
    return recorded;
}

static void fill(struct cuda_lane *lane) {
    struct device *d = lane->gpu->device;
    while (lane->waiting.head) {
        struct device_job *job = lane->waiting.head;
        if (atomic_load(&lane->gpu->failed)) {
            (void)job_queue_pop(&lane->waiting);
            fail_job(lane, job, cudaErrorUnknown, "");
            continue;
        }
        unsigned n = under_way(lane);
        cudaError_t e = cudaSetDevice(lane->gpu->ordinal);
        if (e == cudaSuccess)
            e = make_room(lane, job, n);
        if (e == cudaErrorNotReady)
            return; /* the end of one brings us here again */
        (void)job_queue_pop(&lane->waiting);
        if (e != cudaSuccess) {
            (void)cudaGetLastError();
            fail_job(lane, job, e, "memory for work");
            continue;
        }
        /* Only this thread adds; the other one takes from the head. */
        pthread_mutex_lock(&d->lock);
        struct cuda_slot *slot = &lane->slots[(lane->head + lane->n) % CUDA_DEPTH];
        pthread_mutex_unlock(&d->lock);
        e = launch(lane, slot, job);
        if (e != cudaSuccess) {
            /* Nothing will tell when what was enqueued has ended, and until then it uses the job's memory. */
            (void)cudaGetLastError();
            (void)cudaStreamSynchronize(lane->stream);
            fail_job(lane, job, e, "recording an event");
            continue;
        }
        pthread_mutex_lock(&d->lock);
        lane->n++;
        pthread_cond_signal(&d->wake);
        pthread_mutex_unlock(&d->lock);
    }
}

void cuda_lane_submit(struct cuda_gpu *gpu, enum cuda_kind kind, struct device_job *job) {
    struct cuda_lane *best = NULL;
    unsigned least = 0;
    for (unsigned i = 0; i < CUDA_LANES; i++) {
        struct cuda_lane *lane = &gpu->lanes[kind][i];
        unsigned n = under_way(lane);
        if (!best || (!lane->waiting.head && n < least) || (best->waiting.head && !lane->waiting.head)) {
            best = lane;
            least = n;
        }
    }
    job_queue_push(&best->waiting, job);
    fill(best);
}

void cuda_lanes_fill(struct device *d) {
    for (unsigned g = 0; g < d->ngpus; g++) {
        struct cuda_gpu *gpu = &d->gpus[g];
        for (unsigned k = 0; gpu->ready && k < CUDA_KINDS; k++)
            for (unsigned i = 0; i < CUDA_LANES; i++)
                fill(&gpu->lanes[k][i]);
    }
}

/* Under the lock: whether the lane's first job has ended. */
static bool has_ended(struct cuda_lane *lane) {
    if (lane->n == 0)
        return false;
    struct cuda_slot *slot = &lane->slots[lane->head];
    cudaError_t e = atomic_load(&lane->gpu->failed) ? cudaErrorUnknown : cudaEventQuery(slot->end);
    if (e == cudaErrorNotReady)
        return false;
    if (e != cudaSuccess && slot->result == zipcclSuccess) {
        slot->result = cuda_result(e);
        slot->job->why = cuda_gpu_check(lane->gpu, e, "work of an operation") ? lane->gpu->why : cudaGetErrorString(e);
    }
    return true;
}

/* Without the lock: the slot is this thread's until it is given back. */
static void end_first(struct device *d, struct cuda_lane *lane) {
    struct cuda_slot *slot = &lane->slots[lane->head];
    struct device_job *job = slot->job;
    cuda_work_finish(slot);
    pthread_mutex_lock(&d->lock);
    lane->head = (lane->head + 1) % CUDA_DEPTH;
    lane->n--;
    job_queue_push(&d->done, job);
    pthread_mutex_unlock(&d->lock);
}

/* Under the lock, which it drops in between; true: something has ended. *busy: something is under way. */
static bool look(struct device *d, struct cuda_gpu *gpu, bool *busy) {
    bool any = false;
    for (unsigned i = 0; i < CUDA_KINDS * CUDA_LANES; i++) {
        struct cuda_lane *lane = &gpu->lanes[i / CUDA_LANES][i % CUDA_LANES];
        *busy = *busy || lane->n > 0;
        if (!has_ended(lane))
            continue;
        any = true;
        heartbeat_work(&d->heartbeat);
        pthread_mutex_unlock(&d->lock);
        end_first(d, lane);
        cuda_notify(d);
        pthread_mutex_lock(&d->lock);
    }
    return any;
}

static void nap(uint64_t idle_ns) {
    if (idle_ns < YIELD_NS) {
        sched_yield();
        return;
    }
    uint64_t ns = idle_ns / 16;
    ns = ns < LEAST_NAP_NS ? LEAST_NAP_NS : ns > MOST_NAP_NS ? MOST_NAP_NS : ns;
    struct timespec ts = {.tv_nsec = (long)ns};
    (void)nanosleep(&ts, NULL);
}

void *cuda_thread(void *arg) {
    struct device *d = arg;
    uint64_t since = now_ns();
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        bool busy = false, any = cuda_gates_look(d);
        if (any)
            cuda_notify(d);
        for (unsigned g = 0; g < d->ngpus; g++)
            any = look(d, &d->gpus[g], &busy) || any;
        heartbeat_idle(&d->heartbeat);
        if (any) {
            since = now_ns();
        } else if (busy || d->gates) {
            pthread_mutex_unlock(&d->lock);
            nap(now_ns() - since);
            pthread_mutex_lock(&d->lock);
        } else {
            pthread_cond_wait(&d->wake, &d->lock);
            since = now_ns();
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}
