/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the stand-in share: the state of the process, its devices, memory, streams and events. Everything
 * is under one lock but the words that processes share.
 */
#ifndef ZIPCCL_TESTS_STANDIN_CORE_H
#define ZIPCCL_TESTS_STANDIN_CORE_H

#include "standin.h"

#include <pthread.h>
#include <sys/types.h>

#include <cuda.h>
#include <driver_types.h>

#define STANDIN_MAX_DEVICES 16
#define STANDIN_VERSION     13000
#define STANDIN_SMS         4
#define STANDIN_SHARED      (227 << 10)
#define STANDIN_MIB         (1ul << 20)

/* ---- the process (core.c) ---- */
struct CUctx_st { /* a device's primary context */
    int index;    /* as the process counts */
    int number;   /* in the machine: CUDA_VISIBLE_DEVICES chooses */
    size_t total, used;
    struct CUstream_st *legacy;
    unsigned peers; /* bits of devices whose memory it may reach */
};
extern STANDIN_EXPORT pthread_mutex_t standin_lock;
extern STANDIN_EXPORT struct CUctx_st standin_devices[STANDIN_MAX_DEVICES];
/* Sets up devices. An error where the process was forked after that. */
STANDIN_EXPORT int standin_init(void);
STANDIN_EXPORT int standin_set_device(int device);
STANDIN_EXPORT int standin_attribute(int attribute, int device, int *value);
STANDIN_EXPORT void standin_uuid(int device, unsigned char uuid[16]);
STANDIN_EXPORT void standin_pci(int device, char *text, int room);
STANDIN_EXPORT const char *standin_error_name(int code);
STANDIN_EXPORT const char *standin_error_text(int code);
/* Names an other process in a way that survives the reuse of its id; 0: it is gone. */
uint64_t standin_start_time(pid_t pid);
void standin_gate_hold(bool hold); /* the gate's lock */
/* No kernel may run while the process ends. False: it ends. */
bool standin_run_begin(void);
void standin_run_end(void);

/* A call of libcuda begins: it is counted, may be told to fail, and finds devices. `waits`: its caller may wait in it.
 */
#define STANDIN_DRIVER_ENTER(call, waits)                                                                              \
    int e;                                                                                                             \
    STANDIN_ENTER_AS(e, call, waits);                                                                                  \
    if (e == 0)                                                                                                        \
        e = standin_init();                                                                                            \
    if (e)                                                                                                             \
    return (CUresult)e

/* ---- memory (memory.c) ---- */
struct standin_share { /* behind an allocation's bytes, seen by all that map it */
    atomic_uint freed;
    struct {
        atomic_int pid; /* 0: free */
        atomic_ullong start;
    } importers[14];
};
struct standin_memory {
    struct standin_memory *next;
    struct standin_range at;
    size_t mapped;  /* bytes of the mapping, without the share */
    void *reserved; /* address space, with what aligns and guards */
    size_t reserved_bytes;
    int fd; /* -1: none */
    uint64_t inode;
    struct standin_share *share;
    unsigned refs;  /* opens of an import */
    unsigned busy;  /* queued operations that use it */
    unsigned flags; /* of host memory */
};
extern struct standin_memory *standin_memories;
struct standin_memory *standin_memory_at(const void *p); /* under the lock */
struct standin_memory *standin_memory_add(enum standin_kind kind, int device, void *base, size_t bytes);
void standin_memory_drop(struct standin_memory *m);
STANDIN_EXPORT int standin_alloc(void **p, size_t bytes, enum standin_kind kind);
STANDIN_EXPORT int standin_free(void *p);
STANDIN_EXPORT int standin_free_later(void *p, void *stream);
STANDIN_EXPORT int standin_host_alloc(void **p, size_t bytes, unsigned flags);
STANDIN_EXPORT int standin_host_free(void *p);
STANDIN_EXPORT int standin_host_register(void *p, size_t bytes, unsigned flags);
STANDIN_EXPORT int standin_host_unregister(void *p);
STANDIN_EXPORT int standin_host_flags(void *p, unsigned *flags);
/* Addresses of its own for `bytes` as the device sees them, with a guard behind; they are backed at standin_view(it).
 */
void *standin_reserve(struct standin_memory *m, size_t bytes);
/* window.c: device addresses that the host cannot touch; what they stand for lies `shift` further on. */
struct standin_window {
    uintptr_t base;
    size_t bytes; /* 0: device and host share addresses */
    size_t shift;
};
extern struct standin_window standin_window;
void standin_window_open(void);
/* Device addresses, under the lock; null: none left. */
void *standin_window_take(size_t bytes, size_t align);
/* Nobody may touch what they stand for any more. */
void standin_window_give(void *device, size_t bytes);
/* copy.c */
STANDIN_EXPORT int standin_copy(void *to, const void *from, size_t bytes, int kind, void *stream, bool wait);
STANDIN_EXPORT int standin_set(void *to, int value, size_t bytes, void *stream, bool wait);

