#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: demo.sh BUILD_DIR
# Two node daemons and four trainers on this machine, links capped to 1 Gbit/s: an all-gather of every tensor in
# tests/data/tensors, raw against compressed. Exit code 0 only where all bits were equal.
set -euo pipefail
build=$(cd "${1:?usage: demo.sh BUILD_DIR}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
tensors=$here/../data/tensors
rate=${DEMO_LINK_RATE:-1gbit}
work=$(mktemp -d "${TMPDIR:-/tmp}/zipccl-demo.XXXXXX")
daemons=()
trainers=()

cleanup() {
  local code=$?
  trap - EXIT INT TERM
  for pid in "${trainers[@]}" "${daemons[@]}"; do
    kill "$pid" 2>/dev/null || true
  done
  wait
  if [ "$code" -ne 0 ]; then
    for log in "$work"/*.log; do
      [ -s "$log" ] || continue
      echo "--- ${log##*/}" >&2
      tail -n 40 "$log" >&2
    done
  fi
  rm -rf "$work"
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for node in 0 1; do
  cat >"$work/node$node.conf" <<CONF
[zipccld]
metrics_listen =
node_name = node$node
socket = $work/node$node.sock
listen = 127.0.0.1:0
ucx_tls = tcp
link_rate = $rate
CONF
  "$build/bin/zipccld" --config "$work/node$node.conf" >"$work/node$node.log" 2>&1 &
  daemons+=($!)
done
for node in 0 1; do
  for ((try = 0; ; try++)); do
    "$build/bin/zipcclctl" status --socket "$work/node$node.sock" >/dev/null 2>&1 && break
    if [ "$try" -ge 150 ] || ! kill -0 "${daemons[$node]}" 2>/dev/null; then
      echo "demo: the daemon of node $node does not answer" >&2
      exit 1
    fi
    sleep 0.1
  done
done

echo "Two nodes with two trainers each, $rate between them. All-gather of every tensor; each rank owns a quarter."
echo "wire bytes: sent by node 0 for one compressed all-gather. ratio: what it would have sent raw / wire bytes."
for rank in 0 1 2 3; do
  ZIPCCL_SOCKET=$work/node$((rank / 2)).sock ZIPCCL_JOB_ID=demo \
    "$build/examples/trainer" "$tensors" "$work/id" "$rank" 4 "$work/hold" 2>"$work/rank$rank.log" &
  trainers+=($!)
done

for ((try = 0; try < 1000; try++)); do
  [ -e "$work/hold.ready" ] && break
  for pid in "${trainers[@]}"; do
    kill -0 "$pid" 2>/dev/null || break 2
  done
  sleep 0.1
done
if [ -e "$work/hold.ready" ]; then
  for node in 0 1; do
    for command in status stats; do
      printf '\n$ zipcclctl %s --socket node%s.sock\n' "$command" "$node"
      "$build/bin/zipcclctl" "$command" --socket "$work/node$node.sock"
    done
  done
fi
touch "$work/hold.go"

failures=0
for pid in "${trainers[@]}"; do
  wait "$pid" || failures=$((failures + 1))
done
trainers=()
echo
if [ "$failures" -ne 0 ]; then
  echo "demo: $failures trainers failed" >&2
  exit 1
fi
echo "All bits equal on all four ranks."
