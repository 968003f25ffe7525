/* SPDX-License-Identifier: Apache-2.0
 *
 * The names of all metrics, and their text from a view. Pure.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/core/metrics.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define RENDER_OTHER (zipcclNumOps * zipcclNumTypes * STATS_CODECS)
#define RENDER_ROWS  (STATS_SHOWN_ROWS + RENDER_OTHER)
#define RENDER_NS    1000000000.0

/* X(family, unit, help, field of struct stats_row): counts, and times in ns */
#define RENDER_COUNTS(X)                                                                                               \
    X("zipccl_operations", NULL, "Operations that ended well on this node.", count)                                    \
    X("zipccl_operation_errors", NULL, "Operations that failed on this node.", errors)                                 \
    X("zipccl_operation_raw_bytes", "bytes", "Values that operations would have sent without a codec.", raw_bytes)     \
    X("zipccl_operation_wire_bytes", "bytes", "Bytes that operations sent to other nodes.", wire_bytes)                \
    X("zipccl_operation_coded_input_bytes", "bytes", "Values that went into the codec.", coded_from_bytes)             \
    X("zipccl_operation_coded_output_bytes", "bytes", "What the codec made of them.", coded_to_bytes)
#define RENDER_TIMES(X)                                                                                                \
    X("zipccl_operation_seconds", "seconds", "Time of operations, from the first local call to the end.", total_ns)    \
    X("zipccl_operation_wait_seconds", "seconds", "Of that: from the first local call to the last one.", wait_ns)      \
    X("zipccl_operation_encode_seconds", "seconds", "Work of encoding, of all workers together.", encode_ns)           \
    X("zipccl_operation_decode_seconds", "seconds", "Work of decoding, of all workers together.", decode_ns)

struct render_row {
    const struct stats_row *row;
    const struct stats_job *job; /* NULL: other */
    uint8_t op, dtype, codec;
    size_t labels, labels_end; /* in the labels of all rows */
};

struct render_rows {
    struct render_row all[RENDER_ROWS];
    unsigned n;
    struct metrics_text labels;
};

static void render_collect(struct render_rows *rows, const struct stats_job *job,
                           const struct stats_row (*table)[zipcclNumTypes][STATS_CODECS]) {
    for (unsigned op = 0; op < zipcclNumOps; op++) {
        for (unsigned dtype = 0; dtype < zipcclNumTypes; dtype++) {
            for (unsigned codec = 0; codec < STATS_CODECS; codec++) {
                const struct stats_row *r = &table[op][dtype][codec];
                bool used = job != NULL ? r->shown : r->count > 0 || r->errors > 0;
                if (!used || rows->n == RENDER_ROWS)
                    continue;
                rows->all[rows->n++] = (struct render_row){
                    .row = r, .job = job, .op = (uint8_t)op, .dtype = (uint8_t)dtype, .codec = (uint8_t)codec};
            }
        }
    }
}

/* Once for all families: names may be long, and are escaped. */
static void render_labels(struct render_rows *rows) {
    for (unsigned i = 0; i < rows->n; i++) {
        struct render_row *r = &rows->all[i];
        const struct dtype_info *dtype = dtype_get(r->dtype);
        char uid[16] = "";
        if (r->job != NULL)
            snprintf(uid, sizeof uid, "%u", r->job->uid);
        const struct metrics_label labels[] = {{"job", r->job != NULL ? r->job->name : "other"},
                                               {"uid", uid},
                                               {"op", op_name(r->op)},
                                               {"dtype", dtype != NULL ? dtype->name : "?"},
                                               {"codec", codec_name((zipcclCodec_t)r->codec)}};
        r->labels = rows->labels.used;
        metrics_text_labels(&rows->labels, labels, 5);
        r->labels_end = rows->labels.used;
    }
}

