/* SPDX-License-Identifier: Apache-2.0
 *
 * Connecting to zipccld and the hello. Every failure says what the person can do.
 */
#include "client/lib/connect.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/message.h"
#include "proto/result.h"
#include "proto/spin.h"
#include "proto/wire.h"
#include "zipccl.h"
#include "zipccl.pb-c.h"

#define HELLO_ID 1u

static const char *env_or(const char *name, const char *otherwise) {
    const char *v = getenv(name);
    return v && *v ? v : otherwise;
}

const char *connect_socket_path(void) {
    return env_or("ZIPCCL_SOCKET", CONNECT_DEFAULT_SOCKET);
}

const char *connect_job(void) {
    return env_or("ZIPCCL_JOB_ID", env_or("SLURM_JOB_ID", "default"));
}

uint64_t connect_spin_us(void) {
    const char *text = getenv("ZIPCCL_SPIN_US");
    char *end = NULL;
    if (!text || *text < '0' || *text > '9')
        return SPIN_DEFAULT_US;
    unsigned long us = strtoul(text, &end, 10);
    if (*end)
        return SPIN_DEFAULT_US;
    return us < SPIN_MAX_US ? us : SPIN_MAX_US;
}

static zipcclResult_t unreachable(const char *path, int err, char *why) {
    if (err == EACCES || err == EPERM) {
        (void)snprintf(why, CONNECT_WHY_BYTES,
                       "no permission to use zipccld's socket %s: see its group with 'ls -l %s', and ask to be added",
                       path, path);
        return zipcclPermissionDenied;
    }
    (void)snprintf(why, CONNECT_WHY_BYTES,
                   "zipccld is not reachable at %s (%s): see 'systemctl status zipccld'; ZIPCCL_SOCKET names another "
                   "socket",
                   path, strerror(err));
    return err == EMFILE || err == ENFILE ? zipcclSystemError : zipcclDaemonUnavailable;
}

static zipcclResult_t dial(const char *path, int timeout_ms, int *fd, char *why) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = timeout_ms / 1000, .tv_usec = (timeout_ms % 1000) * 1000};
    if (strlen(path) >= sizeof addr.sun_path) {
        (void)snprintf(why, CONNECT_WHY_BYTES, "the path of the daemon's socket is longer than %zu bytes: %.200s",
                       sizeof addr.sun_path - 1, path);
        return zipcclInvalidArgument;
    }
    memcpy(addr.sun_path, path, strlen(path) + 1);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return unreachable(path, errno, why);
    /* Bounds a connect to a daemon whose backlog is full. */
    (void)setsockopt(*fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    int r;
    do
        r = connect(*fd, (const struct sockaddr *)&addr, sizeof addr);
    while (r < 0 && errno == EINTR);
    if (r < 0) {
        zipcclResult_t result = unreachable(path, errno, why);
        (void)close(*fd);
        *fd = -1;
        return result;
    }
    return zipcclSuccess;
}

static zipcclResult_t take_reply(const char *path, const struct frame *f, struct connect_info *info, char *why) {
    ProtobufCMessage *m = NULL;
    const char *bad = "";
    zipcclResult_t r = zipcclInternalError;
    if (f->type != WIRE_HELLO_REPLY && f->type != WIRE_ERROR) {
        (void)snprintf(why, CONNECT_WHY_BYTES, "zipccld at %s answered the hello with %s", path,
                       wire_type_name(f->type));
        return r;
    }
    r = message_unpack(f, &m, &bad);
    if (r != zipcclSuccess) {
        (void)snprintf(why, CONNECT_WHY_BYTES, "zipccld at %s sent a bad %s: %s", path, wire_type_name(f->type), bad);
        return zipcclInternalError;
    }
    if (f->type == WIRE_ERROR) {
        const Zipccl__Error *e = (const Zipccl__Error *)m;
        r = result_from_wire(e->result);
        (void)snprintf(why, CONNECT_WHY_BYTES, "zipccld at %s refused this process: %.300s", path,
                       *e->text ? e->text : result_string(r));
    } else {
        const Zipccl__HelloReply *h = (const Zipccl__HelloReply *)m;
        if (h->version < WIRE_VERSION_MIN || h->version > WIRE_VERSION_MAX) {
            r = zipcclVersionMismatch;
            (void)snprintf(why, CONNECT_WHY_BYTES,
                           "zipccld at %s speaks protocol %u, this library %u to %u: install the same release of both",
                           path, (unsigned)h->version, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
        } else {
            info->version = h->version;
            info->features = h->features;
            info->session = h->session;
            info->max_buffer_bytes = h->max_buffer_bytes;
            info->daemon = h->daemon;
            (void)snprintf(info->node, sizeof info->node, "%s", h->node);
        }
    }
    message_free(m);
    return r;
}

/* As the daemon takes it: a program may have any name, and is not refused for that. */
static char *program_name(char name[64]) {
    size_t n = 0;
    for (const char *p = program_invocation_short_name; *p && n + 1 < 64; p++)
        name[n++] = (char)(*p >= 0x20 && *p < 0x7f ? *p : '?');
    name[n] = '\0';
    return name;
}

zipcclResult_t connect_open(const char *path, const char *job, int timeout_ms, struct frame_conn **conn,
                            struct connect_info *info, char *why) {
    Zipccl__Hello hello = ZIPCCL__HELLO__INIT;
    struct frame f;
    char program[64];
    int fd = -1;
    *conn = NULL;
    memset(info, 0, sizeof *info);
    zipcclResult_t r = dial(path, timeout_ms, &fd, why);
    if (r != zipcclSuccess)
        return r;
    struct frame_conn *c = frame_conn_new(fd, true);
    if (!c) {
        (void)snprintf(why, CONNECT_WHY_BYTES, "no memory for a connection to zipccld");
        return zipcclOutOfMemory;
    }
    hello.version_min = WIRE_VERSION_MIN;
    hello.version_max = WIRE_VERSION_MAX;
    hello.features = WIRE_FEATURE_VERIFY | WIRE_FEATURE_CUDA | WIRE_FEATURE_SPLIT;
    hello.job = (char *)(uintptr_t)job;
    hello.program = program_name(program);
    hello.library = ZIPCCL_VERSION_CODE;
    r = message_send(c, WIRE_HELLO, HELLO_ID, &hello.base, NULL, 0);
    /* A daemon that refuses may have closed already; what it said is still to be read. */
    if (r == zipcclSuccess || r == zipcclRemoteError)
        r = frame_conn_wait_frame(c, &f, timeout_ms);
    if (r == zipcclSuccess) {
        r = take_reply(path, &f, info, why);
    } else if (r == zipcclTimeout) {
        (void)snprintf(why, CONNECT_WHY_BYTES,
                       "zipccld at %s did not answer within %d ms: see 'systemctl status zipccld'", path, timeout_ms);
    } else {
        (void)snprintf(why, CONNECT_WHY_BYTES, "zipccld at %s ended the connection: %.250s", path, frame_conn_why(c));
        if (r == zipcclRemoteError)
            r = zipcclDaemonUnavailable;
    }
    if (r != zipcclSuccess) {
        frame_conn_free(c);
        return r;
    }
    *conn = c;
    return zipcclSuccess;
}
