# SPDX-License-Identifier: Apache-2.0
"""A limit on the CPU time of a process, by a control group of its own (cgroup v2, or v1)."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import LabError, UnsupportedError

_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_V1 = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"))
_PERIOD_US = 20_000
_LEAST_US = 1_000  # that the kernel accepts
PREFIX = "netmon-lab-"


@dataclass
class Quota:
    """A control group with one process in it, until it is ended."""

    group: Path
    process: int
    before: Path  # the group that it was in

    def end(self) -> None:
        """Put the process back, and remove the group."""
        with contextlib.suppress(OSError):  # the process is gone
            (self.before / "cgroup.procs").write_text(str(self.process))
        with contextlib.suppress(OSError):
            self.group.rmdir()


def throttle(run: str, process: int, cores: float) -> Quota:
    """Leave a process so many cores from now on. run: the testbed's. Raises UnsupportedError or LabError."""
    root, version = _controller()
    group = root / f"{PREFIX}{run}-{process}"
    quota = max(_LEAST_US, round(cores * _PERIOD_US))
    try:
        before = root / _group_of(process, version).lstrip("/")
        group.mkdir()
        if version == 1:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        (group / "cgroup.procs").write_text(str(process))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise LabError(f"cannot limit process {process} to {cores:g} cores by {group}: {error.strerror}") from None
    return Quota(group, process, before)


def remove_groups(run: str) -> None:
    """What a killed run left behind; processes that are in them still keep theirs."""
    for root in (*_ROOTS, *_V1):
        for group in root.glob(f"{PREFIX}{run}-*"):
            with contextlib.suppress(OSError):
                group.rmdir()


def _controller() -> tuple[Path, int]:
    for root in _ROOTS:
        with contextlib.suppress(OSError):
            if "cpu" in (root / "cgroup.subtree_control").read_text().split():
                return root, 2
    for root in _V1:
        if (root / "cgroup.procs").exists():
            return root, 1
    raise UnsupportedError(
        "cannot limit a rank's CPU time: no cgroup here has the cpu controller; inject hog instead of quota"
    )


def _group_of(process: int, version: int) -> str:
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if (version == 2 and not controllers) or (version == 1 and "cpu" in controllers.split(",")):
            return group
    return "/"
