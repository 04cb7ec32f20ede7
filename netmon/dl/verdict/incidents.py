# SPDX-License-Identifier: Apache-2.0
"""Incidents: what the verdicts on a job's slow steps have in common, so that one line says it.

The rules:

- A slow step belongs to the incident of its job that has its cause and its culprit, if no more than GAP_STEPS other
  steps, or GAP_NS, lie between them; else it begins one.
- A step of which the cause is not known belongs to the incident that it touches (by the same gap), if there is one.
- A step that alone has its cause and culprit, and touches a longer incident whose cause has a quarter of
  the step's excess or more, is one of that incident: its verdict only weighs two causes differently.
- A change of the job's pace is an incident of its own, of one step.
- Incidents of one cause and culprit that touch each other after that are one.
- The lost time is the sum of the steps' excess over their baselines; its parts are the sums of the verdicts' shares,
  which show an incident with more than one cause.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from netmon.dl.account import JOB
from netmon.dl.verdict.verdict_text import place
from netmon.units import format_duration
from netmon.views import CAUSES, OF_SHARE, SHARES, Cause, Incident, LostTime, Verdict

GAP_STEPS = 3
GAP_NS = 5_000_000_000
LATELY_NS = 60_000_000_000
"""Incidents of a recording whose last step is older have ended."""

MOST = 1_000
"""Incidents of a job that are remembered while it runs: the newest."""

_QUARTER, _WORTH_NAMING = 0.25, 0.01
_LATE_NS = 60_000_000_000  # after newer ones a step may still be judged
_LEAST_NS = 1_000  # of a part: less is what rounding left
_MOSTLY = 0.75  # of what was lost: a part as large is named alone


@dataclass(eq=False)
class _Run:
    """An incident that grows."""

    job: str
    cause: Cause
    culprit: str
    since_ns: int
    until_ns: int
    first: int
    last: int
    relative: bool
    worst: Verdict  # that lost most
    steps: int = 0
    lost_ns: int = 0
    baseline_ns: int = 0  # sums over its steps, as the others
    without_ns: int = 0
    without_steps: int = 0
    sure: float = 0.0  # confidence × what was lost
    shares: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, verdict: Verdict) -> "_Run":
        run = cls(
            *(verdict.job, verdict.cause, verdict.culprit, verdict.start_ns, verdict.end_ns),
            *(verdict.iteration, verdict.iteration, verdict.relative, verdict),
        )
        run.add(verdict)
        return run

    def add(self, verdict: Verdict) -> None:
        self._extend(verdict.start_ns, verdict.end_ns, verdict.iteration, verdict.iteration)
        self.steps += 1
        self.lost_ns += verdict.excess_ns
        self.baseline_ns += verdict.baseline_ns
        self.sure += verdict.confidence * verdict.excess_ns
        if verdict.counterfactual_ns >= 0:
            self.without_ns += verdict.counterfactual_ns
            self.without_steps += 1
        for name in SHARES:
            self.shares[name] += getattr(verdict, f"{name}_ns")
        alike = verdict.cause == self.cause
        if (alike, verdict.excess_ns) > (self.worst.cause == self.cause, self.worst.excess_ns):
            self.worst = verdict

    def take(self, other: "_Run") -> None:
        """Merge the other incident's steps into this one."""
        self._extend(other.since_ns, other.until_ns, other.first, other.last)
        for name in ("steps", "lost_ns", "baseline_ns", "without_ns", "without_steps", "sure"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.shares.update(other.shares)

    def _extend(self, since_ns: int, until_ns: int, first: int, last: int) -> None:
        if since_ns < self.since_ns:
            self.since_ns, self.first = since_ns, first
        if until_ns > self.until_ns:
            self.until_ns, self.last = until_ns, last

    def touches(self, since_ns: int, until_ns: int, first: int, last: int) -> bool:
        """Whether steps may belong to it by their time."""
        if since_ns >= self.until_ns:  # a job that begins anew counts anew
            return since_ns - self.until_ns <= GAP_NS or 0 < first - self.last <= 1 + GAP_STEPS
        if until_ns <= self.since_ns:
            return self.since_ns - until_ns <= GAP_NS or 0 < self.first - last <= 1 + GAP_STEPS
        return True

    def touches_run(self, other: "_Run") -> bool:
        return self.touches(other.since_ns, other.until_ns, other.first, other.last)

    def explains(self, other: "_Run") -> bool:
        """Whether another run's steps belong to this one, although their verdicts name another cause."""
        if Cause.UNKNOWN in (self.cause, other.cause):
            return self.cause != Cause.UNKNOWN
        name = CAUSES[self.cause].share
        return self.steps > 1 and other.steps == 1 and other.shares[name] >= _QUARTER * other.lost_ns

    def copy(self) -> "_Run":
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _Run(**values | {"shares": Counter(self.shares)})


class Incidents:
    """The incidents of one job, by the verdicts on its steps in about the order of time."""

    def __init__(self, most: int = MOST) -> None:
        """most: the newest are kept."""
        self._most = most
        self._runs: list[_Run] = []  # nearly by the beginning
        self._recent: list[_Run] = []  # a step may still be one of these
        self._found: list[Incident] | None = []  # None: a step has come since

    def add(self, verdict: Verdict) -> None:
        """A step that is not slower than its baseline is ignored."""
        if verdict.excess_ns <= 0 or verdict.baseline_ns <= 0:
            return
        self._found = None
        if verdict.cause == Cause.CHANGE:
            self._append(_Run.of(verdict))
            return
        at = verdict.start_ns, verdict.end_ns, verdict.iteration, verdict.iteration
        self._recent = [run for run in self._recent if run.touches(*at) or run.until_ns > verdict.start_ns - _LATE_NS]
        whose = verdict.cause, verdict.culprit
        same = [run for run in self._recent if (run.cause, run.culprit) == whose and run.touches(*at)]
        if not same:
            self._recent.append(self._append(_Run.of(verdict)))
            return
        first, *others = same
        first.add(verdict)
        for run in others:  # it was judged late, and lies between them
            first.take(run)
            self._recent.remove(run)
            self._runs.remove(run)

    def _append(self, run: _Run) -> _Run:
        self._runs.append(run)
        if len(self._runs) > 2 * self._most:
            self._runs = self._runs[-self._most :]
        return run

    def __bool__(self) -> bool:
        return bool(self._runs)

    def found(self, newest_ns: int = 0, newest: int = 0, now_ns: int = 0) -> list[Incident]:
        """The incidents, by beginning. newest_ns, newest: end and number of the job's last step.

        now_ns: no incident is ongoing of a job whose last step is older than LATELY_NS.
        """
        if newest_ns <= now_ns - LATELY_NS:
            newest_ns = 0
        if self._found is None:
            self._found = [_incident(run) for run in _joined(self._runs)]
        return [replace(one, ongoing=True) if _goes_on(one, newest_ns, newest) else one for one in self._found]


def incidents(
    verdicts: Iterable[Verdict], newest: Mapping[str, tuple[int, int]] | None = None, now_ns: int = 0
) -> list[Incident]:
    """Of all jobs, in the order of their beginnings.

    newest: by job, end (UTC ns) and number of its last step. now_ns: see Incidents.found.
    """
    by_job: dict[str, Incidents] = {}
    ordered = sorted(verdicts, key=lambda verdict: verdict.start_ns)
    for verdict in ordered:
        by_job.setdefault(verdict.job, Incidents(most=1 << 40)).add(verdict)
    ends = newest or {}
    found = [one for job, own in by_job.items() for one in own.found(*ends.get(job, (0, 0)), now_ns)]
    return sorted(found, key=lambda one: one.since_ns)


def of_verdict(found: Iterable[Incident], verdict: Verdict) -> Incident | None:
    """The one that a step is of: of those around it the one with its cause and culprit, else the largest."""
    around = [
        one
        for one in found
        if one.job == verdict.job and one.since_ns <= verdict.start_ns and verdict.end_ns <= one.until_ns
    ]
    whose = verdict.cause, verdict.culprit
    return max(around, key=lambda one: ((one.cause, one.culprit) == whose, one.steps), default=None)


def _joined(runs: list[_Run]) -> list[_Run]:
    """The runs, after those of a single step or an unknown cause were merged into others that explain them."""
    runs = sorted((run.copy() for run in runs), key=lambda run: run.since_ns)
    weak = [run for run in runs if run.cause != Cause.CHANGE and (run.steps == 1 or run.cause == Cause.UNKNOWN)]
    strong = [run for run in runs if run.cause not in (Cause.CHANGE, Cause.UNKNOWN)]
    since = [run.since_ns for run in strong]
    longest = max((run.until_ns - run.since_ns for run in strong), default=0)
    gone = set[int]()
    for run in weak:
        # Those that may touch it began before its end, and no longer ago than the longest lasts.
        begin = bisect_left(since, run.since_ns - longest - GAP_NS)
        end = bisect_left(since, run.until_ns + GAP_NS)
        lower, upper = max(0, begin - 1), min(len(strong), end + 1)
        near = [one for one in strong[lower:upper] if one is not run and id(one) not in gone]
        able = [one for one in near if one.touches_run(run) and one.explains(run)]
        if able:
            max(able, key=lambda one: one.steps).take(run)
            gone.add(id(run))
    latest: dict[tuple[Cause, str], _Run] = {}
    for run in sorted((run for run in runs if id(run) not in gone), key=lambda run: run.since_ns):
        before = latest.get((run.cause, run.culprit))
        if before and run.cause != Cause.CHANGE and before.touches_run(run):  # after one of them was merged with others
            before.take(run)
            gone.add(id(run))
        else:
            latest[run.cause, run.culprit] = run
    return sorted((run for run in runs if id(run) not in gone), key=lambda run: run.since_ns)


def _goes_on(incident: Incident, newest_ns: int, newest: int) -> bool:
    """Whether the next slow step could belong to it."""
    if incident.cause == Cause.CHANGE or not newest_ns:
        return False
    return newest_ns - incident.until_ns <= GAP_NS or 0 <= newest - incident.last <= GAP_STEPS


def _incident(run: _Run) -> Incident:
    worst, lost = run.worst, max(run.lost_ns, 1)
    lost_by = [LostTime(name, ns) for name, ns in run.shares.most_common() if ns >= _WORTH_NAMING * lost]
    return Incident(
        *(run.job, run.since_ns, run.until_ns, run.first, run.last, run.steps, run.cause, run.culprit),
        culprit_user=worst.culprit_user,
        sender=worst.sender,
        receiver=worst.receiver,
        host=worst.host,
        interface=worst.interface,
        direction=worst.direction,
        rank=worst.rank,
        worst=worst.iteration,
        lost_ns=run.lost_ns,
        baseline_ns=run.baseline_ns // run.steps,
        without_ns=run.without_ns // run.without_steps if run.without_steps else -1,
        confidence=round(min(max(run.sure / lost, 0.0), 1.0), 3),
        lost=tuple(lost_by),
        relative=run.relative,
    )


def columns(incident: Incident) -> dict[str, Any]:
    """Name → value for JSON and tables: causes and directions in words, lost_ns of each part as NAME_ns."""
    row: dict[str, Any] = {one.name: getattr(incident, one.name) for one in fields(incident) if one.name != "lost"}
    row["cause"] = incident.cause.name.lower()
    row["direction"] = incident.direction.name.lower() if incident.interface else ""
    row["without_ns"] = incident.without_ns if incident.without_ns >= 0 else None
    lost = {one.name: one.ns for one in incident.lost}
    return {**row, "ratio": round(incident.ratio, 3), **{f"{name}_ns": lost.get(name, 0) for name in SHARES}}


def renamed(incident: Incident, names: Mapping[str, str]) -> Incident:
    """names: what people call jobs."""
    culprit = incident.culprit
    if culprit.startswith(JOB):
        culprit = JOB + names.get(culprit.removeprefix(JOB), culprit.removeprefix(JOB))
    return replace(incident, job=names.get(incident.job, incident.job), culprit=culprit)


# --- In words: the same line wherever an incident is shown.


def who(incident: Incident) -> str:
    """The cause, whose doing it is, and whom it hit: `iperf3 (root, h2) → h0`."""
    about = CAUSES[incident.cause]
    if "{way}" in about.who and not incident.interface:
        return about.short
    words = place(incident)
    culprit = incident.culprit or about.short  # nobody knows whose, or the viewer does not see names
    words["culprit"] = culprit
    if culprit.startswith(JOB):
        culprit = "job " + culprit.removeprefix(JOB)
    from_whom = ", ".join(filter(None, (incident.culprit_user, incident.sender)))
    whose = f"({from_whom}) → {incident.receiver or words['at']}" if from_whom else f"{words['way']} {words['at']}"
    return about.who.format(**words, whose=f"{culprit} {whose}")


def remedy(incident: Incident) -> str:
    """What to do about it: `limit iperf3 on h2, or move it off eth0 of h0`."""
    host = incident.host
    link = f"{incident.interface} of {host}" if incident.interface else f"the links of {host}" if host else "the links"
    culprit = incident.culprit or "that traffic"
    where = f"{culprit} on {incident.sender}" if incident.sender else culprit
    return CAUSES[incident.cause].remedy.format(**place(incident), link=link, where=where)


def parts(incident: Incident) -> str:
    """What its time was lost by, where its cause is not nearly all of it: `60 % cross traffic, 30 % late ranks`."""
    whole = max(incident.lost_ns, 1)
    if not incident.lost or incident.lost[0].ns >= _MOSTLY * whole:
        return ""
    return ", ".join(f"{one.ns / whole:.0%} {OF_SHARE[one.name].part}".replace("%", " %") for one in incident.lost[:3])


def step_parts(verdict: Verdict) -> list[tuple[str, int]]:
    """What a step's duration is made of, in words and ns: the baseline, and what was added to it or saved."""
    if not verdict.baseline_ns:
        return [("not known", verdict.duration_ns)]
    shares = {name: int(getattr(verdict, f"{name}_ns")) for name in SHARES}
    added = sorted(shares.items(), key=lambda share: -share[1])
    verdicts = [(OF_SHARE[name].part, ns) for name, ns in added if abs(ns) >= _WORTH_NAMING * abs(verdict.excess_ns)]
    rest = verdict.excess_ns - sum(ns for _, ns in verdicts)
    return [("usual", verdict.baseline_ns), *verdicts, *([("rest", rest)] if abs(rest) >= _LEAST_NS else [])]


def line(incident: Incident, moment: Callable[[int], str], job: str = "") -> str:
    """`ring 1.7 × slower since 18:23:36: iperf3 (root, h2) → h0; 35 steps, 8.2 s lost`.

    moment: how a time (UTC ns) is shown; job: what people call it.
    """
    since, until = moment(incident.since_ns), moment(incident.until_ns)
    if incident.cause == Cause.CHANGE:
        since = f"from iteration {incident.first} at {since} on"
        return f"{job or incident.job} {incident.ratio:.1f} × slower {since}: {who(incident)}"
    once = incident.steps == 1 or since == until
    when = f"since {since}" if incident.ongoing else f"at {since}" if once else f"{since} to {until}"
    steps = "1 step" if incident.steps == 1 else f"{incident.steps:,} steps"
    text = f"{job or incident.job} {incident.ratio:.1f} × slower {when}: {who(incident)}; {steps}, "
    mixed = parts(incident)
    return text + f"{format_duration(incident.lost_ns)} lost" + (f" ({mixed})" if mixed else "")


def described(incident: Incident, names: Mapping[str, str], moment: Callable[[int], str]) -> dict[str, Any]:
    """`columns`, and `line`, which says all of it. names: what people call jobs; moment: how a time is shown."""
    return {**columns(incident), "line": line(renamed(incident, names), moment)}


def worst_first(found: Iterable[Incident]) -> list[Incident]:
    """Those that go on, then those that lost most."""
    return sorted(found, key=lambda one: (not one.ongoing, -one.lost_ns))
