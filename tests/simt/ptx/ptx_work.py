# SPDX-License-Identifier: Apache-2.0
"""What a PTX instruction costs a GPU: the kinds of work that ptx_count.h counts, in its order."""

KINDS = ("issued", "integer", "multiply", "special", "floating", "shared", "memory", "warp")
FREE = {"mov", "cvta", "isspacep", "fence", "membar", "pmevent", "prefetch", "discard", "activemask"}
SPECIAL = {"popc", "clz", "bfind", "brev", "fns", "rcp", "sqrt", "div", "rem"}  # 16 lanes a clock
WARP = {"shfl", "vote", "match", "redux", "elect"}
CONTROL = {"bra", "brx", "ret", "exit", "call", "bar", "barrier", "nanosleep", "trap", "brkpt"}
BITS = {"8": 1, "16": 2, "32": 4, "64": 8}


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
