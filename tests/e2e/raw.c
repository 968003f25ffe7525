/* SPDX-License-Identifier: Apache-2.0 */
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int raw_connect(const char *socket_path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    E2E_CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "%s: %s", socket_path,
              strerror(errno));
    return fd;
}

int raw_connect_tcp(const char *hostport) {
    char host[128];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(host, sizeof(host), "%s", hostport);
    char *colon = strrchr(host, ':');
    E2E_CHECK(colon, "%s", hostport);
    *colon = '\0';
    E2E_CHECK(getaddrinfo(host, colon + 1, &hints, &found) == 0, "%s", hostport);
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    E2E_CHECK(fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0, "%s: %s", hostport, strerror(errno));
    freeaddrinfo(found);
    return fd;
}

bool raw_bytes(int fd, const void *bytes, size_t size, const int *fds, unsigned nfds) {
    char control[CMSG_SPACE(64 * sizeof(int))] = {0};
    const uint8_t *p = bytes;
    while (size) {
        struct iovec iov = {(void *)(uintptr_t)p, size};
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
        if (nfds) {
            m.msg_control = control;
            m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
            memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
        }
        ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        size -= (size_t)n;
        nfds = 0;
    }
    return true;
}

bool raw_send(int fd, uint16_t type, uint32_t id, const void *payload, uint32_t length, const int *fds, unsigned nfds) {
    struct frame_header h = {.length = length, .type = type, .nfds = (uint16_t)nfds, .id = id, .magic = FRAME_MAGIC};
    uint8_t *bytes = malloc(sizeof(h) + length);
    E2E_CHECK(bytes, "%u", length);
    memcpy(bytes, &h, sizeof(h));
    if (length)
        memcpy(bytes + sizeof(h), payload, length);
    bool sent = raw_bytes(fd, bytes, sizeof(h) + length, fds, nfds);
    free(bytes);
    return sent;
}

bool raw_message(int fd, uint16_t type, uint32_t id, const ProtobufCMessage *message, const int *fds, unsigned nfds) {
    uint8_t packed[4096];
    size_t size = protobuf_c_message_get_packed_size(message);
    E2E_CHECK(size <= sizeof(packed), "%zu", size);
    protobuf_c_message_pack(message, packed);
    return raw_send(fd, type, id, packed, (uint32_t)size, fds, nfds);
}

/* 1: all read. 0: end. -1: late. */
static int read_all(int fd, void *to, size_t size, double end) {
    uint8_t *p = to;
    while (size) {
        struct pollfd w = {.fd = fd, .events = POLLIN};
        double left = end - e2e_now();
        if (left <= 0 || poll(&w, 1, (int)(left * 1000) + 1) == 0)
            return -1;
        ssize_t n = recv(fd, p, size, 0);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return 0;
        p += n;
        size -= (size_t)n;
    }
    return 1;
}

int raw_next(int fd, struct raw_frame *f, double seconds) {
    double end = e2e_now() + seconds * E2E_SLOW;
    int rc = read_all(fd, &f->header, sizeof(f->header), end);
    if (rc != 1)
        return rc;
    E2E_CHECK(f->header.magic == FRAME_MAGIC && f->header.length < sizeof(f->payload), "a reply of %u bytes",
              f->header.length);
    f->payload[f->header.length] = 0;
    return read_all(fd, f->payload, f->header.length, end);
}

void raw_expect(int fd, struct raw_frame *f, uint16_t type) {
    int rc = raw_next(fd, f, 10);
    if (rc == 1 && f->header.type == WIRE_ERROR && type != WIRE_ERROR) {
        Zipccl__Error *error = zipccl__error__unpack(NULL, f->header.length, f->payload);
        E2E_FAIL("expected frame type %u, got the error %s: %s", type, e2e_result_name((int)error->result),
                 error->text);
    }
    E2E_CHECK(rc == 1 && f->header.type == type, "expected frame type %u, got %s (type %u)", type,
              rc == 1   ? "another"
              : rc == 0 ? "the end"
                        : "nothing",
              rc == 1 ? f->header.type : 0u);
}

