/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps the counters and the rows; nothing is allocated per operation, but by the first of a kind.
 */
#include "daemon/core/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"

void stats_init(struct stats *s) {
    *s = (struct stats){0};
    list_init(&s->jobs);
}

static void job_free(struct stats_job *job) {
    struct stats_row *rows = &job->rows[0][0][0];
    for (size_t i = 0; i < sizeof job->rows / sizeof *rows; i++)
        free(rows[i].times);
    free(job->flight);
    free(job);
}

void stats_free(struct stats *s) {
    list_for_each_safe(l, &s->jobs) {
        list_del(l);
        job_free(list_entry(l, struct stats_job, link));
    }
}

const char *stats_counter_name(enum stats_counter counter) {
    static const char *const names[] = {
#define STATS_NAME(name, help) #name,
        STATS_COUNTERS(STATS_NAME)
#undef STATS_NAME
    };
    return (unsigned)counter < STATS_NUM_COUNTERS ? names[counter] : NULL;
}

const char *stats_counter_help(enum stats_counter counter) {
    static const char *const helps[] = {
#define STATS_HELP(name, help) help,
        STATS_COUNTERS(STATS_HELP)
#undef STATS_HELP
    };
    return (unsigned)counter < STATS_NUM_COUNTERS ? helps[counter] : NULL;
}

static void stats_merge(struct stats_row *to, const struct stats_row *from) {
    to->count += from->count;
    to->errors += from->errors;
    to->raw_bytes += from->raw_bytes;
    to->wire_bytes += from->wire_bytes;
    to->coded_from_bytes += from->coded_from_bytes;
    to->coded_to_bytes += from->coded_to_bytes;
    to->total_ns += from->total_ns;
    to->wait_ns += from->wait_ns;
    to->encode_ns += from->encode_ns;
    to->decode_ns += from->decode_ns;
}

/* Its name leaves the metrics, its numbers stay in them. */
static void stats_hide(struct stats *s, struct stats_job *job) {
    if (!job->shown)
        return;
    job->shown = false;
    s->nshown_jobs--;
    for (unsigned op = 0; op < zipcclNumOps; op++) {
        for (unsigned dtype = 0; dtype < zipcclNumTypes; dtype++) {
            for (unsigned codec = 0; codec < STATS_CODECS; codec++) {
                struct stats_row *r = &job->rows[op][dtype][codec];
                if (!r->shown)
                    continue;
                r->shown = false;
                s->nshown_rows--;
                stats_merge(&s->other[op][dtype][codec], r);
            }
        }
    }
}

/* Names a new job, in the place of the oldest that has ended where all are taken. */
static void stats_show(struct stats *s, struct stats_job *job) {
    if (!message_text_shows(job->name))
        return;
    list_for_each(l, &s->jobs) {
        struct stats_job *old = list_entry(l, struct stats_job, link);
        if (s->nshown_jobs < STATS_SHOWN_JOBS)
            break;
        if (old->live == 0)
            stats_hide(s, old);
    }
    job->shown = s->nshown_jobs < STATS_SHOWN_JOBS;
    s->nshown_jobs += job->shown;
}

struct stats_job *stats_job_begin(struct stats *s, const char *name, uid_t uid) {
    list_for_each(l, &s->jobs) {
        struct stats_job *job = list_entry(l, struct stats_job, link);
        if (job->uid == uid && strcmp(job->name, name) == 0) {
            job->live++;
            if (job->flight == NULL)
                job->flight = calloc(1, sizeof *job->flight);
            list_del(&job->link); /* in use: youngest */
            list_add_tail(&s->jobs, &job->link);
            return job;
        }
    }
    struct stats_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return NULL;
    snprintf(job->name, sizeof job->name, "%s", name);
    job->uid = uid;
    job->live = 1;
    stats_show(s, job);
    job->flight = calloc(1, sizeof *job->flight);
    list_add_tail(&s->jobs, &job->link);
    return job;
}

void stats_job_end(struct stats *s, struct stats_job *job) {
    uint32_t ended = 0;
    job->live--;
    list_for_each(l, &s->jobs) ended += list_entry(l, struct stats_job, link)->live == 0;
    list_for_each_safe(l, &s->jobs) {
        struct stats_job *old = list_entry(l, struct stats_job, link);
        if (ended <= STATS_KEPT_FLIGHTS)
            break;
        if (old->live != 0)
            continue;
        if (ended-- > STATS_KEPT_JOBS) {
            stats_hide(s, old);
            list_del(&old->link);
            job_free(old);
        } else {
            free(old->flight);
            old->flight = NULL;
        }
    }
}

static void stats_row_add(struct stats_row *r, const struct stats_sample *sample) {
    if (sample->result != zipcclSuccess) {
        r->errors++;
        return;
    }
    r->min_ns = r->count == 0 || sample->total_ns < r->min_ns ? sample->total_ns : r->min_ns;
    r->max_ns = sample->total_ns > r->max_ns ? sample->total_ns : r->max_ns;
    r->count++;
    r->raw_bytes += sample->raw_bytes;
    r->wire_bytes += sample->wire_bytes;
    r->coded_from_bytes += sample->coded_from_bytes;
    r->coded_to_bytes += sample->coded_to_bytes;
    r->total_ns += sample->total_ns;
    r->wait_ns += sample->wait_ns;
    r->encode_ns += sample->encode_ns;
    r->decode_ns += sample->decode_ns;
}

static void stats_time_add(struct stats_times *t, uint64_t ns) {
    unsigned bucket = 0;
    while (bucket < STATS_BUCKETS && ns > stats_bucket_ns(bucket))
        bucket++;
    t->buckets[bucket]++;
    t->sum_ns += ns;
}

void stats_add(struct stats *s, struct stats_job *job, const struct stats_sample *sample) {
    if ((unsigned)sample->op >= zipcclNumOps || (unsigned)sample->dtype >= zipcclNumTypes ||
        (unsigned)sample->codec >= STATS_CODECS)
        return;
    struct stats_row *r = &job->rows[sample->op][sample->dtype][sample->codec];
    if (job->shown && r->count == 0 && r->errors == 0 && s->nshown_rows < STATS_SHOWN_ROWS) {
        r->shown = true;
        s->nshown_rows++;
    }
    stats_row_add(r, sample);
    if (sample->result == zipcclSuccess && r->times == NULL)
        r->times = calloc(1, sizeof *r->times); /* without memory there are no quantiles */
    if (sample->result == zipcclSuccess && r->times != NULL)
        quantile_add(r->times, sample->total_ns);
    if (!r->shown)
        stats_row_add(&s->other[sample->op][sample->dtype][sample->codec], sample);
    if (sample->result != zipcclSuccess) {
        s->counters[STATS_ops_failed]++;
        if (sample->result == zipcclCorruptData)
            s->counters[STATS_corrupt_chunks]++;
        return;
    }
    s->counters[STATS_ops_done]++;
    if (sample->codec != zipcclCodecRaw)
        s->counters[STATS_ops_coded]++;
    stats_time_add(&s->times[sample->op], sample->total_ns);
}
