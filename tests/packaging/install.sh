#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: builds the packages, installs them with dpkg into a root that has nothing but what they depend
# on, runs zipccld there as its own user, and builds a program against libzipccl-dev. 77 (skipped) without root or dpkg.
set -euo pipefail
build_dir=$1
skip() {
    echo "skipped: $1"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "only root may chroot"
for tool in dpkg dpkg-deb dpkg-shlibdeps cpack chroot ldd pkg-config cc; do
    command -v "$tool" >/dev/null || skip "there is no $tool here"
done

work=$(mktemp -d)
root=$work/root
daemon=
cleanup() {
    local code=$?
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
    wait
    [ "$code" -eq 0 ] || cat "$work"/*.log 2>/dev/null || true
    rm -rf "$work"
    exit "$code"
}
trap cleanup EXIT
mkdir -p "$root"/{etc,dev,proc,tmp,run,usr/bin,usr/sbin,usr/lib,usr/lib64,var/lib/dpkg/info,var/lib/dpkg/updates}
ln -s usr/bin usr/sbin usr/lib "$root"
ln -s usr/lib64 "$root/lib64"
chroot "$root" /nothing 2>/dev/null || [ $? -eq 127 ] || skip "chroot is not allowed here"

# A file of this machine, in the root at the same place; a link as what it leads to.
give() {
    local file
    for file in "$@"; do
        [ -e "$root$file" ] && continue
        mkdir -p "$root${file%/*}"
        cp -L "$file" "$root$file"
    done
}
# What a program, or a library that is loaded by name, needs to run.
give_libraries() {
    local file
    # Libraries of this very build are what the packages bring.
    while read -r file; do give "$file"; done < <(ldd "$@" 2>/dev/null |
        sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) .*/\1/p' | grep -v libzipccl | sort -u)
}
programs=()
for name in sh rm rmdir getent groupadd useradd systemd-sysusers ldconfig; do
    if path=$(command -v "$name"); then programs+=("$path"); fi
done
give "${programs[@]}"
give_libraries "${programs[@]}" "$build_dir/bin/zipccld" "$build_dir/bin/zipcclctl"
# UCX loads its transports by name, and libc looks up users so.
mapfile -t loaded < <(dpkg -L libucx0 2>/dev/null | grep '\.so' | while read -r f; do [ ! -f "$f" ] || echo "$f"; done)
give "${loaded[@]}"
give_libraries "${loaded[@]}"
printf 'root:x:0:0:root:/:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\n' >"$root/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files\n' >"$root/etc/nsswitch.conf"
printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
mknod -m 0666 "$root/dev/null" c 1 3
mknod -m 0666 "$root/dev/urandom" c 1 9
chmod 1777 "$root/tmp"
# Dependencies are checked against what this machine has installed, for that is what was copied.
cp /var/lib/dpkg/status "$root/var/lib/dpkg/status"
touch "$root/var/lib/dpkg/available"

echo "== build the packages"
cpack --config "$build_dir/CPackConfig.cmake" -G DEB -B "$work/packages" >"$work/cpack.log" 2>&1
rm -rf "$work/packages/_CPack_Packages"
(cd "$work/packages" && ls -- *.deb)
packages=("$work"/packages/zipccl_*.deb "$work"/packages/libzipccl[0-9]*.deb "$work"/packages/libzipccl-dev_*.deb)

echo "== install them"
# No maintainer script may see this machine's systemd: in the root there is none.
dpkg --root="$root" --install "${packages[@]}" >"$work/dpkg.log" 2>&1
for package in zipccl libzipccl-dev; do
    state=$(dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${db:Status-Abbrev}' "$package")
    [ "$state" = "ii " ] || { echo "FAILED: $package is in state '$state'" >&2; exit 1; }
done
dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${Conffiles}\n' zipccl | grep -q /etc/zipccl/zipccld.conf
grep -q '^zipccl:' "$root/etc/passwd"
# What docs/operating.md names.
for file in prometheus/prometheus.yml prometheus/zipccl.rules.yml grafana/zipccl.json systemd/gpu.conf; do
    [ -f "$root/usr/share/zipccl/$file" ] || { echo "FAILED: no /usr/share/zipccl/$file" >&2; exit 1; }
done
uid=$(sed -n 's/^zipccl:[^:]*:\([0-9]*\):.*/\1/p' "$root/etc/passwd")
gid=$(sed -n 's/^zipccl:[^:]*:\([0-9]*\):.*/\1/p' "$root/etc/group")
[ "$uid" -gt 0 ] && [ "$uid" -lt 1000 ]
chroot "$root" ldconfig 2>/dev/null

echo "== run zipccld as user $uid"
install -d -m 0755 -o "$uid" -g "$gid" "$root/run/zipccl" # as tmpfiles.d does
chroot "$root" zipccld --check-config --config /etc/zipccl/zipccld.conf
fabric=ucx
[ ${#loaded[@]} -gt 0 ] || fabric=none
env -i PATH=/usr/sbin:/usr/bin UCX_MEM_MMAP_HOOK_MODE=none chroot --userspec="$uid:$gid" --groups= "$root" \
    zipccld --listen 127.0.0.1:0 --node-name clean --set "fabric=$fabric" --set ucx_tls=tcp,self \
    --set admin_socket=/run/zipccl/admin.sock >"$work/zipccld.log" 2>&1 &
daemon=$!
for _ in $(seq 100); do
    grep -q serves "$work/zipccld.log" && break
    kill -0 "$daemon"
    sleep 0.1
done
chroot "$root" zipcclctl status >"$work/status.log"
head -n 3 "$work/status.log"
grep -q clean "$work/status.log"
ZIPCCL_SOCKET=/run/zipccl/admin.sock chroot "$root" /usr/bin/zipcclctl status >/dev/null

echo "== build against libzipccl-dev"
pc=$(find "$root/usr/lib" -name zipccl.pc)
export PKG_CONFIG_PATH=${pc%/*}
# The .pc file finds its prefix by itself, here below the root.
read -ra cflags <<<"$(pkg-config --cflags zipccl)"
read -ra libs <<<"$(pkg-config --libs zipccl)"
cc -std=c11 -Wall -Werror "${cflags[@]}" "$(dirname "$0")/hello.c" -o "$root/usr/bin/hello" "${libs[@]}"
chroot "$root" hello
cc -std=c11 -Wall -Werror "${cflags[@]}" "$(dirname "$0")/hello.c" -o "$root/usr/bin/hello-static" \
    "${pc%/pkgconfig/*}/libzipccl.a" \
    -lprotobuf-c -pthread
chroot "$root" hello-static

echo "== stop, remove"
kill -TERM "$daemon"
wait "$daemon"
daemon=
[ ! -e "$root/run/zipccl/zipccld.sock" ]
dpkg --root="$root" --purge zipccl libzipccl-dev "$(basename "${packages[1]}" | cut -d_ -f1)" >>"$work/dpkg.log" 2>&1
left=$(find "$root/usr" "$root/etc" -name '*zipccl*' ! -name 'hello*')
[ -z "$left" ] || { echo "FAILED: left behind: $left" >&2; exit 1; }
echo "ok"
