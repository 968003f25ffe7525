/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of a reduction for every dtype: accumulators, their operations, scalars, divisors, the rounding; what
 * kernels/cpu/reduce_passes.h is on the host. Nothing here is contracted to fused operations.
 */
#ifndef ZIPCCL_KERNELS_CUDA_COMBINE_CUH
#define ZIPCCL_KERNELS_CUDA_COMBINE_CUH

#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/reduce_cuda.h"

namespace zip {

/* ---- floats are ordered by their bits as integers, those of negative ones turned round; NaN gives way ---- */

GPU_FN int32_t order_of(float x) {
    const int32_t i = static_cast<int32_t>(__float_as_uint(x));
    return i ^ (i < 0 ? 0x7fffffff : 0);
}
GPU_FN int64_t order_of(double x) {
    const int64_t i = __double_as_longlong(x);
    return i ^ (i < 0 ? 0x7fffffffffffffff : 0);
}
GPU_FN bool is_nan(float x) {
    return (__float_as_uint(x) & 0x7fffffff) > 0x7f800000;
}
GPU_FN bool is_nan(double x) {
    return (static_cast<uint64_t>(__double_as_longlong(x)) & 0x7fffffffffffffff) > 0x7ff0000000000000;
}
template <class T> GPU_FN T chosen(bool first, T x, T y) {
    const T r = first ? x : y, s = is_nan(x) ? y : r;
    return is_nan(y) ? x : s;
}

/* Sum, product, greatest and least of an accumulator's type, its quotient, and what changes nothing. */
template <class T> struct Arithmetic;
template <> struct Arithmetic<float> {
    static GPU_FN float sum(float x, float y) {
        return __fadd_rn(x, y);
    }
    static GPU_FN float product(float x, float y) {
        return __fmul_rn(x, y);
    }
    static GPU_FN float greater(float x, float y) {
        return chosen(order_of(x) > order_of(y), x, y);
    }
    static GPU_FN float less(float x, float y) {
        return chosen(order_of(x) < order_of(y), x, y);
    }
    static GPU_FN float quotient(float x, uint32_t d) {
        return __fdiv_rn(x, __uint2float_rn(d));
    }
    static GPU_FN float nothing(uint32_t op) {
        return op == zipcclProd ? 1.0f : op == zipcclMax || op == zipcclMin ? __uint_as_float(0x7fffffff) : -0.0f;
    }
};
template <> struct Arithmetic<double> {
    static GPU_FN double sum(double x, double y) {
        return __dadd_rn(x, y);
    }
    static GPU_FN double product(double x, double y) {
        return __dmul_rn(x, y);
    }
    static GPU_FN double greater(double x, double y) {
        return chosen(order_of(x) > order_of(y), x, y);
    }
    static GPU_FN double less(double x, double y) {
        return chosen(order_of(x) < order_of(y), x, y);
    }
    static GPU_FN double quotient(double x, uint32_t d) {
        return __ddiv_rn(x, __uint2double_rn(d));
    }
    static GPU_FN double nothing(uint32_t op) {
        return op == zipcclProd                     ? 1.0
               : op == zipcclMax || op == zipcclMin ? __longlong_as_double(0x7fffffffffffffff)
                                                    : -0.0;
    }
};
/* Integers wrap. SIGN: the most negative value, 0 where there is none. */
template <class T, class U, class Wide, U SIGN> struct Integers {
    static GPU_FN T sum(T x, T y) {
        return static_cast<T>(static_cast<U>(static_cast<U>(x) + static_cast<U>(y)));
    }
    static GPU_FN T product(T x, T y) {
        return static_cast<T>(static_cast<U>(static_cast<U>(x) * static_cast<U>(y)));
    }
    static GPU_FN T greater(T x, T y) {
        return x > y ? x : y;
    }
    static GPU_FN T less(T x, T y) {
        return x < y ? x : y;
    }
    static GPU_FN T quotient(T x, uint32_t d) {
        return static_cast<T>(static_cast<Wide>(x) / static_cast<Wide>(d));
    }
    static GPU_FN T nothing(uint32_t op) {
        return static_cast<T>(op == zipcclProd  ? U{1}
                              : op == zipcclMax ? SIGN
                              : op == zipcclMin ? static_cast<U>(~SIGN)
                                                : U{0});
    }
};
template <> struct Arithmetic<int8_t> : Integers<int8_t, uint8_t, int64_t, 0x80> {};
template <> struct Arithmetic<uint8_t> : Integers<uint8_t, uint8_t, uint32_t, 0> {};
template <> struct Arithmetic<int32_t> : Integers<int32_t, uint32_t, int64_t, 0x80000000u> {};
template <> struct Arithmetic<uint32_t> : Integers<uint32_t, uint32_t, uint32_t, 0> {};
template <> struct Arithmetic<int64_t> : Integers<int64_t, uint64_t, int64_t, uint64_t{1} << 63> {};
template <> struct Arithmetic<uint64_t> : Integers<uint64_t, uint64_t, uint64_t, 0> {};

/* a = a op b, for N of them. */
template <class T, uint32_t N> GPU_FN void combine(uint32_t op, T a[N], const T b[N]) {
    using A = Arithmetic<T>;
    if (op == zipcclProd) {
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++)
            a[i] = A::product(a[i], b[i]);
    } else if (op == zipcclMax) {
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++)
            a[i] = A::greater(a[i], b[i]);
    } else if (op == zipcclMin) {
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++)
            a[i] = A::less(a[i], b[i]);
    } else {
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++)
            a[i] = A::sum(a[i], b[i]);
    }
}

