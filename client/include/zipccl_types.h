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

/* Operations. X(name, value, text): the text is what people read and type. Send and receive are one rank's alone. */
#define ZIPCCL_OPS(X)                                                                                                  \
    X(zipcclOpAllGather, 0, "all-gather")                                                                              \
    X(zipcclOpBroadcast, 1, "broadcast")                                                                               \
    X(zipcclOpBarrier, 2, "barrier")                                                                                   \
    X(zipcclOpReduceScatter, 3, "reduce-scatter")                                                                      \
    X(zipcclOpAllReduce, 4, "all-reduce")                                                                              \
    X(zipcclOpReduce, 5, "reduce")                                                                                     \
    X(zipcclOpAllToAll, 6, "all-to-all")                                                                               \
    X(zipcclOpAllToAllv, 7, "all-to-all-v")                                                                            \
    X(zipcclOpGather, 8, "gather")                                                                                     \
    X(zipcclOpScatter, 9, "scatter")                                                                                   \
    X(zipcclOpSend, 10, "send")                                                                                        \
    X(zipcclOpRecv, 11, "receive")                                                                                     \
    X(zipcclOpAllGatherv, 12, "all-gather-v")                                                                          \
    X(zipcclOpReduceScatterv, 13, "reduce-scatter-v")                                                                  \
    X(zipcclOpAllToAllCapped, 14, "all-to-all-capped")

typedef enum {
#define ZIPCCL_OP_ENUM(name, value, text) name = value,
    ZIPCCL_OPS(ZIPCCL_OP_ENUM)
#undef ZIPCCL_OP_ENUM
        zipcclNumOps = 15
} zipcclOp_t;

/* Reductions; values equal NCCL's. PreMulSum multiplies each rank's values by a scalar of that rank first.
 *
 * FP32 arithmetic for floats of 32 bits or less, FP64 for FP64, the type's own (wrapping) for integers. Order: the
 * ranks of a node in ascending order; where a communicator spans nodes, each node's result is rounded to the dtype
 * (not where a node has one rank, PreMulSum excepted), and the nodes' results are combined in ascending order of their
 * lowest rank; one rounding at the end, to nearest even. So with one rank a node, or one node, it is the FP32 sum in
 * rank order, rounded once. Avg divides the end result by the number of ranks before that rounding (integers:
 * truncated). The bits do not depend on arrival order, chunk size, worker count or codec. A NaN result is 0x7fff.. (all
 * ones but the sign); FP8 results saturate to the greatest finite value. Min and max skip NaN where another rank has a
 * number; -0 < +0. */
typedef enum {
    zipcclSum = 0,
    zipcclProd = 1,
    zipcclMax = 2,
    zipcclMin = 3,
    zipcclAvg = 4,
    zipcclPreMulSum = 5,
    zipcclNumRedOps = 6,
    zipcclMaxRedOp = 0x7fffffff /* handles of zipcclRedOpCreatePreMulSum lie between */
} zipcclRedOp_t;

/* How an operation that reduces moves its data. Flat and hierarchical give the same bits; the ring rounds at each hop,
 * in NCCL's manner and with the bits of no other arm, so it is taken only where it is asked for. */
typedef enum {
    zipcclArmRing = 0,         /* raw, from rank to rank */
    zipcclArmFlat = 1,         /* every rank's values travel to the node that sums them */
    zipcclArmHierarchical = 2, /* summed inside the node first; one contribution of each node travels */
    zipcclNumArms = 3,
    zipcclArmAuto = 255
} zipcclArm_t;

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
