/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory shared with the daemon: what zipcclMemAlloc gives, what zipcclMemRegister prepares, and the table in which
 * the pointers of an operation are looked up.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/cuda.h"
#include "client/lib/internal.h"
#include "proto/wire.h"
#include "zipccl.pb-c.h"

#define PAGE_BYTES 4096u

/* Memory of the application that a region is, or stands in for. */
struct area {
    uintptr_t base;
    size_t bytes;
    struct region *region;
};

/* Sorted by base; areas do not overlap. */
static struct area *areas;
static size_t nareas, areas_capacity;

/* Index of the first area that begins behind p. */
static size_t area_after(uintptr_t p) {
    size_t low = 0, high = nareas;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (areas[middle].base <= p)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static zipcclResult_t area_add(uintptr_t base, size_t bytes, struct region *region) {
    size_t at = area_after(base);
    if ((at && base - areas[at - 1].base < areas[at - 1].bytes) || (at < nareas && areas[at].base - base < bytes))
        return fail_thread(zipcclInvalidArgument, "memory %p (%zu bytes) overlaps memory that zipccl knows already",
                           (void *)base, bytes);
    if (nareas == areas_capacity) {
        size_t capacity = areas_capacity ? 2 * areas_capacity : 32;
        struct area *grown = realloc(areas, capacity * sizeof *areas);
        if (!grown)
            return fail_thread(zipcclOutOfMemory, "no memory for the table of buffers");
        areas = grown;
        areas_capacity = capacity;
    }
    memmove(areas + at + 1, areas + at, (nareas - at) * sizeof *areas);
    areas[at] = (struct area){.base = base, .bytes = bytes, .region = region};
    nareas++;
    return zipcclSuccess;
}

static void area_remove(size_t at) {
    memmove(areas + at, areas + at + 1, (nareas - at - 1) * sizeof *areas);
    nareas--;
}

zipcclResult_t memory_find(const void *p, size_t bytes, struct place *place) {
    size_t at = area_after((uintptr_t)p);
    *place = (struct place){0};
    if (!at)
        return zipcclSuccess;
    const struct area *a = &areas[at - 1];
    size_t offset = (uintptr_t)p - a->base;
    if (offset >= a->bytes)
        return zipcclSuccess;
    if (a->region->kind == REGION_REGISTERED) {
        /* Another operation may still send from the region, so it is used by one at a time. */
        if (bytes > a->bytes - offset || a->region->pins || a->region->spoiled)
            return zipcclSuccess;
        a->region->pins++;
        place->staged = true;
    } else if (bytes > a->bytes - offset) {
        return fail_thread(zipcclInvalidArgument,
                           "buffer %p of %zu bytes ends %zu bytes behind the end of its zipcclMemAlloc memory", p,
                           bytes, bytes - (a->bytes - offset));
    }
    place->region = a->region;
    place->offset = offset;
    return zipcclSuccess;
}

void memory_forked(void) {
    for (size_t i = 0; i < nareas; i++)
        if (areas[i].region->kind == REGION_REGISTERED)
            areas[i].region->spoiled = true;
}

static zipcclResult_t no_memory(const char *what, size_t bytes, int err) {
    if (err == EMFILE || err == ENFILE)
        return fail_thread(zipcclSystemError, "%s of %zu bytes of shared memory: %s; raise 'ulimit -n'", what, bytes,
                           strerror(err));
    if (err == ENOMEM || err == ENOSPC || err == EFBIG || err == EAGAIN)
        return fail_thread(zipcclOutOfMemory,
                           "no room for %zu bytes of shared memory (%s: %s): free memory, or raise the memory limit of "
                           "this container or job",
                           bytes, what, strerror(err));
    return fail_thread(zipcclSystemError, "%s of %zu bytes of shared memory: %s", what, bytes, strerror(err));
}

/* What the kernel could give now, in bytes; SIZE_MAX where it does not say. Shared memory has no limit of its own, so
 * asking for more than this would not fail but bring the out-of-memory killer. */
static size_t available_memory(void) {
    char line[128];
    unsigned long long kib = 0;
    bool found = false;
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return SIZE_MAX;
    while (!found && fgets(line, sizeof line, f))
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    (void)fclose(f);
    return found && kib < SIZE_MAX / 1024 ? (size_t)kib * 1024 : SIZE_MAX;
}

zipcclResult_t region_new(size_t bytes, struct region **region) {
    struct region *r = calloc(1, sizeof *r);
    zipcclResult_t result = zipcclOutOfMemory;
    *region = NULL;
    if (!r)
        return fail_thread(result, "no memory for a buffer");
    r->fd = -1;
    if (bytes > (size_t)INT64_MAX - PAGE_BYTES) {
        result = fail_thread(zipcclOutOfMemory, "no room for %zu bytes of shared memory", bytes);
        goto fail;
    }
    size_t available = available_memory();
    if (bytes > available) {
        result =
            fail_thread(zipcclOutOfMemory, "no room for %zu bytes of shared memory: %zu are available on this node",
                        bytes, available);
        goto fail;
    }
    r->bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    r->fd = memfd_create("zipccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (r->fd < 0) {
        result = no_memory("memfd_create", bytes, errno);
        goto fail;
    }
    if (ftruncate(r->fd, (off_t)r->bytes)) {
        result = no_memory("ftruncate", bytes, errno);
        goto fail;
    }
    /* Takes the pages now: running out is an error here, not a SIGBUS later. */
    int err;
    do
        err = fallocate(r->fd, 0, 0, (off_t)r->bytes) ? errno : 0;
    while (err == EINTR);
    if (err && err != EOPNOTSUPP && err != ENOSYS) {
        result = no_memory("fallocate", bytes, err);
        goto fail;
    }
    /* The daemon maps it: nobody may pull it from under its feet. */
    if (fcntl(r->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        result = no_memory("sealing", bytes, errno);
        goto fail;
    }
    void *base = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, 0);
    if (base == MAP_FAILED) {
        result = no_memory("mmap", bytes, errno);
        goto fail;
    }
    r->base = base;
    *region = r;
    return zipcclSuccess;
fail:
    if (r->fd >= 0)
        (void)close(r->fd);
    free(r);
    return result;
}

static void binding_free(struct binding *b) {
    Zipccl__BufferRef m = ZIPCCL__BUFFER_REF__INIT;
    uint8_t bytes[32];
    struct session *s = b->session;
    m.buffer = b->buffer;
    /* The reply, when it comes, has nobody waiting for it. */
    if (s->conn) {
        size_t n = zipccl__buffer_ref__pack(&m, bytes);
        zipcclResult_t r = session_send(s, WIRE_BUFFER_RELEASE, s->next_id++, bytes, n, NULL, 0);
        (void)r; /* a session that ends releases all */
    }
    session_put(s);
    free(b);
}

void region_free(struct region *region) {
    for (struct binding *b = region->bindings, *next; b; b = next) {
        next = b->next;
        binding_free(b);
    }
    cuda_unpin(region);
    if (region->kind != REGION_GPU)
        (void)munmap(region->base, region->bytes);
    if (region->fd >= 0)
        (void)close(region->fd);
    free(region);
}

zipcclResult_t region_bind(struct region *region, struct session *s, struct binding **binding) {
    Zipccl__BufferRegister m = ZIPCCL__BUFFER_REGISTER__INIT;
    struct call call;
    *binding = NULL;
    for (struct binding **p = &region->bindings, *b; (b = *p);) {
        if (b->session == s) {
            *binding = b;
            return zipcclSuccess;
        }
        if (!b->session->conn && !b->users) {
            *p = b->next;
            binding_free(b);
            continue;
        }
        p = &b->next;
    }
    if (s->info.max_buffer_bytes && region->bytes > s->info.max_buffer_bytes)
        return fail_thread(zipcclLimitExceeded,
                           "a buffer of %zu bytes is larger than the %llu that this node's zipccld allows "
                           "(max_buffer_bytes in zipccld.conf)",
                           region->bytes, (unsigned long long)s->info.max_buffer_bytes);
    struct binding *b = calloc(1, sizeof *b);
    if (!b)
        return fail_thread(zipcclOutOfMemory, "no memory for a buffer");
    memset(&call, 0, sizeof call);
    m.bytes = region->bytes;
    if (region->kind == REGION_GPU) {
        m.kind = region->fd < 0 ? WIRE_MEMORY_CUDA_IPC : WIRE_MEMORY_CUDA_VMM;
        m.id = region->gpu_id;
        m.device = (ProtobufCBinaryData){sizeof region->gpu_uuid, region->gpu_uuid};
        if (region->fd < 0)
            m.handle = (ProtobufCBinaryData){sizeof region->gpu_handle, region->gpu_handle};
    }
    zipcclResult_t r = call_run(s, &call, WIRE_BUFFER_REGISTER, &m.base, &region->fd, region->fd >= 0,
                                WIRE_BUFFER_REGISTER_REPLY, CLIENT_CONTROL_MS);
    if (r != zipcclSuccess) {
        free(b);
        return fail_thread(r, "registering %zu bytes with zipccld: %s", region->bytes, call.text);
    }
    b->session = s;
    s->refs++;
    b->buffer = call.value;
    b->next = region->bindings;
    region->bindings = b;
    *binding = b;
    return zipcclSuccess;
}

zipcclResult_t zipcclMemAlloc(void **ptr, size_t bytes) {
    struct region *region;
    struct session *s = NULL;
    struct binding *b;
    if (!ptr)
        return fail_thread(zipcclInvalidArgument, "zipcclMemAlloc: ptr is NULL");
    *ptr = NULL;
    if (!bytes)
        return zipcclSuccess;
    zipcclResult_t r = region_new(bytes, &region);
    if (r != zipcclSuccess)
        return r;
    (void)pthread_mutex_lock(&client_lock);
    r = session_get(&s);
    if (r == zipcclSuccess)
        r = region_bind(region, s, &b);
    if (r == zipcclSuccess)
        r = area_add((uintptr_t)region->base, region->bytes, region);
    if (r == zipcclSuccess)
        *ptr = region->base;
    else
        region_free(region);
    if (s)
        session_put(s);
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

static bool binding_idle(void *arg) {
    return !((const struct binding *)arg)->users;
}

zipcclResult_t zipcclMemFree(void *ptr) {
    if (!ptr)
        return zipcclSuccess;
    zipcclResult_t r = zipcclSuccess;
    (void)pthread_mutex_lock(&client_lock);
    size_t at = area_after((uintptr_t)ptr);
    if (!at || areas[at - 1].base != (uintptr_t)ptr || areas[at - 1].region->kind != REGION_USER) {
        r = fail_thread(zipcclInvalidArgument, "zipcclMemFree: %p is not what zipcclMemAlloc returned", ptr);
    } else {
        struct region *region = areas[at - 1].region;
        area_remove(at - 1);
        for (struct binding *b = region->bindings; b; b = b->next)
            if (session_wait(b->session, binding_idle, b, CLIENT_FOREVER) != zipcclSuccess)
                break;
        region_free(region);
    }
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

zipcclResult_t zipcclMemRegister(void *ptr, size_t bytes, void **handle) {
    struct region *region = NULL;
    if (!handle || !ptr || !bytes)
        return fail_thread(zipcclInvalidArgument, "zipcclMemRegister: %s",
                           !handle ? "handle is NULL" : (!ptr ? "ptr is NULL" : "bytes is 0"));
    *handle = NULL;
    if ((uintptr_t)ptr > UINTPTR_MAX - bytes)
        return fail_thread(zipcclInvalidArgument, "zipcclMemRegister: %p and %zu bytes wrap around", ptr, bytes);
    zipcclResult_t r = region_new(bytes, &region);
    if (r != zipcclSuccess || !region)
        return r;
    region->kind = REGION_REGISTERED;
    (void)pthread_mutex_lock(&client_lock);
    struct session *s = NULL;
    struct binding *b;
    r = session_get(&s);
    if (r == zipcclSuccess)
        r = region_bind(region, s, &b);
    if (r == zipcclSuccess)
        r = area_add((uintptr_t)ptr, bytes, region);
    if (r == zipcclSuccess)
        *handle = region;
    else
        region_free(region);
    if (s)
        session_put(s);
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

zipcclResult_t zipcclMemDeregister(void *handle) {
    if (!handle)
        return zipcclSuccess;
    zipcclResult_t r = fail_thread(zipcclInvalidArgument, "zipcclMemDeregister: handle is none of zipcclMemRegister");
    (void)pthread_mutex_lock(&client_lock);
    for (size_t i = 0; i < nareas; i++) {
        struct region *region = areas[i].region;
        if (region != handle || region->kind != REGION_REGISTERED)
            continue;
        area_remove(i);
        region->closed = true;
        if (!region->pins)
            region_free(region);
        r = zipcclSuccess;
        break;
    }
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}
