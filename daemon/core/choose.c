/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of a codec by a serial model: coded = latency + coded bytes on the link + encode + decode + a cost per
 * chunk, nothing overlapped, with ratios that ordinary tensors reach. Real pipelines overlap, so the model errs towards
 * raw.
 */
#include "daemon/core/choose.h"

#include <stdlib.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"

#define MIN_BYTES     ((double)(64 << 10))
#define MUST_GAIN     0.9 /* coded time at most this part of raw time */
#define CHUNK_BYTES   ((double)(4 << 20))
#define CHUNK_NS      20000.0 /* queues and wake-ups of one more stage */
#define NS_PER_SECOND 1e9

static double least_ratio(zipcclDataType_t dtype) {
    switch (dtype) {
    case zipcclBfloat16:
        return 1.40;
    case zipcclFloat8e5m2:
        return 1.30;
    case zipcclFloat32:
        return 1.13;
    case zipcclFloat16:
        return 1.12;
    case zipcclFloat8e4m3:
        return 1.10;
    default:
        return 1.0;
    }
}

/* What the busiest node does, in bytes of values. */
struct load {
    double wire, encode, decode;
};

static bool get_load(zipcclOp_t op, double bytes, const struct plan_topology *t, struct load *load) {
    *load = (struct load){bytes, bytes, bytes}; /* broadcast: a chain of nodes */
    if (op != zipcclOpAllGather)
        return true;
    uint32_t *members = calloc(t->nnodes, sizeof(*members)), least = UINT32_MAX, most = 0;
    if (!members)
        return false;
    for (uint32_t r = 0; r < t->nranks; r++)
        members[t->rank_node[r]]++;
    for (uint32_t n = 0; n < t->nnodes; n++) {
        least = members[n] < least ? members[n] : least;
        most = members[n] > most ? members[n] : most;
    }
    free(members);
    double sent = bytes * most * (t->nnodes - 1), received = bytes * (t->nranks - least);
    load->wire = sent > received ? sent : received;
    load->encode = bytes * most;
    load->decode = received;
    return true;
}

zipcclCodec_t choose_codec(const struct choose_link *link, zipcclCodec_t wanted, zipcclOp_t op, zipcclDataType_t dtype,
                           uint64_t count, const struct plan_topology *topology) {
    const struct dtype_info *info = dtype_get(dtype);
    struct load load;
    if (!info || wanted == zipcclCodecRaw || op == zipcclOpBarrier || count == 0 || topology->nnodes < 2)
        return zipcclCodecRaw;
    if (wanted != zipcclCodecAuto)
        return codec_supports(wanted, dtype) ? wanted : zipcclCodecRaw;
    if (!codec_supports(zipcclCodecTier, dtype) || link->link_bps == 0 || link->encode_bps == 0 ||
        link->decode_bps == 0)
        return zipcclCodecRaw;
    if (!get_load(op, (double)count * info->bytes, topology, &load) || load.wire < MIN_BYTES)
        return zipcclCodecRaw;
    double latency = (double)link->latency_ns, wire = load.wire * NS_PER_SECOND / (double)link->link_bps;
    double chunks = 1.0 + load.wire / CHUNK_BYTES;
    double raw = latency + wire;
    double coded = latency + wire / least_ratio(dtype) + load.encode * NS_PER_SECOND / (double)link->encode_bps +
                   load.decode * NS_PER_SECOND / (double)link->decode_bps + chunks * CHUNK_NS;
    return coded <= MUST_GAIN * raw ? zipcclCodecTier : zipcclCodecRaw;
}
