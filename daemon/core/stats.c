/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps the counters and the rows; nothing is allocated per operation.
 */
#include "daemon/core/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void stats_init(struct stats *s) {
    *s = (struct stats){0};
    list_init(&s->jobs);
}

static void job_free(struct stats_job *job) {
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
            list_del(&old->link);
            job_free(old);
        } else {
            free(old->flight);
            old->flight = NULL;
        }
    }
}

void stats_add(struct stats *s, struct stats_job *job, const struct stats_sample *sample) {
    if ((unsigned)sample->op >= zipcclNumOps || (unsigned)sample->dtype >= zipcclNumTypes ||
        (unsigned)sample->codec >= STATS_CODECS)
        return;
    struct stats_row *r = &job->rows[sample->op][sample->dtype][sample->codec];
    if (sample->result != zipcclSuccess) {
        r->errors++;
        s->counters[STATS_ops_failed]++;
        if (sample->result == zipcclCorruptData)
            s->counters[STATS_corrupt_chunks]++;
        return;
    }
    s->counters[STATS_ops_done]++;
    if (sample->codec != zipcclCodecRaw)
        s->counters[STATS_ops_coded]++;
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
