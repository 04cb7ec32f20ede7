# SPDX-License-Identifier: Apache-2.0
"""The ranks of one host: their marks, their iterations and whose bytes went by meanwhile."""

import logging
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.account import RankAccount, Tally, WindowHistory
from netmon.dl.classify import Windows
from netmon.dl.iterations import Iteration, IterationTracker
from netmon.records import Class, Mark, Moment, Source

_log = logging.getLogger(__name__)
_MOST_ASIDE = 1_000  # marks kept per rank that has not joined
_LONGEST_NEED_NS = 30_000_000_000  # an older open iteration no longer holds back acknowledgements
_LONGEST_HISTORY_NS = 3_600_000_000_000  # of a longer iteration, peak and node_shared are those of its last hour


@dataclass
class _Rank:
    tracker: IterationTracker
    account: RankAccount = field(default_factory=RankAccount)
    ended: list[Iteration] = field(default_factory=list)  # wait until their rows have settled
    pid: int = 0
    joined: dict[Source, int] = field(default_factory=dict)  # when, mono
    left: dict[Source, int] = field(default_factory=dict)

    def gone(self, settled_ns: int) -> bool:
        """Every source that saw the rank join has seen it leave, and all its rows are accounted for."""
        return (
            bool(self.left)
            and self.left.keys() >= self.joined.keys()
            and not self.ended
            and max(self.left.values()) < settled_ns
        )

    def needed_since(self) -> int | None:
        times = [iteration.start_ns for iteration in self.ended]
        open_since = self.tracker.open_since()
        if open_since is not None:
            times.append(open_since)
        elif self.tracker.finished_ns < 0:
            times += self.joined.values()
        return min(times, default=None)


