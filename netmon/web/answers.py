# SPDX-License-Identifier: Apache-2.0
"""What a page says first: how each job is doing, who slows it, and the steps of one job with their causes."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.hangs import line as hang_line
from netmon.dl.verdict.baseline import MOST, Durations, usual
from netmon.dl.verdict.incidents import Incidents, line, remedy, who
from netmon.views import NETWORK, Cause, Incident, RankPair, Verdict
from netmon.web.source import JOB, Catalogue, Source
from netmon.web.steps import Lanes

_AGAIN_S = 0.5
_S = 1_000_000_000
_HOUR_NS = 3_600_000_000_000
_MOST_JOBS = 12  # that are shown one by one
_MOST_SHOWN = 300  # incidents
_MOST_PAIRS = 64  # of ranks
_MOST_BARS = 1_200
_MOST_GONE = 5_000  # verdicts that the source has no more, and that are known here
_MOST_FOUND = 20
_MARK = "\x1f"  # stands around times in a line


class _Step(NamedTuple):
    number: int
    end_ns: int
    duration_ns: int
    usual_ns: int  # 0: not known


def _pair(pair: RankPair) -> dict[str, Any]:
    """What is not known is null."""
    return {name: value if value == value else None for name, value in asdict(pair).items()}


class Answers:
    """Of one source. Any thread may ask; the source is looked at twice a second at most, whoever asks."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._incidents: dict[str, Incidents] = {}  # by what people call the job
        self._verdicts: dict[tuple[str, int], list[Verdict]] = {}  # by job and step: one may begin anew
        self._known = 0  # verdicts
        self._count = -1
        self._found: list[Incident] = []  # oldest first
        self._version = 0
        self._jobs: dict[str, Any] = {}
        self._requested_s = -_AGAIN_S
        self._lock = threading.Lock()

    def jobs(self) -> dict[str, Any]:
        """The jobs that are worst off, how many there are, and the version of what `incidents` tells."""
        with self._lock:
            if time.monotonic() - self._requested_s >= _AGAIN_S:
                self._update()
                self._requested_s = time.monotonic()
            return self._jobs

    def incidents(self, shown: Callable[[Incident], Incident]) -> dict[str, Any]:
        """The newest, newest first. shown: what of one the viewer may see."""
        with self._lock:
            found, version = self._found, self._version
        newest = found[: -_MOST_SHOWN - 1 : -1]
        return {"version": version, "all": len(found), "incidents": [_document(shown(one)) for one in newest]}

    def _update(self) -> None:
        state, catalogue = self._source.state(), self._source.catalogue()
        if state.verdicts != self._count:
            self._count = state.verdicts
            self._take(self._source.verdicts())
        steps, _ = self._source.steps(state.end_ns - _HOUR_NS, state.end_ns + 1)
        newest = {name: self._newest(steps, name, at, catalogue) for name, at in job_lanes(catalogue).items()}
        found: list[Incident] = []
        rows = []
        for name in {**newest, **self._incidents}:
            step = newest.get(name)
            own = self._incidents.get(name, Incidents())
            own_found = own.found(step.end_ns, step.number, state.end_ns) if step and state.live else own.found()
            found += own_found
            if step is not None:
                rows.append(self._row(name, step, own_found, state.end_ns if state.live else 0))
        found.sort(key=lambda one: one.since_ns)
        if found != self._found:
            self._found, self._version = found, self._version + 1
        unclear = set(catalogue.not_understood)
        rows = [{**row, "not_understood": row["name"] in unclear} for row in rows]
        rows.sort(key=lambda row: (row["incident"] is None, not row["ongoing"], -row["lost_ns"]))
        slow = sum(row["ongoing"] for row in rows)
        self._jobs = {"jobs": rows[:_MOST_JOBS], "all": len(rows), "slow": slow, "incidents": self._version}
        self._jobs["pairs"] = [
            {"job": job, "pairs": [_pair(pair) for pair in pairs[:_MOST_PAIRS]], "all": len(pairs)}
            for job, pairs in sorted(state.pairs.items())[:_MOST_JOBS]
        ]
        self._jobs["hangs"] = [_pieces(hang_line(hang, _marked)) for hang in state.hangs[:_MOST_JOBS]]

    def _row(self, name: str, step: _Step, found: Sequence[Incident], now_ns: int) -> dict[str, Any]:
        """now_ns: 0 where nothing goes on."""
        worst = max(found, key=lambda one: (one.ongoing, one.lost_ns), default=None)
        return {
            "name": name,
            "number": step.number,
            "last_ns": step.duration_ns,
            "usual_ns": step.usual_ns,
            "end_ns": str(step.end_ns),
            "silent_ns": max(0, now_ns - step.end_ns - 10 * max(step.usual_ns, 3_000_000_000)),
            "lost_ns": sum(one.lost_ns for one in found),
            "incidents": len(found),
            "ongoing": worst is not None and worst.ongoing,
            "incident": None if worst is None else _key(worst),
        }

    def _take(self, verdicts: Sequence[Verdict]) -> None:
        """Those that are new; all anew where many have gone."""
        if len(verdicts) < self._known // 2 or len(verdicts) < self._known - _MOST_GONE:
            self._incidents, self._verdicts, self._known = {}, {}, 0
        for verdict in verdicts:
            same = self._verdicts.setdefault((verdict.job, verdict.iteration), [])
            if all(one.start_ns != verdict.start_ns for one in same):
                same.append(verdict)
                self._known += 1
                self._incidents.setdefault(verdict.job, Incidents()).add(verdict)

    def steps(self, number: int) -> list[dict[str, Any]]:
        """Those of this number that are known of each job, newest first."""
        state = self._source.state()
        known, _ = self._source.steps(state.end_ns - _HOUR_NS, state.end_ns + 1)
        found = [
            (int(one.end_ns[row]), int(one.bounds[row, 0]), job)
            for job, at in job_lanes(self._source.catalogue()).items()
            for one in known
            for row in (
                int(one.first[at]) + np.flatnonzero(one.number[one.first[at] : one.last[at]] == number)
            ).tolist()
        ]
        found.sort(reverse=True)
        return [
            {"job": job, "iteration": number, "start_ns": str(start), "end_ns": str(end)}
            for end, start, job in found[:_MOST_FOUND]
        ]

    def bars(self, job: str, begin_ns: int, end_ns: int) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """The steps of a job that touch a time: head and columns. Of too many, the slowest of each piece of time.

        job: what people call it.
        """
        self.jobs()
        catalogue = self._source.catalogue()
        at = job_lanes(catalogue).get(job, -1)
        steps, pending = self._source.steps(begin_ns, end_ns)
        own = _JobSteps.of(steps if at >= 0 else (), at, begin_ns, end_ns)
        drawn = _slowest(own, begin_ns, end_ns)
        said = _said(catalogue, at)
        usual_ns = np.full(len(drawn), said) if said else own.usual_ns(drawn, self._changes(job))
        cause = np.full(len(drawn), 255, np.uint8)
        for row, (start_ns, number) in enumerate(zip(own.start_ns[drawn], own.number[drawn].tolist(), strict=True)):
            for verdict in self._verdicts.get((job, number), ()):
                if abs(verdict.start_ns - start_ns) < verdict.duration_ns:
                    cause[row], usual_ns[row] = verdict.cause, verdict.usual_ns or usual_ns[row]
        return {"job": job, "pending": pending}, {
            "start_ns": (own.start_ns[drawn] - begin_ns).astype(np.float64),
            "took_ns": own.took_ns[drawn].astype(np.float64),
            "number": own.number[drawn].astype(np.float64),
            "cause": cause,
            "usual_ns": np.where(usual_ns > 0, usual_ns, np.nan),
        }

    def _changes(self, job: str) -> list[int]:
        """When the job has changed its pace."""
        known = (one for (name, _), same in self._verdicts.items() if name == job for one in same)
        return sorted(one.start_ns for one in known if one.cause == Cause.CHANGE)

    def _newest(self, steps: Sequence[Lanes], job: str, lane: int, catalogue: Catalogue) -> _Step | None:
        """The last step of a job; None: there is none."""
        ends = (int(one.end_ns[one.last[lane] - 1]) for one in steps if one.last[lane] > one.first[lane])
        newest_ns = max(ends, default=0)
        own = _JobSteps.of(steps, lane, newest_ns - 1, newest_ns)
        if not len(own.number):
            return None
        last = int(own.end_ns.argmax())
        usual_ns = _said(catalogue, lane) or int(own.usual_ns(np.array([last]), self._changes(job))[0])
        return _Step(int(own.number[last]), int(own.end_ns[last]), int(own.took_ns[last]), usual_ns)


