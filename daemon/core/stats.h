/* SPDX-License-Identifier: Apache-2.0
 *
 * Statistics: daemon-wide counters, and rows per job, operation, dtype and codec.
 *
 * Belongs to the loop thread. A stats_job is owned by struct stats; it outlives the job's last session so that its
 * numbers can still be read, until STATS_KEPT_JOBS newer ended jobs exist.
 *
 * Metrics show a bounded number of jobs and rows by name. Whether a row is shown is settled when it is first used; all
 * others are summed in `other`, where the rows of shown jobs go when they are shown no more: no sum ever shrinks.
 */
#ifndef ZIPCCL_DAEMON_STATS_H
#define ZIPCCL_DAEMON_STATS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/core/flight.h"
#include "daemon/core/list.h"
#include "daemon/core/quantile.h"
#include "zipccl_types.h"

#define STATS_KEPT_JOBS    64u
#define STATS_KEPT_FLIGHTS 16u /* flight recorders of ended jobs: they are large */
#define STATS_SHOWN_JOBS   32u
#define STATS_SHOWN_ROWS   512u
#define STATS_BUCKETS      27u /* of times: up to 1 us, 2 us, 4 us... 67 s */

/* X(name, help). The order is the order of display. */
#define STATS_COUNTERS(X)                                                                                              \
    X(sessions_opened, "client connections accepted")                                                                  \
    X(sessions_refused, "client connections refused: limits or drain")                                                 \
    X(frames_received, "frames from clients")                                                                          \
    X(frames_bad, "frames from clients that were refused")                                                             \
    X(errors_sent, "errors sent to clients")                                                                           \
    X(permission_denied, "requests refused for the user or job")                                                       \
    X(buffers_registered, "buffers registered")                                                                        \
    X(comms_created, "communicators that became ready")                                                                \
    X(comms_failed, "communicators that failed")                                                                       \
    X(requests, "collective requests accepted")                                                                        \
    X(ops_done, "operations that ended well on this node")                                                             \
    X(ops_failed, "operations that failed on this node")                                                               \
    X(ops_coded, "operations that ran with a codec")                                                                   \
    X(native_collectives, "raw operations of this node that went as NCCL's own collectives")                           \
    X(nccl_splits, "communicators whose NCCL communicators were made by a split of the parent's")                      \
    X(corrupt_chunks, "operations that failed on corrupt coded data")                                                  \
    X(peers_connected, "connections to other daemons that came up")                                                    \
    X(peers_lost, "connections to other daemons that were lost")                                                       \
    X(peers_refused, "connections to other daemons that were refused: key, version, time, or no handshake")            \
    X(workers_lost, "worker processes of GPUs that ended: by an error of the GPU, a signal, or time")                  \
    X(profiles_used, "communicators that began with what an earlier one of the same nodes learned")                    \
    X(fabric_sent_bytes, "bytes sent by the fabric")                                                                   \
    X(fabric_received_bytes, "bytes received by the fabric")

enum stats_counter {
#define STATS_ENUM(name, help) STATS_##name,
    STATS_COUNTERS(STATS_ENUM)
#undef STATS_ENUM
        STATS_NUM_COUNTERS
};

#define STATS_CODECS (zipcclNumCodecs)

struct stats_row {
    uint64_t count, errors, raw_bytes, wire_bytes, coded_from_bytes, coded_to_bytes;
    uint64_t total_ns, wait_ns, encode_ns, decode_ns, min_ns, max_ns;
    struct quantile *times; /* of those that ended well; made by the first. NULL: none, or a row of `other` */
    bool shown;
};

/* How long operations of a kind took, all jobs. */
struct stats_times {
    uint64_t buckets[STATS_BUCKETS + 1]; /* not cumulative; the last: longer than all bounds */
    uint64_t sum_ns;
};

struct stats_job {
    struct list link;
    char name[128];
    uid_t uid;
    uint32_t live; /* jobs that use it: 0 or 1 */
    bool shown;
    struct flight *flight; /* NULL: no memory, or dropped */
    struct stats_row rows[zipcclNumOps][zipcclNumTypes][STATS_CODECS];
};

struct stats {
    uint64_t counters[STATS_NUM_COUNTERS];
    struct list jobs; /* oldest first */
    uint32_t nshown_jobs, nshown_rows;
    struct stats_row other[zipcclNumOps][zipcclNumTypes][STATS_CODECS];
    struct stats_times times[zipcclNumOps];
};

struct stats_sample {
    zipcclOp_t op;
    zipcclDataType_t dtype;
    zipcclCodec_t codec;
    zipcclResult_t result;
    uint64_t raw_bytes, wire_bytes, coded_from_bytes, coded_to_bytes;
    uint64_t total_ns, wait_ns, encode_ns, decode_ns;
};

void stats_init(struct stats *s);
void stats_free(struct stats *s);
const char *stats_counter_name(enum stats_counter counter);
const char *stats_counter_help(enum stats_counter counter);
/* The numbers of (name, uid), made where they do not exist. NULL: no memory. Ended by stats_job_end. */
struct stats_job *stats_job_begin(struct stats *s, const char *name, uid_t uid);
void stats_job_end(struct stats *s, struct stats_job *job);
void stats_add(struct stats *s, struct stats_job *job, const struct stats_sample *sample);
/* The upper bound of a bucket of times. */
static inline uint64_t stats_bucket_ns(unsigned bucket) {
    return 1000ull << bucket;
}

#endif