/* time: the field holds nanoseconds. */
static void render_family(const struct render_rows *rows, struct metrics_text *t, size_t field, bool time) {
    for (unsigned i = 0; i < rows->n; i++) {
        const struct render_row *r = &rows->all[i];
        uint64_t value;
        memcpy(&value, (const char *)r->row + field, sizeof value);
        metrics_text_row(t, rows->labels.data + r->labels, r->labels_end - r->labels, value, time);
    }
}

static void render_rows(const struct stats *s, struct metrics_text *t) {
    struct render_rows rows = {.n = 0};
    list_for_each(l, &s->jobs) {
        const struct stats_job *job = list_entry(l, struct stats_job, link);
        if (job->shown)
            render_collect(&rows, job, job->rows);
    }
    render_collect(&rows, NULL, s->other);
    render_labels(&rows);
    if (rows.labels.failed) {
        t->failed = true;
        metrics_text_free(&rows.labels);
        return;
    }
#define RENDER_ONE(name, unit, help, field, time)                                                                      \
    metrics_text_family(t, name, METRICS_COUNTER, unit, help);                                                         \
    render_family(&rows, t, offsetof(struct stats_row, field), time);
#define RENDER_COUNT(name, unit, help, field) RENDER_ONE(name, unit, help, field, false)
#define RENDER_TIME(name, unit, help, field)  RENDER_ONE(name, unit, help, field, true)
    RENDER_COUNTS(RENDER_COUNT)
    RENDER_TIMES(RENDER_TIME)
    metrics_text_free(&rows.labels);
}

static void render_times(const struct stats *s, struct metrics_text *t) {
    metrics_text_family(t, "zipccl_operation_duration_seconds", METRICS_HISTOGRAM, "seconds",
                        "Time of an operation, from the first local call to the end, by operation, all jobs.");
    for (unsigned op = 0; op < zipcclNumOps; op++) {
        const struct stats_times *times = &s->times[op];
        struct metrics_label labels[] = {{"op", op_name(op)}, {"le", NULL}};
        uint64_t below = 0, all = 0;
        for (unsigned b = 0; b <= STATS_BUCKETS; b++)
            all += times->buckets[b];
        if (all == 0)
            continue;
        for (unsigned b = 0; b <= STATS_BUCKETS; b++) {
            char bound[32] = "+Inf";
            below += times->buckets[b];
            if (b < STATS_BUCKETS)
                snprintf(bound, sizeof bound, "%.9g", (double)stats_bucket_ns(b) / RENDER_NS);
            /* OpenMetrics wants a number that reads as a float. */
            if (b < STATS_BUCKETS && strpbrk(bound, ".e") == NULL)
                memcpy(bound + strlen(bound), ".0", sizeof ".0");
            labels[1].value = bound;
            metrics_text_count(t, "_bucket", labels, 2, below);
        }
        metrics_text_value(t, "_sum", labels, 1, (double)times->sum_ns / RENDER_NS);
        metrics_text_count(t, "_count", labels, 1, all);
    }
}

static void render_counters(const struct stats *s, struct metrics_text *t) {
    static const char *const names[] = {
#define RENDER_NAME(name, help) "zipccl_" #name,
        STATS_COUNTERS(RENDER_NAME)};
    for (unsigned i = 0; i < STATS_NUM_COUNTERS; i++) {
        size_t n = strlen(names[i]);
        bool bytes = n > 6 && strcmp(names[i] + n - 6, "_bytes") == 0;
        metrics_text_family(t, names[i], METRICS_COUNTER, bytes ? "bytes" : NULL,
                            stats_counter_help((enum stats_counter)i));
        metrics_text_count(t, "", NULL, 0, s->counters[i]);
    }
}

static void render_states(struct metrics_text *t, const char *name, const char *help, const struct metrics_state *all,
                          unsigned n) {
    metrics_text_family(t, name, METRICS_GAUGE, NULL, help);
    for (unsigned i = 0; i < n; i++) {
        const struct metrics_label label = {"state", all[i].name};
        metrics_text_count(t, "", &label, 1, all[i].count);
    }
}

