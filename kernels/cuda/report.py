#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.py [--arch 80,86,...] [--check]: what nvcc makes of the codec's kernels, and what that predicts.

Table 1: registers, shared memory, spills and theoretical occupancy of each kernel on each architecture (ptxas -v).
Table 2: PREDICTED GB/s of values (BF16, ratio 1.49) on known GPUs: the lower of the memory bandwidth over the bytes moved
per value, and the integer rate over the instructions per value. These were counted by running nvcc's PTX on the CPU and are
scaled by the ratio of SASS to PTX instructions in the kernel. No speed here was measured. --check: compile alone, and exit 1
where a kernel spills.
"""
import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# arch -> (registers, shared memory per SM in KiB, of it usable by a block, threads per SM)
SM = {"80": (65536, 164, 163, 2048), "86": (65536, 100, 99, 1536), "89": (65536, 100, 99, 1536),
      "90": (65536, 228, 227, 2048), "100": (65536, 228, 227, 2048)}
# name -> (arch, memory GB/s, SMs, boost GHz); integer lanes per SM and clock: 64
GPUS = {"A6000": ("86", 768, 84, 1.80), "A100-80": ("80", 2039, 108, 1.41), "L40S": ("89", 864, 142, 2.52),
        "H100": ("90", 3350, 132, 1.83), "H200": ("90", 4800, 132, 1.83), "B200": ("100", 8000, 148, 1.85)}
LANES = {"80": 64, "86": 64, "89": 64, "90": 64, "100": 64}  # 32-bit integer operations per SM and clock
THREADS, RATIO = 512, 1.49
PAGES, PAGES_FP32, DECODE = 64 * 1024, 64 * 2048, {"tier": 2 * 32768 + 64 * 128, "top7": 2 * 32768 + 64 * 192}


def nvcc(*args):
    return subprocess.run(["nvcc", "-std=c++17", "-O3", f"-I{ROOT}", f"-I{ROOT}/client/include", *args], check=True,
                          capture_output=True, text=True).stderr


def compile_all(arch, folder):
    source = os.path.join(folder, "kernels.cu")
    with open(source, "w", encoding="utf-8") as f:
        f.write('#include "kernels/cuda/codec_kernels.cuh"\n')
    log = nvcc(f"-arch=sm_{arch}", "-Xptxas", "-v", "-cubin", source, "-o", os.path.join(folder, "out.cubin"))
    rows, name, spill = {}, "", 0
    for line in log.splitlines():
        if m := re.search(r"entry function '(\w+)'", line):
            name, spill = m.group(1), 0
        elif m := re.search(r"(\d+) bytes spill stores", line):
            spill += int(m.group(1))  # of the kernel and of the functions it calls
        elif m := re.search(r"Used (\d+) registers.*?(\d+) bytes smem", line):
            rows.setdefault(name, (int(m.group(1)), int(m.group(2)), spill))
    return rows


def check(archs):
    """0 where every kernel compiles, has all it needs in registers."""
    bad, kernels = [], 0
    for arch in archs:
        with tempfile.TemporaryDirectory() as folder:
            rows = compile_all(arch, folder)
        kernels += len(rows)
        bad += [f"sm_{arch} {name} spills {spill} bytes" for name, (_, _, spill) in sorted(rows.items()) if spill]
        bad += [f"sm_{arch}: no kernels"] if not rows else []
    print("\n".join(bad + [f"{kernels} kernels on {len(archs)} architectures, {len(bad)} faults"]))
    return 1 if bad else 0


def dynamic(name):
    if name.startswith("zip_encode"):
        return PAGES_FP32 if name.endswith("fp32") else PAGES
    if name.startswith("zip_decode"):
        return DECODE["tier" if "_tier_" in name else "top7"]
    return 0


def occupancy(arch, regs, shared):
    file, per_sm, usable, threads = SM[arch]
    if shared > usable * 1024:
        return 0
    warps = THREADS // 32
    by_regs = file // (-(-regs * 32 // 256) * 256 * warps)
    by_shared = per_sm * 1024 // (shared + 1024)
    return min(by_regs, by_shared, threads // THREADS)


def count_ptx(folder, kind):
    """Integer, shared and global instructions of the kernel's straight-line PTX."""
    source, out = os.path.join(folder, "one.cu"), os.path.join(folder, "one.ptx")
    with open(source, "w", encoding="utf-8") as f:
        f.write("#define ZIP_CASES(X) X(tier, zipcclCodecTier, bf16, zipcclBfloat16)\n"
                '#include "kernels/cuda/codec_kernels.cuh"\n')
    nvcc("-arch=compute_90", "-ptx", source, "-o", out)
    with open(out, encoding="utf-8") as f:
        text = f.read()
    body = re.search(rf"\.entry zip_{kind}_tier_bf16\(.*?\n\}}", text, re.S).group()
    ops = re.findall(r"^\s+(?:@!?%p\d+ )?([a-z]\w*)(\.\S+)?", body, re.M)
    shared = sum(1 for op, rest in ops if op in ("ld", "st") and ".shared" in (rest or ""))
    memory = sum(1 for op, rest in ops if op in ("ld", "st", "cp") and ".shared" not in (rest or ""))
    free = sum(1 for op, _ in ops if op in ("mov", "cvta", "cvt", "ret", "bra", "bar", "pragma", "reg"))
    return len(ops) - shared - memory - free, shared, memory


