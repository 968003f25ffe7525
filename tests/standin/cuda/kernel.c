/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of the program by name, and their launches. They run in the executor (ZIPCCL_STANDIN_KERNELS, or the shared
 * object beside this library), one at a time in a process. An address that a kernel must not touch makes error 700
 * sticky, as on a device; what the executor itself finds wrong stops the program.
 */
#include "core.h"
#include "kernels.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARAM_BYTES 4096u
#define BLOCK_RESERVED  1024u /* bytes of shared memory that a block costs beside its own */

struct kernel {
    struct kernel *next;
    const void *host;
    const char *name;
    int max_dynamic;
};
static struct kernel *g_kernels;
static standin_kernels_find_fn *g_find;
static standin_kernels_run_fn *g_run;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t g_gate = PTHREAD_MUTEX_INITIALIZER; /* the executor's; a fault in it leaves its own lock taken */
static _Thread_local sigjmp_buf t_fault;
static _Thread_local bool t_inside;
static struct sigaction g_before[2];

/* ---- the executor ---- */

/* There where the program has a leak checker: what a fault leaves behind in the executor is not the program's. */
extern void __lsan_disable(void) __attribute__((weak));
extern void __lsan_enable(void) __attribute__((weak));

static void on_fault(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    const uintptr_t at = (uintptr_t)info->si_addr, in = at - standin_window.base;
    if (t_inside) {
        fprintf(stderr, "standin: a kernel touched address %p\n",
                (void *)(in < 2 * standin_window.bytes && in >= standin_window.bytes ? at - standin_window.shift : at));
        siglongjmp(t_fault, 1);
    }
    if (in < standin_window.bytes)
        fprintf(stderr, "standin: the host touched device memory at %p\n", info->si_addr);
    sigaction(signal_number, &g_before[signal_number == SIGBUS], NULL); /* it comes again */
}

static void host_range(unsigned long a, unsigned long *from, unsigned long *to) {
    struct standin_range r;
    if (!standin_find((const void *)a, &r)) {
        fprintf(stderr, "standin: a kernel touched host memory at %p, which is not page-locked\n", (void *)a);
        siglongjmp(t_fault, 1);
    }
    *from = (unsigned long)r.base;
    *to = *from + r.bytes;
}

void standin_fault_handler(void) {
    static bool done;
    const struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (done)
        return;
    done = true;
    sigaction(SIGSEGV, &act, &g_before[0]);
    sigaction(SIGBUS, &act, &g_before[1]);
}

static void executor_open(void) {
    const char *path = getenv("ZIPCCL_STANDIN_KERNELS");
    standin_kernels_view_fn *view;
    void *so = dlopen(path && *path ? path : "libzipccl_standin_kernels.so", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        fprintf(stderr, "standin: no kernels: %s\n", dlerror());
        return;
    }
    *(void **)&g_find = dlsym(so, STANDIN_KERNELS_FIND);
    *(void **)&g_run = dlsym(so, STANDIN_KERNELS_RUN);
    *(void **)&view = dlsym(so, STANDIN_KERNELS_VIEW);
    if (view)
        view(standin_window.base, standin_window.bytes, standin_window.shift, host_range);
    standin_fault_handler();
}

static bool executor_find(const char *name, struct standin_kernel_info *info) {
    pthread_once(&g_once, executor_open);
    return g_find && g_run && g_find(name, info);
}

/* ---- registration ---- */

void standin_kernel_register(const void *host, const char *name) {
    struct kernel *k = calloc(1, sizeof(*k));
    if (!k)
        abort();
    k->host = host;
    k->name = name;
    k->max_dynamic = 48 << 10;
    pthread_mutex_lock(&standin_lock);
    k->next = g_kernels;
    g_kernels = k;
    pthread_mutex_unlock(&standin_lock);
}

int standin_kernel_of(void **kernel, const void *host) {
    pthread_mutex_lock(&standin_lock);
    struct kernel *k = g_kernels;
    while (k && k->host != host && k != host)
        k = k->next;
    pthread_mutex_unlock(&standin_lock);
    *kernel = k;
    return k ? 0 : cudaErrorInvalidDeviceFunction;
}

const char *standin_kernel_name(void *kernel) {
    return ((struct kernel *)kernel)->name;
}

/* ---- launches ---- */

struct launch {
    const char *name;
    unsigned grid[3], block[3];
    size_t shared;
    unsigned params;
    unsigned at[64]; /* of each parameter, in bytes */
    _Alignas(16) unsigned char bytes[MAX_PARAM_BYTES];
};

