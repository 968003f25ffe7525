#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build needs and this Debian machine lacks (--lint: also what the checks need). Asks for nothing where
# nothing is missing.
set -euo pipefail

packages=(build-essential cmake ninja-build pkg-config git libuv1-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler
    libcmocka-dev libucx-dev libinih-dev libjansson-dev libxxhash-dev libsodium-dev libsystemd-dev libmicrohttpd-dev libzstd-dev liblz4-dev
    openmpi-bin libopenmpi-dev iproute2 python3)
if [ "${1:-}" = --lint ]; then
    packages+=(clang clang-format clang-tidy libclang-rt-14-dev shellcheck prometheus)
fi

missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
    [ "${state:0:2}" = ii ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "setup: this is not Debian; install by hand what corresponds to: ${missing[*]}" >&2
    exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "setup: as root: apt-get install ${missing[*]}" >&2
        exit 1
    }
    sudo=(sudo)
fi
echo "setup: installing ${missing[*]}" >&2
"${sudo[@]}" apt-get update -q >/dev/null
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
# Of prometheus the tests want promtool; a server that nobody asked for must not run.
if [[ " ${missing[*]} " = *" prometheus "* ]] && [ -d /run/systemd/system ]; then
    "${sudo[@]}" systemctl disable -q --now prometheus 2>/dev/null || true
fi