class _JobSteps(NamedTuple):
    """Of one job: the steps that touch a time, and those around them that they may be compared with."""

    start_ns: npt.NDArray[np.int64]  # ascending
    end_ns: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    whole: npt.NDArray[np.bool_]
    shared: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, steps: Sequence[Lanes], lane: int, begin_ns: int, end_ns: int) -> "_JobSteps":
        pieces = [np.zeros((5, 0), np.int64)]
        for one in steps:
            rows = one.of(lane, begin_ns, end_ns)
            around = slice(max(int(one.first[lane]), rows.start - MOST), min(int(one.last[lane]), rows.stop + MOST))
            columns = one.bounds[around, 0], *(c[around] for c in (one.end_ns, one.number, one.whole, one.shared))
            pieces.append(np.stack([column.astype(np.int64) for column in columns]))
        found = np.concatenate(pieces, axis=1)
        start, end, number, whole, shared = found[:, np.argsort(found[0], kind="stable")]
        return cls(start, end, number, whole > 0, shared > 0)

    @property
    def took_ns(self) -> npt.NDArray[np.int64]:
        return self.end_ns - self.start_ns

    def usual_ns(self, rows: npt.NDArray[np.intp], changes: Sequence[int]) -> npt.NDArray[np.int64]:
        """How long some of them usually take; 0: not known. changes: when the job has changed its pace."""
        pace, found = np.searchsorted(changes, self.start_ns, "right"), np.zeros(len(rows), np.int64)
        anew = (np.flatnonzero(np.diff(self.number) < -1) + 1).tolist()
        for first, last in pairwise([0, *anew, len(self.number)]):
            run, own = slice(first, last), np.flatnonzero((rows >= first) & (rows < last))
            took = self.took_ns[run].astype(np.float64)
            found[own] = usual(Durations(took, self.whole[run], self.shared[run], pace[run]), rows[own] - first)
        return found


