/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker's end, the gate that calls pass, and the version that is claimed.
 *
 * Injection is that of the CUDA stand-in: ZIPCCL_STANDIN_FAIL="ncclSend:2=3" makes the second ncclSend return 3, and
 * "nccl:1=6" the first launch that runs on a stream fail its communicator with 6. ZIPCCL_STANDIN_NCCL_VERSION=21805 is
 * what ncclGetVersion says; calls that came later are then against the rules.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nccl_standin.h"

static __thread char last_error[512];

void rule_broken(const char *rule, const char *format, ...) {
    char text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    standin_rule(ncclInvalidUsage, rule, "nccl: %s", text);
    abort();
}

void set_error(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(last_error, sizeof(last_error), format, ap);
    va_end(ap);
}

ncclResult_t gate(struct standin_site *site) {
    int error = standin_enter(site);
    if (error)
        set_error("%s: %d, injected or of the device", site->name, error);
    return error < ncclNumResults ? (ncclResult_t)error : ncclUnhandledCudaError;
}

int library_version(void) {
    const char *text = getenv("ZIPCCL_STANDIN_NCCL_VERSION");
    return text && *text ? (int)strtol(text, NULL, 10) : NCCL_VERSION_CODE;
}

void need_version(const char *function, int version) {
    if (library_version() < version)
        rule_broken("feature by version", "%s came with %d, and this library is %d", function, version,
                    library_version());
}

ncclResult_t comm_enter(struct ncclComm *comm, struct standin_site *site) {
    if (!comm) {
        set_error("%s: no communicator", site->name);
        return ncclInvalidArgument;
    }
    if (!comm_is_known(comm))
        rule_broken("communicator", "%s gets a pointer that is no communicator", site->name);
    if (atomic_load(&comm->life) != LIVE)
        rule_broken(atomic_load(&comm->life) == ABORTED ? "use after abort" : "use after destroy", "%s, rank %d",
                    site->name, comm->rank);
    int self = (int)syscall(SYS_gettid), nobody = 0;
    if (!atomic_compare_exchange_strong(&comm->user, &nobody, self) && nobody != self)
        rule_broken("one thread", "%s on a communicator that another thread is using, rank %d", site->name, comm->rank);
    atomic_fetch_add(&comm->depth, 1);
    ncclResult_t result = gate(site);
    if (result != ncclSuccess)
        comm_leave(comm);
    return result;
}

void comm_leave(struct ncclComm *comm) {
    if (atomic_fetch_sub(&comm->depth, 1) == 1)
        atomic_store(&comm->user, 0);
}

EXPORT const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return last_error;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "operation in progress"};
    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

EXPORT ncclResult_t ncclGetVersion(int *version) {
    ncclResult_t result = GATE("ncclGetVersion");
    if (result != ncclSuccess)
        return result;
    if (!version)
        return ncclInvalidArgument;
    *version = library_version();
    return ncclSuccess;
}
