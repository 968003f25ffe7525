/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl status: what a daemon is doing now.
 */
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/output.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#define RANKS_TEXT 96

/* "0-3, 6" */
static const char *ranks_text(char out[RANKS_TEXT], const uint32_t *ranks, size_t n) {
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < n && used + 32 < RANKS_TEXT;) {
        size_t j = i;
        while (j + 1 < n && ranks[j + 1] == ranks[j] + 1)
            j++;
        used += (size_t)snprintf(out + used, RANKS_TEXT - used, i ? ", %u" : "%u", ranks[i]);
        if (j > i)
            used += (size_t)snprintf(out + used, RANKS_TEXT - used, "-%u", ranks[j]);
        i = j + 1;
        if (i < n && used + 32 >= RANKS_TEXT)
            (void)snprintf(out + used, RANKS_TEXT - used, "...");
    }
    return out;
}

static json_t *ranks_json(const uint32_t *ranks, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(array, json_integer(ranks[i]));
    return array;
}

static json_t *counters_json(Zipccl__Counter **counters, size_t n) {
    json_t *object = json_object();
    for (size_t i = 0; i < n; i++)
        (void)json_object_set_new(object, counters[i]->name, json_integer((json_int_t)counters[i]->value));
    return object;
}

static json_t *status_json(const Zipccl__Status *s, const char *socket) {
    json_t *jobs = json_array(), *comms = json_array(), *peers = json_array(), *gpus = json_array();
    for (size_t i = 0; i < s->n_gpus; i++) {
        const Zipccl__GpuStatus *g = s->gpus[i];
        (void)json_array_append_new(
            gpus, json_pack("{s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:o}", "gpu", (json_int_t)g->gpu, "name",
                            output_text(g->name), "worker", (json_int_t)g->worker, "restarts", (json_int_t)g->restarts,
                            "pool_bytes", (json_int_t)g->pool_bytes, "pool_used_bytes", (json_int_t)g->pool_used_bytes,
                            "pool_missed_bytes", (json_int_t)g->pool_missed_bytes, "error", output_text(g->error)));
    }
    for (size_t i = 0; i < s->n_jobs; i++) {
        const Zipccl__JobStatus *j = s->jobs[i];
        (void)json_array_append_new(
            jobs, json_pack("{s:o, s:I, s:o, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I}", "job", output_text(j->job),
                            "uid", (json_int_t)j->uid, "user", output_text(j->user), "sessions",
                            (json_int_t)j->sessions, "comms", (json_int_t)j->comms, "registered_bytes",
                            (json_int_t)j->registered_bytes, "weight", (json_int_t)j->weight, "priority",
                            output_text(j->priority), "rate_bits", (json_int_t)j->rate_bits, "queued_bytes",
                            (json_int_t)j->queued_bytes, "sent_bytes", (json_int_t)j->sent_bytes));
    }
    for (size_t i = 0; i < s->n_comms; i++) {
        const Zipccl__CommStatus *c = s->comms[i];
        char key[24];
        (void)snprintf(key, sizeof key, "%016llx", (unsigned long long)c->key);
        (void)json_array_append_new(
            comms, json_pack("{s:s, s:o, s:I, s:o, s:I, s:I, s:o, s:I, s:I, s:o, s:o, s:o, s:o}", "key", key, "job",
                             output_text(c->job), "uid", (json_int_t)c->uid, "state", output_text(c->state), "nranks",
                             (json_int_t)c->nranks, "nnodes", (json_int_t)c->nnodes, "local_ranks",
                             ranks_json(c->local_ranks, c->n_local_ranks), "ops_done", (json_int_t)c->ops_done,
                             "ops_queued", (json_int_t)c->ops_queued, "current", output_text(c->current),
                             "current_seconds", output_real(c->current_seconds), "waiting_for",
                             ranks_json(c->waiting_for, c->n_waiting_for), "error", output_text(c->error)));
    }
    for (size_t i = 0; i < s->n_peers; i++) {
        const Zipccl__PeerStatus *p = s->peers[i];
        (void)json_array_append_new(peers, json_pack("{s:o, s:o, s:o, s:o}", "node", output_text(p->node), "address",
                                                     output_text(p->address), "state", output_text(p->state),
                                                     "idle_seconds", output_real(p->idle_seconds)));
    }
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, "
        "s:I, s:o}",
        "schema", "zipccl.status/1", "node", output_text(s->node), "version", output_text(s->version), "socket",
        output_text(socket), "uptime_seconds", output_real(s->uptime_seconds), "state", output_text(s->state), "device",
        output_text(s->device), "fabric", output_text(s->fabric), "listen", output_text(s->listen), "link_rate_bits",
        (json_int_t)s->link_rate_bits, "sessions", (json_int_t)s->sessions, "encode_gbps", output_real(s->encode_gbps),
        "decode_gbps", output_real(s->decode_gbps), "jobs", jobs, "comms", comms, "peers", peers, "gpus", gpus,
        "jobs_left_out", (json_int_t)s->jobs_left_out, "comms_left_out", (json_int_t)s->comms_left_out,
        "peers_left_out", (json_int_t)s->peers_left_out, "counters", counters_json(s->counters, s->n_counters));
}

