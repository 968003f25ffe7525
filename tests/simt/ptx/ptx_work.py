# SPDX-License-Identifier: Apache-2.0
"""What a PTX instruction costs a GPU: the kinds of work that ptx_count.h counts, in its order."""

import re

KINDS = ("issued", "integer", "multiply", "special", "floating", "shared", "memory", "warp")
FREE = {"mov", "cvta", "isspacep", "fence", "membar", "pmevent", "prefetch", "discard", "activemask"}
SPECIAL = {"popc", "clz", "bfind", "brev", "fns", "rcp", "sqrt", "div", "rem"}  # 16 lanes a clock
WARP = {"shfl", "vote", "match", "redux", "elect"}
CONTROL = {"bra", "brx", "ret", "exit", "call", "bar", "barrier", "nanosleep", "trap", "brkpt"}
LOGIC = re.compile(r"(and|or|xor|not)\.b32$")
BITS = {"8": 1, "16": 2, "32": 4, "64": 8}


def fused(body):
    """The instructions (by index in `body`, a list of parsed instructions and labels) that ptxas folds into the one that uses
    their result: logic of up to three inputs becomes one LOP3, a shift left and an addition one LEA.
    A register counts where one instruction alone writes and reads it."""
    writes, reads = {}, {}
    for at, i in enumerate(body):
        for n, o in enumerate(getattr(i, "operands", [])):
            for reg in registers(o):
                (writes if n == 0 and i.op.split(".")[0] not in ("st", "red", "bar") else reads).setdefault(reg, []).append(at)
        if getattr(i, "guard", None):
            reads.setdefault(i.guard[1], []).append(at)
    inputs, gone = {}, set()
    for at, i in enumerate(body):
        op = getattr(i, "op", "")
        if not LOGIC.match(op):
            if op.startswith("add.") and op.endswith("32"):
                for reg in (r for o in i.operands[1:] for r in registers(o)):
                    made = writes.get(reg, [])
                    if len(made) == 1 and len(reads[reg]) == 1 and body[made[0]].op == "shl.b32" and not body[made[0]].guard:
                        gone.add(made[0])
                        break
            continue
        own = [source(o) for o in i.operands[1:]]
        for reg in list(own):
            made = writes.get(reg, [])
            if len(made) != 1 or len(reads[reg]) != 1 or made[0] not in inputs or made[0] > at or body[made[0]].guard:
                continue
            merged = [o for o in own if o != reg] + [o for o in inputs[made[0]] if o not in own]
            if len(set(merged)) <= 3:
                own = merged
                gone.add(made[0])
        inputs[at] = own
    return gone


def source(o):
    """A name for an operand; a mask and its complement are one input of a LOP3."""
    if o.kind != "imm" or not re.fullmatch(r"-?\d+", o.text):
        return o.text
    n = int(o.text) & 0xffffffff
    return str(min(n, n ^ 0xffffffff))


def registers(o):
    """Names of an operand's registers."""
    return [o.text] * (o.kind == "reg") + [r for x in getattr(o, "items", None) or [] for r in registers(x)]


def work_of(op):
    """A row of KINDS for one instruction. Memory counts units of 4 bytes a lane: that is what a pass of the hardware moves."""
    parts = op.split(".")
    name, row = parts[0], dict.fromkeys(KINDS, 0)
    integer_cvt = name == "cvt" and all(p[0] in "sub" for p in parts[1:] if p[0] in "sufb" and p[1:].isdigit())
    if name in FREE or "param" in parts or integer_cvt:  # renamed away, folded, or read from the constant bank
        return [0] * len(KINDS)
    row["issued"] = 1
    if name in ("ld", "st", "atom", "red", "cp"):
        lanes = 4 if "v4" in parts else 2 if "v2" in parts else 1
        size = 16 if name == "cp" else lanes * BITS[parts[-1].lstrip("busf")]
        if name != "cp" or "async" in parts and not {"commit_group", "wait_group", "wait_all"} & set(parts):
            row["memory" if "global" in parts else "shared"] = max(1, size // 4)
    elif name in WARP:
        row["warp"] = 1
    elif name in SPECIAL:
        row["special"] = 1
    elif any(p in ("f32", "f64", "bf16x2", "f16x2") for p in parts) and name not in ("setp", "selp"):
        row["floating"] = 1
    elif name in ("mul", "mad", "dp4a", "dp2a"):
        row["multiply"] = 1
    elif name not in CONTROL:
        row["integer"] = 2 if parts[-1] in ("u64", "s64", "b64") else 1
    return [row[k] for k in KINDS]
