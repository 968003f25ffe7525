/* SPDX-License-Identifier: Apache-2.0
 *
 * The process: its devices and their attributes, the current device of a thread, fork, sticky errors, the end.
 * ZIPCCL_STANDIN_DEVICES devices (2), each with ZIPCCL_STANDIN_MEMORY MiB (2048); CUDA_VISIBLE_DEVICES chooses.
 * ZIPCCL_STANDIN_MPS=1: as a client of MPS.
 */
#include "core.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
struct CUctx_st standin_devices[STANDIN_MAX_DEVICES];
static int g_devices;
static pid_t g_pid; /* that set up; another one was forked and has no device */
static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static _Thread_local int t_device;
static atomic_int g_sticky;
static atomic_bool g_ending;
static pthread_mutex_t g_run_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_run_ended = PTHREAD_COND_INITIALIZER;
static unsigned g_running;

static unsigned number_of(const char *name, unsigned otherwise, unsigned most) {
    const char *text = getenv(name);
    const unsigned long v = text && *text ? strtoul(text, NULL, 10) : otherwise;
    return v > most ? most : (unsigned)v;
}

/* What is still queued when the process ends is lost, as on a device; a kernel that runs is waited for, because the
 * executor's memory goes. */
static void end(void) {
    struct timespec until;
    atomic_store(&g_ending, true);
    if (getpid() != g_pid)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    pthread_mutex_lock(&g_run_lock);
    while (g_running && pthread_cond_timedwait(&g_run_ended, &g_run_lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&g_run_lock);
}

/* A child may ask, and is told that it has no device: the locks must be free there. */
static void fork_begins(void) {
    pthread_mutex_lock(&standin_lock);
    standin_gate_hold(true);
}

static void fork_ends(void) {
    standin_gate_hold(false);
    pthread_mutex_unlock(&standin_lock);
}

static void set_up(void) {
    const unsigned all = number_of("ZIPCCL_STANDIN_DEVICES", 2, STANDIN_MAX_DEVICES);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    g_pid = getpid();
    while (g_devices < STANDIN_MAX_DEVICES) {
        unsigned number = (unsigned)g_devices;
        if (visible) {
            char *rest;
            number = (unsigned)strtoul(visible, &rest, 10);
            if (rest == visible)
                break;
            visible = *rest == ',' ? rest + 1 : rest;
        }
        if (number >= all)
            break;
        standin_devices[g_devices] = (struct CUctx_st){
            .index = g_devices,
            .number = (int)number,
            .total = number_of("ZIPCCL_STANDIN_MEMORY", 2048, 1u << 20) * STANDIN_MIB,
        };
        g_devices++;
    }
    standin_window_open();
    atexit(end);
    pthread_atfork(fork_begins, fork_ends, fork_ends);
}

int standin_init(void) {
    pthread_once(&g_once, set_up);
    if (g_pid != getpid())
        return CUDA_ERROR_NOT_INITIALIZED;
    return g_devices ? 0 : CUDA_ERROR_NO_DEVICE;
}

int standin_device_count(void) {
    return g_devices;
}

int standin_current_device(void) {
    return t_device;
}

int standin_set_device(int device) {
    if (device < 0 || device >= g_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    t_device = device;
    return 0;
}

int standin_failed(void) {
    return atomic_load(&g_sticky);
}

void standin_fail(int code) {
    int none = 0;
    if (atomic_compare_exchange_strong(&g_sticky, &none, code))
        standin_wake_all();
}

bool standin_ending(void) {
    return atomic_load(&g_ending);
}

bool standin_run_begin(void) {
    pthread_mutex_lock(&g_run_lock);
    const bool runs = !standin_ending();
    g_running += runs;
    pthread_mutex_unlock(&g_run_lock);
    return runs;
}

void standin_run_end(void) {
    pthread_mutex_lock(&g_run_lock);
    g_running--;
    pthread_cond_broadcast(&g_run_ended);
    pthread_mutex_unlock(&g_run_lock);
}

int standin_rule(int code, const char *rule, const char *format, ...) {
    const char *check = getenv("ZIPCCL_STANDIN_CHECK");
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "standin: rule broken: %s: %s\n", rule, text);
    if (!check || strcmp(check, "report") != 0)
        abort();
    return code;
}

void standin_uuid(int device, unsigned char uuid[16]) {
    memcpy(uuid, "zipccl-standin-", 15);
    uuid[15] = (unsigned char)('0' + standin_devices[device].number);
}

void standin_pci(int device, char *text, int room) {
    snprintf(text, (size_t)room, "0000:%02x:00.0", 0x10 + standin_devices[device].number);
}

/* Of an H200, with fewer multiprocessors. Sorted by nothing: short. */
static const struct {
    int attribute, value;
} g_attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, STANDIN_SHARED},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, STANDIN_SMS},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 60 << 20},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0},
};

int standin_attribute(int attribute, int device, int *value) {
    if (device < 0 || device >= g_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
        *value = 0x10 + standin_devices[device].number;
        return 0;
    }
    if (attribute == CU_DEVICE_ATTRIBUTE_MPS_ENABLED) {
        *value = number_of("ZIPCCL_STANDIN_MPS", 0, 1) != 0;
        return 0;
    }
    for (size_t i = 0; i < sizeof(g_attributes) / sizeof(g_attributes[0]); i++)
        if (g_attributes[i].attribute == attribute) {
            *value = g_attributes[i].value;
            return 0;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

uint64_t standin_start_time(pid_t pid) {
    char path[40], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    const size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = 0;
    const char *p = strrchr(text, ')'); /* the name before it may hold anything */
    char state = 0;
    unsigned long long start = 0;
    if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state,
                     &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start;
}
