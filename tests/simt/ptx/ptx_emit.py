# SPDX-License-Identifier: Apache-2.0
"""Emits C++ for a parsed module. Each register is a variable, each branch a goto, each kernel a function."""
import re

from ptx_parse import Instr, Label, PtxError, number
from ptx_work import KINDS, fused, work_of
from ptx_table import OPS, SPACES, SPECIAL, TYPES, WIDER

COMPARES = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num",
            "nan")
LOGIC = {"and": "&&", "or": "||", "xor": "!="}
ATOMS = {"and": "and_", "or": "or_", "xor": "xor_"}
STRICT = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}


def ident(name):
    return "v_" + re.sub(r"\W", lambda m: {"%": "", "$": "S", ".": "d"}.get(m.group(), "_"), name)


def cstring(s):
    return '"' + s.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Emitter:
    def __init__(self, module):
        self.module, self.out, self.used = module, [], set()
        self.vars, self.shared, self.shared_bytes, self.regs = {}, {}, 0, {}
        self.files, self.function, self.instr = [module.name], None, None

    # ---- the module ----
    def emit(self):
        w = self.out.append
        w("/* Translated from PTX. */")
        w('#include "ptx_rt.h"')
        dynamic = []
        for v in self.module.vars:
            size = TYPES[v.type][1]
            if v.space == "shared" and (v.count < 0 or v.external):
                dynamic.append(v.name)
            elif v.space == "shared":
                self.shared_bytes = -(-self.shared_bytes // v.align) * v.align
                self.shared[v.name] = self.shared_bytes
                self.shared_bytes += size * v.count
            else:
                if v.external or v.count < 0:
                    raise PtxError(f"{self.module.name}: unsupported external variable '{v.name}'")
                ctype = TYPES[v.type][2]
                init = ", ".join(f"static_cast<{ctype}>({x}{'ull' if x >= 0 else 'll'})" for x in v.init or [])
                w(f"alignas({v.align}) static {ctype} {ident(v.name)}[{v.count}] = {{{init}}};")
                self.vars[v.name] = size * v.count
        if dynamic:
            self.shared_bytes = -(-self.shared_bytes // 128) * 128
        for name in dynamic:
            self.shared[name] = self.shared_bytes
        head = len(self.out)
        functions = [f for f in self.module.functions.values() if f.defined]
        for f in functions:
            if not f.entry:
                w(f"static void f_{ident(f.name)}(unsigned char *const *rets, unsigned char *const *params);")
        for f in functions:
            self.body(f)
        self.out.insert(head, "\n".join(f"[[maybe_unused]] static const char file{i}_[] = {cstring(n)};" for i, n in enumerate(self.files)))
        self.registry([f for f in functions if f.entry])
        return "\n".join(self.out) + "\n"

    def registry(self, kernels):
        w = self.out.append
        for f in kernels:
            sizes = ", ".join(str(TYPES[p.type][1] * p.count) for p in f.params) or "0"
            w(f"static const unsigned params_{ident(f.name)}[] = {{{sizes}}};")
        rows = ", ".join(f'{{{cstring(f.name)}, k_{ident(f.name)}, {self.shared_bytes}u, {f.max_threads}u, '
                         f'params_{ident(f.name)}, {len(f.params)}}}' for f in kernels)
        w(f"static const ptx::Kernel kernels_[] = {{{rows or '{}'}}};")
        rows = ", ".join(f"{{{cstring(n)}, {ident(n)}, {b}}}" for n, b in self.vars.items())
        w(f"static const ptx::Variable variables_[] = {{{rows or '{}'}}};")
        w(f"static ptx::Module module_(kernels_, {len(kernels)}, variables_, {len(self.vars)});")

    def body(self, f):
        w, self.function, start = self.out.append, f, len(self.out)
        self.regs = {name: kind for kind, name in f.regs}
        rets = "" if f.entry else "unsigned char *const *rets, "
        w(f"static void {'k' if f.entry else 'f'}_{ident(f.name)}({rets}unsigned char *const *params) {{")
        w("    unsigned cc_ = 0;\n    (void)cc_;\n    (void)params;" + ("" if f.entry else "\n    (void)rets;"))
        text, mixes = [], []
        fresh = True  # the next instruction begins a basic block
        gone = fused(f.body)
        for at, item in enumerate(f.body):
            if isinstance(item, Label):
                text.append(f"{ident(item.name)}:;")
                fresh = True
                continue
            if fresh:
                text.append(f"    visits_{ident(f.name)}.visit({len(mixes)});")
                mixes.append([0] * len(KINDS))
            text.append("    " + self.statement(item))
            if at not in gone:
                mixes[-1] = [a + b for a, b in zip(mixes[-1], work_of(item.op))]
            fresh = OPS[item.op.split(".")[0]].kind in ("bra", "brx", "ret", "exit")
        rows = ", ".join("{" + ", ".join(map(str, m)) + "}" for m in mixes) or "{}"
        self.out[start:start] = [f"static const unsigned mix_{ident(f.name)}[][ptx::num_work] = {{{rows}}};",
                                 f"static ptx::Visits visits_{ident(f.name)}(mix_{ident(f.name)}, {len(mixes)});"]
        joined = "\n".join(text)
        used = set(re.findall(r"\w+", joined))
        for kind, name in f.regs:
            if ident(name) in used:
                w(f"    {TYPES[kind][2]} {ident(name)} = {'false' if kind == 'pred' else f'static_cast<{TYPES[kind][2]}>(0xA5A5A5A5A5A5A5A5ull)'};")
        for v in f.vars:
            size = TYPES[v.type][1] * v.count
            w(f"    alignas({max(v.align, 8)}) unsigned char {ident(v.name)}[{size}];\n    memset({ident(v.name)}, 0xA5, {size});")
        w(joined + "\n}")

    # ---- instructions ----
    def fail(self, what):
        raise PtxError(f"{self.module.name}:{self.instr.line}: {what}")

    def loc(self):
        file, line = self.instr.loc or (self.module.name, self.instr.line)
        if file not in self.files:
            self.files.append(file)
        return f"simt::Loc{{file{self.files.index(file)}_, {line}}}"

    def statement(self, i):
        self.instr = i
        parts = i.op.split(".")
        name = parts[0]
        row = OPS.get(name)
        if row is None:
            self.fail(f"unknown opcode '{i.op}'")
        types, mods = [], []
        for part in parts[1:]:
            if row.types is not None and part in row.types:
                types.append(part)
            elif part in row.mods:
                mods.append(part)
            elif part not in row.quiet:
                self.fail(f"unknown modifier '.{part}' of opcode '{i.op}'")
        if row.types is not None and row.kind not in ("cvt", "cp") and len(types) != row.count:
            self.fail(f"opcode '{i.op}' has {len(types)} types, not {row.count}")
        self.used.add(name)
        code = getattr(self, "emit_" + row.kind)(name, row, types, mods, i.operands)
        if row.kind in ("bar", "vote", "shfl", "match", "redux", "elect"):
            code = f"ptx::meet(); {code}"
        if i.guard:
            negated, reg = i.guard
            code = f"if ({'!' if negated else ''}{ident(reg)}) {{ {code} }}"
        return code

    def operand(self, o):
        if o.kind == "reg":
            text = ident(o.text)
        elif o.kind == "special":
            text = SPECIAL[o.text]
        elif o.kind == "imm":
            n = int(o.text) if o.text.startswith("-") else number(o.text)
            text = f"{n % 2**64}ull" if n > 0x7fffffffffffffff or n == -2**63 else f"{n}ll"
        elif o.kind == "sym":
            if o.text in self.shared:
                text = f"{self.shared[o.text] + o.offset}ll"
            elif o.text in self.vars or any(v.name == o.text for v in self.function.vars):
                text = f"(reinterpret_cast<uint64_t>({ident(o.text)}) + {o.offset})"
            elif self.param(o.text):
                text = f"(reinterpret_cast<uint64_t>({self.param(o.text)}) + {o.offset})"
            else:
                self.fail(f"unknown symbol '{o.text}'")
        else:
            self.fail(f"unsupported operand of '{self.instr.op}'")
        return ("!" if o.negated else "") + text

    def param(self, name):
        for i, p in enumerate(self.function.params):
            if p.name == name:
                return f"params[{i}]"
        for i, p in enumerate(self.function.rets):
            if p.name == name:
                return f"rets[{i}]"
        return ident(name) if any(v.name == name for v in self.function.vars) else None

    def value(self, o, ctype):
        return f"ptx::in<{ctype}>({self.operand(o)})" if ctype != "bool" else f"({self.operand(o)} != 0)"

    def assign(self, o, expr):
        if o.kind == "sink":
            return f"(void)({expr});"
        if o.kind != "reg":
            self.fail(f"the destination of '{self.instr.op}' must be a register")
        ctype = TYPES[self.regs[o.text]][2]
        return f"{ident(o.text)} = ptx::put<{ctype}>({expr});"

    def arity(self, ops, *allowed):
        if len(ops) not in allowed:
            self.fail(f"opcode '{self.instr.op}' with {len(ops)} operands")

    def space(self, mods):
        found = [m for m in mods if m in SPACES]
        return found[0] if found else "generic"

    def address(self, o, space, size, write):
        if o.kind != "mem" or len(o.items) != 1:
            self.fail(f"unsupported address of '{self.instr.op}'")
        base = o.items[0]
        if base.kind == "sym" and self.param(base.text):
            return f"{self.param(base.text)} + {base.offset}"
        if space == "param":
            self.fail(f"unknown parameter '{base.text}'")
        text = self.operand(base)
        if base.kind == "reg" and base.offset:
            text = f"{text} + {base.offset}ll"
        function = {"const": "local"}.get(space, space)
        ctype = "uint32_t" if space == "shared" else "uint64_t"
        return f"ptx::{function}(static_cast<{ctype}>({text}), {size}, {str(write).lower()}, {self.loc()})"

    def flags(self, mods):
        return " | ".join(f"ptx::m_{m}" for m in mods) or "0"

    def emit_alu(self, name, row, types, mods, ops):
        t = [TYPES[x][0] for x in types]
        names = dict(zip("TUV", t))
        names["M"] = TYPES[WIDER[types[0]]][0] if "wide" in mods else t[0]
        names["D"] = "uint32_t" if set(types) == {"u32"} else "int32_t"
        sig = [names.get(s, s) for s in row.sig]
        self.arity(ops, len(sig))
        if name in ("mul", "mad") and types[0][0] in "us" and not {"lo", "hi", "wide"} & set(mods):
            self.fail(f"'{self.instr.op}' without lo, hi or wide")
        args = ", ".join(self.value(o, s) for o, s in zip(ops[1:], sig[1:]))
        if name in ("addc", "subc") or "cc" in mods:
            args += ", cc_"
        if name.startswith("vset"):
            compare = [m for m in mods if m in COMPARES][0]
            flags = self.flags([m for m in mods if m not in COMPARES])
            return self.assign(ops[0], f"ptx::video_set<{', '.join(t)}, ptx::Cmp::{compare}, {flags}, {name[4]}>({args})")
        return self.assign(ops[0], f"ptx::op_{name}<{', '.join(t)}, {self.flags(mods)}>({args})")

    def comparison(self, kind, mods, ops):
        compare = [m for m in mods if m in COMPARES]
        logic = [m for m in mods if m in LOGIC]
        if len(compare) != 1 or len(logic) > 1:
            self.fail(f"unsupported comparison '{self.instr.op}'")
        self.arity(ops, 4 if logic else 3)
        t = TYPES[kind][0]
        flags = self.flags([m for m in mods if m == "ftz"])
        test = f"ptx::compare<{t}, ptx::Cmp::{compare[0]}, {flags}>({self.value(ops[1], t)}, {self.value(ops[2], t)})"
        combine = f" {LOGIC[logic[0]]} {self.value(ops[3], 'bool')}" if logic else ""
        return test, combine

    def emit_setp(self, name, row, types, mods, ops):
        test, combine = self.comparison(types[0], mods, ops)
        code = f"bool t_ = {test}; bool p_ = t_{combine}; bool q_ = !t_{combine}; (void)q_; "
        code += self.assign(ops[0], "p_")
        if ops[0].items:
            code += " " + self.assign(ops[0].items[0], "q_")
        return f"{{ {code} }}"

    def emit_set(self, name, row, types, mods, ops):
        test, combine = self.comparison(types[1], mods, ops)
        return self.assign(ops[0], f"ptx::set_value<{TYPES[types[0]][0]}>({test}{combine})")

    def emit_cvt(self, name, row, types, mods, ops):
        if len(types) != 2:
            self.fail(f"unsupported conversion '{self.instr.op}'")
        d, s = (TYPES[x][0] for x in types)
        mods = [m for m in mods if m != "rn"]
        if types[0] in ("f16x2", "bf16x2"):
            self.arity(ops, 3)
            return self.assign(ops[0], f"ptx::op_cvt_pair<{d}, {self.flags(mods)}>({self.value(ops[1], s)}, {self.value(ops[2], s)})")
        self.arity(ops, 2)
        return self.assign(ops[0], f"ptx::op_cvt<{d}, {s}, {self.flags(mods)}>({self.value(ops[1], s)})")

    def emit_cvta(self, name, row, types, mods, ops):
        text = self.operand(ops[1])
        if "shared" in mods and "to" in mods:
            text = f"ptx::to_shared({text}, {self.loc()})"
        elif "shared" in mods:
            text = f"ptx::from_shared(static_cast<uint32_t>({text}))"
        return self.assign(ops[0], text)

    def emit_isspacep(self, name, row, types, mods, ops):
        inside = f"ptx::is_shared({self.operand(ops[1])})"
        space = self.space(mods)
        if space not in ("shared", "global"):
            self.fail(f"unsupported '{self.instr.op}'")
        return self.assign(ops[0], inside if space == "shared" else "!" + inside)

    def emit_mov(self, name, row, types, mods, ops):
        self.arity(ops, 2)
        ctype, size = TYPES[types[0]][2], TYPES[types[0]][1]
        if ops[0].kind == "vec":
            part = 8 * size // len(ops[0].items)
            code = f"uint64_t t_ = {self.value(ops[1], ctype)}; "
            for i, o in enumerate(ops[0].items):
                code += self.assign(o, f"static_cast<uint{part}_t>(t_ >> {i * part})") + " "
            return f"{{ {code}}}"
        if ops[1].kind == "vec":
            part = 8 * size // len(ops[1].items)
            terms = [f"static_cast<uint64_t>({self.value(o, f'uint{part}_t')}) << {i * part}"
                     for i, o in enumerate(ops[1].items)]
            return self.assign(ops[0], " | ".join(terms))
        return self.assign(ops[0], self.value(ops[1], ctype))

    def emit_ld(self, name, row, types, mods, ops):
        self.arity(ops, 2)
        t, size, _ = TYPES[types[0]]
        parts = ops[0].items if ops[0].kind == "vec" else [ops[0]]
        load = "load_ordered" if STRICT & set(mods) else "load"
        code = f"const unsigned char *a_ = {self.address(ops[1], self.space(mods), size * len(parts), False)}; "
        names = [f"x{i}_" for i in range(len(parts))]  # all are read before any is written: the base may be among them
        code += " ".join(f"{t} {n} = ptx::{load}<{t}>(a_ + {i * size});" for i, n in enumerate(names)) + " "
        return f"{{ {code}{' '.join(self.assign(o, n) for o, n in zip(parts, names))} }}"

    def emit_st(self, name, row, types, mods, ops):
        self.arity(ops, 2)
        t, size, _ = TYPES[types[0]]
        parts = ops[1].items if ops[1].kind == "vec" else [ops[1]]
        store = "store_ordered" if STRICT & set(mods) else "store"
        code = f"unsigned char *a_ = {self.address(ops[0], self.space(mods), size * len(parts), True)}; "
        return f"{{ {code}{' '.join(f'ptx::{store}<{t}>(a_ + {i * size}, {self.value(o, t)});' for i, o in enumerate(parts))} }}"

    def emit_atom(self, name, row, types, mods, ops):
        t, size, _ = TYPES[types[0]]
        kind = [m for m in mods if m in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")]
        if len(kind) != 1:
            self.fail(f"unsupported atomic '{self.instr.op}'")
        dest, args = (None, ops) if name == "red" else (ops[0], ops[1:])
        self.arity(args, 3 if kind[0] == "cas" else 2)
        # the read half comes first: memory that nobody wrote must not be counted up
        reads = self.address(args[0], self.space(mods), size, False)
        at = self.address(args[0], self.space(mods), size, True)
        values = ", ".join(self.value(o, t) for o in args[1:])
        expr = f"ptx::atom<{t}, ptx::Atom::{ATOMS.get(kind[0], kind[0])}>({at}, {values})"
        first = f"(void){reads}; " if kind[0] != "exch" else ""
        return f"{{ {first}{self.assign(dest, expr) if dest else f'(void){expr};'} }}"

    def emit_cp(self, name, row, types, mods, ops):
        if "async" not in mods:
            self.fail(f"unsupported '{self.instr.op}'")
        if "commit_group" in mods:
            return "simt::cp_commit();"
        if "wait_all" in mods:
            return f"simt::cp_commit(); simt::cp_wait(0, {self.loc()});"
        if "wait_group" in mods:
            return f"simt::cp_wait({self.value(ops[0], 'uint32_t')}, {self.loc()});"
        if not {"ca", "cg"} & set(mods):
            self.fail(f"unsupported '{self.instr.op}'")
        self.arity(ops, 3, 4)
        args = []
        for o, t in ((ops[0], "uint32_t"), (ops[1], "uint64_t")):
            base = o.items[0]
            args.append(f"static_cast<{t}>({self.operand(base)}{f' + {base.offset}ll' if base.kind == 'reg' else ''})")
        sizes = [self.value(o, "uint32_t") for o in ops[2:]]
        return f"ptx::cp_async({', '.join(args)}, {sizes[0]}, {sizes[-1]}, {self.loc()});"

    def emit_fence(self, name, row, types, mods, ops):
        return "simt::fence();"

    def emit_nothing(self, name, row, types, mods, ops):
        return ";"

    def emit_sleep(self, name, row, types, mods, ops):
        return f"simt::yield({self.loc()});"

    def emit_bar(self, name, row, types, mods, ops):
        if "warp" in mods:
            return f"simt::collective(simt::Warp::sync, {self.value(ops[0], 'uint32_t')}, 0, 0, {self.loc()});"
        red = "red" in mods
        kind = {"popc": "popc", "and": "and_", "or": "or_"}[[m for m in mods if m in ("popc", "and", "or")][0]] if red else "none"
        ops = list(ops)
        dest = ops.pop(0) if red else None
        pred = self.value(ops.pop(), "bool") if red else "false"
        self.arity(ops, 1, 2)
        count = self.value(ops[1], "uint32_t") if len(ops) > 1 else "0"
        wait = "false" if "arrive" in mods else "true"
        if wait == "false" and len(ops) < 2:
            self.fail("bar.arrive without a count")
        expr = f"simt::barrier({self.value(ops[0], 'uint32_t')}, {count}, simt::Red::{kind}, {pred}, {wait}, false, {self.loc()})"
        return self.assign(dest, expr) if dest else expr + ";"

    def emit_vote(self, name, row, types, mods, ops):
        self.arity(ops, 3)
        kind = [m for m in mods if m != "sync"][0]
        if "sync" not in mods:
            self.fail(f"unsupported '{self.instr.op}'")
        expr = f"simt::collective(simt::Warp::{kind}, {self.value(ops[2], 'uint32_t')}, {self.value(ops[1], 'bool')}, 0, {self.loc()})"
        return self.assign(ops[0], expr)

    def emit_shfl(self, name, row, types, mods, ops):
        self.arity(ops, 5)
        if "sync" not in mods:
            self.fail(f"unsupported '{self.instr.op}'")
        kind = [m for m in mods if m != "sync"][0]
        v, b, c, mask = (self.value(o, "uint32_t") for o in ops[1:])
        code = f"bool in_; {self.assign(ops[0], f'ptx::shfl<ptx::Shfl::{kind}>({v}, {b}, {c}, {mask}, in_, {self.loc()})')}"
        if ops[0].items:
            code += " " + self.assign(ops[0].items[0], "in_")
        return f"{{ {code} }}"

    def emit_match(self, name, row, types, mods, ops):
        self.arity(ops, 3)
        kind = "match_all" if "all" in mods else "match_any"
        code = (f"uint64_t r_ = simt::collective(simt::Warp::{kind}, {self.value(ops[2], 'uint32_t')}, "
                f"{self.value(ops[1], TYPES[types[0]][0])}, 0, {self.loc()}); {self.assign(ops[0], 'static_cast<uint32_t>(r_)')}")
        if ops[0].items:
            code += " " + self.assign(ops[0].items[0], "r_ >> 63 != 0")
        return f"{{ {code} }}"

    def emit_redux(self, name, row, types, mods, ops):
        self.arity(ops, 3)
        kind = [m for m in mods if m != "sync"][0]
        kind = ATOMS.get(kind, kind + ("_s" if types[0] == "s32" else "_u") if kind in ("min", "max") else kind)
        return self.assign(ops[0], f"static_cast<uint32_t>(simt::collective(simt::Warp::{kind}, "
                                   f"{self.value(ops[2], 'uint32_t')}, {self.value(ops[1], 'uint32_t')}, 0, {self.loc()}))")

    def emit_activemask(self, name, row, types, mods, ops):
        return self.assign(ops[0], "simt::live_mask()")

    def emit_elect(self, name, row, types, mods, ops):
        code = (f"uint32_t r_ = static_cast<uint32_t>(simt::collective(simt::Warp::elect, {self.value(ops[1], 'uint32_t')}, 0, 0, "
                f"{self.loc()})); {self.assign(ops[0], 'r_')}")
        if ops[0].items:
            code += " " + self.assign(ops[0].items[0], "r_ == simt::cur->lane")
        return f"{{ {code} }}"

    # ---- control ----
    def emit_bra(self, name, row, types, mods, ops):
        return f"goto {ident(ops[0].text)};"

    def emit_brx(self, name, row, types, mods, ops):
        targets = self.function.tables.get(ops[1].text)
        if targets is None:
            self.fail(f"unknown branch table '{ops[1].text}'")
        cases = " ".join(f"case {i}: goto {ident(t)};" for i, t in enumerate(targets))
        return (f"switch ({self.value(ops[0], 'uint32_t')}) {{ {cases} "
                f'default: simt::die({self.loc()}, "brx.idx past its table"); }}')

    def emit_call(self, name, row, types, mods, ops):
        ops = list(ops)
        rets = ops.pop(0).items if ops and ops[0].kind == "list" else []
        callee = ops.pop(0).text
        params = ops.pop(0).items if ops else []
        arrays = [", ".join(self.param(o.text) or self.fail("unsupported argument") for o in a) or "nullptr" for a in (rets, params)]
        if callee == "__assertfail":
            return f"{{ unsigned char *a_[] = {{{arrays[1]}}}; ptx::assert_fail(a_, {self.loc()}); }}"
        f = self.module.functions.get(callee)
        if f is None or not f.defined or ops:
            self.fail(f"call of '{callee}': indirect, or not defined in the module")
        return (f"{{ unsigned char *r_[] = {{{arrays[0]}}}; unsigned char *a_[] = {{{arrays[1]}}}; "
                f"f_{ident(callee)}(r_, a_); }}")

    def emit_ret(self, name, row, types, mods, ops):
        return "return;"

    def emit_exit(self, name, row, types, mods, ops):
        return "return;" if self.function.entry else "simt::exit_thread();"

    def emit_trap(self, name, row, types, mods, ops):
        return f'simt::die({self.loc()}, "{name}");'


def emit(module):
    return Emitter(module).emit()
