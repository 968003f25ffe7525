/* SPDX-License-Identifier: Apache-2.0
 *
 * The last error of each thread and of each communicator, and the version.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/internal.h"
#include "proto/result.h"

static _Thread_local char last_error[CLIENT_TEXT_BYTES];

zipcclResult_t fail_thread(zipcclResult_t r, const char *format, ...) {
    /* The arguments may hold the old text. */
    char text[CLIENT_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(last_error, text, sizeof last_error);
    return r;
}

zipcclResult_t fail_comm(struct zipcclComm *c, zipcclResult_t r, const char *format, ...) {
    char text[CLIENT_TEXT_BYTES - 64];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)snprintf(c->error, sizeof c->error, "rank %d of %d: %s", c->rank, c->nranks, text);
    memcpy(last_error, c->error, sizeof last_error);
    return r;
}

const char *thread_error(void) {
    return last_error;
}

const char *zipcclGetErrorString(zipcclResult_t result) {
    return result_string(result);
}

const char *zipcclGetLastError(zipcclComm_t comm) {
    if (!comm || comm->magic != CLIENT_COMM_MAGIC)
        return last_error;
    (void)pthread_mutex_lock(&client_lock);
    /* A failure that no call has reported yet. */
    if (comm->failed != zipcclSuccess && !*comm->error)
        (void)snprintf(comm->error, sizeof comm->error, "rank %d of %d: %.440s", comm->rank, comm->nranks,
                       comm->fail_text);
    (void)pthread_mutex_unlock(&client_lock);
    return comm->error;
}

zipcclResult_t zipcclGetVersion(int *version) {
    if (!version)
        return fail_thread(zipcclInvalidArgument, "zipcclGetVersion: version is NULL");
    *version = ZIPCCL_VERSION_CODE;
    return zipcclSuccess;
}
