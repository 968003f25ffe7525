/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's integer intrinsics in portable C++, by the names that CUDA gives them: bits, bytes, multiplies, casts and
 * SIMD within a word. Semantics are those of the CUDA Math API.
 */
#ifndef ZIPCCL_TESTS_SIMT_INTRIN_H
#define ZIPCCL_TESTS_SIMT_INTRIN_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace simt {

template <class To, class From> inline To bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To r;
    memcpy(&r, &v, sizeof r);
    return r;
}

inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t select) {
    uint64_t v = uint64_t{b} << 32 | a;
    uint32_t r = 0;
    for (unsigned i = 0; i < 4; i++) {
        uint32_t s = select >> (4 * i) & 15, byte = v >> (8 * (s & 7)) & 0xff;
        if (s & 8)
            byte = byte & 0x80 ? 0xff : 0;
        r |= byte << (8 * i);
    }
    return r;
}

inline uint32_t bfe_u32(uint32_t a, uint32_t pos, uint32_t len) {
    pos &= 255;
    len &= 255;
    if (pos > 31)
        return 0;
    uint32_t v = a >> pos;
    return len > 31 ? v : v & ((1u << len) - 1);
}

inline int32_t bfe_s32(int32_t a, uint32_t pos, uint32_t len) {
    pos &= 255;
    len &= 255;
    if (len == 0)
        return 0;
    int64_t v = a; /* bits past the word repeat its sign */
    v >>= pos > 31 ? 31 : pos;
    return len > 31 ? static_cast<int32_t>(v)
                    : static_cast<int32_t>(static_cast<uint32_t>(v) << (32 - len)) >> (32 - len);
}

inline uint32_t bfi_b32(uint32_t a, uint32_t b, uint32_t pos, uint32_t len) {
    pos &= 255;
    len &= 255;
    if (pos > 31 || len == 0)
        return b;
    uint32_t mask = (len > 31 ? ~0u : (1u << len) - 1) << pos;
    return (b & ~mask) | ((a << pos) & mask);
}

inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, unsigned table) {
    uint32_t r = 0;
    for (unsigned i = 0; i < 8; i++)
        if (table >> i & 1)
            r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}

/* f over the fields of T in a word: f gets and gives int, the result is cut to the field. */
template <class T, class F> inline uint32_t simd(uint32_t a, uint32_t b, F f) {
    uint32_t r = 0;
    using U = std::make_unsigned_t<T>;
    for (unsigned i = 0; i < 32; i += 8 * sizeof(T))
        r |= uint32_t{static_cast<U>(
                 f(static_cast<int>(static_cast<T>(a >> i)), static_cast<int>(static_cast<T>(b >> i))))}
             << i;
    return r;
}

template <class T, class F> inline uint32_t simd_sum(uint32_t a, uint32_t b, F f) {
    uint32_t r = 0;
    for (unsigned i = 0; i < 32; i += 8 * sizeof(T))
        r += static_cast<uint32_t>(
            f(static_cast<int>(static_cast<T>(a >> i)), static_cast<int>(static_cast<T>(b >> i))));
    return r;
}

template <class T> inline int clamp_to(int v) {
    constexpr int lo = std::numeric_limits<T>::min(), hi = std::numeric_limits<T>::max();
    return v < lo ? lo : v > hi ? hi : v;
}

template <class A, class B, class C> inline C dot4(A a, B b, C c) {
    using X = std::conditional_t<std::is_signed<A>::value, int8_t, uint8_t>;
    using Y = std::conditional_t<std::is_signed<B>::value, int8_t, uint8_t>;
    uint32_t r = static_cast<uint32_t>(c);
    for (unsigned i = 0; i < 32; i += 8)
        r += static_cast<uint32_t>(static_cast<int>(static_cast<X>(a >> i)) * static_cast<int>(static_cast<Y>(b >> i)));
    return static_cast<C>(r);
}

} // namespace simt

/* ---- bits ---- */
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline int __clzll(long long x) {
    return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (unsigned i = 0; i < 32; i++)
        r |= (x >> i & 1) << (31 - i);
    return r;
}
inline unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
           __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    return simt::prmt(a, b, s);
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
    return static_cast<unsigned>(((uint64_t{hi} << 32 | lo) << (n & 31)) >> 32);
}
inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned n) {
    return n > 31 ? lo : __funnelshift_l(lo, hi, n);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
    return static_cast<unsigned>((uint64_t{hi} << 32 | lo) >> (n & 31));
}
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned n) {
    return n > 31 ? hi : __funnelshift_r(lo, hi, n);
}

