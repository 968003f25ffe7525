/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and texts of the errors that the stand-in can give. The numbers of both libraries are the same.
 */
#include "core.h"

#define ROW(name, text)                                                                                                \
    { cudaError##name, "cudaError" #name, text }
static const struct {
    int code;
    const char *name, *text;
} g_errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    ROW(InvalidValue, "invalid argument"),
    ROW(MemoryAllocation, "out of memory"),
    ROW(InitializationError, "initialization error"),
    ROW(CudartUnloading, "driver shutting down"),
    ROW(InvalidConfiguration, "invalid configuration argument"),
    ROW(InvalidMemcpyDirection, "invalid copy direction"),
    ROW(StubLibrary, "a stub of the driver library is loaded"),
    ROW(InsufficientDriver, "no driver, or one that is too old for this runtime"),
    ROW(InvalidDeviceFunction, "invalid device function"),
    ROW(NoDevice, "no CUDA-capable device"),
    ROW(InvalidDevice, "invalid device ordinal"),
    ROW(DeviceUninitialized, "invalid device context"),
    ROW(MapBufferObjectFailed, "mapping of a buffer failed"),
    ROW(AlreadyMapped, "already mapped"),
    ROW(ECCUncorrectable, "uncorrectable ECC error"),
    ROW(UnsupportedLimit, "limit is not supported"),
    ROW(PeerAccessUnsupported, "no access between these devices"),
    ROW(SharedObjectInitFailed, "a shared object could not be set up"),
    ROW(OperatingSystem, "an operating system call failed"),
    ROW(InvalidResourceHandle, "invalid resource handle"),
    ROW(IllegalState, "a resource is not in a valid state"),
    ROW(SymbolNotFound, "symbol not found"),
    ROW(NotReady, "not ready"),
    ROW(IllegalAddress, "illegal memory access"),
    ROW(LaunchOutOfResources, "too many resources for a launch"),
    ROW(LaunchTimeout, "a kernel ran too long"),
    ROW(PeerAccessAlreadyEnabled, "peer access was enabled before"),
    ROW(PeerAccessNotEnabled, "peer access is not enabled"),
    ROW(ContextIsDestroyed, "the context is destroyed"),
    ROW(Assert, "an assertion failed on the device"),
    ROW(TooManyPeers, "too many peers"),
    ROW(HostMemoryAlreadyRegistered, "host memory is registered already"),
    ROW(HostMemoryNotRegistered, "host memory is not registered"),
    ROW(HardwareStackError, "hardware stack error"),
    ROW(IllegalInstruction, "illegal instruction"),
    ROW(MisalignedAddress, "misaligned address"),
    ROW(InvalidAddressSpace, "operation not supported on this address space"),
    ROW(InvalidPc, "invalid program counter"),
    ROW(LaunchFailure, "unspecified launch failure"),
    ROW(NotPermitted, "operation not permitted"),
    ROW(NotSupported, "operation not supported"),
    ROW(SystemNotReady, "the system is not ready"),
    ROW(SystemDriverMismatch, "driver and system do not match"),
    ROW(StreamCaptureUnsupported, "not permitted while a stream is captured"),
    ROW(StreamCaptureInvalidated, "the capture was invalidated by an earlier error"),
    ROW(StreamCaptureMerge, "the call would merge two captures"),
    ROW(StreamCaptureUnmatched, "the capture was not begun in this stream"),
    ROW(StreamCaptureUnjoined, "a forked stream was not joined"),
    ROW(StreamCaptureIsolation, "the call would depend on work outside of the capture"),
    ROW(StreamCaptureImplicit, "the call would depend on the capturing legacy stream"),
    ROW(CapturedEvent, "not permitted on an event of a captured stream"),
    ROW(StreamCaptureWrongThread, "the capture was begun by another thread"),
    ROW(Timeout, "time-out"),
    ROW(ExternalDevice, "an error outside of this device"),
    ROW(Unknown, "unknown error"),
};

const char *standin_error_name(int code) {
    for (size_t i = 0; i < sizeof(g_errors) / sizeof(g_errors[0]); i++)
        if (g_errors[i].code == code)
            return g_errors[i].name;
    return NULL;
}

const char *standin_error_text(int code) {
    for (size_t i = 0; i < sizeof(g_errors) / sizeof(g_errors[0]); i++)
        if (g_errors[i].code == code)
            return g_errors[i].text;
    return NULL;
}
