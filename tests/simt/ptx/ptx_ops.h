/* SPDX-License-Identifier: Apache-2.0
 *
 * PTX's arithmetic as C++ functions: op_<opcode><types, flags>(operands), called by translated code alone. Registers
 * are unsigned integers that hold bits; in<T> and put<R> go between them and values. Results that are NaN are PTX's own
 * 0x7fffffff.
 */
#ifndef ZIPCCL_TESTS_SIMT_PTX_OPS_H
#define ZIPCCL_TESTS_SIMT_PTX_OPS_H

#include "simt_intrin.h"

#include <type_traits>

namespace ptx {

enum Flag : unsigned {
    m_sat = 1u << 0,
    m_ftz = 1u << 1,
    m_lo = 1u << 2,
    m_hi = 1u << 3,
    m_wide = 1u << 4,
    m_cc = 1u << 5,
    m_NaN = 1u << 6,
    m_l = 1u << 7,
    m_r = 1u << 8,
    m_wrap = 1u << 9,
    m_clamp = 1u << 10,
    m_shiftamt = 1u << 11,
    m_f4e = 1u << 12,
    m_b4e = 1u << 13,
    m_rc8 = 1u << 14,
    m_ecl = 1u << 15,
    m_ecr = 1u << 16,
    m_rc16 = 1u << 17,
    m_add = 1u << 18,
    m_rni = 1u << 19,
    m_rzi = 1u << 20,
    m_rmi = 1u << 21,
    m_rpi = 1u << 22,
    m_rz = 1u << 23,
    m_rm = 1u << 24,
    m_rp = 1u << 25,
    m_rn = 1u << 26,
    m_relu = 1u << 27,
    m_satfinite = 1u << 28
};
enum class Cmp { eq, ne, lt, le, gt, ge, lo, ls, hi, hs, equ, neu, ltu, leu, gtu, geu, num, nan };

/* ---- types ---- */
struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};
template <class E> struct pair_of { E lo, hi; };
using u16x2 = pair_of<uint16_t>;
using s16x2 = pair_of<int16_t>;
using f16x2 = pair_of<f16>;
using bf16x2 = pair_of<bf16>;

template <class T> constexpr bool is_f = std::is_floating_point<T>::value;
template <class T> constexpr bool is_half = std::is_same<T, f16>::value || std::is_same<T, bf16>::value;
template <class T> constexpr unsigned width = 8 * sizeof(T);
template <class T> struct is_pair_t : std::false_type {};
template <class E> struct is_pair_t<pair_of<E>> : std::true_type {};
template <class T> constexpr bool is_pair = is_pair_t<T>::value;
template <unsigned N>
using word = std::conditional_t<N == 1, uint8_t,
                                std::conditional_t<N == 2, uint16_t, std::conditional_t<N == 4, uint32_t, uint64_t>>>;

/* A register's (or an immediate's) bits as a value: the low bits count. */
template <class T, class R> inline T in(R r) {
    if constexpr (std::is_integral<T>::value)
        return static_cast<T>(r);
    else
        return simt::bits<T>(static_cast<word<sizeof(T)>>(r));
}
/* A value as bits of a register; one wider than the value gets its sign. */
template <class R, class T> inline R put(T v) {
    if constexpr (std::is_integral<T>::value)
        return static_cast<R>(v);
    else
        return static_cast<R>(simt::bits<word<sizeof(T)>>(v));
}

template <unsigned F, class T> inline T flush(T v) {
    return (F & m_ftz) && std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(T(0), v) : v;
}
/* The end of a floating-point operation. */
template <unsigned F, class T> inline T finish(T v) {
    if (F & m_sat)
        v = std::isnan(v) || v <= 0 ? T(0) : v > 1 ? T(1) : v;
    if (std::isnan(v)) {
        if constexpr (sizeof(T) == 4)
            return simt::bits<T>(0x7fffffffu);
        else
            return simt::bits<T>(uint64_t{0x7fffffffffffffffull});
    }
    return flush<F>(v);
}

