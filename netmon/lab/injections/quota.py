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
_WEIGHT = {1: ("cpu.shares", "29154"), 2: ("cpu.weight", "2847")}  # of one process of the lab's PRIORITY, by version
_BY_SESSION = Path("/proc/sys/kernel/sched_autogroup_enabled")  # 1: all sessions weigh as much as a new group does
PREFIX = "netmon-lab-"


@dataclass(frozen=True)
class Quota:
    """A limit on a process that has a control group of its own, until it is ended."""

    file: Path
    unlimited: str

    def end(self) -> None:
        """Lift the limit; the process stays in its group."""
        with contextlib.suppress(OSError):  # the group is gone
            self.file.write_text(self.unlimited)


def own_group(run: str, process: int) -> Path:
    """Put a process into a control group of its own, without a limit, as schedulers do, unless it has one.

    That group shows what throttles it. run: the testbed's. Raises UnsupportedError or LabError.
    """
    root, version = _controller()
    group = root / f"{PREFIX}{run}-{process}"
    if group.is_dir():
        return group
    name, weight = _WEIGHT[version]
    try:
        group.mkdir()
        if not (_BY_SESSION.exists() and _BY_SESSION.read_text().strip() == "1"):
            (group / name).write_text(weight)
        (group / "cgroup.procs").write_text(str(process))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise LabError(f"cannot put process {process} into {group}: {error.strerror}") from None
    return group


def throttle(run: str, process: int, cores: float) -> Quota:
    """Leave a process so many cores from now on. Raises as own_group does."""
    group, (_, version) = own_group(run, process), _controller()
    quota = max(_LEAST_US, round(cores * _PERIOD_US))
    try:
        if version == 1:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            file, limit, unlimited = group / "cpu.cfs_quota_us", str(quota), "-1"
        else:
            file, limit, unlimited = group / "cpu.max", f"{quota} {_PERIOD_US}", f"max {_PERIOD_US}"
        file.write_text(limit)
    except OSError as error:
        raise LabError(f"cannot limit process {process} to {cores:g} cores by {group}: {error.strerror}") from None
    return Quota(file, unlimited)


def remove_groups(run: str) -> None:
    """When a run's processes have ended; those that are in their groups still keep them."""
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
