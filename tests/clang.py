#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang.py BUILD JOBS: every C source of a build through clang, for its warnings, which are errors, and its objections.

Down to its intermediate code, unoptimised: what clang says, it has said by then, and that is a fraction of a build. Each
source is taken as the build has it (BUILD/compile_commands.json), with assertions."""
import concurrent.futures
import json
import shlex
import subprocess
import sys

# gcc's, of which clang knows nothing
FOREIGN = {"-Wno-format-truncation"}
INSTEAD = ["-UNDEBUG", "-O0", "-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes", "-o", "/dev/null"]


def clang(entry):
    """What clang says of an entry of the file, and whether it takes it."""
    words = shlex.split(entry["command"])[1:]  # without the compiler
    out = words.index("-o")
    words = [w for i, w in enumerate(words) if i not in (out, out + 1) and w != "-c" and w not in FOREIGN]
    done = subprocess.run(["clang", *words, *INSTEAD], cwd=entry["directory"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout, done.returncode == 0


def main():
    with open(sys.argv[1] + "/compile_commands.json", encoding="utf-8") as file:
        entries = [e for e in json.load(file) if e["file"].endswith(".c")]
    if not entries:
        sys.exit(f"{sys.argv[1]} has no C sources")
    with concurrent.futures.ThreadPoolExecutor(int(sys.argv[2])) as pool:
        said = list(pool.map(clang, entries))
    bad = sum(not good for _, good in said)
    for text, _ in said:
        print(text, end="")
    print(f"clang: {len(entries)} sources, {bad} with errors")
    sys.exit(bad > 0)


main()
