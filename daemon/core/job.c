/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs: whose they are, what they hold, and how they share the node.
 */
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/session.h"

struct job_lookup {
    uv_work_t work;
    struct job *job;
    uid_t uid;
    char user[64];
};

/* On a thread of the pool: a directory service may take seconds. */
static void job_lookup_user(uv_work_t *work) {
    struct job_lookup *l = work->data;
    struct passwd entry, *found = NULL;
    char text[4096];
    if (getpwuid_r(l->uid, &entry, text, sizeof text, &found) == 0 && found != NULL)
        snprintf(l->user, sizeof l->user, "%.63s", found->pw_name);
}

static void job_lookup_done(uv_work_t *work, int status) {
    struct job_lookup *l = work->data;
    if (status == 0 && l->user[0] != '\0')
        memcpy(l->job->user, l->user, sizeof l->job->user);
    job_put(l->job);
    free(l);
}

static const char *const job_priorities[FLOW_PRIORITIES] = {"high", "normal", "low"};

bool job_parse_priority(const char *name, uint32_t *priority) {
    for (uint32_t i = 0; i < FLOW_PRIORITIES; i++) {
        if (strcmp(name, job_priorities[i]) == 0) {
            *priority = i;
            return true;
        }
    }
    return false;
}

const char *job_priority_name(uint32_t priority) {
    return job_priorities[priority < FLOW_PRIORITIES ? priority : FLOW_NORMAL];
}

static struct fabric_share job_link_share(const struct job *job) {
    return (struct fabric_share){job->weight, (enum flow_priority)job->priority, job->rate_bits};
}

void job_share(struct job *job) {
    struct daemon *d = job->daemon;
    struct fabric_share share = job_link_share(job);
    if (job->flow != NULL)
        d->fabric_ops->flow_set(d->fabric, job->flow, &share);
    if (job->workers != NULL)
        d->device_ops->flow_set(d->device, job->workers, share.weight, share.priority);
}

/* Where memory is out the job shares as the default does. */
static void job_open_flows(struct daemon *d, struct job *job) {
    job->weight = (uint32_t)d->config.job_weight;
    job->rate_bits = d->config.job_rate;
    if (!job_parse_priority(d->config.job_priority, &job->priority))
        job->priority = FLOW_NORMAL;
    struct fabric_share share = job_link_share(job);
    if (d->fabric_ops != NULL)
        job->flow = d->fabric_ops->flow_open(d->fabric, &share);
    if (d->device_ops != NULL)
        job->workers = d->device_ops->flow_open(d->device, share.weight, share.priority);
}

static void job_close_flows(struct job *job) {
    struct daemon *d = job->daemon;
    if (job->flow != NULL)
        d->fabric_ops->flow_close(d->fabric, job->flow);
    if (job->workers != NULL)
        d->device_ops->flow_close(d->device, job->workers);
}

struct job_usage job_usage(const struct daemon *d, uid_t uid) {
    struct job_usage usage = {0};
    list_for_each(l, &d->jobs) {
        const struct job *job = list_entry(l, struct job, link);
        if (job->uid != uid)
            continue;
        usage.jobs++;
        usage.comms += job->ncomms;
        usage.buffer_bytes += job->registered_bytes;
    }
    return usage;
}

void job_ref(struct job *job) {
    job->refs++;
}

void job_put(struct job *job) {
    if (--job->refs > 0)
        return;
    list_del(&job->link);
    job->daemon->njobs--;
    stats_job_end(&job->daemon->stats, job->stats);
    events_add(job->daemon->events, EVENT_JOB_END, job->name, 0, "uid %u", job->uid);
    job_close_flows(job);
    log_debug("job ends (job=%s uid=%u)", job->name, job->uid);
    free(job);
}

zipcclResult_t job_get(struct daemon *d, const char *name, uid_t uid, struct job **out, char *why, size_t why_size) {
    if (strlen(name) > SESSION_MAX_JOB_NAME) {
        snprintf(why, why_size, "the job's name is longer than %u bytes", SESSION_MAX_JOB_NAME);
        return zipcclInvalidArgument;
    }
    list_for_each(l, &d->jobs) {
        struct job *job = list_entry(l, struct job, link);
        if (strcmp(job->name, name) != 0)
            continue;
        if (job->uid != uid) {
            snprintf(why, why_size, "job '%s' belongs to another user (uid %u, you are uid %u); set ZIPCCL_JOB_ID",
                     name, job->uid, uid);
            return zipcclPermissionDenied;
        }
        job->refs++;
        *out = job;
        return zipcclSuccess;
    }
    if (d->njobs >= d->config.max_jobs) {
        snprintf(why, why_size, "this daemon has %u jobs, the most that are allowed (max_jobs)", d->njobs);
        return zipcclLimitExceeded;
    }
    struct job_usage usage = job_usage(d, uid);
    if (usage.jobs >= d->config.max_jobs_per_user) {
        snprintf(why, why_size, "user %u has %u jobs, the most that are allowed (max_jobs_per_user)", uid, usage.jobs);
        return zipcclLimitExceeded;
    }
    struct job *job = calloc(1, sizeof *job);
    struct job_lookup *lookup = calloc(1, sizeof *lookup);
    struct stats_job *stats = job != NULL && lookup != NULL ? stats_job_begin(&d->stats, name, uid) : NULL;
    if (stats == NULL) {
        free(job);
        free(lookup);
        snprintf(why, why_size, "out of memory");
        return zipcclOutOfMemory;
    }
    job->daemon = d;
    job->uid = uid;
    job->refs = 1;
    job->stats = stats;
    snprintf(job->name, sizeof job->name, "%s", name);
    snprintf(job->user, sizeof job->user, "%u", uid);
    list_add_tail(&d->jobs, &job->link);
    d->njobs++;
    events_add(d->events, EVENT_JOB_BEGIN, name, 0, "uid %u", uid);
    job_open_flows(d, job);
    log_info("job begins (job=%s uid=%u)", job->name, uid);
    lookup->job = job;
    lookup->uid = uid;
    lookup->work.data = lookup;
    if (uv_queue_work(&d->loop, &lookup->work, job_lookup_user, job_lookup_done) == 0)
        job->refs++;
    else
        free(lookup);
    *out = job;
    return zipcclSuccess;
}