/* ---- halves: by way of float, which holds them exactly ---- */
inline float to_float(bf16 h) {
    return simt::bits<float>(uint32_t{h.bits} << 16);
}
inline float to_float(f16 h) {
    unsigned e = h.bits >> 10 & 31, m = h.bits & 1023;
    float v = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(float(m + 1024), int(e) - 25) : std::ldexp(float(m), -24);
    if (e == 31 && m)
        return simt::bits<float>(0x7fffffffu);
    return h.bits >> 15 ? -v : v;
}
/* Rounds a double (exact enough for sums and products of halves) to a half of `digits` mantissa bits. */
template <class H> inline H to_half(double v, bool zero_round = false) {
    constexpr bool b = std::is_same<H, bf16>::value;
    constexpr int digits = b ? 7 : 10, emin = b ? -126 : -14, emax = b ? 127 : 15;
    if (std::isnan(v))
        return H{0x7fff};
    unsigned sign = std::signbit(v) ? 0x8000 : 0;
    double a = std::fabs(v);
    if (std::isinf(v))
        return H{static_cast<uint16_t>(sign | static_cast<unsigned>((2 * emax + 1) << digits))};
    int e = a == 0 ? emin : std::ilogb(a);
    e = e < emin ? emin : e;
    double units = std::ldexp(a, digits - e);
    uint32_t n = static_cast<uint32_t>(zero_round ? std::trunc(units) : std::nearbyint(units));
    /* n holds the leading one of normal numbers, so a carry moves into the exponent by itself */
    uint32_t r = (static_cast<uint32_t>(e - emin) << digits) + n;
    uint32_t inf = static_cast<uint32_t>(2 * emax + 1) << digits;
    if (r >= inf)
        r = zero_round ? inf - 1 : inf;
    return H{static_cast<uint16_t>(sign | r)};
}

/* ---- arithmetic ---- */
template <class T> using uns = std::make_unsigned_t<T>;
template <class T> inline T clamp128(__int128 v) {
    constexpr T lo = std::numeric_limits<T>::min(), hi = std::numeric_limits<T>::max();
    return v < lo ? lo : v > hi ? hi : static_cast<T>(v);
}
template <class T, class Op> inline T each(T a, T b, Op op) {
    return T{op(a.lo, b.lo), op(a.hi, b.hi)};
}
enum class Arith { add, sub, mul };
template <unsigned F, Arith O, class T> inline T arith(T a, T b) {
    if constexpr (is_pair<T>) {
        return each(a, b, [](auto x, auto y) { return arith<F, O>(x, y); });
    } else if constexpr (is_half<T>) {
        double x = to_float(a), y = to_float(b);
        return to_half<T>(O == Arith::add ? x + y : O == Arith::sub ? x - y : x * y);
    } else if constexpr (is_f<T>) {
        a = flush<F>(a);
        b = flush<F>(b);
        return finish<F>(O == Arith::add ? a + b : O == Arith::sub ? a - b : a * b);
    } else if constexpr ((F & m_sat) != 0) {
        static_assert(O != Arith::mul, "no saturating integer product");
        return clamp128<T>(O == Arith::add ? __int128{a} + b : __int128{a} - b);
    } else {
        uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
        return static_cast<T>(O == Arith::add ? x + y : O == Arith::sub ? x - y : x * y);
    }
}
template <class T, unsigned F> inline T op_add(T a, T b) {
    return arith<F, Arith::add>(a, b);
}
template <class T, unsigned F> inline T op_sub(T a, T b) {
    return arith<F, Arith::sub>(a, b);
}
/* With carry: cc is the register CC.CF. */
template <class T, unsigned F> inline T add_carry(T a, T b, unsigned carry, unsigned &cc) {
    unsigned __int128 s = static_cast<unsigned __int128>(uns<T>(a)) + uns<T>(b) + carry;
    if (F & m_cc)
        cc = static_cast<unsigned>(s >> width<T>) & 1;
    return static_cast<T>(s);
}
template <class T, unsigned F> inline T sub_borrow(T a, T b, unsigned borrow, unsigned &cc) {
    unsigned __int128 s = static_cast<unsigned __int128>(uns<T>(a)) - uns<T>(b) - borrow;
    if (F & m_cc)
        cc = static_cast<unsigned>(s >> width<T>) & 1;
    return static_cast<T>(s);
}
template <class T, unsigned F> inline T op_add(T a, T b, unsigned &cc) {
    return add_carry<T, F>(a, b, 0, cc);
}
template <class T, unsigned F> inline T op_addc(T a, T b, unsigned &cc) {
    return add_carry<T, F>(a, b, cc, cc);
}
template <class T, unsigned F> inline T op_sub(T a, T b, unsigned &cc) {
    return sub_borrow<T, F>(a, b, 0, cc);
}
template <class T, unsigned F> inline T op_subc(T a, T b, unsigned &cc) {
    return sub_borrow<T, F>(a, b, cc, cc);
}
template <class T>
using wider = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed<T>::value, int32_t, uint32_t>,
                                 std::conditional_t<std::is_signed<T>::value, int64_t, uint64_t>>;
