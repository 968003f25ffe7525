/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the daemon's side of the workers: the device (device.c), jobs (jobs.c), their order (order.c), streams
 * (streams.c), memory (memory.c), scratch (scratch.c), pools in memory of GPUs (pool.c), launching sides of NCCL
 * (launches.c), lives of workers (supervise.c), errands (errands.c), calls (call.c). All of it is on the loop thread.
 *
 * A worker that is lost is killed, and reaped, before its jobs end: until then the GPU may still write to their memory.
 * One that cannot be reaped in time keeps the GPU and the scratch that it knows, but not the jobs: clients are told.
 */
#ifndef ZIPCCL_DAEMON_WORKER_SUPERVISOR_H
#define ZIPCCL_DAEMON_WORKER_SUPERVISOR_H

#include "daemon/device/host.h"
#include "daemon/device/job_queue.h"
#include "daemon/device/ranges.h"
#include "daemon/worker/channel.h"
#include "daemon/worker/extents.h"

#define WORKER_MAX 16u /* GPUs */

enum worker_state {
    WORKER_DOWN,     /* until retry_ns */
    WORKER_STARTING, /* it has not said that it is ready */
    WORKER_UP,
    WORKER_DYING, /* killed, not reaped yet */
    WORKER_STUCK, /* for too long: what it had has ended */
};

struct gate {
    struct gate *next;
    struct device_stream *stream; /* NULL: not in use */
    uint32_t event, index, serial;
    bool sent, opened;
    struct device_gate gate;
    zipcclResult_t result;
    const char *why;
};

struct gate_queue {
    struct gate *head, **tail;
};

/* What was not told to a worker yet; order.c. */
struct worker_order {
    struct flow_sched kinds[WORKER_KINDS];
    struct flow fallback[WORKER_KINDS];      /* of jobs that name none */
    unsigned told[WORKER_KINDS][FLOW_LANES]; /* that it has */
    struct device_job *next;                 /* whose turn it is: its records had no room yet; or NULL */
};

/* What a worker is told, or asked, of memory and streams. */
struct errand {
    struct errand *next;
    void (*done)(struct errand *errand); /* from poll; the errand is freed after it. May be NULL */
    void *subject;
    struct device_call *calls; /* who waits for it */
    uint64_t since_ns;         /* waits; asked: since it was told */
    bool asks;                 /* it ends with the worker's answer, else when it is told */
    bool waits;                /* for a worker that is not up yet; else it ends where there is none */
    bool owned;                /* the subject is freed with it */
    uint32_t number;           /* of the call, once there is one */
    uint32_t generation;       /* of the worker that was told */
    int fd;                    /* that goes ahead, its subject's; -1: none */
    bool fd_told;
    zipcclResult_t result; /* when done */
    const char *why;
    unsigned nrecords, told;
    struct worker_record records[];
};

struct errand_queue {
    struct errand *head, **tail;
};

/* A piece of a GPU's memory that is the daemon's; pool.c. */
struct slab {
    struct slab *next;
    struct memory *memory;
    struct extents gaps;
    size_t used;
    unsigned number; /* below POOL_SLABS: its bit among those of a communicator */
    bool ready;      /* the worker has it */
    bool aliased;    /* at a second address too, which NCCL is told of */
};

#define POOL_SLABS 64u

/* The daemon's memory of a GPU. What it had of a worker that is gone is in `dead` until it is given back. */
struct pool {
    struct slab *slabs, *dead;
    uint64_t numbers;   /* a bit for each number in use */
    size_t bytes, used; /* of slabs, those that were asked for among them; of what is taken of them */
    uint64_t missed;    /* bytes that found no room, since the start */
    uint64_t retry_ns;  /* not asked for more before, since the GPU had none */
    bool asked, told;   /* a slab is on its way; people were told that there is no more */
};

struct worker {
    struct device *device;
    unsigned ordinal;
    enum worker_state state;
    struct worker_channel channel;
    pid_t pid;
    uint32_t generation; /* of processes; what another one had is gone */
    uint32_t restarts, failed_starts;
    bool known; /* its GPU is: uuid and name */
    uint8_t uuid[DEVICE_UUID_BYTES];
    char name[64];
    uint64_t retry_ns, started_ns, killed_ns;
    char cause[WORKER_TEXT_BYTES]; /* why this process ends, where that is known */
    const char *why;               /* why the last one ended; NULL: none has */

    struct worker_order order;
    struct device_job *jobs[WORKER_JOBS];
    uint32_t idle_slots[WORKER_JOBS], nidle;
    struct gate_queue gates; /* not told yet */

    struct errand_queue errands, asked; /* not told yet; told, and not answered */
    uint32_t calls, answered;           /* numbers of the last call, and of the last reply to one of call.c */
    struct worker_record reply;

    struct nccl_launcher *launcher; /* NULL: the fabric has none */
    struct pool pool;

