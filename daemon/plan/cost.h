/* SPDX-License-Identifier: Apache-2.0
 *
 * What steps and messages of a plan cost: the parameters of the simulator, and the time of one step by them.
 *
 * Messages follow LogGP (Alexandrov, Ionescu, Schauser, Scheiman: "LogGP: Incorporating Long Messages into the LogP
 * Model", SPAA 1995): a message of k bytes takes o + k*G + L + o from the start of the send to the end of the receive
 * (they write (k-1)*G; the header's bytes count here too), and the sender's next message starts g after the last byte
 * of this one. Beyond LogGP: a node has one link out and one in, each serves one message at a time in order (two
 * senders to one receiver take twice as long; what waits lies in the network and holds up no sender); a message over
 * eager_bytes starts `handshake` after both of its ends are posted; o is time of the node's one event loop, so messages
 * of a node queue for it.
 *
 * Work (encode, decode, copy, reduce) runs on `workers` servers a node: step_s + bytes of values / rate. A reduction
 * reads its values at reduce_bps and its coded inputs at decode_bps. Coded chunks have the size that `ratio` says.
 * Not modelled: switches between nodes beyond the two links (a full-bisection network is assumed), memory bandwidth
 * shared by workers, and the variance of anything.
 */
#ifndef ZIPCCL_DAEMON_COST_H
#define ZIPCCL_DAEMON_COST_H

#include "daemon/plan/plan.h"

struct cost {
    double latency_s;   /* L */
    double overhead_s;  /* o, at each end */
    double gap_s;       /* g */
    double handshake_s; /* of a rendezvous */
    double link_bps;    /* bytes a second that a node sends, and as much that it receives: 1/G */
    double copy_bps;    /* of one worker, as all rates of work, in bytes of values */
    double reduce_bps;
    double encode_bps, decode_bps;
    double step_s; /* of each step of work: queues, wake-ups, the launch of a kernel */
    uint32_t workers;
    uint32_t header_bytes; /* with each message */
    uint64_t eager_bytes;  /* greatest payload that does not wait for its receive */
    double ratio[zipcclNumCodecs][zipcclNumTypes];
};

/* Defaults: 8 GPUs a node, 400 Gbit/s; the usual ratios. */
void cost_defaults(struct cost *cost);

/* Bytes on the wire of `part` of count values. */
uint64_t cost_coded_bytes(const struct cost *cost, zipcclCodec_t codec, zipcclDataType_t dtype, uint64_t count,
                          enum plan_part part);

/* What a step takes off its resources. */
struct cost_step {
    uint64_t busy_ps;     /* work: of a worker. Send and receive: of the link */
    uint64_t wire_bytes;  /* send and receive */
    uint64_t local_bytes; /* moved between ranks of the node */
    bool eager;
    bool local;   /* a send or receive inside the node */
    bool nothing; /* a copy onto itself */
};

/* node: where the plan runs. */
struct cost_step cost_of_step(const struct cost *cost, const struct plan *plan, const struct plan_step *step,
                              uint32_t node);

/* Whether an input of a reduction comes from another rank of the node than the one that reduces. */
bool cost_is_far(const struct plan *plan, const struct plan_step *step, const struct plan_input *in);

/* Seconds, rounded, in the unit of the simulator's clock. */
uint64_t cost_ps(double seconds);

#endif