def _said(catalogue: Catalogue, lane: int) -> int:
    """How long a job's last step usually takes, as its collector says; 0: it does not."""
    return catalogue.usual_ns.get(catalogue.lanes[lane].job, 0) if lane >= 0 else 0


def job_lanes(catalogue: Catalogue) -> dict[str, int]:
    """The lane of each job, by what people call it."""
    names = catalogue.job_names
    return {names.get(lane.job, lane.job): at for at, lane in enumerate(catalogue.lanes) if lane.kind == JOB}


def _slowest(own: _JobSteps, begin_ns: int, end_ns: int) -> npt.NDArray[np.intp]:
    """The rows of those that touch a time; of more than can be drawn, the slowest of each piece of it."""
    rows = np.flatnonzero((own.end_ns > begin_ns) & (own.start_ns < end_ns))
    if len(rows) <= _MOST_BARS:
        return rows
    piece = (own.start_ns[rows] - begin_ns) // max(1, -(-(end_ns - begin_ns) // _MOST_BARS))
    order = np.lexsort((own.took_ns[rows], piece))
    last = np.diff(piece[order], append=-(1 << 62)) != 0
    slowest: npt.NDArray[np.intp] = rows[order[last]]
    return slowest


def _key(incident: Incident) -> str:
    """By which a page knows one again, also when it has grown."""
    return f"{incident.since_ns}-{incident.first}-{_plain(incident.job)}"


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _marked(utc_ns: int) -> str:
    return f"{_MARK}{utc_ns // _S * _S}{_MARK}"


def _pieces(text: str) -> list[str]:
    """Every second one is a time."""
    return [_plain(piece) for piece in text.split(_MARK)]


def _document(incident: Incident) -> dict[str, Any]:
    one = replace(
        incident,
        job=_plain(incident.job),
        culprit=_plain(incident.culprit),
        culprit_user=_plain(incident.culprit_user),
        sender=_plain(incident.sender),
        receiver=_plain(incident.receiver),
    )
    return {
        "key": _key(one),
        "job": one.job,
        "since_ns": str(one.since_ns),
        "until_ns": str(one.until_ns),
        "line": _pieces(line(one, _marked)),
        "who": who(one),
        "do": remedy(one),
        "cause": one.cause.name.lower(),
        "network": one.cause in NETWORK,
        "changed": one.cause == Cause.CHANGE,
        "sender": one.sender,
        "receiver": one.receiver or one.host,
        "rank": one.rank,
        "steps": one.steps,
        "worst": one.worst,
        "lost_ns": one.lost_ns,
        "ratio": one.ratio,
        "confidence": one.confidence,
        "ongoing": one.ongoing,
    }
