#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""opcodes.py TABLE OUT.ptx OUT.h: a PTX kernel that runs each row of the table, and the results it must give."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ptx"))
from ptx_table import OPS, TYPES, WIDER  # noqa: E402

HEAD = """.version 8.7
.target sm_100
.address_size 64
.const .align 16 .u32 consts[4] = {0x11111111, 0x22222222, 0x33333333, 0x44444444};
.global .align 128 .u32 globals[32] = {0xaaaaaaaa, 0xbbbbbbbb, 0xcccccccc, 0xdddddddd};
.global .align 16 .u32 scratch[4] = {0x77, 0, 0, 0};
.func (.param .b32 ret) twice(.param .b32 x)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [x];
    add.u32 %r2, %r1, %r1;
    st.param.b32 [ret], %r2;
    ret;
}
.visible .entry opcodes(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b16 %rs<8>;
    .reg .b64 %rd<8>;
    .reg .pred %p<8>;
    .reg .b64 %out;
    .reg .b32 %laneid_;
    .reg .pred %mine;
    .shared .align 16 .b8 sm[256];
    .local .align 16 .b8 loc[16];
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    mov.u32 %laneid_, %laneid;
    setp.ne.u32 %p0, 0, 0;
"""
CTYPE = {"bool": "pred", "uint8_t": "b32", "int8_t": "b32", "uint16_t": "b16", "int16_t": "b16", "ptx::f16": "b16",
         "ptx::bf16": "b16", "uint64_t": "b64", "int64_t": "b64", "double": "b64"}
REG = {"b16": "%rs", "b32": "%r", "b64": "%rd", "pred": "%p"}


def classes(op):
    """The register classes of destination and operands."""
    parts = op.split(".")
    row = OPS[parts[0]]
    types = [p for p in parts[1:] if p in row.types]
    t = [TYPES[x][0] for x in types]
    names = dict(zip("TUV", t))
    names["M"] = TYPES[WIDER[types[0]]][0] if "wide" in parts else t[0]
    names["D"] = "uint32_t"
    if row.kind == "setp":
        sig = ["bool", t[0], t[0]]
    elif row.kind == "set":
        sig = [t[0], t[1], t[1]]
    elif row.kind == "cvt":
        sig = [t[0]] + [t[1]] * (2 if "x2" in types[0] else 1)
    else:
        sig = [names.get(s, s) for s in row.sig]
    return [CTYPE.get(s, "b32") for s in sig]


def emit_row(op, values):
    kinds = classes(op)
    if len(kinds) != len(values) + 1:
        sys.exit(f"opcodes.py: {op} takes {len(kinds) - 1} operands")
    lines, names = [], []
    for i, (kind, v) in enumerate(zip(kinds[1:], values), 1):
        if op.startswith("lop3") and i == 4:
            names.append(v)
        elif kind == "pred":
            lines.append(f"setp.ne.u32 %p{i}, {v}, 0;")
            names.append(f"%p{i}")
        else:
            lines.append(f"mov.{kind} {REG[kind]}{i}, {v};")
            names.append(f"{REG[kind]}{i}")
    dest = "%p7" if kinds[0] == "pred" else REG[kinds[0]] + "7"
    lines.append(f"{op} {dest}, {', '.join(names)};")
    if kinds[0] == "pred":
        lines.append("selp.b32 %r7, 1, 0, %p7;")
    store = "b32" if kinds[0] == "pred" else kinds[0]
    return lines, store, {"b16": "%rs7", "b32": "%r7", "b64": "%rd7"}[store]


def main():
    table, ptx_name, header_name = sys.argv[1:4]
    text, expected, seen = [HEAD], [], set()
    for n, line in enumerate(open(table, encoding="utf-8"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        left, right = line.rsplit(" = ", 1)
        i = len(expected)
        lane = 0
        if left.startswith("{"):
            code, after = left.rsplit("}", 1)
            lane = int(after.strip()[1:]) if after.strip() else 0
            body, store, reg = ["{", code[1:].strip(), "}"], "b32", "%r0"
            seen |= set(re.findall(r"(?:^|[;{:]|%p\d)\s*([a-z]\w*)", code[1:]))
        else:
            op, *values = left.split()
            seen.add(op.split(".")[0])
            body, store, reg = emit_row(op, values)
        text.append("    " + " ".join(body))
        text.append(f"    setp.eq.u32 %mine, %laneid_, {lane};\n    @%mine st.global.{store} [%out+{8 * i}], {reg};")
        expected.append((n, int(right, 0), left))
    missing = sorted(set(OPS) - seen - {"ret"})
    if missing:
        sys.exit("opcodes.py: no test of " + " ".join(missing))
    text.append("    ret;\n}")
    with open(ptx_name, "w", encoding="utf-8") as f:
        f.write("\n".join(text) + "\n")
    with open(header_name, "w", encoding="utf-8") as f:
        f.write("static const struct {\n    int line;\n    unsigned long long value;\n    const char *what;\n} kRows[] = {\n")
        f.writelines(f'    {{{n}, {v}ull, "{w}"}},\n' for n, v, w in expected)
        f.write("};\n")


if __name__ == "__main__":
    main()
