/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight, priority and rate of a job, changed while it runs.
 *
 * Shares are taken from other users' jobs, so not even a job's owner may change them: root and the daemon's own user
 * alone, as the kernel names the client.
 */
#include "daemon/core/admin_job.h"

#include <string.h>
#include <unistd.h>

#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/session.h"

#define LEAST_RATE 8000u /* bits a second */

static struct job *find_job(struct daemon *d, const char *name) {
    list_for_each(l, &d->jobs) {
        struct job *job = list_entry(l, struct job, link);
        if (strcmp(job->name, name) == 0)
            return job;
    }
    return NULL;
}

void admin_job_set(struct session *s, uint32_t id, const Zipccl__JobSet *m) {
    struct daemon *d = s->daemon;
    if (s->uid != 0 && s->uid != geteuid()) {
        session_error(s, id, zipcclPermissionDenied, "only root and the user of zipccld may change a job's share");
        return;
    }
    struct job *job = find_job(d, m->job);
    uint32_t priority = job != NULL ? job->priority : 0;
    if (job == NULL) {
        session_error(s, id, zipcclInvalidArgument, "there is no job '%.127s' on node %s", m->job, d->config.node_name);
        return;
    }
    if (m->weight > FLOW_MAX_WEIGHT) {
        session_error(s, id, zipcclInvalidArgument, "weight %u: 1 to %u are allowed", m->weight, FLOW_MAX_WEIGHT);
        return;
    }
    if (m->priority[0] != '\0' && !job_parse_priority(m->priority, &priority)) {
        session_error(s, id, zipcclInvalidArgument, "priority '%.20s': high, normal and low are allowed", m->priority);
        return;
    }
    if (m->set_rate && m->rate_bits > 0 && m->rate_bits < LEAST_RATE) {
        session_error(s, id, zipcclInvalidArgument, "a rate of %llu bit/s: 0 (no cap), or 8 kbit/s or more",
                      (unsigned long long)m->rate_bits);
        return;
    }
    job->priority = priority;
    if (m->weight > 0)
        job->weight = m->weight;
    if (m->set_rate)
        job->rate_bits = m->rate_bits;
    job_share(job);
    log_info("share of a job changes (job=%s weight=%u priority=%s rate_bits=%llu by_uid=%u)", job->name, job->weight,
             job_priority_name(job->priority), (unsigned long long)job->rate_bits, s->uid);
    session_send(s, WIRE_OK, id, NULL, 0);
}