static void head(struct table *t, const char *const *names) {
    for (; *names; names++)
        table_cell(t, "%s", *names);
}

static void print_jobs(const Zipccl__Status *s) {
    struct table *t = table_new("llrrrrlrrr");
    char bytes[UNITS_TEXT];
    if (!t)
        return;
    head(t, (const char *const[]){"job", "user", "sessions", "communicators", "registered", "weight", "priority",
                                  "rate", "queued", "sent", NULL});
    for (size_t i = 0; i < s->n_jobs; i++) {
        const Zipccl__JobStatus *j = s->jobs[i];
        table_cell(t, "%s", j->job);
        table_cell(t, "%s", j->user);
        table_cell(t, "%u", j->sessions);
        table_cell(t, "%u", j->comms);
        table_cell(t, "%s", units_bytes(bytes, j->registered_bytes));
        table_cell(t, "%u", j->weight);
        table_cell(t, "%s", j->priority);
        table_cell(t, "%s", j->rate_bits ? units_rate(bytes, j->rate_bits) : "none");
        table_cell(t, "%s", units_bytes(bytes, j->queued_bytes));
        table_cell(t, "%s", units_bytes(bytes, j->sent_bytes));
    }
    printf("\nJobs:\n");
    table_print(t, stdout, 2);
    table_free(t);
}

static void print_comms(const Zipccl__Status *s) {
    struct table *t = table_new("llllrrrlrl");
    char local[RANKS_TEXT], waiting[RANKS_TEXT], time[UNITS_TEXT];
    if (!t)
        return;
    head(t, (const char *const[]){"communicator", "job", "state", "ranks here", "of", "nodes", "done", "now", "for",
                                  "waiting for ranks", NULL});
    for (size_t i = 0; i < s->n_comms; i++) {
        const Zipccl__CommStatus *c = s->comms[i];
        table_cell(t, "%08llx", (unsigned long long)(c->key & 0xffffffffu));
        table_cell(t, "%s", c->job);
        table_cell(t, "%s", c->state);
        table_cell(t, "%s", ranks_text(local, c->local_ranks, c->n_local_ranks));
        table_cell(t, "%u", c->nranks);
        table_cell(t, "%u", c->nnodes);
        table_cell(t, "%llu", (unsigned long long)c->ops_done);
        table_cell(t, "%s", *c->current ? c->current : "idle");
        table_cell(t, "%s", *c->current ? units_seconds(time, c->current_seconds) : "");
        table_cell(t, "%s", *c->error ? c->error : ranks_text(waiting, c->waiting_for, c->n_waiting_for));
    }
    printf("\nCommunicators:\n");
    table_print(t, stdout, 2);
    table_free(t);
}

static void print_peers(const Zipccl__Status *s) {
    struct table *t = table_new("lllr");
    char idle[UNITS_TEXT];
    if (!t)
        return;
    head(t, (const char *const[]){"peer", "address", "state", "silent for", NULL});
    for (size_t i = 0; i < s->n_peers; i++) {
        table_cell(t, "%s", s->peers[i]->node);
        table_cell(t, "%s", s->peers[i]->address);
        table_cell(t, "%s", s->peers[i]->state);
        table_cell(t, "%s", units_seconds(idle, s->peers[i]->idle_seconds));
    }
    printf("\nPeers:\n");
    table_print(t, stdout, 2);
    table_free(t);
}

