# SPDX-License-Identifier: Apache-2.0
"""What kept one rank from running: a row a second, and one of each step of a tenth of one in which something did."""

from netmon.evidence import UNKNOWN
from netmon.kernel.host_load import PRESSURES
from netmon.kernel.rank_load import Load, ProcessLoad

STEP_NS = 100_000_000
"""Between two looks at a rank. What keeps it from running for longer is seen."""

LONGEST_NS = 1_000_000_000
"""Of a row."""

STALE_NS = 3_000_000_000
"""What has grown over a longer time is nobody's interval: the next look begins anew."""

_KEPT = 0.1  # of a step: a wait for a CPU that is told by itself

Row = dict[str, int]
"""Columns of netmon.evidence.HOST_PART that are known."""


class RankRows:
    """One rank's process."""

    def __init__(self, pid: int, now_ns: int) -> None:
        """The first look."""
        self._process, self._looked_ns = ProcessLoad(pid), now_ns
        self._was_stopped = False
        self._open: Row | None = None
        self._over: list[Row] = []

    def look(self, now_ns: int) -> bool:
        """Whether the process is still there."""
        load = self._process.look()
        if load is None:
            return False
        before_ns, self._looked_ns = self._looked_ns, now_ns
        stopped = load.stopped + self._was_stopped  # one of both: it began or ended somewhere between the two looks
        stopped_ns = (now_ns - before_ns) * stopped // 2
        self._was_stopped = load.stopped
        if now_ns - before_ns > STALE_NS:
            self._close()
            return True
        self._take({"start_ns": before_ns, "end_ns": now_ns, "stopped_ns": stopped_ns, **_columns(load)})
        return True

    def _take(self, step: Row) -> None:
        length = step["end_ns"] - step["start_ns"]
        kept = step["stopped_ns"] > 0 or step["throttled_ns"] > 0 or step["run_delay_ns"] > _KEPT * length
        if kept:
            self._close()
        self._open = _joined(self._open, step) if self._open else step
        if kept or self._open["end_ns"] - self._open["start_ns"] + STEP_NS // 2 >= LONGEST_NS:
            self._close()

    def _close(self) -> None:
        if self._open:
            self._over.append(self._open)
            self._open = None

    def take(self) -> list[Row]:
        """Those that are over."""
        over, self._over = self._over, []
        return over

    def close(self) -> None:
        """Closes its files."""
        self._process.close()


def _columns(load: Load) -> Row:
    pressures = (f"{name}_pressure_ns" for name in PRESSURES)
    return {
        "throttled_ns": load.throttled_ns,
        "run_delay_ns": load.run_delay_ns,
        "cpu_ns": load.cpu_ns,
        **dict(zip(pressures, load.pressure_ns, strict=True)),
    }


def _joined(one: Row, other: Row) -> Row:
    """Of two times, the first right before the other."""
    both = {name: one[name] + other[name] if min(one[name], other[name]) >= 0 else UNKNOWN for name in one}
    return both | {"start_ns": one["start_ns"], "end_ns": other["end_ns"]}
