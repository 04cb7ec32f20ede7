# SPDX-License-Identifier: Apache-2.0
"""A limit on the CPU time of processes, by a control group of their own (cgroup v2, or v1)."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import LabError, UnsupportedError

_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_V1 = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"))
_PERIOD_US = 20_000  # short: what waits for the next one waits in every period; longer where so few cores are left
_LEAST_US = 1_000  # that the kernel accepts
_WEIGHTS = {"cpu.shares": "29154", "cpu.weight": "2847"}  # of one process of the lab's PRIORITY, by the file for it
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
    try:
        group = cpu_root() / f"{PREFIX}{run}-{process}"
    except LookupError as error:
        raise UnsupportedError(f"cannot limit a rank's CPU time: {error}; inject hog instead of quota") from None
    if group.is_dir():
        return group
    try:
        group.mkdir()
        if not (_BY_SESSION.exists() and _BY_SESSION.read_text().strip() == "1"):
            weight = next(name for name in _WEIGHTS if (group / name).exists())
            (group / weight).write_text(_WEIGHTS[weight])
        (group / "cgroup.procs").write_text(str(process))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise LabError(f"cannot put process {process} into {group}: {error.strerror}") from None
    return group


def throttle(run: str, process: int, cores: float) -> Quota:
    """Leave a process so many cores from now on. Raises as own_group does."""
    group = own_group(run, process)
    try:
        return limit(group, cores)
    except OSError as error:
        raise LabError(f"cannot limit process {process} to {cores:g} cores by {group}: {error.strerror}") from None


def limit(group: Path, cores: float) -> Quota:
    """Leave the processes of a group so many cores together, from now on. Raises OSError."""
    period_us = max(_PERIOD_US, round(_LEAST_US / cores))
    quota_us = max(_LEAST_US, round(cores * period_us))
    if (group / "cpu.max").exists():
        file, text, unlimited = group / "cpu.max", f"{quota_us} {period_us}", f"max {period_us}"
    else:
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        file, text, unlimited = group / "cpu.cfs_quota_us", str(quota_us), "-1"
    file.write_text(text)
    return Quota(file, unlimited)


def remove_groups(run: str) -> None:
    """When a run's processes have ended; those that are in their groups still keep them."""
    for root in (*_ROOTS, *_V1):
        for group in root.glob(f"{PREFIX}{run}-*"):
            with contextlib.suppress(OSError):
                group.rmdir()


def cpu_root() -> Path:
    """Where groups that share out CPU time are made. Raises LookupError where the machine has no such place."""
    for root in _ROOTS:
        with contextlib.suppress(OSError):
            if "cpu" in (root / "cgroup.subtree_control").read_text().split():
                return root
    for root in _V1:
        if (root / "cgroup.procs").exists():
            return root
    for root in _ROOTS:
        with contextlib.suppress(OSError):
            (root / "cgroup.subtree_control").write_text("+cpu")
            return root
    raise LookupError("no cgroup here has the cpu controller")
