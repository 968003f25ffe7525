/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases in processes of their own, because CUDA does not survive a fork and the checker aborts: a function runs in a
 * child with environment of its own, and what it wrote to stderr comes back.
 */
#ifndef ZIPCCL_TESTS_STANDIN_FORKED_H
#define ZIPCCL_TESTS_STANDIN_FORKED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* In a child: the case fails here. */
#define CHECK(c)                                                                                                       \
    do {                                                                                                               \
        if (!(c)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #c);                                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define CHECK_IS(a, b)                                                                                                 \
    do {                                                                                                               \
        const long long a_ = (long long)(a), b_ = (long long)(b);                                                      \
        if (a_ != b_) {                                                                                                \
            fprintf(stderr, "%s:%d: %s is %lld, want %lld\n", __FILE__, __LINE__, #a, a_, b_);                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define OK(call) CHECK_IS(call, 0)

/* Two processes and a socket: each case gives its end to what it runs. */
typedef void forked_fn(int peer);

/* Runs fn in a child ("NAME=value" strings, NULL at the end, are set there); it must end well. */
void forked_passes(forked_fn *fn, ...);
/* Both run, connected; both must end well. */
void forked_pair_passes(forked_fn *one, forked_fn *other, ...);
/* It must be aborted, and have said `text`. */
void forked_aborts(forked_fn *fn, const char *text, ...);
/* It must end otherwise than well, and have said `text`: sanitizers have their own ends for a fault. */
void forked_crashes(forked_fn *fn, const char *text, ...);
/* The first of a pair must be aborted, and have said `text`; the other one may end as it likes. */
void forked_pair_aborts(forked_fn *one, forked_fn *other, const char *text, ...);

/* Between the two of a pair. */
void peer_send(int peer, const void *p, size_t bytes);
void peer_receive(int peer, void *p, size_t bytes);
static inline void peer_meet(int peer) {
    char c = 0;
    peer_send(peer, &c, 1);
    peer_receive(peer, &c, 1);
}
void peer_send_fd(int peer, int fd);
int peer_receive_fd(int peer);

#endif