    uint32_t seen_head; /* of its ring, and since when */
    uint64_t seen_ns;
    uint64_t beat[WORKER_BEATS], beat_ns[WORKER_BEATS];
};

/* What jobs can name: memory of clients, scratch, and slabs. */
struct memory {
    struct range range; /* first */
    struct memory *next;
    enum device_memory_kind kind;
    bool scratch;
    struct slab *slab;   /* NULL: it is none */
    struct worker *home; /* whose GPU it is; NULL: host memory */
    uint32_t home_generation;
    pid_t pid;
    uint64_t process_start, id, offset;
    int fd; /* of a memfd or VMM memory; scratch: the arena's, not its own */
    uint8_t handle[DEVICE_IPC_BYTES];
    uint32_t known[WORKER_MAX]; /* generation of each worker that has it */
    unsigned refs;
    struct errand *opening; /* its GPU's worker is asked for it */
    unsigned closing;       /* workers that are to answer that it is closed there */
    struct device_call *leaving;
};

/* One memfd, of which blocks are cut; what is kept of a block lies outside, where no GPU writes. */
struct scratch {
    int fd;
    uint8_t *base;
    size_t bytes;
    struct extents gaps;
    struct memory *free[HOST_SIZE_CLASSES];
    size_t kept_bytes;
    struct memory *held; /* given back, but a worker that is stuck may write to it */
};

struct device_stream {
    struct worker *worker;
    uint32_t generation;
    uint64_t number;
    unsigned n;
};

struct text {
    struct text *next;
    char text[WORKER_TEXT_BYTES];
};

struct device {
    struct device_config config;
    struct device *host; /* a device_host */
    int epoll_fd, notify_fd, timer_fd;
    uint64_t timer_ns;  /* its interval; 0: off */
    uint64_t ticked_ns; /* when it ticked last */
    uint64_t timeout_ns, reap_ns;
    pid_t (*reap)(pid_t pid, int *status, int how);
    unsigned nworkers;
    bool looking;     /* poll is, and has not run yet what it finds */
    bool discovering; /* the first worker tells what GPUs there are */
    bool mps;
    struct worker workers[WORKER_MAX];
    struct ranges ranges;
    struct memory *memories; /* of clients */
    struct device_flow *flows;
    struct scratch scratch;
    struct job_queue done; /* for poll */
    struct gate_queue opened;
    struct gate **gates; /* by index */
    uint32_t ngates, gates_capacity;
    struct gate *spare_gates;
    uint64_t streams;          /* numbers given */
    struct errand_queue ended; /* for poll */
    struct text *texts;
    unsigned ntexts;
};

uint64_t workers_now_ns(void);
/* The same text, for as long as the device lives. */
const char *workers_text(struct device *d, const char *text);
void workers_notify(struct device *d); /* poll has something to do */

/* jobs.c */
bool workers_submit(struct device *d, struct device_job *job);
void worker_pump(struct worker *w);                                                /* tells it what waits and fits */
const char *worker_job_done(struct worker *w, const struct worker_record *record); /* else what is wrong with it */
void worker_jobs_fail(struct worker *w, const char *why);
bool worker_jobs_any(const struct worker *w);

/* order.c */
void worker_order_init(struct worker_order *o);
void worker_order_push(struct worker *w, struct device_job *job);
/* Whose turn it is, the same until it was told; NULL: nobody waits, or the worker has enough. */
struct device_job *worker_order_next(struct worker *w);
void worker_order_told(struct worker *w);
void worker_order_ended(struct worker *w, const struct device_job *job); /* one that was told */
struct device_job *worker_order_drop(struct worker *w);                  /* any that waits, which goes; NULL: none */
bool worker_order_waits(const struct worker *w);
struct device_flow *workers_flow_open(struct device *d, uint32_t weight, enum flow_priority priority);
void workers_flow_set(struct device *d, struct device_flow *flow, uint32_t weight, enum flow_priority priority);
void workers_flow_close(struct device *d, struct device_flow *flow);
struct device_flow *workers_flow_host(const struct device_flow *flow); /* as the host device knows it */
void workers_flows_free(struct device *d);

/* streams.c */
zipcclResult_t workers_stream_open(struct device *d, const uint8_t *uuid, const uint8_t *events, unsigned n,
                                   struct device_call *call, struct device_stream **stream, const char **why);
zipcclResult_t workers_stream_gate(struct device_stream *stream, unsigned i, const struct device_gate *gate);
bool workers_stream_close(struct device_stream *stream, struct device_call *call);
void worker_gates_pump(struct worker *w);
void worker_gate_opened(struct worker *w, const struct worker_record *record);
bool worker_gates_any(const struct worker *w);
void worker_gates_fail(struct worker *w, const char *why);
void workers_gates_run(struct device *d);
void workers_gates_free(struct device *d);

