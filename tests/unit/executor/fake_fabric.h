/* SPDX-License-Identifier: Apache-2.0
 *
 * A fabric in one process and one thread: messages meet receives in a random order at a random time, by rendezvous.
 * A fabric here is one node; all of a test share one world. Messages can be spoiled, and nodes killed.
 */
#ifndef ZIPCCL_TESTS_FAKE_FABRIC_H
#define ZIPCCL_TESTS_FAKE_FABRIC_H

#include "daemon/fabric/fabric.h"

extern const struct fabric_ops fabric_fake;

/* Spoils a byte of the n-th message from now that has a payload (1: the next). 0: none. */
void fake_spoil(unsigned n);
/* The node's sends and what waits for it end with zipcclRemoteError. */
void fake_kill(struct fabric *f);
/* Changes the headers of messages as they come; NULL: no more. */
void fake_headers(void (*change)(struct fabric_header *header));
void fake_seed(unsigned seed);
/* The peer by which others speak to f. */
struct fabric_peer *fake_peer(struct fabric *f);

#endif
