/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl log level, reload, drain node, drain job, job NAME set: what an administrator has the daemon do.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/output.h"
#include "client/ctl/units.h"

#define POLL_MS 50
#define GRACE_S 5 /* after the time-out: what runs is being ended */

/* Prints what the daemon did, or why it did not; frees done. */
static enum ctl_exit finish(const struct ctl_args *args, struct admin *admin, zipcclResult_t result,
                            Zipccl__AdminReply *done) {
    enum ctl_exit rc = CTL_OK;
    if (result != zipcclSuccess) {
        rc = ctl_fail(args, daemon_exit(result), "%s", admin_why(admin));
    } else if (ctl_has(args, "json")) {
        json_t *lines = json_array();
        for (size_t i = 0; i < done->n_lines; i++)
            (void)json_array_append_new(lines, output_text(done->lines[i]));
        rc = output_json(json_pack("{s:s, s:o, s:s, s:o}", "schema", "zipccl.admin/1", "node", output_text(done->node),
                                   "command", args->command->name, "done", lines));
    } else {
        for (size_t i = 0; i < done->n_lines; i++)
            printf("node %s: %s\n", done->node, done->lines[i]);
    }
    if (done)
        zipccl__admin_reply__free_unpacked(done, NULL);
    admin_close(admin);
    return rc;
}

enum ctl_exit ctl_log_level(const struct ctl_args *args) {
    struct admin *admin = NULL;
    Zipccl__AdminReply *done = NULL;
    if (args->noperands != 1)
        return ctl_usage(args, "takes one of error, warn, info, debug");
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_log_level(admin, args->operands[0], &done);
    return finish(args, admin, result, done);
}

enum ctl_exit ctl_reload(const struct ctl_args *args) {
    struct admin *admin = NULL;
    Zipccl__AdminReply *done = NULL;
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_reload(admin, &done);
    return finish(args, admin, result, done);
}

/* The state of the node, or of a job: one that is gone is drained. */
static zipcclResult_t drained(struct admin *admin, const char *job, bool *yes) {
    Zipccl__Status *status = NULL;
    zipcclResult_t result = admin_status(admin, &status);
    if (result != zipcclSuccess)
        return result;
    *yes = *job || !strcmp(status->state, "drained");
    for (size_t i = 0; *job && i < status->n_jobs; i++)
        if (!strcmp(status->jobs[i]->job, job) && strcmp(status->jobs[i]->state, "drained") != 0)
            *yes = false;
    zipccl__status__free_unpacked(status, NULL);
    return zipcclSuccess;
}

static enum ctl_exit drain(const struct ctl_args *args, const char *job) {
    const struct timespec pause = {0, POLL_MS * 1000000};
    struct admin *admin = NULL;
    Zipccl__AdminReply *done = NULL;
    double seconds = 0;
    bool over = ctl_has(args, "cancel");
    if (!units_parse_number(ctl_get(args, "timeout"), 0, 86400, &seconds))
        return ctl_usage(args, "--timeout is seconds, not \"%s\"", ctl_get(args, "timeout"));
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_drain(admin, job, (uint64_t)(seconds * 1000), over, &done);
    uint64_t end = units_now_ns() + (uint64_t)((seconds + GRACE_S) * 1e9);
    while (result == zipcclSuccess && !over) {
        result = drained(admin, job, &over);
        if (result == zipcclSuccess && !over && units_now_ns() >= end) {
            zipccl__admin_reply__free_unpacked(done, NULL);
            admin_close(admin);
            return ctl_fail(args, CTL_TIMEOUT, "not drained after %g s; see zipcclctl status", seconds + GRACE_S);
        }
        if (!over)
            (void)nanosleep(&pause, NULL);
    }
    return finish(args, admin, result, done);
}

enum ctl_exit ctl_drain_node(const struct ctl_args *args) {
    return drain(args, "");
}

enum ctl_exit ctl_drain_job(const struct ctl_args *args) {
    if (args->noperands != 1 || !*args->operands[0])
        return ctl_usage(args, "takes one job");
    return drain(args, args->operands[0]);
}

struct share {
    uint64_t weight;      /* 0: as it is */
    const char *priority; /* NULL: as it is */
    uint64_t rate;
    bool has_rate;
};

/* False: the word is no setting, or says what is not allowed. */
static bool read_setting(const char *word, struct share *share) {
    if (strncmp(word, "weight=", 7) == 0)
        return units_parse_count(word + 7, 1, 1000, &share->weight);
    if (strncmp(word, "rate=", 5) == 0)
        return share->has_rate = units_parse_rate(word + 5, &share->rate);
    if (strncmp(word, "priority=", 9) != 0)
        return false;
    share->priority = word + 9;
    return strcmp(share->priority, "high") == 0 || strcmp(share->priority, "normal") == 0 ||
           strcmp(share->priority, "low") == 0;
}

enum ctl_exit ctl_job(const struct ctl_args *args) {
    struct share share = {0};
    struct admin *admin = NULL;
    Zipccl__AdminReply *done = NULL;
    if (args->noperands < 3 || !*args->operands[0] || strcmp(args->operands[1], "set") != 0)
        return ctl_usage(args, "needs a job's name, the word set, and at least one setting");
    for (size_t i = 2; i < args->noperands; i++) {
        if (!read_setting(args->operands[i], &share))
            return ctl_usage(args, "\"%s\" is none of weight=1..1000, priority=high|normal|low, rate=200mbit",
                             args->operands[i]);
    }
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_job_set(admin, args->operands[0], (uint32_t)share.weight, share.priority,
                               share.has_rate ? &share.rate : NULL, &done);
    return finish(args, admin, result, done);
}
