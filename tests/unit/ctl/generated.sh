#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The manual pages and completion files are what the tables give, groff takes the pages, and bash completes.
set -eu
source_dir=$1
bin=$2
"$source_dir/config/generate.sh" "$bin" --check

for page in "$source_dir"/config/man/*; do
  if command -v groff >/dev/null; then
    warnings=$(groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null)
    [ -z "$warnings" ] || { echo "$page: $warnings"; exit 1; }
  fi
done

# shellcheck source=/dev/null
. "$source_dir/config/completion/zipcclctl.bash"
expect() { # WORDS... -- REPLIES
  COMP_WORDS=()
  while [ "$1" != -- ]; do COMP_WORDS+=("$1"); shift; done
  shift
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _zipcclctl
  [ "${COMPREPLY[*]}" = "$*" ] || { echo "${COMP_WORDS[*]}: '${COMPREPLY[*]}', not '$*'"; exit 1; }
}
expect zipcclctl sta -- status stats
expect zipcclctl dra -- drain
expect zipcclctl drain '' -- node job
expect zipcclctl drain node --t -- --timeout
expect zipcclctl stats --e -- --explain
if command -v zsh >/dev/null; then zsh -n "$source_dir/config/completion/_zipcclctl"; fi
echo ok