template <class T, unsigned F> inline auto op_mul(T a, T b) {
    if constexpr (!std::is_integral<T>::value)
        return arith<F & ~(m_lo | m_hi), Arith::mul>(a, b);
    else if constexpr ((F & m_wide) != 0)
        return static_cast<wider<T>>(static_cast<wider<T>>(a) * static_cast<wider<T>>(b));
    else if constexpr ((F & m_hi) != 0 && std::is_signed<T>::value)
        return static_cast<T>((__int128{a} * b) >> width<T>);
    else if constexpr ((F & m_hi) != 0)
        return static_cast<T>((static_cast<unsigned __int128>(a) * b) >> width<T>);
    else
        return arith<0, Arith::mul>(a, b);
}
template <class T, unsigned F, class M> inline M op_mad(T a, T b, M c) {
    return arith<F & m_sat, Arith::add>(static_cast<M>(op_mul<T, F & ~m_sat>(a, b)), c);
}
template <class T, unsigned F> inline T op_mul24(T a, T b) {
    int64_t x = static_cast<T>(static_cast<uint32_t>(a) << 8) >> 8,
            y = static_cast<T>(static_cast<uint32_t>(b) << 8) >> 8;
    return static_cast<T>(F & m_hi ? (x * y) >> 16 : x * y);
}
template <class T, unsigned F> inline T op_fma(T a, T b, T c) {
    return finish<F>(std::fma(flush<F>(a), flush<F>(b), flush<F>(c)));
}
template <class T, unsigned F> inline T op_div(T a, T b) {
    if constexpr (is_f<T>)
        return finish<F>(flush<F>(a) / flush<F>(b));
    else if (b == 0) /* unspecified: what GPUs give */
        return static_cast<T>(-1);
    else if (std::is_signed<T>::value && b == static_cast<T>(-1))
        return static_cast<T>(0 - static_cast<uint64_t>(a));
    else
        return static_cast<T>(a / b);
}
template <class T, unsigned F> inline T op_rem(T a, T b) {
    if (b == 0)
        return a;
    if (std::is_signed<T>::value && b == static_cast<T>(-1))
        return 0;
    return static_cast<T>(a % b);
}
template <class T, unsigned F> inline T op_rcp(T a) {
    return finish<F>(T(1) / flush<F>(a));
}
template <class T, unsigned F> inline T op_sqrt(T a) {
    return finish<F>(std::sqrt(flush<F>(a)));
}
template <class T, unsigned F, bool Max> inline T minmax(T a, T b) {
    if constexpr (is_pair<T>) {
        return each(a, b, [](auto x, auto y) { return minmax<decltype(x), F, Max>(x, y); });
    } else if constexpr (is_f<T>) {
        a = flush<F>(a);
        b = flush<F>(b);
        if (std::isnan(a) || std::isnan(b))
            return finish<F>((F & m_NaN) || std::isnan(b) ? (F & m_NaN ? T(NAN) : a) : b);
        if (a == 0 && b == 0) /* -0 lies below +0 */
            return std::signbit(a) == Max ? b : a;
        return (a < b) == Max ? b : a;
    } else {
        return (a < b) == Max ? b : a;
    }
}
template <class T, unsigned F> inline T op_min(T a, T b) {
    return minmax<T, F, false>(a, b);
}
template <class T, unsigned F> inline T op_max(T a, T b) {
    return minmax<T, F, true>(a, b);
}
template <class T, unsigned F> inline T op_abs(T a) {
    if constexpr (is_f<T>)
        return finish<F>(std::fabs(a));
    else
        return a < 0 ? static_cast<T>(0 - static_cast<uint64_t>(a)) : a;
}
template <class T, unsigned F> inline T op_neg(T a) {
    if constexpr (is_f<T>)
        return finish<F>(-a);
    else
        return static_cast<T>(0 - static_cast<uint64_t>(a));
}
template <class T, unsigned F> inline T op_sad(T a, T b, T c) {
    uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<T>(static_cast<uint64_t>(c) + (a < b ? y - x : x - y));
}
template <class T, class U, unsigned F, class D> inline D op_dp4a(T a, U b, D c) {
    return simt::dot4(a, b, c);
}
template <class T, class U, unsigned F, class D> inline D op_dp2a(T a, U b, D c) {
    using X = std::conditional_t<std::is_signed<T>::value, int16_t, uint16_t>;
    using Y = std::conditional_t<std::is_signed<U>::value, int8_t, uint8_t>;
    unsigned from = F & m_hi ? 16 : 0;
    uint32_t r = static_cast<uint32_t>(c);
    for (unsigned i = 0; i < 2; i++)
        r += static_cast<uint32_t>(int64_t{static_cast<X>(a >> (16 * i))} * static_cast<Y>(b >> (from + 8 * i)));
    return static_cast<D>(r);
}

