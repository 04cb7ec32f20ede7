# SPDX-License-Identifier: Apache-2.0
"""native.py SECONDS: the tests of the loops in C, over and over, where every byte that they touch is looked at.

Builds netmon/native/compiled.c with the sanitizers for addresses and undefined behaviour, for this interpreter. A find
ends it with the sanitizer's report, or the failed test. Needs gcc and Python's headers.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests/unit/test_native.py"
_CHECKS = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
_WARNINGS = "-Wall", "-Wextra", "-Wconversion", "-Werror"


def build(folder: Path) -> Path:
    library = folder / "compiled.so"
    include = f"-I{sysconfig.get_path('include')}"
    source = ROOT / "netmon/native/compiled.c"
    options = ["-O1", "-g", "-shared", "-fPIC", *_CHECKS, *_WARNINGS, include]
    subprocess.run(["gcc", *options, source, "-o", library], check=True)
    return library


def run_again(library: Path, seconds: str) -> int:
    """In an interpreter that has begun with the sanitizer; its exit status."""
    names = "libasan.so", "libubsan.so"
    found = [subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True) for name in names]
    preload = ":".join(one.stdout.strip() for one in found)
    # Python gives back little of its memory when it ends, and none through malloc when it is told not to.
    checked = os.environ | {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    return subprocess.run([sys.executable, __file__, seconds, str(library)], env=checked, cwd=ROOT).returncode


def test(library: str, seconds: float) -> int:
    name = "netmon.native.compiled"
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec
    assert spec.loader
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    until, rounds = time.monotonic() + seconds, 0
    while not rounds or time.monotonic() < until:
        if failed := pytest.main(
            ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--no-summary", "-s", str(TESTS)]
        ):
            return int(failed)
        rounds += 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(test(sys.argv[2], float(sys.argv[1])))
    with tempfile.TemporaryDirectory() as made:
        sys.exit(run_again(build(Path(made)), sys.argv[1]))
