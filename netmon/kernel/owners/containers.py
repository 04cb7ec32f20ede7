# SPDX-License-Identifier: Apache-2.0
"""What a process belongs to, as its control group's path tells: a container, a Slurm job, a systemd unit."""

import os
import re
import time
from pathlib import Path

# Docker, containerd, CRI-O and Podman: a 64-digit id, wherever it stands.
_CONTAINER_ID = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
_LXC = re.compile(r"/lxc(?:\.payload\.|/)([^/\n]+)")
_SLURM = re.compile(r"/slurm[^\n]*?/job_(\d+)")
_UNIT = re.compile(r"/([^/\n]+\.(?:service|scope))(?=/|$)", re.MULTILINE)
_NOBODY = ("init.scope",)

_CGROUP2_MOUNT = re.compile(r"^\S+ (\S+) cgroup2 ", re.MULTILINE)
_WALK_NS = 10_000_000_000


def container_name(cgroup: str) -> str:
    """From the text of /proc/PID/cgroup or a path: the container's short id, else its LXC name, else `slurm-JOB`,
    else the innermost systemd unit; empty where there is none.
    """
    if found := _CONTAINER_ID.search(cgroup) or _LXC.search(cgroup):
        return found[1]
    if found := _SLURM.search(cgroup):
        return f"slurm-{found[1]}"
    units = [unit for unit in _UNIT.findall(cgroup) if unit not in _NOBODY]
    return units[-1] if units else ""


class ControlGroups:
    """Names of control groups by their ids, for processes that are gone before their /proc could be read."""

    def __init__(self, root: Path | None = None) -> None:
        """root: where cgroup v2 is mounted; looked up unless it is given."""
        self._root = root or _cgroup2_root()
        self._paths: dict[int, str] = {}
        self._walked_ns = -_WALK_NS

    def container(self, identity: int) -> str:
        """As container_name; empty where the group is unknown. Walks the tree when it is, every ten seconds at most."""
        now = time.monotonic_ns()
        if self._root and identity not in self._paths and now - self._walked_ns >= _WALK_NS:
            self._walked_ns = now
            # A control group's id is the inode of its directory.
            self._paths = {os.stat(path).st_ino: path for path, *_ in os.walk(self._root)}
        return container_name(self._paths.get(identity, ""))


def _cgroup2_root() -> Path | None:
    try:
        found = _CGROUP2_MOUNT.search(Path("/proc/self/mounts").read_text())
    except OSError:
        return None
    return Path(found[1]) if found else None
