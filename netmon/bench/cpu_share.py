# SPDX-License-Identifier: Apache-2.0
"""A share of the machine's CPU for a process and all that it starts: CPU bandwidth, in a cgroup of its own."""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from netmon.bench.cpu import process_seconds
from netmon.errors import UnsupportedError

_MOUNTS = Path("/proc/mounts")
_PERIOD_US = 20_000  # short: what waits for the next one waits in every period
_GONE_S = 5.0


class CpuShare:
    """Between entering and leaving its context. Works with cgroup v2 and v1; needs root."""

    def __init__(self, name: str, cores: float) -> None:
        """name: one of a kind on this machine. cores: that may be used at most."""
        self._name, self._cores = name, cores
        self._folder = Path()

    def __enter__(self) -> "CpuShare":
        """Raises UnsupportedError where the kernel, or whoever runs us, does not allow it."""
        quota = round(self._cores * _PERIOD_US)
        try:
            root, v2 = _controller(_MOUNTS.read_text())
            self._folder = root / f"netmon-bench-{os.getpid()}-{self._name}"
            self._folder.mkdir()
            try:
                if v2:
                    (self._folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
                else:
                    (self._folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                    (self._folder / "cpu.cfs_quota_us").write_text(str(quota))
            except OSError:
                self._folder.rmdir()
                raise
        except (OSError, LookupError) as error:
            raise UnsupportedError(
                f"cannot give a worker {self._cores:g} cores: {error}; it takes root and the cgroup controller cpu"
            ) from None
        return self

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command, so that it and what it starts have the share."""
        script = 'echo $$ > "$0" && exec "$@"'
        return ["sh", "-c", script, str(self._folder / "cgroup.procs"), *command]

    def seconds(self) -> float:
        """CPU time of the processes that are in it now."""
        return process_seconds(map(int, (self._folder / "cgroup.procs").read_text().split()))

    def __exit__(self, *_: object) -> None:
        """After the processes have ended."""
        deadline = time.monotonic() + _GONE_S
        while time.monotonic() < deadline:  # the kernel lets go of a process a moment after it is waited for
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.02)


def _controller(mounts: str) -> tuple[Path, bool]:
    """Where to make a group with a share, and whether it is cgroup v2's. Raises LookupError, OSError."""
    lines = [line.split() for line in mounts.splitlines()]
    for _, index, kind, options, *_ in lines:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(index), False
    for _, index, kind, *_ in lines:
        root = Path(index)
        if kind == "cgroup2" and "cpu" in (root / "cgroup.controllers").read_text().split():
            (root / "cgroup.subtree_control").write_text("+cpu")
            return root, True
    raise LookupError("no cgroup has the controller cpu")
