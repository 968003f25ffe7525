#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# units.sh SOURCE BUILD: the units stand up to systemd-analyze, in a root of their own; 77 (skipped) without it.
set -euo pipefail
source_dir=$1
build_dir=$2
command -v systemd-analyze >/dev/null || { echo "skipped: there is no systemd-analyze here"; exit 77; }
units=
for dir in /usr/lib/systemd/system /lib/systemd/system; do
    [ -e "$dir/multi-user.target" ] && units=$dir && break
done
[ -n "$units" ] || { echo "skipped: systemd's own units are not installed"; exit 77; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
there=$root/usr/lib/systemd/system
mkdir -p "$there" "$root"/{etc,run,tmp,usr/sbin,usr/bin}
# The targets that ours name, without services of this machine.
cp -P "$units"/*.target "$units"/*.slice "$there" 2>/dev/null || true
ln -s usr/lib usr/bin usr/sbin "$root"
for stub in usr/sbin/zipccld usr/bin/kill; do
    printf '#!/bin/sh\n' >"$root/$stub"
    chmod 0755 "$root/$stub"
done
cp "$build_dir/systemd/zipccld.service" "$source_dir"/systemd/*.socket "$there"
names=(zipccld.service zipccld.socket zipccld-admin.socket)

check() {
    echo "== verify $1"
    local code=0
    SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no --generators=no --recursive-errors=yes --root="$root" \
        "${names[@]/#/$there/}" >"$root/tmp/said" 2>&1 || code=$?
    # Unknown keys are only warnings.
    if [ "$code" -ne 0 ] || grep -qE 'zipccld|\.conf' "$root/tmp/said"; then
        cat "$root/tmp/said" >&2
        echo "FAILED: systemd-analyze verify, $1" >&2
        exit 1
    fi
}

exposure() {
    if ! systemd-analyze security --no-pager --offline=yes --root="$root" --threshold="$1" "$there/zipccld.service" \
        >"$root/tmp/said"; then
        cat "$root/tmp/said"
        echo "FAILED: exposure above $2" >&2
        exit 1
    fi
    tail -n 1 "$root/tmp/said"
}

check "the units"
exposure 19 1.9 # tenths: below 2.0
for dropin in gpu rdma mps; do
    mkdir -p "$there/zipccld.service.d"
    cp "$source_dir/systemd/$dropin.conf" "$there/zipccld.service.d"
    check "with $dropin.conf"
done
exposure 45 4.5