/* ---- logic and bits ---- */
template <class T, unsigned F> inline T op_and(T a, T b) {
    return static_cast<T>(a & b);
}
template <class T, unsigned F> inline T op_or(T a, T b) {
    return static_cast<T>(a | b);
}
template <class T, unsigned F> inline T op_xor(T a, T b) {
    return static_cast<T>(a ^ b);
}
template <class T, unsigned F> inline T op_not(T a) {
    if constexpr (std::is_same<T, bool>::value)
        return !a;
    else
        return static_cast<T>(~a);
}
template <class T, unsigned F> inline T op_cnot(T a) {
    return a == 0;
}
template <class T, unsigned F> inline T op_shl(T a, uint32_t n) {
    return n >= width<T> ? T(0) : static_cast<T>(static_cast<uint64_t>(a) << n);
}
template <class T, unsigned F> inline T op_shr(T a, uint32_t n) {
    if (n >= width<T>)
        return a < T(0) ? static_cast<T>(-1) : T(0);
    return static_cast<T>(a >> n);
}
template <class T, unsigned F> inline T op_shf(T a, T b, uint32_t n) {
    uint64_t v = uint64_t{b} << 32 | a;
    n = F & m_wrap ? n & 31 : n > 32 ? 32 : n;
    return static_cast<T>(F & m_l ? (v << n) >> 32 : v >> n);
}
template <class T, unsigned F> inline T op_bfe(T a, uint32_t pos, uint32_t len) {
    if constexpr (std::is_same<T, uint32_t>::value)
        return simt::bfe_u32(a, pos, len);
    else if constexpr (std::is_same<T, int32_t>::value)
        return simt::bfe_s32(a, pos, len);
    pos &= 255;
    len &= 255;
    if (len == 0)
        return 0;
    T v = op_shr<T, 0>(a, pos);
    return len >= width<T> ? v : static_cast<T>(static_cast<T>(uns<T>(v) << (width<T> - len)) >> (width<T> - len));
}
template <class T, unsigned F> inline T op_bfi(T a, T b, uint32_t pos, uint32_t len) {
    pos &= 255;
    len &= 255;
    if (pos >= width<T> || len == 0)
        return b;
    T mask = static_cast<T>((len >= width<T> ? ~T(0) : (T(1) << len) - 1) << pos);
    return (b & ~mask) | ((a << pos) & mask);
}
template <class T, unsigned F> inline uint32_t op_bfind(T a) {
    uns<T> v = static_cast<uns<T>>(a < T(0) ? ~a : a);
    if (v == 0)
        return ~0u;
    uint32_t top = 63 - static_cast<uint32_t>(__builtin_clzll(v));
    return F & m_shiftamt ? width<T> - 1 - top : top;
}
template <class T, unsigned F> inline T op_brev(T a) {
    T r = 0;
    for (unsigned i = 0; i < width<T>; i++)
        r |= (a >> i & 1) << (width<T> - 1 - i);
    return r;
}
template <class T, unsigned F> inline uint32_t op_popc(T a) {
    return static_cast<uint32_t>(__builtin_popcountll(a));
}
template <class T, unsigned F> inline uint32_t op_clz(T a) {
    return a ? static_cast<uint32_t>(__builtin_clzll(a)) - (64 - width<T>) : width<T>;
}
/* The n-th set bit from base: upwards for n > 0, downwards for n < 0; n = 0 tests base itself. */
template <class T, unsigned F> inline T op_fns(uint32_t mask, uint32_t base, int32_t n) {
    int step = n < 0 ? -1 : 1, left = n < 0 ? -n : n;
    if (n == 0)
        return base < 32 && (mask >> base & 1) ? base : ~0u;
    for (int64_t i = base; i >= 0 && i < 32; i += step)
        if ((mask >> i & 1) && --left == 0)
            return static_cast<T>(i);
    return ~0u;
}
template <class T, unsigned F> inline T op_bmsk(uint32_t pos, uint32_t len) {
    pos = F & m_wrap ? pos & 31 : pos > 32 ? 32 : pos;
    len = F & m_wrap ? len & 31 : len > 32 ? 32 : len;
    uint64_t ones = ((uint64_t{1} << len) - 1) << pos;
    return static_cast<T>(ones);
}
template <class T, unsigned F> inline T op_szext(T a, uint32_t n) {
    n = F & m_wrap ? n & 31 : n > 32 ? 32 : n;
    if (n == 0)
        return 0;
    return static_cast<T>(static_cast<T>(static_cast<uint32_t>(a) << (32 - n)) >> (32 - n));
}
template <class T, unsigned F> inline T op_prmt(T a, T b, uint32_t c) {
    constexpr unsigned mode = F & (m_f4e | m_b4e | m_rc8 | m_ecl | m_ecr | m_rc16);
    if constexpr (mode == 0)
        return simt::prmt(a, b, c);
    unsigned n = c & 3, select = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned s = mode == m_f4e   ? n + i
                     : mode == m_b4e ? (n + 8 - i) & 7
                     : mode == m_rc8 ? n
                     : mode == m_ecl ? (i > n ? i : n)
                     : mode == m_ecr ? (i < n ? i : n)
                                     : 2 * (n & 1) + (i & 1);
        select |= s << (4 * i);
    }
    return simt::prmt(a, b, select);
}
template <class T, unsigned F> inline T op_lop3(T a, T b, T c, uint32_t table) {
    return simt::lop3(a, b, c, table);
}