def count_sass(path, kind):
    """Instructions of a kernel in a cubin: the size of its section over 16."""
    with open(path, "rb") as f:
        elf = f.read()
    at, size, number, names = (struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HHH", elf, 58))
    head = [struct.unpack_from("<IIQQQQ", elf, at + i * size) for i in range(number)]
    table = head[names][4]
    wanted = f".text.zip_{kind}_tier_bf16".encode()
    for name, _, _, _, _, length in head:
        if elf[table + name:elf.index(b"\0", table + name)] == wanted:
            return length // 16
    return 0


# PTX instructions a value and thread that the tests' PTX executor ran for tier over 131,072 values of weight_qkv_s0160
# (sm_90): arithmetic and warp operations; memory; branches. grad_expert_s0160: 54.5, 3.7, 4.6 and 29.9, 2.4, 3.3.
EXECUTED = {"encode": (45.7, 2.8, 3.9), "decode": (27.1, 2.1, 3.0)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--arch", default="80,86,89,90,100")
    p.add_argument("--check", action="store_true")
    args = p.parse_args()
    if args.check:
        sys.exit(check(args.arch.split(",")))
    spilled = []
    with tempfile.TemporaryDirectory() as folder:
        for arch in args.arch.split(","):
            print(f"sm_{arch:<4} {'kernel':34} {'regs':>5} {'shared':>8} {'spill':>6} {'blocks/SM':>10} {'occupancy':>10}")
            for name, (regs, static, spill) in sorted(compile_all(arch, folder).items()):
                blocks = occupancy(arch, regs, static + dynamic(name) if not name.endswith("reread") else static + PAGES)
                share = f"{100 * blocks * THREADS / SM[arch][3]:.0f} %" if blocks else "not here"
                print(f"        {name:34} {regs:5} {static + dynamic(name):8} {spill:6} {blocks:10} {share:>10}")
                if spill:
                    spilled.append(f"sm_{arch} {name}: {spill} bytes")
        work = {}
        for kind in ("encode", "decode"):
            integer, shared, memory = count_ptx(folder, kind)
            ptx = integer + shared + memory
            nvcc("-arch=sm_90", "-cubin", os.path.join(folder, "one.cu"), "-o", os.path.join(folder, "one.cubin"))
            sass = count_sass(os.path.join(folder, "one.cubin"), kind)
            fused = min(1.0, sass / ptx)
            work[kind] = sum(EXECUTED[kind]) * fused
            print(f"zip_{kind}_tier_bf16: {ptx} PTX instructions ({shared} shared, {memory} other memory), {sass} in SASS; run "
                  f"a value: {sum(EXECUTED[kind]):.1f} PTX, about {work[kind]:.1f} SASS")
    print(f"\nPREDICTED, not measured: tier, BF16, ratio {RATIO}; GB/s of values. Bytes moved a value: "
          f"{2 + 2 / RATIO:.2f} both ways.")
    print(f"{'GPU':8} {'ceiling':>8} | {'encode':>8} {'of it':>6} {'binds':>8} | {'decode':>8} {'of it':>6} {'binds':>8}")
    for gpu, (arch, bandwidth, sms, ghz) in GPUS.items():
        ceiling = bandwidth / (1 + 1 / RATIO) * 0.92
        cells = []
        for kind in ("encode", "decode"):
            integer = sms * LANES[arch] * ghz / work[kind] * 2
            best = min(ceiling, integer)
            cells.append(f"{best:8.0f} {100 * best / ceiling:5.0f}% {'memory' if ceiling <= integer else 'integer':>8}")
        print(f"{gpu:8} {ceiling:8.0f} | {cells[0]} | {cells[1]}")
    print("ceiling: 92 % of the memory's bandwidth over the bytes moved. integer: every instruction at the rate of "
          "32-bit integer operations, the pessimistic bound (multiplies and memory have pipes of their own).")
    for s in spilled:
        print("spills:", s, file=sys.stderr)


if __name__ == "__main__":
    main()
