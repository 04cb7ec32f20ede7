#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build_horovod.sh [torch|tensorflow|jax [--if-built]] builds real Horovod with that framework (CPU, gloo) once, into an
# environment of its own, and prints its Python. With --if-built it prints nothing where it would have to build. JAX comes
# as it is: Horovod does not know it.
#
# Horovod 0.28.1 asks for C++14 while today's PyTorch headers need C++20, and its CMake files predate CMake 4: both are
# bridged here. Its TensorFlow side knows what it needs; 2.12 is the last release that it was written for. Nothing of
# Horovod's own code is changed. The environments are separate from netmon's on purpose: a training job never runs in
# its monitor's environment, and the two frameworks do not agree on the packages that they need.
set -euo pipefail

framework=${1:-torch}
horovod=0.28.1
work=
say() { echo "horovod: $*" >&2; }

common=(wheel 'cmake<4' cloudpickle psutil pyyaml packaging)
case $framework in
  torch)
    version=2.13.0
    target=${NETMON_HOROVOD_ENV:-}
    # Keras runs on PyTorch here; the tests of netmon's callback need it, Horovod does not.
    packages=("torch==$version" numpy 'setuptools<80' 'keras>=3')
    with=(HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1)
    ;;
  tensorflow)
    version=2.12.1
    target=${NETMON_HOROVOD_TENSORFLOW_ENV:-}
    packages=("tensorflow-cpu==$version" 'setuptools<80')
    with=(HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1)
    ;;
  jax)
    version=0.10.2
    target=${NETMON_JAX_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/netmon/jax-$version}
    packages=("jax==$version" "jaxlib==$version")
    common=()
    module=jax
    ;;
  *)
    say "cannot build Horovod with $framework: choose torch, tensorflow or jax"
    exit 1
    ;;
esac
target=${target:-${XDG_CACHE_HOME:-$HOME/.cache}/netmon/horovod-$horovod-$framework-$version}
python=$target/bin/python
pip=("$python" -m pip --quiet)

build() {
  say "making $target (once, some minutes on two cores)"
  rm -rf "$target"
  mkdir -p "$(dirname "$target")"
  "${NETMON_PYTHON:-/usr/bin/python3}" -m venv "$target"
  "${pip[@]}" install "${packages[@]}" "${common[@]}"
  if [ "$framework" != jax ]; then build_horovod; fi
  "$python" -c "import ${module:-horovod.$framework}"
  touch "$target/.complete"
  say "ready"
}

build_horovod() {
  say "building Horovod $horovod against $framework $version"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "${pip[@]}" download --no-deps --no-binary :all: --no-build-isolation --dest "$work" "horovod==$horovod"
  tar -xzf "$work/horovod-$horovod.tar.gz" -C "$work"
  src=$work/horovod-$horovod
  if [ "$framework" = torch ]; then
    sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' "$src/CMakeLists.txt" "$src/horovod/torch/CMakeLists.txt"
  fi
  env PATH="$target/bin:$PATH" MAKEFLAGS="-j$(nproc)" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
    "${with[@]}" HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO \
    "${pip[@]}" install --no-build-isolation --no-deps "$src"
}

if [ ! -e "$target/.complete" ]; then
  if [ "${2:-}" = --if-built ]; then exit; fi
  build >&2
fi
echo "$python"
