# SPDX-License-Identifier: Apache-2.0
"""What ptx_work.py says of instructions: their kinds of work, and what ptxas fuses."""
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ptx"))
import ptx_parse  # noqa: E402
from ptx_work import KINDS, fused, work_of  # noqa: E402

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n  .reg .pred %p<9>;\n  .reg .b32 %r<30>;\n"


def gone(*lines):
    module = ptx_parse.parse(HEAD + "".join(f"  {line};\n" for line in lines) + "  ret;\n}\n", "work")
    return sorted(fused(module.functions["k"].body))


def kinds(op):
    return {k: n for k, n in zip(KINDS, work_of(op)) if n}


def same(got, want):
    if got != want:
        sys.exit(f"got {got}, want {want}")


same(kinds("add.s32"), {"issued": 1, "integer": 1})
same(kinds("add.s64"), {"issued": 1, "integer": 2})
same(kinds("add.rn.f32"), {"issued": 1, "floating": 1})
same(kinds("mad.lo.s32"), {"issued": 1, "multiply": 1})
same(kinds("popc.b32"), {"issued": 1, "special": 1})
same(kinds("ld.shared.u8"), {"issued": 1, "shared": 1})
same(kinds("st.global.v4.u32"), {"issued": 1, "memory": 4})
same(kinds("cp.async.cg.shared.global"), {"issued": 1, "memory": 4})
same(kinds("cp.async.commit_group"), {"issued": 1})
same(kinds("shfl.sync.up.b32"), {"issued": 1, "warp": 1})
same(kinds("bar.sync"), {"issued": 1})
same(kinds("mov.u32"), {})
same(kinds("ld.param.u64"), {})
# three inputs are one LOP3; a fourth is not; a result that is used twice stays
same(gone("and.b32 %r1, %r10, %r11", "or.b32 %r2, %r1, %r12"), [0])
same(gone("and.b32 %r1, %r10, %r11", "and.b32 %r2, %r12, %r13", "or.b32 %r3, %r1, %r2"), [0])
same(gone("and.b32 %r1, %r10, 65537", "and.b32 %r2, %r12, -65538", "or.b32 %r3, %r1, %r2"), [0, 1])
same(gone("and.b32 %r1, %r10, %r11", "or.b32 %r2, %r1, %r12", "xor.b32 %r3, %r1, %r12"), [])
same(gone("@%p1 and.b32 %r1, %r10, %r11", "or.b32 %r2, %r1, %r12"), [])
same(gone("shl.b32 %r1, %r10, 2", "add.s32 %r2, %r1, %r11"), [0])
same(gone("shl.b32 %r1, %r10, 2", "sub.s32 %r2, %r1, %r11"), [])
