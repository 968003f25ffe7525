/* SPDX-License-Identifier: Apache-2.0
 *
 * What every codec makes of one tensor: pure of printing, so that tests use it as the command does.
 */
#ifndef ZIPCCL_CTL_ANALYZE_H
#define ZIPCCL_CTL_ANALYZE_H

#include <jansson.h>
#include <stdbool.h>

#include "client/ctl/tensors.h"
#include "zipccl_types.h"

struct analyze_codec {
    bool used; /* the codec takes this dtype */
    bool exact;
    double ratio;
    double encode_bps, decode_bps; /* bytes of values a second, measured; 0: not */
    double speedup;
};

struct analyze_result {
    double entropy, limit; /* bits of exponent a value; T / (R + H). Raw types: 0 and 1 */
    double speedup;        /* of the best codec, at least 1 */
    bool exact;            /* of all codecs */
    struct analyze_codec codecs[zipcclNumCodecs];
};

/* link_bps: bytes a second. Out of memory or a codec that refuses: its result. */
ZIPCCL_MUST_CHECK zipcclResult_t analyze_tensor(const struct tensor *t, double link_bps, struct analyze_result *out);
/* The formula of `zipcclctl analyze --help`. */
double analyze_speedup(double bytes, double ratio, double encode_bps, double decode_bps, double link_bps);
/* {"name", "dtype", ...}; NULL: no memory. */
json_t *analyze_json(const struct tensor *t, const struct analyze_result *r);

#endif