/* ---- multiplies and sums ---- */
inline int __mulhi(int a, int b) {
    return static_cast<int>((int64_t{a} * b) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>((uint64_t{a} * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<unsigned long long>((static_cast<Wide>(a) * b) >> 64);
}
inline unsigned __usad(unsigned a, unsigned b, unsigned c) {
    return (a > b ? a - b : b - a) + c;
}
inline unsigned __uhadd(unsigned a, unsigned b) {
    return static_cast<unsigned>((uint64_t{a} + b) >> 1);
}
inline unsigned __urhadd(unsigned a, unsigned b) {
    return static_cast<unsigned>((uint64_t{a} + b + 1) >> 1);
}
inline int __dp4a(int a, int b, int c) {
    return simt::dot4(a, b, c);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    return simt::dot4(a, b, c);
}

/* ---- casts ---- */
inline unsigned __float_as_uint(float x) {
    return simt::bits<unsigned>(x);
}
inline int __float_as_int(float x) {
    return simt::bits<int>(x);
}
inline float __uint_as_float(unsigned x) {
    return simt::bits<float>(x);
}
inline float __int_as_float(int x) {
    return simt::bits<float>(x);
}
inline float __fmaf_rn(float a, float b, float c) {
    return std::fma(a, b, c);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}

inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline double __dadd_rn(double a, double b) {
    return a + b;
}
inline double __dmul_rn(double a, double b) {
    return a * b;
}
inline double __ddiv_rn(double a, double b) {
    return a / b;
}
inline float __uint2float_rn(unsigned x) {
    return static_cast<float>(x);
}
inline double __uint2double_rn(unsigned x) {
    return x;
}
inline long long __double_as_longlong(double x) {
    return simt::bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return simt::bits<double>(x);
}

/* ---- SIMD within a word: 4 bytes or 2 halves ---- */
#define SIMT_SIMD(name, T, expr)                                                                                       \
    inline unsigned name(unsigned a, unsigned b) {                                                                     \
        return simt::simd<T>(a, b, [](int x, int y) { return expr; });                                                 \
    }
#define SIMT_SIMD_SUM(name, T, expr)                                                                                   \
    inline unsigned name(unsigned a, unsigned b) {                                                                     \
        return simt::simd_sum<T>(a, b, [](int x, int y) { return expr; });                                             \
    }
#define SIMT_SIMD_ONE(name, T, expr)                                                                                   \
    inline unsigned name(unsigned a) {                                                                                 \
        return simt::simd<T>(a, 0, [](int x, int) { return expr; });                                                   \
    }
#define SIMT_SIMD_COMPARE(n, name, T, op)                                                                              \
    SIMT_SIMD(__vcmp##name##n, T, x op y ? -1 : 0)                                                                     \
    SIMT_SIMD(__vset##name##n, T, x op y ? 1 : 0)
#define SIMT_SIMD_ALL(n, S, U)                                                                                         \
    SIMT_SIMD(__vadd##n, U, x + y)                                                                                     \
    SIMT_SIMD(__vsub##n, U, x - y)                                                                                     \
    SIMT_SIMD(__vaddss##n, S, simt::clamp_to<S>(x + y))                                                                \
    SIMT_SIMD(__vaddus##n, U, simt::clamp_to<U>(x + y))                                                                \
    SIMT_SIMD(__vsubss##n, S, simt::clamp_to<S>(x - y))                                                                \
    SIMT_SIMD(__vsubus##n, U, simt::clamp_to<U>(x - y))                                                                \
    SIMT_SIMD(__vavgs##n, S, (x + y + (x + y >= 0)) >> 1)                                                              \
    SIMT_SIMD(__vavgu##n, U, (x + y + 1) >> 1)                                                                         \
    SIMT_SIMD(__vhaddu##n, U, (x + y) >> 1)                                                                            \
    SIMT_SIMD(__vmaxs##n, S, x > y ? x : y)                                                                            \
    SIMT_SIMD(__vmaxu##n, U, x > y ? x : y)                                                                            \
    SIMT_SIMD(__vmins##n, S, x < y ? x : y)                                                                            \
    SIMT_SIMD(__vminu##n, U, x < y ? x : y)                                                                            \
    SIMT_SIMD(__vabsdiffs##n, S, x > y ? x - y : y - x)                                                                \
    SIMT_SIMD(__vabsdiffu##n, U, x > y ? x - y : y - x)                                                                \
    SIMT_SIMD_SUM(__vsads##n, S, x > y ? x - y : y - x)                                                                \
    SIMT_SIMD_SUM(__vsadu##n, U, x > y ? x - y : y - x)                                                                \
    SIMT_SIMD_ONE(__vabs##n, S, x < 0 ? -x : x)                                                                        \
    SIMT_SIMD_ONE(__vabsss##n, S, simt::clamp_to<S>(x < 0 ? -x : x))                                                   \
    SIMT_SIMD_ONE(__vneg##n, S, -x)                                                                                    \
    SIMT_SIMD_ONE(__vnegss##n, S, simt::clamp_to<S>(-x))                                                               \
    SIMT_SIMD_COMPARE(n, eq, U, ==)                                                                                    \
    SIMT_SIMD_COMPARE(n, ne, U, !=)                                                                                    \
    SIMT_SIMD_COMPARE(n, ges, S, >=)                                                                                   \
    SIMT_SIMD_COMPARE(n, geu, U, >=)                                                                                   \
    SIMT_SIMD_COMPARE(n, gts, S, >)                                                                                    \
    SIMT_SIMD_COMPARE(n, gtu, U, >)                                                                                    \
    SIMT_SIMD_COMPARE(n, les, S, <=)                                                                                   \
    SIMT_SIMD_COMPARE(n, leu, U, <=)                                                                                   \
    SIMT_SIMD_COMPARE(n, lts, S, <)                                                                                    \
    SIMT_SIMD_COMPARE(n, ltu, U, <)
SIMT_SIMD_ALL(2, int16_t, uint16_t)
SIMT_SIMD_ALL(4, int8_t, uint8_t)
#undef SIMT_SIMD
#undef SIMT_SIMD_SUM
#undef SIMT_SIMD_ONE
#undef SIMT_SIMD_COMPARE
#undef SIMT_SIMD_ALL

#endif
