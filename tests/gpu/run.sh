#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [MiB]: builds the GPU kernels with nvcc and a C compiler alone, runs their tests on a device, and, where zipcclctl
# can be built, its benchmark; writes gpu-report.txt.
# Exit 77: no nvcc or no device; the first thing that is found out.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
if ! command -v nvcc >/dev/null; then
    echo "skipped: no nvcc on PATH"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O1 "$root/tests/gpu/probe.c" -o "$work/probe" -ldl
"$work/probe" || exit $?
include="-I$root -I$root/client/include"
for f in codec model dtype reduce; do
    # shellcheck disable=SC2086
    cc -O2 -ffp-contract=off -D_GNU_SOURCE -std=gnu11 $include -c "$root/kernels/$f.c" -o "$work/$f.o"
done
for f in "$root"/kernels/cpu/*.c; do
    flags=
    case $f in
    *avx*) case $(uname -m) in x86_64 | amd64) ;; *) continue ;; esac ;;
    esac
    case $f in
    *avx2*) flags="-mavx2 -mf16c -mbmi -mbmi2 -mpopcnt" ;;
    *avx512*) flags="-mavx2 -mf16c -mbmi -mbmi2 -mpopcnt -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vbmi2 -mgfni" ;;
    esac
    # shellcheck disable=SC2086
    cc -O2 -ffp-contract=off -D_GNU_SOURCE -std=gnu11 $flags $include -c "$f" -o "$work/$(basename "$f" .c)_cpu.o"
done
arch=${ARCH:-native}
nvidia-smi >/dev/null 2>&1 || arch=sm_90
for f in kernels/cuda/codec_cuda kernels/cuda/reduce_cuda; do
    # shellcheck disable=SC2086
    nvcc -std=c++17 -O3 -arch="$arch" $include -c "$root/$f.cu" -o "$work/$(basename $f).o"
done
for f in codec_gpu_test reduce_gpu_test; do
    # shellcheck disable=SC2086
    nvcc -std=c++17 -O3 -arch="$arch" $include "$root/tests/gpu/$f.cu" "$work"/*.o -o "$work/$f" -lm
done
# The daemon, its end-to-end tests and the benchmark want libraries that a machine with a GPU may not have.
built=no
tests="gpu_collectives gpu_streams gpu_errors"
if cmake -S "$root" -B "$work/build" -DZIPCCL_SIMT=OFF -DZIPCCL_CUDA=on >"$work/cmake.log" 2>&1; then
    # shellcheck disable=SC2046
    timeout 900 cmake --build "$work/build" -j --target zipccld zipcclctl zipcclctl_cuda zipccl_device_cuda \
        $(for t in $tests; do echo "e2e_$t"; done) >>"$work/cmake.log" 2>&1 && built=yes
fi
status=0
# Keeps the worst: a test that fails, or does not end.
note() {
    [ "$1" = 0 ] || [ "$1" = 77 ] || status=$1
}
{
    "$work/codec_gpu_test" "${1:-256}" || status=$?
    if [ "$status" != 77 ]; then
        "$work/reduce_gpu_test" || note $?
        if [ "$built" = yes ]; then
            "$work/build/bin/zipcclctl" bench codec --device cuda --min-time 0.2 || note $?
            # Daemons and trainers as on the stand-ins (ctest -L standin); ranks share the GPU where there is one.
            for t in $tests; do
                echo "---- e2e_$t"
                timeout 300 "$work/build/tests/e2e_$t" || note $?
            done
        else
            echo "no benchmark, no daemon: they could not be built here:"
            tail -n 20 "$work/cmake.log"
        fi
    fi
} >gpu-report.txt 2>&1
cat gpu-report.txt
exit "$status"
