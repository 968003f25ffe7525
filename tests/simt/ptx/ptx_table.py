# SPDX-License-Identifier: Apache-2.0
"""The one table of PTX types and opcodes. What is not in it stops the translation with its name and line.

A row: opcode -> Op(kind, sig, types, mods, quiet, count).
  kind   the emitter's method (emit_<kind>), or "alu": a call of ptx::op_<name><types, flags>(operands).
  sig    alu alone: the C++ types of destination and operands. T, U, V: the type suffixes; M: T, or twice its width with
         .wide; D: u32 where both suffixes are unsigned, else s32.
  types  type suffixes allowed, in `count` places; None: the emitter looks at them itself.
  mods   modifiers that change the meaning: each becomes the flag ptx::m_<mod>.
  quiet  modifiers without a meaning on a CPU (cache hints) or that name what is done anyway (rounding to nearest).
"""
from collections import namedtuple

# suffix -> (C++ type of a value, bytes, C++ type of a register)
TYPES = {
    "pred": ("bool", 1, "bool"),
    "b8": ("uint8_t", 1, "uint8_t"), "u8": ("uint8_t", 1, "uint8_t"), "s8": ("int8_t", 1, "uint8_t"),
    "b16": ("uint16_t", 2, "uint16_t"), "u16": ("uint16_t", 2, "uint16_t"), "s16": ("int16_t", 2, "uint16_t"),
    "b32": ("uint32_t", 4, "uint32_t"), "u32": ("uint32_t", 4, "uint32_t"), "s32": ("int32_t", 4, "uint32_t"),
    "b64": ("uint64_t", 8, "uint64_t"), "u64": ("uint64_t", 8, "uint64_t"), "s64": ("int64_t", 8, "uint64_t"),
    "f32": ("float", 4, "uint32_t"), "f64": ("double", 8, "uint64_t"),
    "f16": ("ptx::f16", 2, "uint16_t"), "bf16": ("ptx::bf16", 2, "uint16_t"),
    "u16x2": ("ptx::u16x2", 4, "uint32_t"), "s16x2": ("ptx::s16x2", 4, "uint32_t"),
    "f16x2": ("ptx::f16x2", 4, "uint32_t"), "bf16x2": ("ptx::bf16x2", 4, "uint32_t"),
}
WIDER = {"u8": "u16", "s8": "s16", "u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
SPACES = ("global", "shared", "local", "const", "param")

# special register -> C++ expression
SPECIAL = {
    "%laneid": "simt::cur->lane", "%warpid": "simt::cur->warp", "%nwarpid": "32u",
    "%lanemask_eq": "(1u << simt::cur->lane)", "%lanemask_lt": "((1u << simt::cur->lane) - 1)",
    "%lanemask_le": "((2u << simt::cur->lane) - 1)", "%lanemask_gt": "~((2u << simt::cur->lane) - 1)",
    "%lanemask_ge": "~((1u << simt::cur->lane) - 1)", "%clock": "ptx::clock()", "%clock64": "ptx::clock()",
    "%globaltimer": "ptx::clock()", "%smid": "0u", "%nsmid": "1u", "%gridid": "0ull",
    "%total_smem_size": "simt::grid.dyn_bytes",
}
for _a in "xyz":
    SPECIAL["%tid." + _a] = "simt::cur->tid." + _a
    SPECIAL["%ntid." + _a] = "simt::grid.block_dim." + _a
    SPECIAL["%ctaid." + _a] = "simt::grid.block_idx." + _a
    SPECIAL["%nctaid." + _a] = "simt::grid.grid_dim." + _a

Op = namedtuple("Op", "kind sig types mods quiet count")


def row(kind="alu", sig="", types="", mods="", quiet="", count=1):
    return Op(kind, sig.split(), frozenset(types.split()) if types is not None else None, tuple(mods.split()),
              frozenset(quiet.split()), count)


INT = "u16 s16 u32 s32 u64 s64"
BITS = "b16 b32 b64"
FLOAT = "f32 f64"
COMPARE = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan"
ANY = "b8 u8 s8 b16 u16 s16 b32 u32 s32 b64 u64 s64 f32 f64"
CACHE = ("ca cg cs lu cv wb wt nc L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate "
         "L2::evict_first L2::evict_last L2::evict_normal L2::64B L2::128B L2::256B")
ORDER = "weak volatile relaxed acquire release acq_rel mmio sc cta cluster gpu sys"
VIDEO = dict(sig="T U V T", types="u32 s32", mods="sat add", count=3)

OPS = {
    # arithmetic
    "add": row(sig="T T T", types=INT + " u16x2 s16x2 f32 f64 bf16x2 f16x2 bf16 f16", mods="sat ftz cc", quiet="rn"),
    "sub": row(sig="T T T", types=INT + " f32 f64 bf16x2 f16x2 bf16 f16", mods="sat ftz cc", quiet="rn"),
    "addc": row(sig="T T T", types="u32 s32 u64 s64", mods="cc"),
    "subc": row(sig="T T T", types="u32 s32 u64 s64", mods="cc"),
    "mul": row(sig="M T T", types=INT + " f32 f64 bf16x2 f16x2 bf16 f16", mods="lo hi wide sat ftz", quiet="rn"),
    "mad": row(sig="M T T M", types=INT, mods="lo hi wide sat"),
    "mul24": row(sig="T T T", types="u32 s32", mods="lo hi"),
    "fma": row(sig="T T T T", types=FLOAT, mods="sat ftz", quiet="rn"),
    "div": row(sig="T T T", types=INT + " f32 f64", mods="ftz", quiet="rn"),
    "rem": row(sig="T T T", types=INT),
    "rcp": row(sig="T T", types=FLOAT, mods="ftz", quiet="rn"),
    "sqrt": row(sig="T T", types=FLOAT, mods="ftz", quiet="rn"),
    "min": row(sig="T T T", types=INT + " f32 f64 u16x2 s16x2", mods="ftz NaN"),
    "max": row(sig="T T T", types=INT + " f32 f64 u16x2 s16x2", mods="ftz NaN"),
    "abs": row(sig="T T", types="s16 s32 s64 f32 f64", mods="ftz"),
    "neg": row(sig="T T", types="s16 s32 s64 f32 f64", mods="ftz"),
    "sad": row(sig="T T T T", types=INT),
    "dp4a": row(sig="D T U D", types="u32 s32", count=2),
    "dp2a": row(sig="D T U D", types="u32 s32", mods="lo hi", count=2),
    # logic and bits
    "and": row(sig="T T T", types="pred " + BITS), "or": row(sig="T T T", types="pred " + BITS),
    "xor": row(sig="T T T", types="pred " + BITS), "not": row(sig="T T", types="pred " + BITS),
    "cnot": row(sig="T T", types=BITS),
    "shl": row(sig="T T uint32_t", types=BITS), "shr": row(sig="T T uint32_t", types=BITS + " " + INT),
    "shf": row(sig="T T T uint32_t", types="b32", mods="l r wrap clamp"),
    "bfe": row(sig="T T uint32_t uint32_t", types="u32 s32 u64 s64"),
    "bfi": row(sig="T T T uint32_t uint32_t", types="b32 b64"),
    "bfind": row(sig="uint32_t T", types="u32 s32 u64 s64", mods="shiftamt"),
    "brev": row(sig="T T", types="b32 b64"), "popc": row(sig="uint32_t T", types="b32 b64"),
    "clz": row(sig="uint32_t T", types="b32 b64"), "fns": row(sig="T uint32_t uint32_t int32_t", types="b32"),
    "bmsk": row(sig="T uint32_t uint32_t", types="b32", mods="clamp wrap"),
    "szext": row(sig="T T uint32_t", types="u32 s32", mods="clamp wrap"),
    "prmt": row(sig="T T T uint32_t", types="b32", mods="f4e b4e rc8 ecl ecr rc16"),
    "lop3": row(sig="T T T T uint32_t", types="b32"),
    # SIMD within a word, without lane masks and selectors
    "vadd4": row(**VIDEO), "vsub4": row(**VIDEO), "vavrg4": row(**VIDEO), "vabsdiff4": row(**VIDEO),
    "vmin4": row(**VIDEO), "vmax4": row(**VIDEO), "vadd2": row(**VIDEO), "vsub2": row(**VIDEO), "vavrg2": row(**VIDEO),
    "vabsdiff2": row(**VIDEO), "vmin2": row(**VIDEO), "vmax2": row(**VIDEO),
    "vset4": row(sig="uint32_t T U uint32_t", types="u32 s32", mods="eq ne lt le gt ge add", count=2),
    "vset2": row(sig="uint32_t T U uint32_t", types="u32 s32", mods="eq ne lt le gt ge add", count=2),
    # compare and select
    "setp": row("setp", types=ANY, mods=COMPARE + " and or xor ftz"),
    "set": row("set", types=ANY, mods=COMPARE + " and or xor ftz", count=2),
    "selp": row(sig="T T T bool", types=ANY), "slct": row(sig="T T T U", types=ANY, mods="ftz", count=2),
    # conversions and addresses
    "cvt": row("cvt", types=ANY + " f16 bf16 f16x2 bf16x2", mods="sat ftz rni rzi rmi rpi rz rm rp rn relu satfinite", count=2),
    "cvta": row("cvta", types="u32 u64", mods="to " + " ".join(SPACES)),
    "isspacep": row("isspacep", types=None, mods=" ".join(SPACES)),
    "mov": row("mov", types=ANY + " pred"),
    # memory
    "ld": row("ld", types=ANY, mods=" ".join(SPACES) + " v2 v4 v8 " + ORDER, quiet=CACHE + " shared::cta param::entry param::func"),
    "ldu": row("ld", types=ANY, mods="global v2 v4"),
    "st": row("st", types=ANY, mods=" ".join(SPACES) + " v2 v4 v8 " + ORDER, quiet=CACHE + " shared::cta param::func"),
    "atom": row("atom", types=ANY, mods="global shared add min max and or xor exch cas inc dec " + ORDER, quiet="shared::cta noftz"),
    "red": row("atom", types=ANY, mods="global shared add min max and or xor inc dec " + ORDER, quiet="shared::cta noftz async"),
    "cp": row("cp", types=None, mods="async ca cg commit_group wait_group wait_all",
              quiet="shared shared::cta global L2::64B L2::128B L2::256B"),
    "prefetch": row("nothing", types=None, quiet="global local L1 L2 L2::evict_last L2::evict_normal"),
    "prefetchu": row("nothing", types=None, quiet="L1"),
    "discard": row("nothing", types=None, quiet="global L2"),
    "applypriority": row("nothing", types=None, quiet="global L2::evict_normal"),
    # order between threads
    "fence": row("fence", types=None, quiet="sc acq_rel acquire release cta cluster gpu sys proxy async alias"),
    "membar": row("fence", types=None, quiet="cta gl sys"),
    "bar": row("bar", types=None, mods="sync arrive red warp popc and or", quiet="cta u32 pred"),
    "barrier": row("bar", types=None, mods="sync arrive red popc and or", quiet="cta aligned u32 pred"),
    "nanosleep": row("sleep", types=None, quiet="u32"),
    # warps
    "vote": row("vote", types=None, mods="sync ballot any all uni", quiet="b32 pred"),
    "shfl": row("shfl", types=None, mods="sync up down bfly idx", quiet="b32"),
    "match": row("match", types="b32 b64", mods="sync any all"),
    "redux": row("redux", types="u32 s32 b32", mods="sync add min max and or xor"),
    "activemask": row("activemask", types="b32"),
    "elect": row("elect", types=None, mods="sync"),
    # control
    "bra": row("bra", types=None, quiet="uni"), "brx": row("brx", types=None, mods="idx", quiet="uni"),
    "call": row("call", types=None, quiet="uni"), "ret": row("ret", types=None, quiet="uni"),
    "exit": row("exit", types=None), "trap": row("trap", types=None), "brkpt": row("trap", types=None),
    "pmevent": row("nothing", types=None), "griddepcontrol": row("nothing", types=None, quiet="launch_dependents wait"),
}
