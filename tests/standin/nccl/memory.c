/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the library's own, registrations, and what queued operations use.
 */
#include <stdlib.h>

#include "nccl_standin.h"
#include "tests/standin/cuda/core.h"

struct range {
    struct range *next;
    uintptr_t from, to;
    const struct ncclComm *comm; /* that uses it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *used, *allocated;

static struct range *add(struct range **list, const void *base, size_t bytes, const struct ncclComm *comm) {
    struct range *range = malloc(sizeof(*range));
    if (range) {
        *range = (struct range){*list, (uintptr_t)base, (uintptr_t)base + bytes, comm};
        *list = range;
    }
    return range;
}

static struct range **find(struct range **list, const void *base) {
    while (*list && (*list)->from != (uintptr_t)base)
        list = &(*list)->next;
    return list;
}

void range_use(const struct ncclComm *comm, const void *base, size_t bytes) {
    pthread_mutex_lock(&lock);
    if (bytes > 0)
        add(&used, base, bytes, comm);
    pthread_mutex_unlock(&lock);
}

void range_end(const struct ncclComm *comm, const void *base, size_t bytes) {
    pthread_mutex_lock(&lock);
    struct range **at = &used;
    while (*at && ((*at)->comm != comm || (*at)->from != (uintptr_t)base || (*at)->to != (uintptr_t)base + bytes))
        at = &(*at)->next;
    struct range *range = *at;
    if (bytes > 0 && range) {
        *at = range->next;
        free(range);
    }
    pthread_mutex_unlock(&lock);
}

/* comm: by which; NULL: by any. */
static void check_unused(const char *function, const struct ncclComm *comm, uintptr_t from, uintptr_t to) {
    for (const struct range *r = used; r; r = r->next) {
        if (r->from < to && from < r->to && (!comm || r->comm == comm))
            rule_broken("buffer in use", "%s of memory that a queued operation uses", function);
    }
}

EXPORT ncclResult_t ncclMemAlloc(void **ptr, size_t bytes) {
    need_version("ncclMemAlloc", 21900);
    ncclResult_t result = GATE("ncclMemAlloc");
    if (result != ncclSuccess)
        return result;
    if (!ptr || bytes == 0)
        return ncclInvalidArgument;
    if (standin_alloc(ptr, bytes, STANDIN_DEVICE) != 0)
        return ncclUnhandledCudaError;
    pthread_mutex_lock(&lock);
    add(&allocated, *ptr, bytes, NULL);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclMemFree(void *ptr) {
    need_version("ncclMemFree", 21900);
    ncclResult_t result = GATE("ncclMemFree");
    if (result != ncclSuccess || !ptr)
        return result;
    pthread_mutex_lock(&lock);
    struct range **at = find(&allocated, ptr), *range = *at;
    if (range) {
        check_unused("ncclMemFree", NULL, range->from, range->to);
        *at = range->next;
    }
    pthread_mutex_unlock(&lock);
    if (!range) {
        set_error("ncclMemFree: not memory of ncclMemAlloc");
        return ncclInvalidArgument;
    }
    free(range);
    return standin_free(ptr) == 0 ? ncclSuccess : ncclUnhandledCudaError;
}

bool is_registered(const struct ncclComm *comm, const void *base, size_t bytes) {
    uintptr_t from = (uintptr_t)base;
    for (unsigned i = 0; i < MAX_REGISTRATION; i++) {
        uintptr_t start = (uintptr_t)comm->registered[i].base;
        if (comm->registered[i].id && from >= start && from + bytes <= start + comm->registered[i].bytes)
            return true;
    }
    return false;
}

EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *base, size_t bytes, void **handle) {
    static atomic_ullong ids;
    need_version("ncclCommRegister", 21900);
    ncclResult_t result = COMM_ENTER(comm, "ncclCommRegister");
    if (result != ncclSuccess)
        return result;
    result = comm_ready(comm);
    unsigned i = 0;
    while (i < MAX_REGISTRATION && comm->registered[i].id)
        i++;
    if (!base || bytes == 0 || !handle || i == MAX_REGISTRATION)
        result = ncclInvalidArgument;
    if (result == ncclSuccess) {
        comm->registered[i].base = base;
        comm->registered[i].bytes = bytes;
        comm->registered[i].id = atomic_fetch_add(&ids, 1) + 1;
        *handle = (void *)(uintptr_t)comm->registered[i].id;
    }
    comm_leave(comm);
    return result;
}

EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    need_version("ncclCommDeregister", 21900);
    ncclResult_t result = COMM_ENTER(comm, "ncclCommDeregister");
    if (result != ncclSuccess)
        return result;
    unsigned i = 0;
    while (i < MAX_REGISTRATION && comm->registered[i].id != (uintptr_t)handle)
        i++;
    if (!handle || i == MAX_REGISTRATION) {
        result = ncclInvalidArgument;
    } else {
        uintptr_t from = (uintptr_t)comm->registered[i].base;
        pthread_mutex_lock(&lock);
        check_unused("ncclCommDeregister", comm, from, from + comm->registered[i].bytes);
        pthread_mutex_unlock(&lock);
        struct standin_range range;
        if (!standin_find(comm->registered[i].base, &range))
            rule_broken("registered memory", "it was freed before ncclCommDeregister, rank %d", comm->rank);
        comm->registered[i].id = 0;
    }
    comm_leave(comm);
    return result;
}
