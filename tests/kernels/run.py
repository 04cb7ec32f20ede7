# SPDX-License-Identifier: Apache-2.0
"""`make test-kernels` and `make test-rdma`: boots other kernels under emulation, runs the tests that are marked for
them there, and draws a table.

Fetches Debian's packages into ~/.cache/netmon/kernels (1 to 2 GB a row). Needs qemu and 4 GB of memory, neither root
nor virtualisation. Exit status 0 only when every row has passed.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from image import Image, archive
from rows import MODULES, ROWS, Row

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "netmon/kernels"
_SOURCES = (
    "netmon",
    "collector",
    "bpf",
    "tests/conftest.py",
    "tests/kernel",
    "tests/unit/waiting.py",
    "pyproject.toml",
)
_MACHINES = {
    "amd64": ("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max,avx2=off"),
    "arm64": ("qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth-impdef=on"),
}
# With QEMU 7.2's AVX2, numpy's argsort of 64-bit numbers gives another order than the ascending one: without it.
# QEMU 7.2 now and then gets the flags of cmpxchg16b wrong when the kernel's allocator uses it, and the kernel panics:
# the kernel does without (X86_FEATURE_CX16). The processes may still use it, numpy wants it. And it panics where the
# emulated timer is late, which it is on a busy machine: that is not checked.
_BOOT = {"amd64": "console=ttyS0 clearcpuid=141 no_timer_check", "arm64": "console=ttyAMA0"}


def main() -> int:
    """Runs the rows that were named, all of them by default."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", metavar="ROW", help=f"of {', '.join(names)} (all but rdma)")
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="of the tests, as pytest's -k (all)")
    parser.add_argument("--fetch", action="store_true", help="only download and unpack")
    args = parser.parse_args()
    if unknown := set(args.row) - set(names):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    table = []
    for row in (row for row in ROWS if row.name in (args.row or {*names} - {"rdma"})):
        began = time.monotonic()
        passed, found, tests = _run(row, args.only, args.fetch)
        table.append((row.name, found or row.why, tests, f"{time.monotonic() - began:.0f} s"))
        print(f"{row.name}: {tests}", flush=True)
        if not passed:
            table[-1] = (*table[-1], "FAILED")
    print()
    for line in table:
        print("{:<10} {:<72} {:<32} {:>6} {}".format(*line, *[""] * (5 - len(line))))
    return int(any(len(line) == 5 for line in table))


def _run(row: Row, only: str, only_fetch: bool) -> tuple[bool, str, str]:
    """Whether it passed, what the machine says that it is, and how the tests ended."""
    image = Image(row, CACHE)
    try:
        image.make()
        if only_fetch:
            return True, "", "fetched"
        output = _boot(row, image, only)
    except (RuntimeError, OSError, ValueError) as error:
        return False, "", f"cannot be had: {error}"
    found = re.findall(r"^.*matrix: (Linux .*)$", output, re.M)
    tests = re.findall(r"^.*?((?:\d+ (?:passed|failed|skipped|error)[^ ]*,? ?)+)", output, re.M)
    passed = re.search(r"matrix: status 0\b", output) is not None
    ended = tests[-1].strip() if tests else "no answer"
    return passed, found[0].strip() if found else "", ended if passed else f"{ended}; see {CACHE}/{row.name}.log"


def _boot(row: Row, image: Image, only: str) -> str:
    """Everything that the machine wrote on its console. Ends with it, or after the row's time."""
    with tempfile.TemporaryDirectory(prefix="netmon-kernel-") as place:
        tree, sources, initial = Path(place, "tree"), Path(place, "sources.cpio"), Path(place, "initrd")
        for name in _SOURCES:
            (tree / "netmon" / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tree / "netmon" / name)
        init = Path(__file__).with_name("init.sh").read_text().replace("$MODULES", " ".join(MODULES))
        init = init.replace("$ONLY", shlex.quote(only)).replace("$MARK", row.mark)
        (tree / "init").write_text(init)
        (tree / "init").chmod(0o755)
        archive(tree, sources)
        with initial.open("wb") as file:  # the kernel unpacks one after the other
            for part in (image.root, sources):
                with part.open("rb") as archived:
                    shutil.copyfileobj(archived, file, 1 << 24)
        command = [
            *_MACHINES[row.architecture],
            *("-smp", "2", "-m", "3G", "-nographic", "-no-reboot", "-nic", "none"),
            *("-kernel", str(image.kernel), "-initrd", str(initial)),
            *("-append", f"{_BOOT[row.architecture]} panic=-1 quiet rdinit=/init"),
        ]
        with (CACHE / f"{row.name}.log").open("wb") as log:  # to be looked at meanwhile
            try:
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=60 * row.minutes
                )
            except subprocess.TimeoutExpired:
                log.write(f"\nmatrix: not over after {row.minutes} minutes\n".encode())
        return Path(log.name).read_text(errors="replace").replace("\r", "")


if __name__ == "__main__":
    sys.exit(main())
