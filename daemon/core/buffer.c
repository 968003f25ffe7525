/* SPDX-License-Identifier: Apache-2.0
 *
 * Registers client memory, and lends it to operations.
 */
#include "daemon/core/buffer.h"

#include <inttypes.h>
#include <stdlib.h>

#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/pending.h"
#include "daemon/core/session.h"
#include "proto/wire.h"

_Static_assert((int)WIRE_MEMORY_HOST == DEVICE_MEMORY_HOST && (int)WIRE_MEMORY_CUDA_IPC == DEVICE_MEMORY_CUDA_IPC &&
                   (int)WIRE_MEMORY_CUDA_VMM == DEVICE_MEMORY_CUDA_VMM,
               "what clients say is what the device takes");

/* Its last use ends; the device does not have it any more, or not yet. */
static void buffer_free(struct buffer *b) {
    if (b->session != NULL)
        b->session->buffer_bytes -= b->bytes;
    b->job->registered_bytes -= b->bytes;
    list_del(&b->link);
    job_put(b->job);
    free(b);
}

static void buffer_registered(struct pending *p, zipcclResult_t rc, const char *why) {
    struct buffer *b = p->subject;
    struct session *s = p->session;
    Zipccl__BufferRef reply = ZIPCCL__BUFFER_REF__INIT;
    if (rc != zipcclSuccess) {
        session_error(s, p->id, rc, "buffer of %" PRIu64 " bytes: %s", b->bytes, why);
        buffer_free(b);
        return;
    }
    if (s == NULL) {
        buffer_put(b);
        return;
    }
    reply.buffer = handles_add(&s->buffers, b);
    if (reply.buffer == 0) {
        session_error(s, p->id, zipcclLimitExceeded, "this session has %u buffers, the most that are allowed",
                      s->buffers.used);
        buffer_put(b);
        return;
    }
    s->daemon->stats.counters[STATS_buffers_registered]++;
    session_send_message(s, WIRE_BUFFER_REGISTER_REPLY, p->id, &reply.base);
}

void buffer_register(struct session *s, const struct frame *f, const Zipccl__BufferRegister *m) {
    struct daemon *d = s->daemon;
    const uint64_t bytes = m->bytes;
    const uint32_t nfds = m->kind == WIRE_MEMORY_CUDA_IPC ? 0 : 1;
    const char *why = "";
    if (s->job == NULL) {
        session_error(s, f->id, zipcclInvalidUsage, "this session named no job: it cannot register buffers");
        return;
    }
    if (f->nfds != nfds) {
        session_error(s, f->id, zipcclInvalidArgument, "this buffer registration carries %s descriptor, not %u",
                      nfds ? "one" : "no", f->nfds);
        return;
    }
    if (bytes == 0) {
        session_error(s, f->id, zipcclInvalidArgument, "a buffer of 0 bytes cannot be registered");
        return;
    }
    if (bytes > d->config.max_buffer_bytes || s->buffer_bytes > d->config.max_buffer_bytes - bytes) {
        session_error(s, f->id, zipcclLimitExceeded,
                      "buffer of %" PRIu64 " bytes: this session has %" PRIu64 " of %" PRIu64
                      " bytes registered (max_buffer_bytes)",
                      bytes, s->buffer_bytes, d->config.max_buffer_bytes);
        return;
    }
    uint64_t user = job_usage(d, s->uid).buffer_bytes;
    if (bytes > d->config.max_buffer_bytes_per_user || user > d->config.max_buffer_bytes_per_user - bytes) {
        session_error(s, f->id, zipcclLimitExceeded,
                      "buffer of %" PRIu64 " bytes: user %u has %" PRIu64 " of %" PRIu64
                      " bytes registered (max_buffer_bytes_per_user)",
                      bytes, s->uid, user, d->config.max_buffer_bytes_per_user);
        return;
    }
    struct buffer *b = calloc(1, sizeof *b);
    if (b == NULL) {
        session_error(s, f->id, zipcclOutOfMemory, "no memory for a buffer");
        return;
    }
    struct pending *p = pending_new(d, s, f->id, b, buffer_registered);
    if (p == NULL) {
        free(b);
        session_error(s, f->id, zipcclOutOfMemory, "no memory for a buffer");
        return;
    }
    b->refs = 1;
    b->session = s;
    b->job = s->job;
    job_ref(b->job);
    list_add_tail(&s->owned_buffers, &b->link);
    b->bytes = bytes; /* counted already: others may be asked for meanwhile */
    s->buffer_bytes += bytes;
    b->job->registered_bytes += bytes;
    const struct device_import import = {.kind = (enum device_memory_kind)m->kind,
                                         .fd = nfds ? f->fds[0] : -1,
                                         .bytes = bytes,
                                         .handle = m->handle.data,
                                         .uuid = m->device.data,
                                         .pid = s->pid,
                                         .process_start = s->process_start,
                                         .id = m->id,
                                         .call = &p->call};
    zipcclResult_t rc = d->device_ops->import(d->device, &import, &b->memory, &why);
    if (rc != zipcclInProgress)
        pending_end(p, rc, why);
}

/* True: nobody has it any more. False: the call will say. */
static bool buffer_drop(struct buffer *b, struct device_call *call) {
    if (--b->refs > 0)
        return true; /* an operation has it: its own end is what frees it */
    struct daemon *d = b->job->daemon;
    const bool gone = d->device_ops->release(d->device, &b->memory, call);
    buffer_free(b);
    return gone;
}

void buffer_put(struct buffer *b) {
    if (b != NULL)
        (void)buffer_drop(b, NULL);
}

void buffer_release(struct session *s, uint32_t id, uint64_t handle) {
    struct buffer *b = handles_remove(&s->buffers, handle);
    if (b == NULL) {
        session_error(s, id, zipcclInvalidArgument, "unknown buffer %#" PRIx64, handle);
        return;
    }
    /* Without memory for it nobody waits. */
    struct pending *p = pending_new(s->daemon, s, id, NULL, pending_ok);
    if (p == NULL) {
        buffer_put(b);
        session_send(s, WIRE_OK, id, NULL, 0);
    } else if (buffer_drop(b, &p->call)) {
        pending_end(p, zipcclSuccess, NULL);
    }
}

void buffer_release_all(struct session *s) {
    for (uint32_t i = 0; i < s->buffers.capacity; i++) {
        struct buffer *b = s->buffers.slots[i].object;
        s->buffers.slots[i].object = NULL;
        buffer_put(b);
    }
    s->buffers.used = 0;
    /* What is left is lent to operations that still run, or waits for the device. */
    list_for_each_safe(l, &s->owned_buffers) {
        list_entry(l, struct buffer, link)->session = NULL;
        list_del(l);
    }
}

zipcclResult_t buffer_take(struct session *s, uint64_t handle, uint64_t offset, uint64_t bytes, struct buffer **buffer,
                           void **base, const char **why) {
    *buffer = NULL;
    *base = NULL;
    if (handle == 0) {
        if (bytes == 0)
            return zipcclSuccess;
        *why = "the buffer is missing";
        return zipcclInvalidArgument;
    }
    struct buffer *b = handles_get(&s->buffers, handle);
    if (b == NULL) {
        *why = "the buffer is not registered";
        return zipcclInvalidArgument;
    }
    if (offset > b->memory.bytes || bytes > b->memory.bytes - offset) {
        *why = "the range is outside the registered buffer";
        return zipcclInvalidArgument;
    }
    b->refs++;
    *buffer = b;
    *base = b->memory.base + offset;
    return zipcclSuccess;
}
