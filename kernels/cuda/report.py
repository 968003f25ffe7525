#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.py [--arch 80,86,...] [--build DIR] [--check] [--ptx FILE]: what nvcc makes of the codec's kernels, and what that predicts.

Table 1: registers, shared memory, spills and theoretical occupancy of each kernel on each architecture (ptxas -v).
Table 2: instructions that the warps of each kernel issue per value, by kind, counted while nvcc's PTX ran on the CPU over a
real tensor (tests/simt/ptx, the programs DIR/tests/ptx_codec_*; DIR is build).
Table 3: PREDICTED GB/s of values on known GPUs and the resource that binds: the slowest of the memory (bytes moved over 92 %
of its bandwidth), issue slots, integer lanes, shared memory and the rest. Logic, shifts and additions that
ptxas is known to fuse are counted once (ptx_work.py); the lengths of both texts, PTX and SASS, are shown. No speed here was measured. --check: assemble alone, and exit 1 where a
kernel spills. --ptx: writes the PTX that is assembled, and nothing else; with --check takes it from there.
"""
import argparse
import glob
import os
import re
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.append(os.path.join(ROOT, "tests", "simt", "ptx"))
from ptx_work import KINDS, work_of  # noqa: E402
# arch -> (registers, shared memory per SM in KiB, of it usable by a block, threads per SM)
SM = {"80": (65536, 164, 163, 2048), "86": (65536, 100, 99, 1536), "89": (65536, 100, 99, 1536),
      "90": (65536, 228, 227, 2048), "100": (65536, 228, 227, 2048)}
# name -> (arch, memory GB/s, SMs, boost GHz)
GPUS = {"A6000": ("86", 768, 84, 1.80), "A100-80": ("80", 2039, 108, 1.41), "L40S": ("89", 864, 142, 2.52),
        "H100": ("90", 3350, 132, 1.83), "H200": ("90", 4800, 132, 1.83), "B200": ("100", 8000, 148, 1.85)}
# Lanes per SM and clock, of the throughput table of NVIDIA's programming guide. A warp's shuffle goes where shared memory does.
RATES = {"issue": 128, "integer": 64, "multiply": 64, "special": 16, "floating": 64, "shared": 32}
THREADS = 512
SOURCE = '#include "kernels/cuda/codec_kernels.cuh"\n#include "kernels/cuda/reduce_kernels.cuh"\n'
BITS = {"e4m3": 4, "e5m2": 3, "fp16": 3}
# Of BF16, as the simulator has it; other dtypes are taken to save as many bytes a value, FP8 half.
with open(os.path.join(ROOT, "kernels", "codec.h"), encoding="utf-8") as header:
    RATIO = float(re.search(r"^#define CODEC_USUAL_RATIO ([0-9.]+)$", header.read(), re.M).group(1))
DECODE = {"tier": 2 * 32768 + 64 * 128, "top7": 2 * 32768 + 64 * 192}


def nvcc(*args):
    return subprocess.run(["nvcc", "-std=c++17", "-O3", f"-I{ROOT}", f"-I{ROOT}/client/include", *args], check=True,
                          capture_output=True, text=True).stderr


def write_source(folder):
    source = os.path.join(folder, "kernels.cu")
    with open(source, "w", encoding="utf-8") as f:
        f.write(SOURCE)
    return source


def write_ptx(path):
    """Of the oldest architecture, which is what the library carries for all others; no kernel looks at its own."""
    with tempfile.TemporaryDirectory() as folder:
        nvcc("-arch=compute_80", "-ptx", write_source(folder), "-o", path)


def assemble(arch, ptx):
    """kernel -> registers, shared memory, bytes spilled"""
    log = subprocess.run(["ptxas", "-v", f"-arch=sm_{arch}", ptx, "-o", os.devnull], check=True, capture_output=True,
                         text=True).stderr
    rows, name, spill = {}, "", 0
    for line in log.splitlines():
        if m := re.search(r"entry function '(\w+)'", line):
            name, spill = m.group(1), 0
        elif m := re.search(r"(\d+) bytes spill stores", line):
            spill += int(m.group(1))  # of the kernel and of the functions it calls
        elif m := re.search(r"Used (\d+) registers.*?(\d+) bytes smem", line):
            rows.setdefault(name, (int(m.group(1)), int(m.group(2)), spill))
    return rows


def check(archs, ptx):
    """0 where every kernel is assembled and has all it needs in registers."""
    bad, kernels = [], 0
    for arch in archs:
        rows = assemble(arch, ptx)
        kernels += len(rows)
        bad += [f"sm_{arch} {name} spills {spill} bytes" for name, (_, _, spill) in sorted(rows.items()) if spill]
        bad += [f"sm_{arch}: no kernels"] if not rows else []
    print("\n".join(bad + [f"{kernels} kernels on {len(archs)} architectures, {len(bad)} faults"]))
    return 1 if bad else 0


def value_bytes(kernel):
    return {"bf16": 2, "fp16": 2, "fp32": 4}.get(kernel.removesuffix("_reread").rsplit("_", 1)[1], 1)


def encode_shared(name):
    """As in plan.h."""
    tier, size, staged = "_tier_" in name, value_bytes(name), not name.endswith("_reread")
    raw, bits = 512 * size, BITS.get(name.removesuffix("_reread").rsplit("_", 1)[1], 0)
    full = 64 * ((2 if tier else 3) + bits) + 512 * (size - 1)
    coded = full if staged else full - 512 * (size - 1)
    return 64 * max(max(coded, 512) + (512 if tier else raw - full), 1152 if tier else 1024, raw if staged else 0)


def dynamic(name):
    if name.startswith("zip_encode"):
        return encode_shared(name)
    codec = next((c for c in DECODE if f"_{c}_" in name), None)
    return DECODE[codec] if codec and name.startswith(("zip_decode", "zip_reduce")) else 0


def occupancy(arch, regs, shared):
    file, per_sm, usable, threads = SM[arch]
    if shared > usable * 1024:
        return 0
    warps = THREADS // 32
    by_regs = file // (-(-regs * 32 // 256) * 256 * warps)
    by_shared = per_sm * 1024 // (shared + 1024)
    return min(by_regs, by_shared, threads // THREADS)


def count_ptx(text, kernel):
    """Instructions of a kernel's PTX and of the functions it calls, without those that cost nothing."""
    body = re.search(rf"\.entry {kernel}\(.*?\n\}}", text, re.S).group()
    bodies = [body] + [m.group() for name in set(re.findall(r"\b(_ZN3zip\w+),", body))
                       if (m := re.search(rf"\.func [^;]*?{name}\([^;]*?\n\{{.*?\n\}}", text, re.S))]
    ops = [op for one in bodies for op in re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.:]*)\s", one, re.M)]
    return sum(work_of(op)[0] for op in ops)