/* ---- SIMD within a word ---- */
enum class Video { add, sub, avg, absdiff, min, max };
template <class T, class U, class V, unsigned F, unsigned Lanes, Video O> inline T video(U a, V b, T c) {
    constexpr unsigned bits = 32 / Lanes;
    constexpr int64_t hi = std::is_signed<T>::value ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
    constexpr int64_t lo = std::is_signed<T>::value ? -hi - 1 : 0;
    uint32_t r = 0;
    int64_t sum = 0;
    for (unsigned i = 0; i < 32; i += bits) {
        int64_t x = static_cast<U>(static_cast<U>(static_cast<uint32_t>(a) >> i << (32 - bits)) >> (32 - bits));
        int64_t y = static_cast<V>(static_cast<V>(static_cast<uint32_t>(b) >> i << (32 - bits)) >> (32 - bits));
        int64_t v = O == Video::add       ? x + y
                    : O == Video::sub     ? x - y
                    : O == Video::avg     ? (x + y + (x + y >= 0)) >> 1
                    : O == Video::absdiff ? (x < y ? y - x : x - y)
                    : O == Video::min     ? (x < y ? x : y)
                                          : (x < y ? y : x);
        if (F & m_sat)
            v = v < lo ? lo : v > hi ? hi : v;
        sum += v;
        r |= (static_cast<uint32_t>(v) & ((1u << bits) - 1)) << i;
    }
    return F & m_add ? static_cast<T>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(c)) : static_cast<T>(r);
}
#define PTX_VIDEO(name, kind)                                                                                          \
    template <class T, class U, class V, unsigned F> inline T op_##name##4(U a, V b, T c) {                            \
        return video<T, U, V, F, 4, Video::kind>(a, b, c);                                                             \
    }                                                                                                                  \
    template <class T, class U, class V, unsigned F> inline T op_##name##2(U a, V b, T c) {                            \
        return video<T, U, V, F, 2, Video::kind>(a, b, c);                                                             \
    }
