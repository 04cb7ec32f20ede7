# SPDX-License-Identifier: Apache-2.0
"""What kept one rank from running: a row a second, and one of each step of a tenth of one in which something did."""

from netmon.evidence import UNKNOWN
from netmon.kernel.host_load import PRESSURES
from netmon.kernel.rank_load import Load, ProcessLoad
from netmon.kernel.stops import RankStops

STEP_NS = 100_000_000
"""Between two looks at a rank. What keeps it from running for longer is seen."""

LONGEST_NS = 1_000_000_000
"""Of a row."""

STALE_NS = 3_000_000_000
"""What has grown over a longer time is nobody's interval: the next look begins anew."""

_KEPT = 0.1  # of a step: a wait for a CPU that is told by itself
_PRESSURES = tuple(f"{name}_pressure_ns" for name in PRESSURES)

Row = dict[str, int]
"""Columns of netmon.evidence.HOST_PART that are known."""


class RankRows:
    """One rank's process."""

    def __init__(self, pid: int, now_ns: int, stops: RankStops) -> None:
        """The first look."""
        self._pid, self._stops = pid, stops
        stops.watch(pid)
        self._process, self._looked_ns = ProcessLoad(pid), now_ns
        self._was_stopped = False
        self._open: Row | None = None
        self._over: list[Row] = []
        self.telling = False
        """Whether something that kept the rank is among what is over: nobody waits with that."""

    def look(self, now_ns: int) -> bool:
        """Whether the process is still there."""
        before_ns, self._looked_ns = self._looked_ns, now_ns
        begin_ns = self._open["start_ns"] if self._open else before_ns
        load = self._process.look(self._is_long(begin_ns, now_ns) or not self._stops.watches(self._pid))
        if load is None:
            return False
        last, earlier_ns = self._stops.since(self._pid, before_ns, now_ns)
        stopped = load.stopped + self._was_stopped  # one of both: it began or ended somewhere between the two looks
        self._was_stopped = load.stopped
        if now_ns - before_ns > STALE_NS:
            self._close()
            self._process.pressure_ns()
            return True
        step = {"start_ns": before_ns, "end_ns": now_ns, "stopped_ns": 0, **_columns(load)}
        if last and not earlier_ns:
            for part in _parted(step, *last):
                self._take(part)
            return True
        step["stopped_ns"] = earlier_ns + last[1] - last[0] if last else (now_ns - before_ns) * stopped // 2
        self._take(step)
        return True

    def _take(self, step: Row) -> None:
        length = step["end_ns"] - step["start_ns"]
        kept = step["stopped_ns"] > 0 or step["throttled_ns"] > 0 or step["run_delay_ns"] > _KEPT * length
        if kept:
            self._close()
            self.telling = True
        self._open = _joined(self._open, step) if self._open else step
        if kept or self._is_long(self._open["start_ns"], self._open["end_ns"]):
            self._close()

    @staticmethod
    def _is_long(begin_ns: int, end_ns: int) -> bool:
        """Whether a row ends here."""
        return end_ns - begin_ns + STEP_NS // 2 >= LONGEST_NS

    def _close(self) -> None:
        if self._open:
            self._over.append(self._open)
            self._open = None

    def take(self) -> list[Row]:
        """Those that are over, with what was under pressure meanwhile: the kernel adds that up every other second."""
        if not self._over:
            return []
        over, self._over, self.telling = self._over, [], False
        whole_ns, pressures = sum(row["end_ns"] - row["start_ns"] for row in over), self._process.pressure_ns()
        for row in over:
            length = row["end_ns"] - row["start_ns"]
            shares = (ns * length // max(whole_ns, 1) if ns > 0 else ns for ns in pressures)
            row.update(zip(_PRESSURES, shares, strict=True))
        return over

    def close(self) -> None:
        """Closes its files."""
        self._stops.forget(self._pid)
        self._process.close()


def _columns(load: Load) -> Row:
    return {"throttled_ns": load.throttled_ns, "run_delay_ns": load.run_delay_ns, "cpu_ns": load.cpu_ns}


def _parted(step: Row, begin_ns: int, end_ns: int) -> list[Row]:
    """A step as before, while and after the rank was stopped, while it neither ran nor waited."""
    start_ns, until_ns = step["start_ns"], step["end_ns"]
    awake_ns = until_ns - start_ns - (end_ns - begin_ns)
    if not awake_ns:
        return [step | {"stopped_ns": end_ns - begin_ns}]
    grown = {name: each for name, each in step.items() if name not in ("start_ns", "end_ns", "stopped_ns")}
    parts, ran = list[Row](), 0
    for begin, end, stopped in ((start_ns, begin_ns, 0), (begin_ns, end_ns, 1), (end_ns, until_ns, 0)):
        before, ran = ran, ran + (0 if stopped else end - begin)
        if end > begin:
            own = {n: v if v < 0 else v * ran // awake_ns - v * before // awake_ns for n, v in grown.items()}
            parts.append(own | {"start_ns": begin, "end_ns": end, "stopped_ns": (end - begin) * stopped})
    return parts


def _joined(one: Row, other: Row) -> Row:
    """Of two times, the first right before the other."""
    both = {name: one[name] + other[name] if min(one[name], other[name]) >= 0 else UNKNOWN for name in one}
    return both | {"start_ns": one["start_ns"], "end_ns": other["end_ns"]}
