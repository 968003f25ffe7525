/* SPDX-License-Identifier: Apache-2.0
 *
 * What zipcclctl simulate runs: an operation, a cluster, and the arms and codecs that are compared.
 */
#ifndef ZIPCCL_CTL_SIMULATE_SETUP_H
#define ZIPCCL_CTL_SIMULATE_SETUP_H

#include "client/ctl/ctl.h"
#include "daemon/plan/simulate.h"

#define SIMULATE_MAX_VARIANTS ((size_t)zipcclNumArms * zipcclNumCodecs)

struct simulate_setup {
    zipcclOp_t op;
    zipcclDataType_t dtype;
    uint32_t nodes, per_node, root;
    uint64_t bytes; /* of values: what each rank gives; of a scatter, receives */
    uint64_t chunk_bytes;
    uint32_t window;
    enum plan_phases phases;
    zipcclArm_t arm;     /* auto: all are compared */
    zipcclCodec_t codec; /* auto: likewise */
    struct cost cost;
    bool workers_given; /* else a worker for each rank of a node */
    double *arrive;     /* seconds, by rank; NULL: all at once */
    void (*progress)(double share, void *arg);
    void *progress_arg;
};

/* One arm with one codec. */
struct simulate_variant {
    zipcclArm_t arm; /* auto: the operation has none */
    zipcclCodec_t codec;
    double ratio;
    enum simulate_end end;
    struct simulate_result result;
    char why[SIMULATE_WHY];
};

/* From the options; reports what is wrong. setup is freed by simulate_setup_free in both cases. */
enum ctl_exit simulate_setup_read(struct simulate_setup *setup, const struct ctl_args *args);
void simulate_setup_free(struct simulate_setup *setup);

/* The arms and codecs to compare, raw first; how many. */
size_t simulate_variants(const struct simulate_setup *setup, struct simulate_variant out[SIMULATE_MAX_VARIANTS]);

/* Values a rank, as plan_op.count has them: of its share where the operation deals in shares. 0: too few bytes. */
uint64_t simulate_count(const struct simulate_setup *setup);

/* Runs one of them; v->end says how it ended. */
void simulate_variant_run(const struct simulate_setup *setup, struct simulate_variant *v);

/* The fastest of those that ended well, of raw ones alone or of all; NULL: none. */
const struct simulate_variant *simulate_fastest(const struct simulate_variant *v, size_t n, bool raw_alone);

#endif
