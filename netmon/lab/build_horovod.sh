#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds real Horovod with PyTorch (CPU, gloo) once, into an environment of its own, and prints its Python.
#
# Horovod 0.28.1 asks for C++14 while today's PyTorch headers need C++20, and its CMake files predate CMake 4:
# both are bridged here, nothing of Horovod's own code is changed. The environment is separate from netmon's
# on purpose: a training job never runs in its monitor's environment.
set -euo pipefail

horovod=0.28.1
torch=2.13.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/netmon
target=${NETMON_HOROVOD_ENV:-$cache/horovod-$horovod-torch-$torch}

pip=("$target/bin/python" -m pip --quiet)

finish() {
  # Keras runs on PyTorch here; the tests of netmon's callback need it, Horovod does not.
  "$target/bin/python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("keras"))' ||
    "${pip[@]}" install 'keras>=3' >&2
  echo "$target/bin/python"
  exit 0
}

if [ -e "$target/.complete" ]; then finish; fi

base=${NETMON_PYTHON:-/usr/bin/python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "horovod: $*" >&2; }

say "making $target (once, about five minutes on two cores)"
rm -rf "$target"
mkdir -p "$(dirname "$target")"
"$base" -m venv "$target"
"${pip[@]}" install "torch==$torch" numpy 'setuptools<80' wheel 'cmake<4' cloudpickle psutil pyyaml packaging >&2

say "building Horovod $horovod against PyTorch $torch"
"${pip[@]}" download --no-deps --no-binary :all: --no-build-isolation --dest "$work" "horovod==$horovod" >&2
tar -xzf "$work/horovod-$horovod.tar.gz" -C "$work"
src=$work/horovod-$horovod
sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' "$src/CMakeLists.txt" "$src/horovod/torch/CMakeLists.txt"
PATH="$target/bin:$PATH" MAKEFLAGS="-j$(nproc)" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
  HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
  HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO \
  "${pip[@]}" install --no-build-isolation --no-deps "$src" >&2
"$target/bin/python" -c 'import horovod.torch' >&2
touch "$target/.complete"
say "ready"
finish
