/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of GPUs: allocations that the daemon can map, each registered once, whole. See cuda.h.
 *
 * Legacy IPC for cudaMalloc, a descriptor for VMM. What neither gives, or what the daemon refuses, is staged. An
 * allocation is known by its base and the driver's id of it, for addresses come back with other memory behind them.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/cuda.h"
#include "zipccl.pb-c.h"
#include "zipccl_cuda.h"

static struct region *known; /* of kind REGION_GPU */

void cuda_pin(const struct cuda_stream *t, struct region *region) {
    if (!region->pinned && region->kind != REGION_GPU &&
        t->api->host_register(region->base, region->bytes, CUDA_HOST_PORTABLE) == CUDA_OK)
        region->pinned = true;
}

void cuda_unpin(struct region *region) {
    const struct cuda_api *api = cuda_api();
    if (region->pinned && api)
        (void)api->host_unregister(region->base);
    region->pinned = false;
}

struct allocation {
    uintptr_t base;
    size_t bytes;
    uint64_t id;
    int device;
    bool ipc;
};

/* False: host memory, or such that only copies can reach. */
static bool look_up(const struct cuda_api *api, const void *p, struct allocation *a, bool *on_gpu) {
    unsigned type = 0, managed = 0, ipc = 0;
    unsigned long long id = 0;
    uintptr_t ptr = (uintptr_t)p;
    *on_gpu = api->pointer_get(&type, CUDA_PTR_TYPE, ptr) == CUDA_OK && type == CUDA_TYPE_DEVICE;
    if (!*on_gpu || (api->pointer_get(&managed, CUDA_PTR_MANAGED, ptr) == CUDA_OK && (managed & 0xff)))
        return false;
    if (api->pointer_get(&id, CUDA_PTR_ID, ptr) != CUDA_OK ||
        api->pointer_get(&a->device, CUDA_PTR_DEVICE, ptr) != CUDA_OK ||
        api->range_get(&a->base, &a->bytes, ptr) != CUDA_OK)
        return false;
    a->id = id;
    a->ipc = api->pointer_get(&ipc, CUDA_PTR_IPC, ptr) == CUDA_OK && (ipc & 0xff);
    return true;
}

static bool is_used(const struct region *r) {
    for (const struct binding *b = r->bindings; b; b = b->next)
        if (b->users)
            return true;
    return false;
}

static void unlink_region(const struct region *r) {
    for (struct region **p = &known; *p; p = &(*p)->next) {
        if (*p == r) {
            *p = r->next;
            break;
        }
    }
}

static int export_fd(const struct cuda_api *api, uintptr_t base) {
    uint64_t handle = 0;
    int fd = -1;
    if (!api->retain_handle || api->retain_handle(&handle, (void *)base) != CUDA_OK)
        return -1;
    if (api->export_handle(&fd, handle, CUDA_HANDLE_FD, 0) != CUDA_OK)
        fd = -1;
    (void)api->release_handle(handle);
    return fd;
}

/* One that cannot be shared is kept too, so that it is asked for once. NULL: no memory. */
static struct region *learn(const struct cuda_api *api, const struct allocation *a) {
    struct region *r = calloc(1, sizeof *r);
    int device = 0;
    struct cuda_ipc handle;
    if (!r)
        return NULL;
    r->kind = REGION_GPU;
    r->base = (uint8_t *)a->base;
    r->bytes = a->bytes;
    r->fd = -1;
    r->gpu_id = a->id;
    bool shared =
        api->device_get(&device, a->device) == CUDA_OK && api->device_get_uuid(r->gpu_uuid, device) == CUDA_OK;
    if (shared && a->ipc) {
        shared = api->ipc_get_memory(&handle, a->base) == CUDA_OK;
        memcpy(r->gpu_handle, handle.bytes, sizeof r->gpu_handle);
    } else if (shared) {
        r->fd = export_fd(api, a->base);
        shared = r->fd >= 0;
    }
    r->spoiled = !shared;
    r->next = known;
    known = r;
    return r;
}

zipcclResult_t cuda_find(struct session *s, const struct cuda_stream *t, const void *p, size_t bytes,
                         struct place *place) {
    const struct cuda_api *api = cuda_api();
    struct allocation a;
    struct binding *b;
    bool on_gpu;
    if (!api || !bytes)
        return zipcclSuccess;
    unsigned type = 0;
    /* Copies of pageable memory would block, and not come in the stream's order. */
    if (t && api->pointer_get(&type, CUDA_PTR_TYPE, (uintptr_t)p) != CUDA_OK)
        return fail_thread(
            zipcclInvalidArgument,
            "buffer %p is pageable host memory, which has no place in a CUDA stream: use memory of a GPU, "
            "zipcclMemAlloc or cudaMallocHost",
            p);
    bool shareable = !place->region && look_up(api, p, &a, &on_gpu);
    if (place->region)
        return zipcclSuccess;
    if (on_gpu && !t)
        return fail_thread(zipcclInvalidArgument,
                           "buffer %p is memory of a GPU: give the operation a stream of zipcclStreamFromCuda", p);
    if (!shareable)
        return zipcclSuccess;
    struct region *r = known;
    while (r && (r->base != (uint8_t *)a.base || r->gpu_id != a.id)) {
        struct region *next = r->next;
        /* Other memory is where it was: it has been freed. */
        if ((uintptr_t)r->base < a.base + a.bytes && a.base < (uintptr_t)r->base + r->bytes && !is_used(r)) {
            unlink_region(r);
            region_free(r);
        }
        r = next;
    }
    if (!r && !(r = learn(api, &a)))
        return fail_thread(zipcclOutOfMemory, "no memory for a buffer");
    size_t offset = (uintptr_t)p - a.base;
    if (r->spoiled || bytes > r->bytes - offset)
        return zipcclSuccess;
    if (region_bind(r, s, &b) != zipcclSuccess) {
        if (!s->conn)
            return zipcclDaemonUnavailable; /* fail_thread was called */
        r->spoiled = true;
        return zipcclSuccess;
    }
    place->region = r;
    place->offset = offset;
    return zipcclSuccess;
}

/* Waits until the daemons have let go. May drop the lock: r is in no list any more. */
static zipcclResult_t let_go(struct region *r) {
    zipcclResult_t result = zipcclSuccess;
    while (r->bindings) {
        struct binding *b = r->bindings;
        Zipccl__BufferRef m = ZIPCCL__BUFFER_REF__INIT;
        struct call call;
        memset(&call, 0, sizeof call);
        m.buffer = b->buffer;
        r->bindings = b->next;
        if (b->session->conn) {
            zipcclResult_t one =
                call_run(b->session, &call, WIRE_BUFFER_RELEASE, &m.base, NULL, 0, WIRE_OK, CLIENT_CONTROL_MS);
            if (one != zipcclSuccess && b->session->conn) /* one that ended has let go */
                result = fail_thread(one, "zipcclCudaForget: %s", call.text);
        }
        session_put(b->session);
        free(b);
    }
    region_free(r);
    return result;
}

zipcclResult_t zipcclCudaForget(const void *ptr) {
    zipcclResult_t result = zipcclSuccess;
    (void)pthread_mutex_lock(&client_lock);
    struct region *r = known;
    while (r && (uintptr_t)ptr - (uintptr_t)r->base >= r->bytes)
        r = r->next;
    if (r && is_used(r)) {
        result = fail_thread(zipcclInvalidUsage,
                             "zipcclCudaForget: an operation uses the memory at %p: wait for it first", ptr);
    } else if (r) {
        unlink_region(r);
        result = let_go(r);
    }
    (void)pthread_mutex_unlock(&client_lock);
    return result;
}