/* ---- between processes (ipc.c) ---- */
STANDIN_EXPORT int standin_export_memory(void *handle64, void *p);
STANDIN_EXPORT int standin_import_memory(void **p, const void *handle64);
STANDIN_EXPORT int standin_close_memory(void *p);
int standin_open_fd(pid_t pid, uint64_t start, int fd, uint64_t inode);
/* Importers of an allocation that live; those that died are struck off. */
unsigned standin_importers(struct standin_share *share);

/* ---- streams (stream.c) ---- */
enum standin_op_class { STANDIN_OP_WORK, STANDIN_OP_COPY, STANDIN_OP_KERNEL, STANDIN_OP_ORDER };
struct standin_op {
    struct standin_op *next;
    void (*run)(void *arg);
    void (*drop)(void *arg); /* after it ran, or instead of it; may be null */
    enum standin_op_class class;
    bool graphable; /* may be captured: arg owns nothing */
    struct standin_memory *uses[STANDIN_USES];
    unsigned nuses;
    size_t bytes;
    _Alignas(16) unsigned char arg[];
};
struct standin_graph {
    struct standin_op *first, **last;
    int device;
    bool broken;
};
struct CUstream_st {
    uint32_t magic;
    struct CUstream_st *next;
    int device, priority;
    unsigned flags;
    unsigned long long id;
    struct standin_op *first, **last;
    uint64_t issued, done;
    unsigned waited; /* operations of other streams that wait for it */
    pthread_cond_t wake;
    bool started, destroyed;
    struct standin_graph *capture;
};
STANDIN_EXPORT struct standin_op *standin_op_new(void (*run)(void *), void (*drop)(void *), enum standin_op_class class,
                                                 const void *arg, size_t bytes);
/* Notes that the operation uses the memory at p, if p is known. Under the lock. */
void standin_op_use(struct standin_op *op, const void *p);
void standin_op_free(struct standin_op *op); /* without the lock; one that was not queued too */
/* Takes the operation over, whatever it returns. */
STANDIN_EXPORT int standin_push(void *stream, struct standin_op *op);
/* A function of the caller's, in the stream's order. */
STANDIN_EXPORT int standin_host_func(void *stream, void (*fn)(void *), void *arg);
struct CUstream_st *standin_stream(void *handle); /* under the lock; null: no such stream */
STANDIN_EXPORT int standin_stream_new(void **stream, unsigned flags, int priority);
STANDIN_EXPORT int standin_stream_destroy(void *stream);
STANDIN_EXPORT int standin_stream_sync(void *stream);
STANDIN_EXPORT int standin_stream_query(void *stream);
STANDIN_EXPORT int standin_stream_info(void *stream, unsigned *flags, int *priority, unsigned long long *id);
STANDIN_EXPORT int standin_device_sync(int device);
void standin_wake_all(void);
/* capture.c */
STANDIN_EXPORT int standin_capture_begin(void *stream);
STANDIN_EXPORT int standin_capture_end(void *stream, void **graph);
STANDIN_EXPORT int standin_capturing(void *stream, int *status);
STANDIN_EXPORT int standin_graph_clone(void *graph, void **copy);
STANDIN_EXPORT int standin_graph_launch(void *graph, void *stream);
STANDIN_EXPORT int standin_graph_destroy(void *graph);
/* Error of a call that a capture on the stream forbids, or 0; the capture is broken then. Under the lock. */
int standin_capture_forbids(struct CUstream_st *s);

/* ---- events (event.c) ---- */
STANDIN_EXPORT int standin_event_new(void **event, unsigned flags);
STANDIN_EXPORT int standin_event_destroy(void *event);
STANDIN_EXPORT int standin_event_record(void *event, void *stream);
STANDIN_EXPORT int standin_event_wait(void *event, void *stream);
STANDIN_EXPORT int standin_event_query(void *event);
STANDIN_EXPORT int standin_event_sync(void *event);
STANDIN_EXPORT int standin_event_elapsed(float *ms, void *start, void *end);
STANDIN_EXPORT int standin_export_event(void *handle64, void *event);
STANDIN_EXPORT int standin_import_event(void **event, const void *handle64);
/* memop.c */
STANDIN_EXPORT int standin_wait_value(void *stream, const void *at, uint64_t value, unsigned flags, unsigned bytes);
STANDIN_EXPORT int standin_write_value(void *stream, void *at, uint64_t value, unsigned bytes);

/* ---- kernels (kernel.c) ---- */
STANDIN_EXPORT void standin_kernel_register(const void *host, const char *name);
STANDIN_EXPORT int standin_kernel_of(void **kernel, const void *host);
STANDIN_EXPORT const char *standin_kernel_name(void *kernel);
STANDIN_EXPORT int standin_kernel_launch(void *kernel, const unsigned grid[3], const unsigned block[3], void **args,
                                         size_t shared, void *stream);
STANDIN_EXPORT int standin_kernel_attributes(void *kernel, size_t *static_shared, int *max_threads, int *max_dynamic);
STANDIN_EXPORT int standin_kernel_allow(void *kernel, int dynamic_bytes);
void standin_fault_handler(void); /* tells faults on device memory; repeatable */
STANDIN_EXPORT int standin_kernel_occupancy(void *kernel, int threads, size_t shared, int *blocks);

#endif
