/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenMPI beside zipccl: the same operation, sizes and rounds, run by mpirun on this machine.
 *
 * Nodes are network namespaces where root may make them: ranks of one node share memory, those of different nodes speak
 * TCP over a bridge, and with a link rate each node's way out is shaped (tbf) so that as many bytes of payload a second
 * pass as a zipccl daemon may send. Elsewhere all ranks speak TCP over loopback, which nothing caps; then the time that
 * the link would allow is computed, and marked as such.
 */
#ifndef ZIPCCL_CTL_PEER_MPI_H
#define ZIPCCL_CTL_PEER_MPI_H

#include "client/ctl/collective_ranks.h"

#define PEER_WHY 512

enum peer_link { PEER_ONE_NODE, PEER_LOOPBACK, PEER_NAMESPACES, PEER_SHAPED };

struct peer_result {
    uint32_t rounds;
    double p50_us, p99_us, least_us;
    double computed_us; /* of loopback with a link rate: at least this on such links; else 0 */
};

struct peer_mpi {
    enum peer_link link;
    char algorithm[128];         /* what was forced */
    struct peer_result *results; /* of each size; owned */
};

/* Whether it does the operation on this type. */
bool peer_mpi_can(zipcclOp_t op, zipcclDataType_t dtype);
/* Runs all sizes, for as many rounds as zipccl did. `stop` is looked at meanwhile. False: why says so;
 * peer_mpi_free is due in both cases. */
bool peer_mpi_run(const struct ranks_plan *plan, const struct ranks_result *zipccl, const char *rows_path,
                  uint64_t link_rate_bits, bool (*stop)(void), struct peer_mpi *peer, char why[PEER_WHY]);
void peer_mpi_free(struct peer_mpi *peer);
/* How the comparison was made, for people. */
const char *peer_mpi_method(const struct peer_mpi *peer);

#endif
