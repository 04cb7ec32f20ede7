#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes an environment with the libraries that experiments are logged with, once, beside the one of build_frameworks.sh,
# and prints its Python: Hugging Face's Trainer, TensorBoard, Weights & Biases, MLflow. Long tests use it.
set -euo pipefail

base=$(bash "$(dirname "$0")/build_frameworks.sh")
borrowed=$(dirname "$(dirname "$base")")
target=${NETMON_EXPERIMENTS_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/netmon/experiments-${borrowed##*/frameworks-}}
python=$target/bin/python

build() {
  echo "experiments: making $target (once, a minute)"
  rm -rf "$target"
  "$base" -m venv "$target"
  places='import sysconfig; print(sysconfig.get_path("purelib"))'
  # A .pth file that is named in another one is not read: both environments are named here.
  { "$base" -c "$places"; cat "$("$base" -c "$places")"/horovod.pth; } >"$("$python" -c "$places")/borrowed.pth"
  # The versions that are borrowed are named, so that pip fetches no other PyTorch.
  "$python" -m pip --quiet freeze | grep -E '^(torch|numpy|lightning|accelerate|keras)==' >"$target/borrowed.txt"
  "$python" -m pip --quiet install --disable-pip-version-check --constraint "$target/borrowed.txt" \
    'transformers>=4.50' 'tensorboard>=2.15' wandb 'mlflow-skinny[sqlalchemy]' sqlalchemy alembic
  "$python" -c 'import mlflow, transformers, wandb, lightning.pytorch, keras; from torch.utils import tensorboard'
  touch "$target/.complete"
}

mkdir -p "$(dirname "$target")"
exec 9>"$target.lock"
flock 9
if [ ! -e "$target/.complete" ]; then build >&2; fi
echo "$python"
