/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl jobs: whose jobs this node serves, and what each holds and does.
 */
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/output.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

struct totals {
    uint64_t done, queued;
    unsigned failed, busy;
};

static struct totals totals_of(const Zipccl__Status *s, const Zipccl__JobStatus *j) {
    struct totals t = {0};
    for (size_t i = 0; i < s->n_comms; i++) {
        const Zipccl__CommStatus *c = s->comms[i];
        if (c->uid != j->uid || strcmp(c->job, j->job) != 0)
            continue;
        t.done += c->ops_done;
        t.queued += c->ops_queued;
        t.failed += !strcmp(c->state, "failed");
        t.busy += *c->current != 0;
    }
    return t;
}

static json_t *jobs_json(const Zipccl__Status *s) {
    json_t *jobs = json_array();
    for (size_t i = 0; i < s->n_jobs; i++) {
        const Zipccl__JobStatus *j = s->jobs[i];
        struct totals t = totals_of(s, j);
        (void)json_array_append_new(
            jobs,
            json_pack("{s:o, s:I, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "job", output_text(j->job), "uid",
                      (json_int_t)j->uid, "user", output_text(j->user), "state", output_text(j->state), "sessions",
                      (json_int_t)j->sessions, "comms", (json_int_t)j->comms, "comms_failed", (json_int_t)t.failed,
                      "comms_busy", (json_int_t)t.busy, "registered_bytes", (json_int_t)j->registered_bytes, "ops_done",
                      (json_int_t)t.done, "ops_queued", (json_int_t)t.queued));
    }
    return json_pack("{s:s, s:o, s:o, s:I}", "schema", "zipccl.jobs/1", "node", output_text(s->node), "jobs", jobs,
                     "jobs_left_out", (json_int_t)s->jobs_left_out);
}

static void print_jobs(const Zipccl__Status *s) {
    static const char *const head[] = {"job",  "user",   "state",      "sessions", "communicators",
                                       "busy", "failed", "registered", "queued",   "done"};
    struct table *t = table_new("lllrrrrrrr");
    char text[UNITS_TEXT];
    if (!t)
        return;
    if (!s->n_jobs)
        printf("node %s serves no job now.\n", s->node);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(t, "%s", head[i]);
    for (size_t i = 0; i < s->n_jobs; i++) {
        const Zipccl__JobStatus *j = s->jobs[i];
        struct totals sum = totals_of(s, j);
        table_cell(t, "%s", j->job);
        table_cell(t, "%s", j->user);
        table_cell(t, "%s", j->state);
        table_cell(t, "%u", j->sessions);
        table_cell(t, "%u", j->comms);
        table_cell(t, "%u", sum.busy);
        table_cell(t, "%u", sum.failed);
        table_cell(t, "%s", units_bytes(text, j->registered_bytes));
        table_cell(t, "%s", units_count(text, sum.queued));
        table_cell(t, "%s", units_count(text, sum.done));
    }
    if (s->n_jobs)
        table_print(t, stdout, 0);
    table_left_out(stdout, 0, s->jobs_left_out, "jobs", "those that came first");
    table_free(t);
}

enum ctl_exit ctl_jobs(const struct ctl_args *args) {
    struct admin *admin = NULL;
    Zipccl__Status *status = NULL;
    enum ctl_exit rc = CTL_OK;
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_status(admin, &status);
    if (result != zipcclSuccess)
        rc = daemon_fail(args, admin, result);
    else if (ctl_has(args, "json"))
        rc = output_json(jobs_json(status));
    else
        print_jobs(status);
    if (status)
        zipccl__status__free_unpacked(status, NULL);
    admin_close(admin);
    return rc;
}
