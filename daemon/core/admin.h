/* SPDX-License-Identifier: Apache-2.0
 *
 * Admin requests: one table says which there are; help, refusals and the manual page follow from it. Allowed to root
 * and to the daemon's own user, as the kernel names the client (SO_PEERCRED). Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_ADMIN_H
#define ZIPCCL_DAEMON_ADMIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/message.h"

struct job;
struct session;

struct admin_command {
    uint16_t type;                                                          /* of the frame */
    const char *name;                                                       /* as zipcclctl calls it */
    const char *does;                                                       /* "reads the configuration again" */
    void (*run)(struct session *s, uint32_t id, const ProtobufCMessage *m); /* m NULL: the frame is empty */
};
extern const struct admin_command admin_commands[];
extern const size_t admin_num_commands;

/* Answers with one line of text. */
void admin_reply_text(struct session *s, uint32_t id, const char *text);
/* NULL: this node serves no such job; the client has been told. */
struct job *admin_job_find(struct session *s, uint32_t id, const char *name);
/* The row of "job set", in admin_job.c. */
void admin_job(struct session *s, uint32_t id, const ProtobufCMessage *m);

/* The row of a frame type; NULL: it is no admin request. */
const struct admin_command *admin_find(uint16_t type);
/* Runs it, or refuses it where the client may not. */
void admin_run(const struct admin_command *command, struct session *s, uint32_t id, const ProtobufCMessage *m);

#endif
