# SPDX-License-Identifier: Apache-2.0
"""Memory of processes, as the kernel sums it up."""

from collections.abc import Iterable
from pathlib import Path

_KB = 1024


def memory_bytes(pids: Iterable[int], name: str) -> int:
    """name: "Rss", in which pages that are shared or mapped twice count each time, or "Pss", in which they are shared.

    A process that has ended counts for nothing.
    """
    return sum(_of_process(pid, name) for pid in pids)


def _of_process(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * _KB for line in lines if line.startswith(f"{name}:"))
