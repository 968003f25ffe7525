/* SPDX-License-Identifier: Apache-2.0
 *
 * libcudart's calls: streams, events, host functions, capture, graphs.
 */
#include "runtime.h"

API cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    BEGIN("cudaStreamCreate");
    END(standin_stream_new((void **)stream, 0, 0));
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    BEGIN("cudaStreamCreateWithFlags");
    END(standin_stream_new((void **)stream, flags, 0));
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    BEGIN("cudaStreamCreateWithPriority");
    END(standin_stream_new((void **)stream, flags, priority));
}

API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    BEGIN("cudaStreamDestroy");
    END(standin_stream_destroy(stream));
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    BEGIN_AS("cudaStreamSynchronize", true);
    END(standin_stream_sync(stream));
}

API cudaError_t cudaStreamQuery(cudaStream_t stream) {
    BEGIN("cudaStreamQuery");
    END(standin_stream_query(stream));
}

API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    BEGIN("cudaStreamGetPriority");
    END(standin_stream_info(stream, NULL, priority, NULL));
}

API cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    BEGIN("cudaStreamGetFlags");
    END(standin_stream_info(stream, flags, NULL, NULL));
}

API cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
    BEGIN("cudaStreamGetId");
    END(standin_stream_info(stream, NULL, NULL, id));
}

API cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    BEGIN("cudaStreamGetDevice");
    END(standin_stream_device(stream, device));
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    BEGIN("cudaStreamWaitEvent");
    (void)flags;
    END(standin_event_wait(event, stream));
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg) {
    BEGIN("cudaLaunchHostFunc");
    if (!fn)
        END(cudaErrorInvalidValue);
    END(standin_host_func(stream, fn, arg));
}

/* ---- events ---- */

API cudaError_t cudaEventCreate(cudaEvent_t *event) {
    BEGIN("cudaEventCreate");
    END(standin_event_new((void **)event, 0));
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    BEGIN("cudaEventCreateWithFlags");
    END(standin_event_new((void **)event, flags));
}

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    BEGIN("cudaEventDestroy");
    END(standin_event_destroy(event));
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    BEGIN("cudaEventRecord");
    END(standin_event_record(event, stream));
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    BEGIN("cudaEventRecordWithFlags");
    (void)flags;
    END(standin_event_record(event, stream));
}

API cudaError_t cudaEventQuery(cudaEvent_t event) {
    BEGIN("cudaEventQuery");
    END(standin_event_query(event));
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    BEGIN_AS("cudaEventSynchronize", true);
    END(standin_event_sync(event));
}

API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    BEGIN("cudaEventElapsedTime");
    END(standin_event_elapsed(ms, start, end));
}

API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    BEGIN("cudaIpcGetEventHandle");
    END(standin_export_event(handle, event));
}

API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
    BEGIN("cudaIpcOpenEventHandle");
    END(standin_import_event((void **)event, &handle));
}

/* ---- capture ---- */

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    BEGIN("cudaStreamBeginCapture");
    (void)mode;
    END(standin_capture_begin(stream));
}

API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    BEGIN("cudaStreamEndCapture");
    END(standin_capture_end(stream, (void **)graph));
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    int s = 0;
    BEGIN("cudaStreamIsCapturing");
    e = standin_capturing(stream, &s);
    *status = (enum cudaStreamCaptureStatus)s;
    END(e);
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    BEGIN("cudaGraphInstantiate");
    (void)flags;
    END(exec && graph ? standin_graph_clone(graph, (void **)exec) : cudaErrorInvalidValue);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    BEGIN("cudaGraphLaunch");
    END(exec ? standin_graph_launch(exec, stream) : cudaErrorInvalidValue);
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    BEGIN("cudaGraphExecDestroy");
    END(exec ? standin_graph_destroy(exec) : cudaErrorInvalidValue);
}

API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    BEGIN("cudaGraphDestroy");
    END(graph ? standin_graph_destroy(graph) : cudaErrorInvalidValue);
}