PTX_VIDEO(vadd, add)
PTX_VIDEO(vsub, sub)
PTX_VIDEO(vavrg, avg)
PTX_VIDEO(vabsdiff, absdiff)
PTX_VIDEO(vmin, min)
PTX_VIDEO(vmax, max)
#undef PTX_VIDEO

/* ---- compare and select ---- */
template <class T, Cmp C, unsigned F> inline bool compare(T a, T b) {
    if constexpr (is_f<T>) {
        a = flush<F>(a);
        b = flush<F>(b);
        bool nan = std::isnan(a) || std::isnan(b);
        if (C == Cmp::num || C == Cmp::nan)
            return nan == (C == Cmp::nan);
        if (nan)
            return C >= Cmp::equ;
    }
    switch (C) {
    case Cmp::eq:
    case Cmp::equ:
        return a == b;
    case Cmp::ne:
    case Cmp::neu:
        return a != b;
    case Cmp::lt:
    case Cmp::lo:
    case Cmp::ltu:
        return a < b;
    case Cmp::le:
    case Cmp::ls:
    case Cmp::leu:
        return a <= b;
    case Cmp::gt:
    case Cmp::hi:
    case Cmp::gtu:
        return a > b;
    default:
        return a >= b;
    }
}
template <class U, class V, Cmp C, unsigned F, unsigned Lanes> inline uint32_t video_set(U a, V b, uint32_t c) {
    constexpr unsigned bits = 32 / Lanes;
    uint32_t r = 0, sum = 0;
    for (unsigned i = 0; i < 32; i += bits) {
        int64_t x = static_cast<U>(static_cast<U>(static_cast<uint32_t>(a) >> i << (32 - bits)) >> (32 - bits));
        int64_t y = static_cast<V>(static_cast<V>(static_cast<uint32_t>(b) >> i << (32 - bits)) >> (32 - bits));
        uint32_t v = compare<int64_t, C, 0>(x, y);
        sum += v;
        r |= v << i;
    }
    return F & m_add ? sum + c : r;
}
template <class T, unsigned F> inline T op_selp(T a, T b, bool p) {
    return p ? a : b;
}
template <class T, class U, unsigned F> inline T op_slct(T a, T b, U c) {
    return c >= U(0) ? a : b; /* NaN selects b */
}
/* What set gives for true: all ones, or 1.0. */
template <class D> inline D set_value(bool v) {
    if constexpr (is_f<D>)
        return v ? D(1) : D(0);
    else
        return v ? static_cast<D>(-1) : D(0);
}

