#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes an environment with Accelerate and Lightning once, beside real Horovod's, and prints its Python. It borrows
# PyTorch from there, and changes nothing in it.
set -euo pipefail

base=$(bash "$(dirname "$0")/../../netmon/lab/build_horovod.sh" torch)
target=${NETMON_FRAMEWORKS_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/netmon/frameworks-$(basename "$(dirname "$(dirname "$base")")")}
python=$target/bin/python

build() {
  echo "frameworks: making $target (once, half a minute)"
  rm -rf "$target"
  "$base" -m venv "$target"
  places='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$base" -c "$places" >"$("$python" -c "$places")/horovod.pth"
  # The versions that are borrowed are named, so that pip fetches no other PyTorch.
  "$base" -m pip --quiet freeze | grep -E '^(torch|numpy)==' >"$target/borrowed.txt"
  "$python" -m pip --quiet install --disable-pip-version-check --constraint "$target/borrowed.txt" \
    'accelerate>=1,<2' 'lightning>=2,<3'
  "$python" -c 'import accelerate, lightning.pytorch, horovod.torch'
  touch "$target/.complete"
}

mkdir -p "$(dirname "$target")"
exec 9>"$target.lock"
flock 9
if [ ! -e "$target/.complete" ]; then build >&2; fi
echo "$python"
