#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the manual pages and completion files from the programs' tables: generate.sh BIN [--check]
# With --check nothing is written, and it fails where a file is not what the tables give.
set -eu
bin=$1
check=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
status=0
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT

make_file() { # FILE PROGRAM OPTION
  "$bin/$2" "$3" >"$tmp"
  if [ "$check" != --check ]; then
    mkdir -p "$(dirname "$here/$1")"
    cat "$tmp" >"$here/$1"
  elif ! diff -u "$here/$1" "$tmp"; then
    echo "config/$1 is not what $2 $3 prints: run config/generate.sh $bin"
    status=1
  fi
}
make_file man/zipcclctl.1 zipcclctl --man
make_file man/zipccld.8 zipccld --man
make_file completion/zipcclctl.bash zipcclctl --completion-bash
make_file completion/_zipcclctl zipcclctl --completion-zsh
exit $status
