/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the stand-in's libcudart share: how a call begins and ends, the last error of a thread.
 */
#ifndef ZIPCCL_TESTS_STANDIN_RUNTIME_H
#define ZIPCCL_TESTS_STANDIN_RUNTIME_H

#include "core.h"

#include <cuda_runtime_api.h>

#define API STANDIN_EXPORT

/* Notes an error as the thread's last one. */
cudaError_t runtime_end(int error);

/* A call begins: it is counted, may be told to fail, and finds devices. `waits`: the caller's thread may wait in it. */
#define BEGIN_AS(call, waits)                                                                                          \
    int e;                                                                                                             \
    STANDIN_ENTER_AS(e, call, waits);                                                                                  \
    if (e == 0)                                                                                                        \
        e = standin_init();                                                                                            \
    if (e)                                                                                                             \
    return runtime_end(e)
#define BEGIN(call) BEGIN_AS(call, false)
#define END(expr)   return runtime_end(expr)

#endif