/* memory.c */
zipcclResult_t workers_import(struct device *d, const struct device_import *import, struct device_memory *out,
                              const char **why);
bool workers_release(struct device *d, struct device_memory *memory, struct device_call *call);
struct memory *memory_of(const struct device *d, const void *ptr);
void *memory_reserve(size_t bytes); /* addresses that fault; NULL: there are none. Given back by munmap */
/* Tells the worker of it where it does not know; false: it dies, or has no room for a descriptor now. */
bool memory_tell(struct worker *w, struct memory *m);
/* All workers that know it forget it: told so before they are told of other memory at its addresses. */
void memory_untell(struct device *d, struct memory *m);
/* Why it cannot be used any more; NULL: it can. */
const char *memory_dead(const struct memory *m);
void workers_memory_free(struct device *d);

/* scratch.c */
bool scratch_open(struct device *d);
void *workers_alloc(struct device *d, size_t bytes);
void workers_free(struct device *d, void *ptr, size_t bytes);
void scratch_release(struct device *d); /* a worker that was stuck is gone */
void scratch_close(struct device *d);

/* pool.c */
/* NULL: there is no room; more was asked for, where there may be. */
void *pool_alloc(struct device *d, unsigned gpu, size_t bytes);
void pool_free(struct device *d, struct memory *m, void *ptr, size_t bytes);
const char *pool_grown(struct worker *w, const struct worker_record *record); /* as worker_job_done */
/* The GPU gets back what nobody uses, once it has no communicator of NCCL. */
void pool_rest(struct worker *w);
void pool_lost(struct worker *w); /* with its worker */
void pool_close(struct worker *w);

/* launches.c */
/* All communicators of the GPU are to know it. */
void worker_launches_register(struct worker *w, const struct slab *slab);
bool worker_launches_idle(const struct worker *w); /* it has no communicator, and nothing to say */
void worker_launches_pump(struct worker *w);
const char *worker_launch_answered(struct worker *w, const struct worker_record *record); /* as worker_job_done */
bool worker_launches_any(const struct worker *w);
void worker_launches_fail(struct worker *w, const char *why);
void worker_launches_free(struct worker *w);

/* supervise.c */
/* What a worker says, with an end. */
void worker_text_of(char out[WORKER_TEXT_BYTES], const char text[WORKER_TEXT_BYTES]);
/* How long what needs a worker waits for a new one. */
#define WORKER_AWAIT_NS 2000000000ull
/* Why what the process of that generation had is gone; NULL: it is not, or not yet: then it is not known why. */
const char *worker_lost(const struct worker *w, uint32_t generation);
/* It will not be up before then: it is given time to recover, or is stuck. */
bool worker_out(const struct worker *w, uint64_t until_ns);
struct worker *worker_of_uuid(const struct device *d, const uint8_t *uuid);
void worker_init(struct worker *w, struct device *d, unsigned ordinal);
bool worker_spawn(struct worker *w);
/* It is to end, for this reason. */
void worker_kill(struct worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reads what it says. */
void worker_look(struct worker *w);
/* Time has passed: reaps, starts again, finds what hangs. */
void workers_tick(struct device *d);
void workers_arm(struct device *d);
/* A moment of its life, while nobody polls. */
void worker_step(struct worker *w);
/* Waits until it is up: a moment, since all wait here; else *why. */
bool worker_await(struct worker *w, const char **why);
/* Tells it to end; and waits for that, until a time. */
void worker_dismiss(struct worker *w);
void worker_close(struct worker *w, uint64_t end_ns);
/* One that dies is waited for, for a moment: why it did, for a call that it did not answer. */
const char *worker_end(struct worker *w);

/* errands.c */
struct errand *errand_new(unsigned nrecords); /* zeroed; NULL: no memory */
void worker_errand(struct worker *w, struct errand *errand);
bool worker_errands_pump(struct worker *w); /* false: some wait, so nothing else may be told */
/* False: it answers none. */
bool worker_errand_answered(struct worker *w, const struct worker_record *record);
bool worker_errands_any(const struct worker *w);
void worker_errands_fail(struct worker *w, const char *why);
void worker_errands_tick(struct worker *w, uint64_t now_ns);
void workers_errands_run(struct device *d);
void worker_errands_free(struct worker *w);
/* All in the list. */
void device_calls_end(struct device_call *calls, zipcclResult_t result, const char *why);

/* call.c */
/* Reads what it says, and sleeps for at most so long where that is nothing. */
void worker_wait(struct worker *w, int ms);
/* Waits for room in its ring, for a bounded time; false: it dies. */
bool worker_push(struct worker *w, const struct worker_record *record);
/* Until the worker answers. Errors are those of the call, or of the worker's death. */
zipcclResult_t worker_call(struct worker *w, struct worker_record *record, uint64_t ns, const char **why);

#endif
