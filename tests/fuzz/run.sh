#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh BUILD_DIR SECONDS. Runs every fuzz target on its corpus; new inputs go to a folder of their own.
set -euo pipefail
build=$1
seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for target in "$build"/tests/fuzz_*; do
    name=$(basename "$target")
    mkdir -p "$work/$name"
    echo "== $name, $seconds s"
    "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$work/" "$work/$name" "$here/corpus/$name" || {
        for crash in "$work"/crash-* "$work"/timeout-* "$work"/oom-*; do
            if [ -e "$crash" ]; then
                echo "$name failed on:" >&2
                base64 "$crash" >&2
            fi
        done
        exit 1
    }
done
