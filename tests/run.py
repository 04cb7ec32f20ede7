#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every test: the ones that mostly wait beside the ones that compute; what fails is run once more, alone.

Kernel and lab tests spend most of their time waiting for traffic, unit tests for a core: side by side they take the
time of the longer ones. What the unit tests print comes when they have ended. A test that fails, fails again alone,
or it was the other tests beside it: both failures are printed.
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WAITING, COMPUTING = ("tests/kernel", "tests/lab"), ("tests/unit", "tests/readers")
FAILED, NOTHING = 1, 5  # pytest's exit statuses


def command(name: str, *more: str) -> list[str]:
    """pytest with a memory of its own of what has failed."""
    return [sys.executable, "-m", "pytest", "-o", f"cache_dir=.pytest_cache/{name}", *more]


def main() -> int:
    """Exit status: 0 where every test has passed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryFile() as printed:
        computing = subprocess.Popen(command("computing", *COMPUTING), cwd=ROOT, stdout=printed, stderr=printed)
        waiting = subprocess.Popen(command("waiting", *WAITING), cwd=ROOT)
        runs = {"waiting": waiting, "computing": computing}
        try:
            first = {name: run.wait() for name, run in runs.items()}
        except KeyboardInterrupt:
            for run in runs.values():
                run.send_signal(signal.SIGINT)
            for run in runs.values():
                run.wait()
            return 130
        finally:
            printed.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(printed.read())
            sys.stdout.flush()
    return max(again(name) if status == FAILED else status for name, status in first.items())


def again(name: str) -> int:
    """What has failed, once more."""
    print("netmon: once more, alone:", flush=True)
    options = ("--last-failed", "--last-failed-no-failures", "none", "--maxfail", "1")
    paths = WAITING if name == "waiting" else COMPUTING
    status = subprocess.run(command(name, *options, *paths), cwd=ROOT, check=False).returncode
    return 0 if status == NOTHING else status


if __name__ == "__main__":
    sys.exit(main())