class Ranks:
    """All ranks of one host and session."""

    def __init__(self, host: str, window_ns: int, parameters: int) -> None:
        """Begin without ranks; window_ns: width of a share window; parameters: of models that do not tell theirs."""
        self._parameters = parameters
        self.history = WindowHistory(window_ns)
        self.unusable = 0  # marks that led to nothing
        self.warnings: dict[str, None] = {}  # an ordered set of lines
        self._host = host
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._departed: list[_Rank] = []  # replaced by a new process, with iterations that wait
        self._aside: dict[tuple[str, int], list[Mark]] = {}

    def resume(self, job: str, rank: int, size: int, parameters: int, end_ns: int) -> None:
        """Take up a rank whose iterations up to end_ns are in the dataset."""
        entry = _Rank(IterationTracker(job, rank))
        entry.tracker.size, entry.tracker.parameters = size, parameters
        entry.tracker.resume(end_ns)
        self._ranks[job, rank] = entry

    def mark(self, mark: Mark, settled_ns: int) -> list[Iteration]:
        """Take in a mark; returns the iterations that it ends. Rows before settled_ns have been added."""
        key = mark.job, mark.rank
        if mark.moment == Moment.JOIN:
            self._join(mark)
            waiting = self._aside.pop(key, [])
            return [done for early in [mark, *waiting] for done in self._apply(self._ranks[key], early, settled_ns)]
        if key not in self._ranks:
            self._keep_aside(mark)
            return []
        return self._apply(self._ranks[key], mark, settled_ns)

    def _join(self, mark: Mark) -> None:
        key = mark.job, mark.rank
        entry = self._ranks.get(key)
        if entry and entry.pid and mark.pid and entry.pid != mark.pid:
            entry.ended += entry.tracker.finished(leaving=True)
            self._departed.append(entry)
            entry = None
        if entry is None:
            entry = self._ranks[key] = _Rank(IterationTracker(*key))
        entry.pid = mark.pid or entry.pid
        entry.joined[mark.source] = mark.time_ns
        entry.left.pop(mark.source, None)

    def _keep_aside(self, mark: Mark) -> None:
        aside = self._aside.setdefault((mark.job, mark.rank), [])
        self.unusable += 1
        if not aside:
            self.warn(f"marks of rank {mark.rank} of job {mark.job!r} on {self._host} are kept aside: it never joined")
        if len(aside) < _MOST_ASIDE:
            aside.append(mark)

    def _apply(self, entry: _Rank, mark: Mark, settled_ns: int) -> list[Iteration]:
        unusable = entry.tracker.unusable
        entry.tracker.add(mark)
        # A mark that the tracker passes over has been heard before, as after a reconnection: no moment of the account.
        heard = entry.tracker.unusable > unusable or mark.moment == Moment.JOIN
        if mark.moment == Moment.LEAVE:
            entry.left[mark.source] = mark.time_ns
        elif not heard and not entry.account.cut(mark.time_ns, settled_ns):
            self._late(mark)
        ended = entry.tracker.finished(leaving=mark.moment == Moment.LEAVE)
        entry.ended += ended
        self.unusable += entry.tracker.unusable - unusable
        return ended

    def _late(self, mark: Mark) -> None:
        # The last wait of a step bounds an iteration only where nothing follows; its lateness costs no other one.
        if mark.moment != Moment.LAST_WAIT:
            self.warn(
                f"marks of rank {mark.rank} of job {mark.job!r} on {self._host} came after their rows had settled; "
                "bytes near the iteration's edges may count to its neighbour: raise --settle"
            )

    def warn(self, line: str) -> None:
        """Log a line and keep it for viewers, once."""
        if line not in self.warnings:
            self.warnings[line] = None
            _log.warning(line)

    def add(
        self,
        start_ns: npt.NDArray[np.int64],
        classes: npt.NDArray[np.uint8],
        direction: npt.NDArray[np.int64],
        payload_bytes: npt.NDArray[np.int64],
        owner: list[npt.NDArray[np.bool_]],
        windows: Windows,
    ) -> None:
        """Add settled rows, arrays of one length; owner: as `owners` gives it."""
        self.history.add(windows)
        dl = (classes == Class.DL_ONLY) | (classes == Class.DL_SHARED)
        for entry, own in zip(self._ranks.values(), owner, strict=True):
            rows = own | ~dl
            entry.account.add(start_ns[rows], classes[rows], direction[rows], payload_bytes[rows])

    def names(self) -> list[tuple[str, int]]:
        """(job, rank) of each rank, in the order that the other methods use."""
        return list(self._ranks)

    def numbers_at(self, place: int, start_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Iteration of the place-th rank at each time; −1 between iterations."""
        return list(self._ranks.values())[place].tracker.numbers_at(start_ns)

    def settle(self, settled_ns: int) -> list[tuple[Iteration, Tally]]:
        """The iterations whose rows have all been added, with their account."""
        settled = []
        for entry in [*self._departed, *self._ranks.values()]:
            due = [iteration for iteration in entry.ended if iteration.end_ns <= settled_ns]
            entry.ended = [iteration for iteration in entry.ended if iteration.end_ns > settled_ns]
            for iteration in due:
                first, last = entry.tracker.communication(iteration.start_ns, iteration.end_ns)
                tally = entry.account.tally(iteration.start_ns, iteration.end_ns, self.history)
                parameters = iteration.parameters or self._parameters
                whole = replace(iteration, comm_start_ns=first, comm_end_ns=last, parameters=parameters)
                settled.append((whole, tally))
        self._forget(settled_ns)
        return settled

    def _forget(self, settled_ns: int) -> None:
        self._departed = [entry for entry in self._departed if entry.ended]
        self._ranks = {key: entry for key, entry in self._ranks.items() if not entry.gone(settled_ns)}
        oldest = settled_ns
        for entry in self._ranks.values():
            needed = entry.needed_since()
            before = settled_ns if needed is None else min(settled_ns, needed)
            entry.tracker.forget(before)
            entry.account.forget(before)
            oldest = min(oldest, before)
        for entry in self._departed:
            oldest = min(oldest, *(iteration.start_ns for iteration in entry.ended))
        self.history.forget(max(oldest, settled_ns - _LONGEST_HISTORY_NS))

    def end_of_stream(self) -> list[Iteration]:
        """No more marks will come: returns the iterations that this ends."""
        ended = []
        for entry in self._ranks.values():
            last = entry.tracker.finished(leaving=True)
            entry.ended += last
            ended += last
        return ended

    def needed_since(self, horizon_ns: int) -> int | None:
        """Start of the earliest iteration that is still open, unless it is too old to wait for (mono ns)."""
        entries = [*self._departed, *self._ranks.values()]
        times = [time for time in (entry.needed_since() for entry in entries) if time is not None]
        return min((time for time in times if time > horizon_ns - _LONGEST_NEED_NS), default=None)
