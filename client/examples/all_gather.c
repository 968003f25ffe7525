/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest whole program: every rank contributes 1,000,000 floats, every rank gets those of all.
 *
 *   all_gather ID_FILE RANK NRANKS      once per rank, for example: all_gather /tmp/id 0 2 & all_gather /tmp/id 1 2
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <zipccl.h>

#define COUNT 1000000
#define CHECK(call, comm)                                                                                              \
    do {                                                                                                               \
        if ((call) != zipcclSuccess) {                                                                                 \
            (void)fprintf(stderr, "%s: %s\n", #call, zipcclGetLastError(comm));                                        \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    int rank = atoi(argv[2]), nranks = atoi(argv[3]);
    zipcclUniqueId id;
    zipcclComm_t comm = NULL;
    void *send, *recv;
    char temporary[4096];

    /* Rank 0 makes the id; the others get it by whatever means there is, here a file that appears whole. */
    (void)snprintf(temporary, sizeof temporary, "%s.new", argv[1]);
    if (rank == 0) {
        CHECK(zipcclGetUniqueId(&id), NULL);
        FILE *f = fopen(temporary, "wb");
        if (!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) != 0 || rename(temporary, argv[1]) != 0)
            return 1;
    } else {
        FILE *f;
        while (!(f = fopen(argv[1], "rb")))
            (void)usleep(10000);
        if (fread(&id, sizeof id, 1, f) != 1 || fclose(f) != 0)
            return 1;
    }
    CHECK(zipcclCommInitRank(&comm, nranks, id, rank), NULL);

    /* Any memory will do; this kind is shared with the daemon, so nothing is copied. */
    CHECK(zipcclMemAlloc(&send, COUNT * sizeof(float)), comm);
    CHECK(zipcclMemAlloc(&recv, (size_t)nranks * COUNT * sizeof(float)), comm);
    for (int i = 0; i < COUNT; i++)
        ((float *)send)[i] = (float)rank + (float)i / COUNT;
    CHECK(zipcclAllGather(send, recv, COUNT, zipcclFloat32, comm, NULL), comm);
    printf("rank %d: rank %d's last value is %f\n", rank, nranks - 1, ((float *)recv)[(size_t)nranks * COUNT - 1]);

    CHECK(zipcclMemFree(send), comm);
    CHECK(zipcclMemFree(recv), comm);
    CHECK(zipcclCommDestroy(comm), NULL);
    return 0;
}