void raw_expect_error(int fd, int result, const char *what) {
    struct raw_frame f;
    do /* what was asked before the error is answered before it */
        E2E_CHECK(raw_next(fd, &f, 10) == 1, "no error about \"%s\" came", what);
    while (f.header.type == WIRE_STATUS_REPLY);
    E2E_CHECK(f.header.type == WIRE_ERROR, "expected an error about \"%s\", got type %u", what, f.header.type);
    Zipccl__Error *error = zipccl__error__unpack(NULL, f.header.length, f.payload);
    E2E_CHECK(error, "an error that cannot be read");
    E2E_CHECK(result == -1 || error->result == (uint32_t)result, "expected %s, got %s: %s", e2e_result_name(result),
              e2e_result_name((int)error->result), error->text);
    E2E_CHECK(error->result != zipcclSuccess && e2e_mentions(error->text, what), "nothing of \"%s\" in \"%s\"", what,
              error->text);
    zipccl__error__free_unpacked(error, NULL);
}

void raw_expect_closed(int fd) {
    struct raw_frame f;
    double end = e2e_now() + 10 * E2E_SLOW;
    int rc;
    while ((rc = raw_next(fd, &f, 5)) == 1)
        E2E_CHECK(e2e_now() < end, "the daemon goes on talking");
    E2E_CHECK(rc == 0, "the daemon does not close");
}

int raw_session(const char *socket_path, const char *job) {
    int fd = raw_connect(socket_path);
    struct raw_frame f;
    Zipccl__Hello hello = ZIPCCL__HELLO__INIT;
    hello.version_min = WIRE_VERSION_MIN;
    hello.version_max = WIRE_VERSION_MAX;
    hello.job = (char *)(uintptr_t)job;
    hello.program = "raw";
    hello.features = WIRE_FEATURE_SPLIT;
    hello.library = ZIPCCL_VERSION_CODE;
    E2E_CHECK(raw_message(fd, WIRE_HELLO, 1, &hello.base, NULL, 0), "hello");
    raw_expect(fd, &f, WIRE_HELLO_REPLY);
    return fd;
}

zipcclUniqueId raw_unique_id(int fd) {
    struct raw_frame f;
    zipcclUniqueId id;
    E2E_CHECK(raw_send(fd, WIRE_UNIQUE_ID, 2, NULL, 0, NULL, 0), "send");
    raw_expect(fd, &f, WIRE_UNIQUE_ID_REPLY);
    E2E_CHECK(f.header.length == sizeof(id), "%u", f.header.length);
    memcpy(&id, f.payload, sizeof(id));
    return id;
}

uint64_t raw_comm(int fd, const zipcclUniqueId *id, uint32_t nranks, uint32_t rank) {
    struct raw_frame f;
    Zipccl__CommInit init = ZIPCCL__COMM_INIT__INIT;
    init.unique_id = (ProtobufCBinaryData){sizeof(*id), (uint8_t *)(uintptr_t)id};
    init.nranks = nranks;
    init.rank = rank;
    E2E_CHECK(raw_message(fd, WIRE_COMM_INIT, 3, &init.base, NULL, 0), "send");
    raw_expect(fd, &f, WIRE_COMM_INIT_REPLY);
    Zipccl__CommInitReply *reply = zipccl__comm_init_reply__unpack(NULL, f.header.length, f.payload);
    E2E_CHECK(reply, "reply");
    uint64_t comm = reply->comm;
    zipccl__comm_init_reply__free_unpacked(reply, NULL);
    return comm;
}

uint64_t raw_comm_of_two(int fd, int other) {
    zipcclUniqueId id = raw_unique_id(fd);
    struct raw_frame f;
    for (uint32_t rank = 0; rank < 2; rank++) {
        Zipccl__CommInit init = ZIPCCL__COMM_INIT__INIT;
        init.unique_id = (ProtobufCBinaryData){sizeof(id), (uint8_t *)&id};
        init.nranks = 2;
        init.rank = rank;
        E2E_CHECK(raw_message(rank ? other : fd, WIRE_COMM_INIT, 3, &init.base, NULL, 0), "send");
    }
    raw_expect(fd, &f, WIRE_COMM_INIT_REPLY);
    Zipccl__CommInitReply *reply = zipccl__comm_init_reply__unpack(NULL, f.header.length, f.payload);
    E2E_CHECK(reply, "reply");
    uint64_t comm = reply->comm;
    zipccl__comm_init_reply__free_unpacked(reply, NULL);
    return comm;
}

