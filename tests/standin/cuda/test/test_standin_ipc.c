/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and events of the stand-in between processes, and what is left of them when a process dies.
 */
#include "driver_calls.h"
#include "kernels_of_tests.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* ---- memory ---- */

static void memory_exporter(int peer) {
    cudaIpcMemHandle_t handle;
    uint32_t *p, value = 0;
    char c;
    OK(cudaSetDevice(1));
    OK(cudaMalloc((void **)&p, 4096));
    OK(cudaMemset(p, 0, 4096));
    OK(cudaDeviceSynchronize());
    OK(cudaIpcGetMemHandle(&handle, p + 5)); /* a pointer inside gives the handle of the base */
    peer_send(peer, &handle, sizeof(handle));
    peer_meet(peer); /* the importer wrote and closed */
    OK(cudaMemcpy(&value, p, 4, cudaMemcpyDeviceToHost));
    CHECK_IS(value, 30);
    OK(cudaFree(p));
    peer_meet(peer); /* a stale handle */
    peer_receive(peer, &c, 1);
}

static void memory_importer(int peer) {
    cudaIpcMemHandle_t handle, forged;
    struct cudaPointerAttributes a;
    cudaStream_t s;
    uint32_t *p, *again, *third;
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    peer_receive(peer, &handle, sizeof(handle));
    OK(cudaIpcOpenMemHandle((void **)&p, handle, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaIpcOpenMemHandle((void **)&again, handle, cudaIpcMemLazyEnablePeerAccess));
    CHECK(p == again);
    OK(cudaPointerGetAttributes(&a, p + 7));
    CHECK(a.type == cudaMemoryTypeDevice && a.device == 1);
    OK(launch_add(p, 1024, 10, s));
    OK(launch_add(again, 1, 20, s));
    OK(cudaStreamSynchronize(s));
    CHECK_IS(cudaFree(p), cudaErrorInvalidValue);
    CHECK_IS(cudaIpcGetMemHandle(&forged, p), cudaErrorInvalidValue);
    OK(cudaIpcCloseMemHandle(p));
    (void)cudaGetLastError();
    OK(launch_add(p, 1, 0, s)); /* still open once */
    OK(cudaStreamSynchronize(s));
    OK(cudaIpcCloseMemHandle(p));
    CHECK_IS(cudaIpcCloseMemHandle(p), cudaErrorInvalidValue);
    peer_meet(peer);
    peer_meet(peer); /* freed there */
    CHECK_IS(cudaIpcOpenMemHandle((void **)&third, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidValue);
    for (unsigned i = 0; i < sizeof(forged); i++) { /* whatever the bytes are, it is refused */
        memset(&forged, (int)(0x11 * (i % 16)), sizeof(forged));
        memcpy(&forged, &handle, i);
        CHECK(cudaIpcOpenMemHandle((void **)&third, forged, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
    }
    peer_send(peer, "x", 1);
}

/* ---- events ---- */

/* As a client and the daemon: work, event, the other's work behind it, its event, own work behind that. */
static void event_client(int peer) {
    cudaIpcMemHandle_t handle;
    cudaStream_t s;
    cudaEvent_t mine, theirs, local;
    uint32_t *p, value = 0;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&p, 4));
    OK(cudaMemset(p, 0, 4));
    OK(cudaDeviceSynchronize());
    OK(cudaIpcGetMemHandle(&handle, p));
    peer_send(peer, &handle, sizeof(handle));
    mine = event_give(peer);
    theirs = event_take(peer);
    for (unsigned round = 0; round < 3; round++) {
        const struct stop stop = stop_stream(s);
        OK(launch_add(p, 1, 1, s));
        OK(cudaEventRecord(mine, s));
        peer_meet(peer); /* the request */
        peer_meet(peer); /* all is queued there */
        OK(cudaStreamWaitEvent(s, theirs, 0));
        OK(launch_add(p, 1, 4, s));
        CHECK_IS(cudaEventQuery(theirs), cudaErrorNotReady);
        CHECK_IS(cudaGetLastError(), cudaErrorNotReady); /* or the next launch would seem to fail */
        stop_release(stop);
        OK(cudaStreamSynchronize(s));
        OK(cudaEventQuery(theirs));
        OK(cudaMemcpy(&value, p, 4, cudaMemcpyDeviceToHost));
        CHECK_IS(value, (round + 1) * 105);
        peer_meet(peer);
    }
    OK(cudaEventCreate(&local));
    cudaIpcEventHandle_t none;
    CHECK_IS(cudaIpcGetEventHandle(&none, local), cudaErrorInvalidResourceHandle);
    CHECK_IS(cudaEventCreateWithFlags(&local, cudaEventInterprocess), cudaErrorInvalidValue);
    OK(cudaEventDestroy(theirs));
    peer_meet(peer);
    OK(cudaEventDestroy(mine));
    OK(cudaFree(p));
}

static void event_daemon(int peer) {
    cudaIpcMemHandle_t handle;
    cudaStream_t s;
    uint32_t *p;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    peer_receive(peer, &handle, sizeof(handle));
    OK(cudaIpcOpenMemHandle((void **)&p, handle, cudaIpcMemLazyEnablePeerAccess));
    cudaEvent_t theirs = event_take(peer), mine = event_give(peer);
    for (unsigned round = 0; round < 3; round++) {
        peer_meet(peer);
        OK(cudaStreamWaitEvent(s, theirs, 0));
        OK(launch_add(p, 1, 100, s));
        OK(cudaEventRecord(mine, s));
        CHECK_IS(cudaStreamQuery(s), cudaErrorNotReady);
        CHECK_IS(cudaGetLastError(), cudaErrorNotReady);
        peer_meet(peer);
        peer_meet(peer);
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaIpcCloseMemHandle(p));
    OK(cudaEventDestroy(theirs));
    peer_meet(peer);
    OK(cudaEventDestroy(mine));
}

/* ---- a process dies ---- */

static void victim(int peer) {
    cudaIpcMemHandle_t handle;
    cudaStream_t s;
    void *p;
    char c;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&p, 4096));
    OK(cudaMemset(p, 3, 4096));
    OK(cudaDeviceSynchronize());
    OK(cudaIpcGetMemHandle(&handle, p));
    peer_send(peer, &handle, sizeof(handle));
    cudaEvent_t e = event_give(peer);
    (void)stop_stream(s);
    OK(cudaEventRecord(e, s));
    peer_meet(peer);
    peer_receive(peer, &c, 1);
}

