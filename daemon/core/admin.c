/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of admin requests, and what they do.
 */
#include "daemon/core/admin.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/daemon.h"
#include "daemon/core/drain.h"
#include "daemon/core/log.h"
#include "daemon/core/session.h"
#include "zipccl.pb-c.h"

static void reply(struct session *s, uint32_t id, char **lines, size_t n) {
    Zipccl__AdminReply m = ZIPCCL__ADMIN_REPLY__INIT;
    m.node = s->daemon->config.node_name;
    m.lines = lines;
    m.n_lines = n;
    session_send_message(s, WIRE_ADMIN_REPLY, id, &m.base);
}

void admin_reply_text(struct session *s, uint32_t id, const char *text) {
    char line[DAEMON_TEXT], *lines[] = {line};
    snprintf(line, sizeof line, "%s", text);
    reply(s, id, lines, 1);
}

static void admin_log(struct session *s, uint32_t id, const ProtobufCMessage *message) {
    const char *level = ((const Zipccl__AdminLog *)message)->level;
    struct daemon *d = s->daemon;
    char text[96];
    if (!log_set_level_name(level)) {
        session_error(s, id, zipcclInvalidArgument, "no log level '%.32s': error, warn, info or debug", level);
        return;
    }
    snprintf(text, sizeof text, "log level %.15s, until the next reload or start (before: %.15s)", level,
             d->config.log_level);
    snprintf(d->config.log_level, sizeof d->config.log_level, "%s", level);
    events_add(d->events, EVENT_LOG_LEVEL, NULL, 0, "%s, by uid %u", text, s->uid);
    admin_reply_text(s, id, text);
}

static void admin_reload(struct session *s, uint32_t id, const ProtobufCMessage *message) {
    struct config_errors report = {0};
    char why[64], text[DAEMON_TEXT];
    (void)message;
    snprintf(why, sizeof why, "reload by uid %u", s->uid);
    if (daemon_reload(s->daemon, why, &report)) {
        if (report.count == 0)
            admin_reply_text(s, id, "nothing has changed");
        else
            reply(s, id, report.lines, report.count);
    } else {
        size_t used = (size_t)snprintf(text, sizeof text, "refused, the old configuration stays:");
        for (size_t i = 0; i < report.count && used < sizeof text; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s %s", i > 0 ? ";" : "", report.lines[i]);
        session_error(s, id, zipcclInvalidArgument, "%s", text);
    }
    config_errors_free(&report);
}

struct job *admin_job_find(struct session *s, uint32_t id, const char *name) {
    list_for_each(l, &s->daemon->jobs) {
        struct job *job = list_entry(l, struct job, link);
        if (strcmp(job->name, name) == 0)
            return job;
    }
    session_error(s, id, zipcclInvalidArgument, "node %s serves no job '%s'; zipcclctl jobs lists them",
                  s->daemon->config.node_name, name);
    return NULL;
}

static void admin_drain(struct session *s, uint32_t id, const ProtobufCMessage *message) {
    const Zipccl__AdminDrain *m = (const Zipccl__AdminDrain *)message;
    struct daemon *d = s->daemon;
    struct job *job = NULL;
    char text[DAEMON_TEXT];
    if (m->job[0] != '\0' && (job = admin_job_find(s, id, m->job)) == NULL)
        return;
    if (d->draining) {
        session_error(s, id, zipcclInvalidUsage, "zipccld on node %s is shutting down", d->config.node_name);
    } else if (!m->cancel) {
        drain_begin(d, job, m->timeout_ms);
        snprintf(text, sizeof text, "%.300s takes no new operations", job != NULL ? job->name : d->config.node_name);
        admin_reply_text(s, id, text);
    } else if (drain_cancel(d, job)) {
        snprintf(text, sizeof text, "%.300s takes work again", job != NULL ? job->name : d->config.node_name);
        admin_reply_text(s, id, text);
    } else {
        session_error(s, id, zipcclInvalidUsage, "%s is not being drained",
                      job != NULL ? job->name : d->config.node_name);
    }
}

const struct admin_command admin_commands[] = {
    {WIRE_ADMIN_LOG, "log level", "changes what is logged", admin_log},
    {WIRE_ADMIN_RELOAD, "reload", "reads the configuration again", admin_reload},
    {WIRE_ADMIN_DRAIN, "drain", "takes no new operations of the node or of a job", admin_drain},
    {WIRE_ADMIN_JOB, "job set", "changes how a job shares the node", admin_job},
};
const size_t admin_num_commands = sizeof admin_commands / sizeof admin_commands[0];

const struct admin_command *admin_find(uint16_t type) {
    for (size_t i = 0; i < admin_num_commands; i++) {
        if (admin_commands[i].type == type)
            return &admin_commands[i];
    }
    return NULL;
}

void admin_run(const struct admin_command *command, struct session *s, uint32_t id, const ProtobufCMessage *m) {
    if (s->uid != 0 && s->uid != geteuid()) {
        session_error(s, id, zipcclPermissionDenied, "%s (%s) is for root and uid %u, as which zipccld runs, alone",
                      command->name, command->does, geteuid());
        return;
    }
    log_info("admin request: %s (uid=%u pid=%d session=%" PRIu64 ")", command->name, s->uid, (int)s->pid, s->id);
    command->run(s, id, m);
}