int raw_memfd(uint64_t bytes, bool sealed) {
    int fd = memfd_create("zipccl-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    E2E_CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, "%s", strerror(errno));
    if (sealed)
        E2E_CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "%s", strerror(errno));
    return fd;
}

bool raw_register(int fd, uint32_t id, int memfd, uint64_t bytes) {
    Zipccl__BufferRegister m = ZIPCCL__BUFFER_REGISTER__INIT;
    m.bytes = bytes;
    return raw_message(fd, WIRE_BUFFER_REGISTER, id, &m.base, &memfd, memfd >= 0);
}

uint64_t raw_buffer(int fd, uint64_t bytes) {
    struct raw_frame f;
    int memfd = raw_memfd(bytes, true);
    E2E_CHECK(raw_register(fd, 4, memfd, bytes), "send");
    close(memfd);
    raw_expect(fd, &f, WIRE_BUFFER_REGISTER_REPLY);
    Zipccl__BufferRef *reply = zipccl__buffer_ref__unpack(NULL, f.header.length, f.payload);
    E2E_CHECK(reply && reply->buffer, "reply");
    uint64_t buffer = reply->buffer;
    zipccl__buffer_ref__free_unpacked(reply, NULL);
    return buffer;
}

Zipccl__Status *raw_status(const char *socket_path) {
    struct raw_frame f;
    int fd = raw_session(socket_path, "");
    E2E_CHECK(raw_send(fd, WIRE_STATUS, 5, NULL, 0, NULL, 0), "send");
    raw_expect(fd, &f, WIRE_STATUS_REPLY);
    close(fd);
    Zipccl__Status *status = zipccl__status__unpack(NULL, f.header.length, f.payload);
    E2E_CHECK(status, "status");
    return status;
}

Zipccl__Stats *raw_stats(const char *socket_path) {
    struct raw_frame f;
    int fd = raw_session(socket_path, "");
    Zipccl__StatsRequest request = ZIPCCL__STATS_REQUEST__INIT;
    E2E_CHECK(raw_message(fd, WIRE_STATS, 6, &request.base, NULL, 0), "send");
    raw_expect(fd, &f, WIRE_STATS_REPLY);
    close(fd);
    Zipccl__Stats *stats = zipccl__stats__unpack(NULL, f.header.length, f.payload);
    E2E_CHECK(stats, "stats");
    return stats;
}

uint64_t raw_counter(const char *socket_path, const char *name) {
    Zipccl__Status *status = raw_status(socket_path);
    uint64_t value = 0;
    for (size_t i = 0; i < status->n_counters; i++)
        if (strcmp(status->counters[i]->name, name) == 0)
            value = status->counters[i]->value;
    zipccl__status__free_unpacked(status, NULL);
    return value;
}

void raw_nothing_left(struct e2e *e) {
    for (unsigned i = 0; i < e->ndaemons; i++) {
        double end = e2e_now() + 5 * E2E_SLOW;
        uint64_t bytes = 1;
        size_t comms = 1;
        while (e->daemons[i].pid && bytes + comms > 0) {
            Zipccl__Status *s = raw_status(e->daemons[i].socket);
            bytes = 0;
            comms = s->n_comms;
            for (size_t k = 0; k < s->n_jobs; k++)
                bytes += s->jobs[k]->registered_bytes;
            zipccl__status__free_unpacked(s, NULL);
            E2E_CHECK(e2e_now() < end, "node%u keeps %llu bytes and %zu communicators", i, (unsigned long long)bytes,
                      comms);
            e2e_sleep(0.01);
        }
    }
}