static void render_gauge(struct metrics_text *t, const char *name, const char *unit, const char *help, double value) {
    metrics_text_family(t, name, METRICS_GAUGE, unit, help);
    metrics_text_value(t, "", NULL, 0, value);
}

static void render_gauges(const struct metrics_view *v, struct metrics_text *t) {
    const struct metrics_label build[] = {
        {"version", v->version}, {"node", v->node}, {"device", v->device}, {"fabric", v->fabric}};
    metrics_text_family(t, "zipccl_build", METRICS_INFO, NULL, "This daemon.");
    metrics_text_count(t, "", build, 4, 1);
    render_gauge(t, "zipccl_uptime_seconds", "seconds", "Time since the start.", v->uptime_seconds);
    render_gauge(t, "zipccl_draining", NULL, "1: the daemon drains, and ends soon.", v->draining);
    render_gauge(t, "zipccl_sessions", NULL, "Client connections.", (double)v->sessions);
    render_gauge(t, "zipccl_jobs", NULL, "Jobs that have sessions or communicators.", (double)v->jobs);
    render_states(t, "zipccl_communicators", "Communicators, by state.", v->comms, v->ncomms);
    render_states(t, "zipccl_peers", "Connections to other daemons, by state.", v->peers, v->npeers);
    render_gauge(t, "zipccl_queued_operations", NULL, "Requests that wait or run, of all local ranks.",
                 (double)v->queued);
    render_gauge(t, "zipccl_running_communicators", NULL, "Communicators with an operation under way.",
                 (double)v->running);
    render_gauge(t, "zipccl_oldest_operation_seconds", "seconds",
                 "How long the oldest operation is under way; 0: there is none.", v->oldest_seconds);
    render_gauge(t, "zipccl_registered_bytes", "bytes", "Memory of clients that is registered.",
                 (double)v->registered_bytes);
    render_gauge(t, "zipccl_link_rate_bytes_per_second", "bytes_per_second",
                 "Cap on what this node sends; 0: not capped.", (double)v->link_rate_bits / 8);
    render_gauge(t, "zipccl_codec_encode_bytes_per_second", "bytes_per_second",
                 "Values that all workers together encode, as measured at the start.", (double)v->encode_bps);
    render_gauge(t, "zipccl_codec_decode_bytes_per_second", "bytes_per_second",
                 "Values that all workers together decode, as measured at the start.", (double)v->decode_bps);
}

/* value: offset in struct metrics_pool */
static void render_pool(const struct metrics_view *v, struct metrics_text *t, const char *name, enum metrics_type type,
                        size_t field, const char *help) {
    metrics_text_family(t, name, type, "bytes", help);
    for (unsigned i = 0; i < v->npools; i++) {
        char gpu[16];
        uint64_t value;
        const struct metrics_label label = {"gpu", gpu};
        snprintf(gpu, sizeof gpu, "%u", i);
        memcpy(&value, (const char *)&v->pools[i] + field, sizeof value);
        metrics_text_count(t, "", &label, 1, value);
    }
}

static void render_pools(const struct metrics_view *v, struct metrics_text *t) {
    if (v->npools == 0)
        return;
    render_pool(v, t, "zipccl_gpu_pool_bytes", METRICS_GAUGE, offsetof(struct metrics_pool, bytes),
                "Memory of a GPU that the daemon has for what NCCL carries.");
    render_pool(v, t, "zipccl_gpu_pool_used_bytes", METRICS_GAUGE, offsetof(struct metrics_pool, used_bytes),
                "Of that: taken now.");
    render_pool(v, t, "zipccl_gpu_pool_missed_bytes", METRICS_COUNTER, offsetof(struct metrics_pool, missed_bytes),
                "Coded chunks and partial results that found no room there and went through pinned host memory.");
}

void metrics_render(const struct metrics_view *v, struct metrics_text *t) {
    render_gauges(v, t);
    render_pools(v, t);
    render_counters(v->stats, t);
    render_times(v->stats, t);
    render_rows(v->stats, t);
    metrics_text_end(t);
}