def count_sass(path, kernel):
    """Instructions of a kernel in a cubin: the size of its section over 16."""
    with open(path, "rb") as f:
        elf = f.read()
    at, size, number, names = (struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HHH", elf, 58))
    head = [struct.unpack_from("<IIQQQQ", elf, at + i * size) for i in range(number)]
    table = head[names][4]
    wanted = f".text.{kernel}".encode()
    for name, _, _, _, _, length in head:
        if elf[table + name:elf.index(b"\0", table + name)] == wanted:
            return length // 16
    return 0


def counted(build):
    """kernel -> {kind: per value}, by running the PTX executor's programs for sm_90 and sm_100."""
    rows = {}
    for program in sorted(glob.glob(os.path.join(build, "tests", "ptx_codec_*_*_*"))):
        if program.endswith("_80"):
            continue
        run = subprocess.run([program, "count"], capture_output=True, text=True, check=False)
        for line in run.stdout.splitlines():
            word = line.split()
            if word[:1] == ["count"]:
                rows["zip_" + word[1].replace("fp8_", "")] = {k: float(v) for k, v in zip(word[2::2], word[3::2])}
    return rows


def moved(kernel):
    """Bytes a value: read and written, one of the two coded."""
    size = value_bytes(kernel)
    return size + size - 2 * (1 - 1 / RATIO) * (0.5 if size == 1 else 1)


def predict(gpu, kernel, work):
    """(GB/s, GB/s of the memory alone, what binds)."""
    _, bandwidth, sms, ghz = GPUS[gpu]
    lanes = {"issue": work["issued"], "integer": work["integer"], "multiply": work["multiply"],
             "special": work["special"], "floating": work["floating"],
             "shared": work["shared"] + work["memory"] + work["warp"]}
    seconds = {k: n / RATES[k] / (sms * ghz) for k, n in lanes.items()}  # ns a value
    seconds["memory"] = moved(kernel) / (bandwidth * 0.92)
    binds = max(seconds, key=seconds.get)
    size = value_bytes(kernel)
    return size / seconds[binds], size / seconds["memory"], binds


def print_predictions(work, folder):
    source, ptx, cubin = write_source(folder), os.path.join(folder, "all.ptx"), os.path.join(folder, "all.cubin")
    nvcc("-arch=compute_90", "-ptx", source, "-o", ptx)
    nvcc("-arch=sm_90", "-cubin", source, "-o", cubin)
    with open(ptx, encoding="utf-8") as f:
        text = f.read()
    print(f"\nIssued by warps per value, lane by lane (PTX)\n{'kernel':28}" + "".join(f"{k:>10}" for k in KINDS) + f"{'text: PTX':>12}{'SASS':>8}")
    for kernel, row in work.items():
        print(f"{kernel:28}" + "".join(f"{row[k]:10.2f}" for k in KINDS) +
              f"{count_ptx(text, kernel):12}{count_sass(cubin, kernel):8}")
    print(f"\nPREDICTED, not measured: GB/s of values, its share of the memory's ceiling, and what binds (ratio {RATIO} for BF16)")
    print(f"{'kernel':28}" + "".join(f"{gpu:>24}" for gpu in GPUS))
    for kernel, row in work.items():
        cells = []
        for gpu in GPUS:
            best, ceiling, binds = predict(gpu, kernel, row)
            cells.append(f"{best:8.0f} {100 * best / ceiling:4.0f}% {binds:>9}")
        print(f"{kernel:28}" + "".join(f"{c:>24}" for c in cells))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--arch", default="80,86,89,90,100")
    p.add_argument("--build", default=os.path.join(ROOT, "build"))
    p.add_argument("--check", action="store_true")
    p.add_argument("--ptx")
    args = p.parse_args()
    if args.ptx and not args.check:
        write_ptx(args.ptx)
        return
    spilled = []
    with tempfile.TemporaryDirectory() as folder:
        ptx = args.ptx or os.path.join(folder, "kernels.ptx")
        if not args.ptx:
            write_ptx(ptx)
        if args.check:
            sys.exit(check(args.arch.split(","), ptx))
        for arch in args.arch.split(","):
            print(f"sm_{arch:<4} {'kernel':34} {'regs':>5} {'shared':>8} {'spill':>6} {'blocks/SM':>10} {'occupancy':>10}")
            for name, (regs, static, spill) in sorted(assemble(arch, ptx).items()):
                blocks = occupancy(arch, regs, static + dynamic(name))
                share = f"{100 * blocks * THREADS / SM[arch][3]:.0f} %" if blocks else "not here"
                print(f"        {name:34} {regs:5} {static + dynamic(name):8} {spill:6} {blocks:10} {share:>10}")
                if spill:
                    spilled.append(f"sm_{arch} {name}: {spill} bytes")
        work = counted(args.build)
        if work:
            print_predictions(work, folder)
        else:
            print(f"\nNo prediction: no program {args.build}/tests/ptx_codec_* to count instructions with (make build).")
    for s in spilled:
        print("spills:", s, file=sys.stderr)


if __name__ == "__main__":
    main()
