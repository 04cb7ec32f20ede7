#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes an environment with the programs that people read the dataset with once, and prints its Python. With `spark`:
# one that has PySpark, which is large and needs Java.
set -euo pipefail

what=${1:-readers}
target=${XDG_CACHE_HOME:-$HOME/.cache}/netmon/$what-1
python=$target/bin/python

build() {
  echo "readers: making $target (once, a minute)"
  rm -rf "$target"
  "${PYTHON:-python3}" -m venv "$target"
  case $what in
  readers) set -- 'duckdb>=1.1' 'pandas>=2.2' 'polars>=1' 'dask[dataframe]>=2024.8' 'pyarrow>=17' ;;
  spark) set -- 'pyspark>=3.5' ;;
  *) echo "readers: what is $what?" && exit 2 ;;
  esac
  "$python" -m pip --quiet install --disable-pip-version-check "$@"
  touch "$target/.complete"
}

mkdir -p "$(dirname "$target")"
exec 9>"$target.lock"
flock 9
if [ ! -e "$target/.complete" ]; then build >&2; fi
echo "$python"
