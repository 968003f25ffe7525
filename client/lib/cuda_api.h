/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of the CUDA driver that the library uses, found at run time. Types are the driver's, by their size alone:
 * the library is built without its headers. All but the loading may be called on any thread.
 */
#ifndef ZIPCCL_CLIENT_CUDA_API_H
#define ZIPCCL_CLIENT_CUDA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_IPC_BYTES  64u
#define CUDA_UUID_BYTES 16u

enum { CUDA_OK = 0, CUDA_NOT_READY = 600 };
enum { CUDA_EVENT_PLAIN = 2, CUDA_EVENT_SHARED = 6 }; /* without timing; also for other processes */
enum { CUDA_HOST_PORTABLE = 1, CUDA_HOST_MAPPED = 2 };
enum { CUDA_PTR_TYPE = 2, CUDA_PTR_ID = 7, CUDA_PTR_MANAGED = 8, CUDA_PTR_DEVICE = 9, CUDA_PTR_IPC = 10 };
enum { CUDA_TYPE_DEVICE = 2 };
enum { CUDA_HANDLE_FD = 1 };

typedef void *cuda_stream_t;
typedef void *cuda_event_t;
typedef void *cuda_context_t;
struct cuda_ipc {
    unsigned char bytes[CUDA_IPC_BYTES];
};

struct cuda_api {
    int (*ctx_get_current)(cuda_context_t *ctx);
    int (*ctx_set_current)(cuda_context_t ctx);
    int (*ctx_get_device)(int *device);
    int (*device_get)(int *device, int ordinal);
    int (*device_get_uuid)(unsigned char uuid[CUDA_UUID_BYTES], int device);
    int (*get_error_string)(int error, const char **text);
    int (*event_create)(cuda_event_t *event, unsigned flags);
    int (*event_destroy)(cuda_event_t event);
    int (*event_record)(cuda_event_t event, cuda_stream_t stream);
    int (*event_query)(cuda_event_t event);
    int (*ipc_get_event)(struct cuda_ipc *handle, cuda_event_t event);
    int (*ipc_get_memory)(struct cuda_ipc *handle, uintptr_t ptr);
    int (*pointer_get)(void *value, int attribute, uintptr_t ptr);
    int (*range_get)(uintptr_t *base, size_t *bytes, uintptr_t ptr);
    int (*host_register)(void *ptr, size_t bytes, unsigned flags);
    int (*host_unregister)(void *ptr);
    int (*host_device_pointer)(uintptr_t *device, void *ptr, unsigned flags);
    int (*copy)(uintptr_t to, uintptr_t from, size_t bytes, cuda_stream_t stream);
    int (*is_capturing)(cuda_stream_t stream, int *status);
    int (*stream_query)(cuda_stream_t stream);
    int (*stream_synchronize)(cuda_stream_t stream);
    int (*launch_host)(cuda_stream_t stream, void (*fn)(void *arg), void *arg);
    /* NULL in older drivers */
    int (*wait_value)(cuda_stream_t stream, uintptr_t word, uint32_t value, unsigned flags); /* flags 0: until >= */
    int (*retain_handle)(uint64_t *handle, void *ptr);
    int (*export_handle)(void *fd, uint64_t handle, int type, unsigned long long flags);
    int (*release_handle)(uint64_t handle);
};

/* NULL, with *why (static), where there is no driver. Loaded once, and never unloaded. Under client_lock. */
const struct cuda_api *cuda_api_load(const char **why);
/* What is loaded already; NULL: nothing. */
const struct cuda_api *cuda_api(void);
const char *cuda_api_text(int error);

#endif
