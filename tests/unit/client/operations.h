/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the library's operations share.
 */
#ifndef ZIPCCL_TESTS_OPERATIONS_H
#define ZIPCCL_TESTS_OPERATIONS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_daemon.h"
#include "zipccl.h"

#define OK(call) assert_int_equal(call, zipcclSuccess)
/* The call fails with this result, and the communicator's text holds all of these. */
#define FAILS(call, comm, result, ...)                                                                                 \
    do {                                                                                                               \
        assert_int_equal(call, result);                                                                                \
        const char *const texts[] = {__VA_ARGS__};                                                                     \
        for (size_t i_ = 0; i_ < sizeof texts / sizeof *texts; i_++)                                                   \
            if (!strstr(zipcclGetLastError(comm), texts[i_]))                                                          \
                fail_msg("\"%s\" is not in \"%s\"", texts[i_], zipcclGetLastError(comm));                              \
    } while (0)

static inline zipcclComm_t join(int nranks, int rank) {
    zipcclUniqueId id;
    zipcclComm_t c;
    OK(zipcclGetUniqueId(&id));
    OK(zipcclCommInitRank(&c, nranks, id, rank));
    return c;
}

#endif
