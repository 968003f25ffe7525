/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary of zipccl: the one status enum, the data types and the operations.
 * Types alone, no functions: every layer, from the codec to the trainer, includes this header
 * and nothing above it. Values of dtypes and of the first eight results equal NCCL's.
 */
#ifndef ZIPCCL_TYPES_H
#define ZIPCCL_TYPES_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#    define ZIPCCL_MUST_CHECK __attribute__((warn_unused_result))
#else
#    define ZIPCCL_MUST_CHECK
#endif

/* Every function of zipccl that can fail returns one of these. X(name, value, text) */
#define ZIPCCL_RESULTS(X)                                                                                              \
    X(zipcclSuccess, 0, "no error")                                                                                    \
    X(zipcclUnhandledDeviceError, 1, "unhandled device error")                                                         \
    X(zipcclSystemError, 2, "unhandled system error")                                                                  \
    X(zipcclInternalError, 3, "internal error")                                                                        \
    X(zipcclInvalidArgument, 4, "invalid argument")                                                                    \
    X(zipcclInvalidUsage, 5, "invalid usage")                                                                          \
    X(zipcclRemoteError, 6, "remote process exited or there was a network error")                                      \
    X(zipcclInProgress, 7, "operation in progress")                                                                    \
    X(zipcclTimeout, 8, "timed out")                                                                                   \
    X(zipcclAborted, 9, "communicator was aborted")                                                                    \
    X(zipcclPermissionDenied, 10, "permission denied")                                                                 \
    X(zipcclDaemonUnavailable, 11, "zipccld is not reachable")                                                         \
    X(zipcclOutOfMemory, 12, "out of memory")                                                                          \
    X(zipcclCorruptData, 13, "coded data is corrupt")                                                                  \
    X(zipcclVersionMismatch, 14, "protocol versions do not match")                                                     \
    X(zipcclLimitExceeded, 15, "a configured limit is exceeded")

typedef enum {
#define ZIPCCL_RESULT_ENUM(name, value, text) name = value,
    ZIPCCL_RESULTS(ZIPCCL_RESULT_ENUM)
#undef ZIPCCL_RESULT_ENUM
        zipcclNumResults = 16
} zipcclResult_t;

/* Element types. The codec compresses FP16, FP32, BF16 and both FP8 kinds; the rest travel raw. */
typedef enum {
    zipcclInt8 = 0,
    zipcclUint8 = 1,
    zipcclInt32 = 2,
    zipcclUint32 = 3,
    zipcclInt64 = 4,
    zipcclUint64 = 5,
    zipcclFloat16 = 6,
    zipcclFloat32 = 7,
    zipcclFloat64 = 8,
    zipcclBfloat16 = 9,
    zipcclFloat8e4m3 = 10,
    zipcclFloat8e5m2 = 11,
    zipcclNumTypes = 12
} zipcclDataType_t;

/* Collective operations. */
typedef enum { zipcclOpAllGather = 0, zipcclOpBroadcast = 1, zipcclOpBarrier = 2, zipcclNumOps = 3 } zipcclOp_t;

/* Codecs, see docs/format.md. Auto lets the daemon choose: raw whenever coding does not pay. */
typedef enum {
    zipcclCodecRaw = 0,
    zipcclCodecTop7 = 1,
    zipcclCodecTier = 2,
    zipcclNumCodecs = 3,
    zipcclCodecAuto = 255
} zipcclCodec_t;

#ifdef __cplusplus
}
#endif
#endif