static void print_gpus(const Zipccl__Status *s) {
    struct table *t = table_new("rlrrrrl");
    char bytes[UNITS_TEXT];
    if (!t)
        return;
    head(t, (const char *const[]){"GPU", "name", "worker", "restarts", "pool", "missed", "error", NULL});
    for (size_t i = 0; i < s->n_gpus; i++) {
        const Zipccl__GpuStatus *g = s->gpus[i];
        table_cell(t, "%u", g->gpu);
        table_cell(t, "%s", g->name);
        if (g->worker)
            table_cell(t, "%u", g->worker);
        else
            table_cell(t, "none");
        table_cell(t, "%u", g->restarts);
        units_bytes(bytes, g->pool_bytes);
        table_cell(t, "%s", bytes);
        units_bytes(bytes, g->pool_missed_bytes);
        table_cell(t, "%s", bytes);
        table_cell(t, "%s", g->error);
    }
    printf("\nGPUs:\n");
    table_print(t, stdout, 2);
    table_free(t);
}

static void print_counters(const Zipccl__Status *s) {
    struct table *t = table_new("lr");
    char count[UNITS_TEXT];
    bool any = false;
    for (size_t i = 0; t && i < s->n_counters; i++) {
        if (!s->counters[i]->value)
            continue;
        any = true;
        table_cell(t, "%s", s->counters[i]->name);
        table_cell(t, "%s", units_count(count, s->counters[i]->value));
    }
    if (any) {
        printf("\nCounters:\n");
        table_print(t, stdout, 2);
    }
    table_free(t);
}

static void print_status(const Zipccl__Status *s) {
    struct table *t = table_new("ll");
    char text[UNITS_TEXT];
    if (!t)
        return;
    table_cell(t, "node");
    table_cell(t, "%s", s->node);
    table_cell(t, "version");
    table_cell(t, "%s", s->version);
    table_cell(t, "state");
    table_cell(t, "%s, up %s", s->state, units_duration(text, s->uptime_seconds));
    table_cell(t, "device");
    table_cell(t, "%s (codec: encode %.1f, decode %.1f GB/s)", s->device, s->encode_gbps, s->decode_gbps);
    table_cell(t, "fabric");
    table_cell(t, "%s%s%s", s->fabric, *s->listen ? ", listening on " : "", s->listen);
    table_cell(t, "link rate");
    table_cell(t, "%s", s->link_rate_bits ? units_rate(text, s->link_rate_bits) : "not capped");
    table_cell(t, "sessions");
    table_cell(t, "%u", s->sessions);
    table_print(t, stdout, 0);
    table_free(t);
    if (s->n_gpus)
        print_gpus(s);
    if (s->n_jobs)
        print_jobs(s);
    table_left_out(stdout, 2, s->jobs_left_out, "jobs", "those that came first");
    if (s->n_comms)
        print_comms(s);
    table_left_out(stdout, 2, s->comms_left_out, "communicators",
                   "those that failed, then those whose operation runs longest");
    if (s->n_peers)
        print_peers(s);
    table_left_out(stdout, 2, s->peers_left_out, "peers", "those that are not up, then by name");
    print_counters(s);
}

enum ctl_exit ctl_status(const struct ctl_args *args) {
    struct admin *admin = NULL;
    Zipccl__Status *status = NULL;
    enum ctl_exit rc = CTL_OK;
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_status(admin, &status);
    if (result != zipcclSuccess) {
        rc = daemon_fail(args, admin, result);
    } else if (ctl_has(args, "json")) {
        rc = output_json(status_json(status, admin_socket(admin)));
    } else {
        print_status(status);
    }
    for (size_t i = 0; status && i < status->n_comms && rc == CTL_OK; i++)
        if (!strcmp(status->comms[i]->state, "failed"))
            rc = CTL_DEGRADED;
    if (status)
        zipccl__status__free_unpacked(status, NULL);
    admin_close(admin);
    return rc;
}
