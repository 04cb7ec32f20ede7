# SPDX-License-Identifier: Apache-2.0
"""Verdicts compared with the truth.

Of an injection, the iteration counts that it made longest by the trainers' own log; of one that lasts for LASTING_NS,
each that it made long counts. One that another injection met, too, is no measure of either. No verdict is requested
where it is not known to be the injection's doing:

* it took less than SCORED_FROM × the baseline, or one of twenty undisturbed iterations took as long; where ranks do not
  exchange as much in each, less than that with the bytes of a typical one;
* it took longer by less than SCATTERS times what the shorter half of these differs by, but of the network's causes;
* a rank computed longer before its first gradient, by half of what it took longer and its own log, and the network was
  disturbed;
* a rank was kept from a CPU for half of what it took longer and nothing was done to its CPUs, or was not where
  something was.

Then a verdict that is right does not count, one that blames the network for what was something else does. Of a change
that lasts, the iteration counts with which it began, and how long those from there on took in the median. Of a slow or
lossy link, either end is the right culprit: bytes and retransmissions at the ends do not show where between them it
was. Verdicts are matched by time, not by number. Every verdict counts for whether it accuses: the network is accused
falsely where nothing of the network's was injected while the iteration lasted, nor, of the same cause, while the one
before did: what is lost then, also because a link was slowed, is sent again in the next one. Of lost packets that
nobody brought about TCP is the witness, as where ranks that exchange with all others fill a switch's queue: they were
there if its timers ran out on the ranks' hosts in that iteration more often than in nearly all undisturbed ones that
are too short for one of 200 ms, by the kernel's count. Such a verdict is no false accusation; it is counted for itself,
and the iteration is no measure of what else was done to it.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.host_part import KEPT, within
from netmon.dl.verdict.incidents import incidents
from netmon.dl.verdict.judge import SCATTERS
from netmon.dl.verdict.verdict_text import from_columns
from netmon.errors import DataError, NoRowsError
from netmon.history.dataset import open_table, stream
from netmon.history.judging import read_waited
from netmon.lab.injections.spec import CAUSES, NETWORK
from netmon.lab.record import Truth
from netmon.views import Cause, Incident, Verdict

SCORED_FROM = 1.3
"""Of an iteration that takes so many times the baseline there has to be a verdict; there may be one from 1.2 on."""

OFTEN = 0.95
"""Of the iterations that nothing was done to. What is no longer than these now and then are shows no cause."""

NOTHING = "nothing"
"""In the place of a cause: none was injected, or there is no verdict."""

CHANGE = "change"
RIGHT, WRONG_CAUSE, WRONG_CULPRIT, MISSED, NO_EFFECT = "right", "wrong cause", "wrong culprit", "missed", "no effect"
LASTING_NS = 2_000_000_000
_LATER = {cause: (cause,) for cause in CAUSES.values()} | {"slow_link": ("slow_link", "loss")}
"""What may be said of the next iteration: the queue before a slowed link overflows, and that is sent again later."""

_MOSTLY = 0.5  # of what an iteration took longer
_AFTER_NS = 1_000_000  # of an injection's end, for clocks and what was on its way
_TIMER_NS = 150_000_000  # longer than the shortest: TCP's timer may have run, 200 ms of it

VerdictRow = Mapping[str, Any]
"""A verdict, as `netmon why --json` has it."""


@dataclass(frozen=True)
class Outcome:
    """One injection, or an iteration of one that lasted, and its verdict. Times in ns."""

    ALSO = ("share_error",)
    run: str
    trainer: str
    kind: str
    cause: str  # NOTHING: nothing was done
    judged: str  # a cause; NOTHING: no verdict
    outcome: str  # RIGHT, …
    at_ns: int  # UTC, when it began
    baseline_ns: float
    excess_ns: float  # of the iteration that it made longest, beyond what it takes with the bytes it exchanged
    judged_share_ns: float | None  # of the same iteration, that was given to this cause
    judged_after_ns: int | None  # the iteration's end
    injection: Mapping[str, Any]
    verdict: VerdictRow | None
    undisturbed_ns: float = 0.0  # what OFTEN of the iterations take at most that nothing was done to

    @property
    def share_error(self) -> float | None:
        """|reported − true| / true, where the cause was reported."""
        known = self.judged_share_ns is not None and self.judged == self.cause and self.excess_ns > 0
        return abs(float(self.judged_share_ns or 0) - self.excess_ns) / self.excess_ns if known else None


@dataclass(frozen=True)
class Accusation:
    """A verdict that blames the network for an iteration to which it did nothing."""

    run: str
    trainer: str
    injected: tuple[str, ...]  # kinds that were under way
    verdict: VerdictRow
    lost: bool = False  # packets, as the verdict says: nobody brought it about, and it was there


def why(data: Path, job: str) -> list[dict[str, Any]]:
    """What `netmon why --data DATA --json` says, as a user sees it. job: "" for all. Raises DataError."""
    command = [sys.executable, "-m", "netmon", "why", *([job] if job else []), "--data", str(data), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DataError(f"cannot judge {data}: {(done.stderr.strip().splitlines() or ['it ended'])[-1]}")
    verdicts: list[dict[str, Any]] = json.loads(done.stdout)["verdicts"]
    return verdicts


def stored(data: Path) -> list[dict[str, Any]]:
    """The verdicts that the collector stored during the training."""
    try:
        table = open_table(data, "verdicts")
    except NoRowsError:
        return []
    columns = [name for name in table.schema.names if name != "date"]
    return [row for batch in stream(table, columns) for row in batch.to_pylist()]


def kept_from_cpus(data: Path, truth: Truth) -> dict[int, npt.NDArray[np.float64]]:
    """By rank, of each iteration: for how long (ns) it waited for a CPU, or was throttled, beyond what it usually was.

    Raises DataError.
    """
    spans = np.stack([truth.start_ns, truth.end_ns], axis=1)
    rows = read_waited(data, truth.job, int(spans.min()) - LASTING_NS, int(spans.max()))
    if rows is None:
        return {}
    found = {}
    for rank in np.unique(rows["rank"]).tolist():
        kept = np.sum([within(rows[rows["rank"] == rank], name, spans) for name in KEPT], axis=0)
        found[rank] = kept - np.median(kept)
    return found


def score(
    run: str,
    truth: Truth,
    verdicts: Sequence[VerdictRow],
    kept: Mapping[int, npt.NDArray[np.float64]] | None = None,
) -> tuple[list[Outcome], list[Accusation]]:
    """kept: kept_from_cpus."""
    of_job = [each for each in verdicts if each["job"] == truth.job]
    outcomes = [
        _outcome(run, truth, each, hit, of_job, kept or {})
        for each in truth.injections
        for hit in _counted(truth, each)
    ]
    return outcomes, accused(run, truth, of_job)


def accused(run: str, truth: Truth, verdicts: Iterable[VerdictRow], without: Collection[int] = ()) -> list[Accusation]:
    """Verdicts that blame the network where nobody had done anything to it. without: iterations that are left out."""
    wrong = (_accused(run, truth, each) for each in verdicts if each["iteration"] not in without)
    return [each for each in wrong if each]


def _counted(truth: Truth, injection: Mapping[str, Any]) -> list[int]:
    """The iterations that count; −1: it met none."""
    hit = truth.hit(dict(injection))
    if injection["cause"] != CHANGE:
        others = (one for one in truth.injections if one is not injection and one["cause"] not in ("", CHANGE))
        hit = np.setdiff1d(hit, np.concatenate([hit[:0], *(truth.hit(dict(one)) for one in others)]))
    if not len(hit):
        return [-1]
    if injection["cause"] == CHANGE:  # it begins between two iterations: not the one that ends then
        middle = truth.end_ns[hit] - truth.lasted_ns[hit] // 2
        return hit[middle > injection["start_ns"]][:1].tolist()  # type: ignore[no-any-return]
    least = max(SCORED_FROM * truth.median_ns, float(np.quantile(truth.undisturbed, OFTEN)) + 1)
    lasts = (injection["end_ns"] or int(truth.end_ns[-1])) - injection["start_ns"] >= LASTING_NS
    long = hit[truth.as_much_ns[hit] >= least] if lasts else hit[:0]
    counted: list[int] = (long if len(long) else hit[[truth.as_much_ns[hit].argmax()]]).tolist()
    return counted


def _outcome(
    run: str,
    truth: Truth,
    injection: Mapping[str, Any],
    iteration: int,
    verdicts: Sequence[VerdictRow],
    kept: Mapping[int, npt.NDArray[np.float64]],
) -> Outcome:
    baseline, undisturbed = truth.median_ns, float(np.quantile(truth.undisturbed, OFTEN))
    lasted = as_much = baseline
    if iteration >= 0:
        rows = truth.hit(dict(injection)) if injection["cause"] == CHANGE else [iteration]
        lasted, as_much = (float(np.median(each[rows])) for each in (truth.lasted_ns, truth.as_much_ns))
    verdict = _of_iteration(truth, iteration, verdicts) if iteration >= 0 else None
    cause = injection["cause"] or NOTHING
    said = verdict["cause"] if verdict else NOTHING
    share = float(verdict.get(share_of(cause), 0) or 0) if verdict and cause != NOTHING else None
    after = int(verdict["reported_ns"]) - int(verdict["end_ns"]) if verdict and verdict.get("reported_ns") else None
    stands_out = min(lasted, as_much) >= SCORED_FROM * baseline and lasted > undisturbed
    differ = 0.0 if cause in NETWORK else SCATTERS * (baseline - float(np.quantile(truth.undisturbed, 0.16)))
    stands_out &= as_much - baseline >= differ
    stands_out &= _by_cpus(injection, iteration, kept, as_much - baseline)
    if cause in NETWORK and iteration >= 0:
        stands_out &= float(truth.computed_more_ns[iteration]) < _MOSTLY * (as_much - baseline)
    lost = verdict is not None and cause not in NETWORK and _was_lost(truth, verdict)
    return Outcome(
        *(run, truth.trainer, injection["kind"], cause, said),
        NO_EFFECT if lost else judged(cause, said, stands_out, injection, verdict),
        *(int(injection["start_ns"]), baseline, as_much - baseline, share, after),
        injection,
        verdict,
        undisturbed,
    )


def _by_cpus(
    injection: Mapping[str, Any], iteration: int, kept: Mapping[int, npt.NDArray[np.float64]], excess_ns: float
) -> bool:
    """Whether it fits what was done that ranks were kept from CPUs for most of the excess."""
    if not kept or iteration < 0:
        return True
    if injection["cause"] == "host":
        return injection["rank"] not in kept or kept[injection["rank"]][iteration] >= _MOSTLY * excess_ns
    return all(each[iteration] < _MOSTLY * excess_ns for each in kept.values())


def judged(cause: str, said: str, stands_out: bool, injection: Mapping[str, Any], verdict: VerdictRow | None) -> str:
    """What a verdict is worth. said: its cause; NOTHING where there is none."""
    if cause == NOTHING:
        return WRONG_CAUSE if said in NETWORK else RIGHT  # the machine is not idle: something may be slow all the same
    if not stands_out:
        return WRONG_CAUSE if said in NETWORK and cause not in NETWORK else NO_EFFECT
    if verdict is None:
        return MISSED
    if said != cause:
        return WRONG_CAUSE
    return RIGHT if right_culprit(injection, verdict) else WRONG_CULPRIT


def right_culprit(injection: Mapping[str, Any], verdict: VerdictRow) -> bool:
    """Whether it names who it was, or where: the program, the job, the rank or the host."""
    named, cause = str(verdict.get("culprit") or ""), injection["cause"]
    if cause == "cross":
        return any(program in named for program in injection["processes"]) and verdict["host"] in injection["hosts"]
    if cause == "other_job":
        return str(injection["job"]) in named
    if cause == "own_transfer":
        whose = any(f"{program} (rank {injection['rank']}) " in named for program in injection["processes"])
        return whose and named.endswith(f" {injection['far']}") and verdict["host"] in injection["hosts"]
    if cause == "straggler":
        return bool(verdict["rank"] == injection["rank"])
    if cause in ("loss", "slow_link"):
        return verdict["host"] in (injection["host"], *injection.get("other_ends", ()))
    if cause == "host":
        return bool(verdict["host"] == injection["host"])
    return True


def _of_iteration(truth: Truth, iteration: int, verdicts: Sequence[VerdictRow]) -> VerdictRow | None:
    """The verdict that shares the most time with a logged iteration, at least half of its own."""
    start, end = int(truth.start_ns[iteration]), int(truth.end_ns[iteration])
    shared = [min(end, int(each["end_ns"])) - max(start, int(each["start_ns"])) for each in verdicts]
    best = int(np.argmax(shared)) if shared else -1
    return verdicts[best] if best >= 0 and 2 * shared[best] > int(verdicts[best]["duration_ns"]) else None


def _accused(run: str, truth: Truth, verdict: VerdictRow) -> Accusation | None:
    if verdict["cause"] not in NETWORK:
        return None
    before_ns = int(truth.start_ns[max(0, int(np.searchsorted(truth.start_ns, verdict["start_ns"], "right")) - 2)])
    under_way = [
        each
        for each in truth.injections
        if each["start_ns"] < verdict["end_ns"]
        and (each["end_ns"] or np.iinfo(np.int64).max) + _AFTER_NS
        > (before_ns if verdict["cause"] in _LATER[each["cause"]] else verdict["start_ns"])
    ]
    if any(each["cause"] in NETWORK for each in under_way):
        return None
    kinds = tuple(each["kind"] for each in under_way)
    return Accusation(run, truth.trainer, kinds, verdict, _was_lost(truth, verdict))


def _was_lost(truth: Truth, verdict: VerdictRow) -> bool:
    """Whether it tells of lost packets that TCP knows of."""
    if verdict["cause"] != "loss" or truth.timeouts is None:
        return False
    middle = (int(verdict["start_ns"]) + int(verdict["end_ns"])) // 2
    there = truth.timeouts[int(np.searchsorted(truth.start_ns, middle, "right")) - 1]
    short = truth.timeouts[truth.quiet & (truth.lasted_ns < truth.undisturbed.min() + _TIMER_NS)]
    return bool(there > np.quantile(short, OFTEN))


# --- Incidents: what the verdicts on steps have in common, compared with what was done to these steps.


@dataclass(frozen=True)
class IncidentsFound:
    """Incidents as the injections make them by the rules of netmon.dl.verdict.incidents, and how many were found."""

    made: int = 0
    right: int = 0  # with their cause and culprit
    within_a_step: int = 0  # of those, that begin and end where they do, or a step away
    lasting: int = 0  # of more than one step
    lasting_right: int = 0

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "IncidentsFound":
        """Of the injections with a known effect: those with a requested verdict, and those with the right verdict."""
        true: dict[str, list[Verdict]] = {}
        judged: dict[str, list[Verdict]] = {}
        for each in outcomes:
            if each.verdict:
                judged.setdefault(each.run, []).append(replace(from_columns(each.verdict), job=each.run))
            effect = each.outcome != NO_EFFECT or each.judged == each.cause
            if each.cause != NOTHING and effect:
                true.setdefault(each.run, []).append(_as_verdict(each))
        result = cls()
        for run, own in true.items():
            found = incidents(judged.get(run, ()))
            for one in incidents(own):
                result = result._with(one, [each for each in found if _same(one, each)])
        return result

    def _with(self, one: Incident, found: Sequence[Incident]) -> "IncidentsFound":
        step_ns = one.baseline_ns + one.lost_per_step_ns
        distance = (max(abs(one.since_ns - each.since_ns), abs(one.until_ns - each.until_ns)) for each in found)
        near = min(distance, default=step_ns + 1) <= step_ns
        return IncidentsFound(
            self.made + 1,
            self.right + bool(found),
            self.within_a_step + near,
            self.lasting + (one.steps > 1),
            self.lasting_right + (one.steps > 1 and bool(found)),
        )


def _as_verdict(each: Outcome) -> Verdict:
    """What should have been said of the step."""
    cause, of = Cause[each.cause.upper()], each.injection
    if each.verdict and each.judged == each.cause and right_culprit(of, each.verdict):
        return replace(from_columns(each.verdict), job=each.run)
    culprit = f"rank {of['rank']}" if cause in (Cause.STRAGGLER, Cause.HOST) else next(iter(of["processes"]), "")
    if each.verdict:
        return replace(from_columns(each.verdict), job=each.run, cause=cause, culprit=culprit)
    took = round(each.baseline_ns + each.excess_ns)
    times = each.at_ns, each.at_ns + took, took, round(each.baseline_ns), round(each.excess_ns)
    return Verdict(each.run, -1, *times, cause, culprit)


def _same(one: Incident, other: Incident) -> bool:
    whose = (one.cause, one.culprit) == (other.cause, other.culprit)
    return whose and one.since_ns < other.until_ns and other.since_ns < one.until_ns


def share_of(cause: str) -> str:
    """The column of a verdict that has a cause's share of the delay."""
    return {"straggler": "late_ns"}.get(cause, f"{cause}_ns")


def percentile(values: Sequence[float], share: float) -> float | None:
    """Linear interpolation between values; None if there are none."""
    numbers: npt.NDArray[np.float64] = np.array(values, np.float64)
    return float(np.percentile(numbers, share)) if len(numbers) else None


def percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
