/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda's calls: events, copies, host functions and state of streams, handles for other processes. What libzipccl,
 * which speaks to the driver alone, has of them.
 */
#include "core.h"

#define ENTER_AS(call, waits)                                                                                          \
    int e;                                                                                                             \
    STANDIN_ENTER_AS(e, call, waits);                                                                                  \
    if (e == 0)                                                                                                        \
        e = standin_init();                                                                                            \
    if (e)                                                                                                             \
    return (CUresult)e
#define ENTER(call)  ENTER_AS(call, false)
#define RETURN(call) return (CUresult)(call)

STANDIN_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    ENTER("cuEventCreate");
    RETURN(standin_event_new((void **)event, flags));
}

STANDIN_EXPORT CUresult cuEventDestroy(CUevent event) {
    ENTER("cuEventDestroy");
    RETURN(standin_event_destroy(event));
}

STANDIN_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER("cuEventRecord");
    RETURN(standin_event_record(event, stream));
}

STANDIN_EXPORT CUresult cuEventQuery(CUevent event) {
    ENTER("cuEventQuery");
    RETURN(standin_event_query(event));
}

STANDIN_EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    ENTER("cuIpcGetEventHandle");
    RETURN(standin_export_event(handle, event));
}

STANDIN_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p) {
    ENTER("cuIpcGetMemHandle");
    RETURN(standin_export_memory(handle, (void *)p));
}

/* cudaMemcpyDefault: where things are says which way. */
STANDIN_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER("cuMemcpyAsync");
    RETURN(standin_copy((void *)to, (const void *)from, bytes, cudaMemcpyDefault, stream, false));
}

STANDIN_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    int now = 0;
    ENTER("cuStreamIsCapturing");
    e = standin_capturing(stream, &now);
    *status = (CUstreamCaptureStatus)now;
    RETURN(e);
}

STANDIN_EXPORT CUresult cuStreamQuery(CUstream stream) {
    ENTER("cuStreamQuery");
    RETURN(standin_stream_query(stream));
}

STANDIN_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    ENTER_AS("cuStreamSynchronize", true);
    RETURN(standin_stream_sync(stream));
}

STANDIN_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *arg) {
    ENTER("cuLaunchHostFunc");
    if (!fn)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN(standin_host_func(stream, fn, arg));
}
