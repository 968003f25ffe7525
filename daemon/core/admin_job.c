/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight, priority and rate of a job, changed while it runs.
 *
 * Shares are taken from other users' jobs, so not even a job's owner may change them: administrators alone.
 */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/core/admin.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/session.h"
#include "zipccl.pb-c.h"

#define LEAST_RATE 8000u /* bits a second */

/* Whether all settings are allowed; the client has been told what is not. */
static bool check(struct session *s, uint32_t id, const Zipccl__AdminJob *m, uint32_t *priority) {
    if (m->weight > FLOW_MAX_WEIGHT)
        session_error(s, id, zipcclInvalidArgument, "weight %u: 1 to %u are allowed", m->weight, FLOW_MAX_WEIGHT);
    else if (m->priority[0] != '\0' && !job_parse_priority(m->priority, priority))
        session_error(s, id, zipcclInvalidArgument, "priority '%.20s': high, normal and low are allowed", m->priority);
    else if (m->set_rate && m->rate_bits > 0 && m->rate_bits < LEAST_RATE)
        session_error(s, id, zipcclInvalidArgument, "a rate of %" PRIu64 " bit/s: 0 (no cap), or 8 kbit/s or more",
                      m->rate_bits);
    else
        return true;
    return false;
}

void admin_job(struct session *s, uint32_t id, const ProtobufCMessage *message) {
    const Zipccl__AdminJob *m = (const Zipccl__AdminJob *)message;
    struct job *job = admin_job_find(s, id, m->job);
    char text[DAEMON_TEXT], rate[48] = "none";
    uint32_t priority = job != NULL ? job->priority : 0;
    if (job == NULL || !check(s, id, m, &priority))
        return;
    job->priority = priority;
    if (m->weight > 0)
        job->weight = m->weight;
    if (m->set_rate)
        job->rate_bits = m->rate_bits;
    job_share(job);
    if (job->rate_bits > 0)
        snprintf(rate, sizeof rate, "%" PRIu64 " bit/s", job->rate_bits);
    snprintf(text, sizeof text, "%.300s: weight %u, priority %s, rate %s", job->name, job->weight,
             job_priority_name(job->priority), rate);
    events_add(s->daemon->events, EVENT_JOB_SHARE, job->name, 0, "%s, by uid %u", text, s->uid);
    admin_reply_text(s, id, text);
}
