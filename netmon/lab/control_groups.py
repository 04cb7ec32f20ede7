# SPDX-License-Identifier: Apache-2.0
"""The machine's control groups for a host of the testbed: `ip netns exec` gives it a /sys without them.

An agent reads there for how long a rank's CPU quota has throttled it.
"""

import re
import shlex
from pathlib import Path

_MOUNT = re.compile(r"^\d+ \d+ \S+ / (/sys/fs/cgroup\S*) [^\n]* - (cgroup2?) \S+ (\S+)$", re.MULTILINE)
_TOP = "/sys/fs/cgroup"


def with_control_groups() -> list[str]:
    """What goes before a command that runs as root in a host's namespace; nothing where the machine has none."""
    mounts = [m for m in _MOUNT.findall(Path("/proc/self/mountinfo").read_text()) if _has_quotas(*m[1:])]
    if not mounts:
        return []
    lines = [] if mounts[0][0] == _TOP else [f"mount -t tmpfs netmon {_TOP}"]
    for path, kind, options in mounts:
        lines.append(f"mkdir -p {shlex.quote(path)}")
        lines.append(f"mount -t {kind} {_controllers(kind, options)} netmon {shlex.quote(path)}")
    return ["sh", "-c", f'{{ {"; ".join(lines)}; }} 2>/dev/null; exec "$@"', "sh"]


def _has_quotas(kind: str, options: str) -> bool:
    return kind == "cgroup2" or "cpu" in options.split(",")


def _controllers(kind: str, options: str) -> str:
    """Of a hierarchy of version 1: they name it."""
    names = [word for word in options.split(",") if word.startswith("cpu")]
    return f"-o {','.join(names)}" if kind == "cgroup" else ""