static void launch_run(void *arg) {
    struct launch *l = arg;
    void *args[64];
    for (unsigned i = 0; i < l->params; i++)
        args[i] = l->bytes + l->at[i];
    if (!standin_run_begin())
        return;
    pthread_mutex_lock(&g_gate);
    volatile bool fault = false;
    if (__lsan_disable)
        __lsan_disable();
    if (standin_failed() == 0) {
        if (sigsetjmp(t_fault, 1) == 0) {
            t_inside = true;
            g_run(l->name, l->grid, l->block, l->shared, args);
        } else {
            fault = true;
        }
        t_inside = false;
    }
    if (__lsan_enable)
        __lsan_enable();
    if (fault) {
        fprintf(stderr, "standin: illegal memory access in kernel %s\n", l->name);
        standin_fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    pthread_mutex_unlock(&g_gate);
    standin_run_end();
}

static bool launch_pack(struct launch *l, const struct standin_kernel_info *info, void **args) {
    unsigned at = 0;
    if (info->params > sizeof(l->at) / sizeof(l->at[0]))
        return false;
    l->params = info->params;
    for (unsigned i = 0; i < info->params; i++) {
        if (at + info->param_bytes[i] > MAX_PARAM_BYTES)
            return false;
        l->at[i] = at;
        memcpy(l->bytes + at, args[i], info->param_bytes[i]);
        at = (at + info->param_bytes[i] + 15) / 16 * 16;
    }
    return true;
}

/* Words of the parameters that are addresses of memory: what the kernel is known to use. */
static void launch_uses(struct standin_op *op, const struct launch *l, const struct standin_kernel_info *info) {
    for (unsigned i = 0; i < l->params; i++)
        for (unsigned k = 0; k + sizeof(void *) <= info->param_bytes[i]; k += sizeof(void *)) {
            const void *p;
            memcpy(&p, l->bytes + l->at[i] + k, sizeof(p));
            standin_op_use(op, p);
        }
}

static bool sizes_good(const unsigned grid[3], const unsigned block[3]) {
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    return grid[0] && grid[1] && grid[2] && grid[0] <= 0x7fffffff && grid[1] <= 65535 && grid[2] <= 65535 && threads &&
           threads <= 1024 && block[2] <= 64;
}

int standin_kernel_launch(void *kernel, const unsigned grid[3], const unsigned block[3], void **args, size_t shared,
                          void *stream) {
    const struct kernel *k = kernel;
    struct standin_kernel_info info;
    struct launch l = {.shared = shared};
    int device;
    if (!sizes_good(grid, block))
        return CUDA_ERROR_INVALID_VALUE + 8; /* cudaErrorInvalidConfiguration */
    if (shared > (size_t)k->max_dynamic)
        return CUDA_ERROR_INVALID_VALUE;
    if (standin_stream_device(stream, &device) != 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (device != standin_current_device())
        return standin_rule(CUDA_ERROR_INVALID_HANDLE, "wrong device current",
                            "kernel %s launched on a stream of device %d while device %d is current", k->name, device,
                            standin_current_device());
    if (!executor_find(k->name, &info)) {
        fprintf(stderr, "standin: unknown kernel %s: it was not translated\n", k->name);
        abort();
    }
    if (info.static_shared + shared > STANDIN_SHARED ||
        (info.max_threads && block[0] * block[1] * block[2] > info.max_threads))
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (!launch_pack(&l, &info, args))
        return CUDA_ERROR_INVALID_VALUE;
    l.name = k->name;
    memcpy(l.grid, grid, sizeof(l.grid));
    memcpy(l.block, block, sizeof(l.block));
    struct standin_op *op = standin_op_new(launch_run, NULL, STANDIN_OP_KERNEL, &l, sizeof(l));
    op->graphable = true;
    pthread_mutex_lock(&standin_lock);
    launch_uses(op, &l, &info);
    pthread_mutex_unlock(&standin_lock);
    return standin_push(stream, op);
}

/* ---- attributes ---- */

int standin_kernel_attributes(void *kernel, size_t *static_shared, int *max_threads, int *max_dynamic) {
    const struct kernel *k = kernel;
    struct standin_kernel_info info = {0};
    (void)executor_find(k->name, &info);
    *static_shared = info.static_shared;
    *max_threads = info.max_threads ? (int)info.max_threads : 1024;
    *max_dynamic = k->max_dynamic;
    return 0;
}

int standin_kernel_allow(void *kernel, int dynamic_bytes) {
    struct kernel *k = kernel;
    struct standin_kernel_info info = {0};
    (void)executor_find(k->name, &info);
    if (dynamic_bytes < 0 || (unsigned)dynamic_bytes + info.static_shared > STANDIN_SHARED)
        return CUDA_ERROR_INVALID_VALUE;
    k->max_dynamic = dynamic_bytes;
    return 0;
}

int standin_kernel_occupancy(void *kernel, int threads, size_t shared, int *blocks) {
    const struct kernel *k = kernel;
    struct standin_kernel_info info = {0};
    (void)executor_find(k->name, &info);
    if (threads <= 0 || !blocks)
        return CUDA_ERROR_INVALID_VALUE;
    const int by_threads = 2048 / ((threads + 31) / 32 * 32);
    const int by_shared = (int)((228u << 10) / (info.static_shared + shared + BLOCK_RESERVED));
    const int least = by_threads < by_shared ? by_threads : by_shared;
    *blocks = threads > 1024 || shared > (size_t)k->max_dynamic ? 0 : least > 32 ? 32 : least;
    return 0;
}