/* A dtype's bits, its accumulators, and the way between them. */
template <int DTYPE> struct Number {
    using Acc = float;
    using B = typename Bits<Kind<DTYPE>::bytes>::type;
    static constexpr bool rounds = DTYPE != zipcclFloat32; /* accumulators are wider */
    static GPU_FN float widen(B v) {
        return to_float<DTYPE>(v);
    }
    static GPU_FN B narrow(float f) {
        return static_cast<B>(from_float<DTYPE>(f));
    }
};
template <> struct Number<zipcclFloat64> {
    using Acc = double;
    using B = uint64_t;
    static constexpr bool rounds = false;
    static GPU_FN double widen(uint64_t v) {
        return __longlong_as_double(static_cast<int64_t>(v));
    }
    static GPU_FN uint64_t narrow(double f) {
        return is_nan(f) ? 0x7fffffffffffffff : static_cast<uint64_t>(__double_as_longlong(f));
    }
};
template <class T, class U> struct Whole {
    using Acc = T;
    using B = U;
    static constexpr bool rounds = false;
    static GPU_FN T widen(U v) {
        return static_cast<T>(v);
    }
    static GPU_FN U narrow(T v) {
        return static_cast<U>(v);
    }
};
template <> struct Number<zipcclInt8> : Whole<int8_t, uint8_t> {};
template <> struct Number<zipcclUint8> : Whole<uint8_t, uint8_t> {};
template <> struct Number<zipcclInt32> : Whole<int32_t, uint32_t> {};
template <> struct Number<zipcclUint32> : Whole<uint32_t, uint32_t> {};
template <> struct Number<zipcclInt64> : Whole<int64_t, uint64_t> {};
template <> struct Number<zipcclUint64> : Whole<uint64_t, uint64_t> {};

/* What ends a group: its N results are rounded where they are to be. */
template <int DTYPE, uint32_t N>
GPU_FN void round_group([[maybe_unused]] uint32_t flags, [[maybe_unused]] typename Number<DTYPE>::Acc g[N]) {
    if constexpr (Number<DTYPE>::rounds) {
        if (!(flags & ZIPCCL_CUDA_ROUND_GROUP) || !(flags & ZIPCCL_CUDA_ENDS_GROUP))
            return;
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++)
            g[i] = Number<DTYPE>::widen(Number<DTYPE>::narrow(g[i]));
    }
}

/* N values of an input, multiplied by its scalar if it has one. */
template <class T, uint32_t N> GPU_FN void scale(uint32_t flags, T scalar, T v[N]) {
    if (!(flags & ZIPCCL_CUDA_SCALED))
        return;
    GPU_UNROLL
    for (uint32_t i = 0; i < N; i++)
        v[i] = Arithmetic<T>::product(v[i], scalar);
}

/* The end of N totals, but their rounding. */
template <class T, uint32_t N> GPU_FN void average(uint32_t op, uint32_t divisor, T total[N]) {
    if (op != zipcclAvg || divisor <= 1)
        return;
    GPU_UNROLL
    for (uint32_t i = 0; i < N; i++)
        total[i] = Arithmetic<T>::quotient(total[i], divisor);
}

} // namespace zip

#endif