/* ---- conversions ---- */
template <unsigned F, class T> inline T integral(T v) {
    return F & m_rni   ? std::nearbyint(v)
           : F & m_rzi ? std::trunc(v)
           : F & m_rmi ? std::floor(v)
           : F & m_rpi ? std::ceil(v)
                       : v;
}
/* A double of more digits than float, rounded to float in the mode of F. */
template <unsigned F, class S> inline float round_float(S v) {
    float f = static_cast<float>(v); /* to nearest */
    using Wide = std::conditional_t<is_f<S>, double, __int128>;
    if (!(F & (m_rz | m_rm | m_rp)) || std::isnan(f) || (is_f<S> && std::isinf(static_cast<double>(v))))
        return f;
    auto above = [&] { return std::isinf(f) ? f > 0 : static_cast<Wide>(f) > static_cast<Wide>(v); };
    auto below = [&] { return std::isinf(f) ? f < 0 : static_cast<Wide>(f) < static_cast<Wide>(v); };
    bool down = (F & m_rm) || ((F & m_rz) && v > S(0));
    if (down)
        return above() ? std::nextafter(f, -INFINITY) : f;
    return below() ? std::nextafter(f, INFINITY) : f;
}
template <class D, class S, unsigned F> inline D op_cvt(S v) {
    static_assert(!(F & (m_relu | m_satfinite)), "cvt.relu and cvt.satfinite are not modelled");
    if constexpr (is_half<S> && std::is_same<D, float>::value) {
        float f = to_float(v);
        return std::isnan(f) ? simt::bits<float>(0x7fffffffu) : finish<F & m_sat>(f);
    } else if constexpr (is_half<D>) {
        static_assert(std::is_same<S, float>::value && !(F & (m_rm | m_rp | m_sat)), "halves come from floats");
        return to_half<D>(flush<F>(v), (F & m_rz) != 0);
    } else if constexpr (is_f<S> && is_f<D>) {
        v = flush<F>(v);
        if constexpr (sizeof(D) < sizeof(S))
            return finish<F>(round_float<F>(v));
        else
            return finish<F>(static_cast<D>(integral<F>(v)));
    } else if constexpr (is_f<S>) {
        static_assert((F & (m_rni | m_rzi | m_rmi | m_rpi)) != 0, "an integer rounding");
        if (std::isnan(v))
            return sizeof(S) == 4 && sizeof(D) < 8 ? D(0) : static_cast<D>(uint64_t{1} << (width<D> - 1));
        S r = integral<F>(flush<F>(v));
        constexpr D lo = std::numeric_limits<D>::min(), hi = std::numeric_limits<D>::max();
        if (r <= static_cast<S>(lo))
            return lo;
        return r >= std::ldexp(S(1), int(width<D>) - std::is_signed<D>::value) ? hi : static_cast<D>(r);
    } else if constexpr (is_f<D>) {
        if constexpr (sizeof(D) == 8) /* exact, or rounded to nearest */
            return static_cast<D>(v);
        else
            return finish<F & m_sat>(round_float<F>(v));
    } else if constexpr ((F & m_sat) != 0) {
        return clamp128<D>(v);
    } else {
        return static_cast<D>(v);
    }
}
/* cvt.rn.{f16x2,bf16x2}.f32 d, a, b: a is the upper half. */
template <class D, unsigned F> inline D op_cvt_pair(float a, float b) {
    using H = decltype(D::lo);
    return D{op_cvt<H, float, F>(b), op_cvt<H, float, F>(a)};
}

} // namespace ptx

#endif
