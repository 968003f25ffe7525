/* SPDX-License-Identifier: Apache-2.0
 *
 * A client that speaks to the daemon frame by frame, so that it can say what libzipccl never would.
 */
#ifndef ZIPCCL_TESTS_E2E_RAW_H
#define ZIPCCL_TESTS_E2E_RAW_H

#include "harness.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "zipccl.pb-c.h"

struct raw_frame {
    struct frame_header header;
    uint8_t payload[65536]; /* replies are small */
};

int raw_connect(const char *socket_path);
int raw_connect_tcp(const char *hostport);
/* Sends these bytes with these descriptors on the first of them. False: the daemon has closed. */
bool raw_bytes(int fd, const void *bytes, size_t size, const int *fds, unsigned nfds);
bool raw_send(int fd, uint16_t type, uint32_t id, const void *payload, uint32_t length, const int *fds, unsigned nfds);
bool raw_message(int fd, uint16_t type, uint32_t id, const ProtobufCMessage *message, const int *fds, unsigned nfds);
/* The next frame. 1: got one. 0: the daemon closed. -1: nothing within `seconds` (times E2E_SLOW). */
int raw_next(int fd, struct raw_frame *f, double seconds);
/* Fails unless the next frame is of this type. */
void raw_expect(int fd, struct raw_frame *f, uint16_t type);
/* Fails unless an error with this result (-1: any) comes, whose text has `what`. */
void raw_expect_error(int fd, int result, const char *what);
/* Fails unless the daemon closes the connection (after it said whatever it wants). */
void raw_expect_closed(int fd);

/* Says hello and takes the reply. */
int raw_session(const char *socket_path, const char *job);
zipcclUniqueId raw_unique_id(int fd);
uint64_t raw_comm(int fd, const zipcclUniqueId *id, uint32_t nranks, uint32_t rank);
/* A communicator of two, rank 0 at fd, as that one knows it; the other's reply is left to be read. */
uint64_t raw_comm_of_two(int fd, int other);
/* A sealed memfd of this size, or one without seals. */
int raw_memfd(uint64_t bytes, bool sealed);
/* Registers; the reply is left to be read. */
bool raw_register(int fd, uint32_t id, int memfd, uint64_t bytes);
uint64_t raw_buffer(int fd, uint64_t bytes);
/* The daemon's status; freed by zipccl__status__free_unpacked(s, NULL). */
Zipccl__Status *raw_status(const char *socket_path);
Zipccl__Stats *raw_stats(const char *socket_path);
uint64_t raw_counter(const char *socket_path, const char *name);
/* Fails unless the daemons soon hold no communicator and no memory of a client. */
void raw_nothing_left(struct e2e *e);

#endif