/* What was opened stays readable; a wait for what will never be recorded ends; nothing new can be opened. */
static void survivor(int peer) {
    const char *dead = getenv("ZIPCCL_STANDIN_DEAD");
    const bool block = dead && strcmp(dead, "block") == 0;
    cudaIpcMemHandle_t handle;
    cudaIpcEventHandle_t event_handle;
    cudaStream_t s;
    cudaEvent_t e;
    uint8_t *p, byte = 0;
    pid_t pid;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    peer_receive(peer, &handle, sizeof(handle));
    peer_receive(peer, &event_handle, sizeof(event_handle));
    OK(cudaIpcOpenMemHandle((void **)&p, handle, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaIpcOpenEventHandle(&e, event_handle));
    OK(cudaStreamWaitEvent(s, e, 0));
    CHECK_IS(cudaStreamQuery(s), cudaErrorNotReady);
    peer_meet(peer);
    peer_receive(peer, &pid, sizeof(pid)); /* of the victim, which is dead */
    CHECK(kill(pid, 0) != 0);
    if (block) {
        usleep(200000); /* four times what releases it otherwise */
        CHECK_IS(cudaStreamQuery(s), cudaErrorNotReady);
        return;
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(&byte, p + 4095, 1, cudaMemcpyDeviceToHost));
    CHECK_IS(byte, 3);
    OK(cudaIpcCloseMemHandle(p));
    OK(cudaEventDestroy(e));
    CHECK_IS(cudaIpcOpenMemHandle((void **)&p, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidValue);
    CHECK_IS(cudaIpcOpenEventHandle(&e, event_handle), cudaErrorMapBufferObjectFailed);
}

/* Has a child, which talks to the survivor through it, and kills it when the survivor's wait is queued. */
static void killer(int peer) {
    int ends[2];
    char handles[2 * CUDA_IPC_HANDLE_SIZE], c;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        victim(ends[1]);
        exit(0);
    }
    peer_receive(ends[0], handles, sizeof(handles));
    peer_meet(ends[0]); /* it recorded */
    peer_send(peer, handles, sizeof(handles));
    peer_meet(peer); /* the wait is queued */
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    peer_send(peer, &pid, sizeof(pid));
    CHECK(recv(peer, &c, 1, 0) == 0); /* until it is done */
}

static void memory_between_processes(void **state) {
    (void)state;
    forked_pair_passes(memory_exporter, memory_importer, NULL);
    forked_pair_passes(memory_exporter, memory_importer, "ZIPCCL_STANDIN_SEPARATE=1", NULL);
}

static void events_between_processes(void **state) {
    (void)state;
    forked_pair_passes(event_client, event_daemon, NULL);
}

static void a_process_dies(void **state) {
    (void)state;
    forked_pair_passes(killer, survivor, NULL);
    forked_pair_passes(killer, survivor, "ZIPCCL_STANDIN_DEAD=block", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_between_processes),
        cmocka_unit_test(events_between_processes),
        cmocka_unit_test(a_process_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
