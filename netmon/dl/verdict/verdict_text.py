# SPDX-License-Identifier: Apache-2.0
"""Verdicts in words, and as the columns that the dataset and JSON have."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from netmon.dl.account import JOB
from netmon.records import Direction
from netmon.units import format_bytes, format_duration
from netmon.views import CAUSES, OF_SHARE, Cause, Incident, RankTimes, Verdict

_LEAST_NS = 1_000  # of a share that is worth a line: less is what rounding left
_ALIKE = 0.1  # of the longer one: ends of an interval that are as far from its middle
_WORTH_A_WORD, _MOST = 0.25, 0.5  # of the excess


def cause_words(verdict: Verdict) -> str:
    """The cause and the culprit, shorter than a sentence."""
    culprit = verdict.culprit.removeprefix(JOB)
    short = CAUSES[verdict.cause].short
    return f"{short} ({culprit})" if culprit else short


def columns(verdict: Verdict) -> dict[str, object]:
    """Name → value, causes and directions in words; '' or None where there is nothing to say. Without its ranks."""
    row: dict[str, object] = {field.name: getattr(verdict, field.name) for field in fields(verdict)}
    del row["ranks"]
    row["cause"] = verdict.cause.name.lower()
    row["second_cause"] = verdict.second_cause.name.lower() if verdict.second_cause else ""
    row["direction"] = verdict.direction.name.lower() if verdict.interface else ""
    for name in ("counterfactual_ns", "counterfactual_low_ns", "counterfactual_high_ns"):
        row[name] = row[name] if verdict.counterfactual_ns >= 0 else None
    return row


def from_columns(row: Mapping[str, Any]) -> Verdict:
    """The reverse of `columns`; what is missing or null is the default."""
    known = {field.name: row.get(field.name) for field in fields(Verdict)}
    values = {name: value for name, value in known.items() if value is not None}
    values["ranks"] = tuple(RankTimes(**each) for each in values.get("ranks", ()))
    values["cause"] = Cause[str(row["cause"]).upper()]
    values["second_cause"] = Cause[str(row.get("second_cause") or "unknown").upper()]
    values["direction"] = Direction[str(row.get("direction") or "rx").upper()]
    return Verdict(**values)


def renamed(verdict: Verdict, names: Mapping[str, str]) -> Verdict:
    """The verdict with people's names of jobs. names: by job; others keep what their ranks have in common."""
    culprits = (verdict.culprit, verdict.second_culprit)
    culprit, second = (
        JOB + names.get(who.removeprefix(JOB), who.removeprefix(JOB)) if who.startswith(JOB) else who
        for who in culprits
    )
    ranks = tuple(
        replace(each, stalled_by=culprit if each.stalled_by == verdict.culprit else each.stalled_by)
        for each in verdict.ranks
    )
    job = names.get(verdict.job, verdict.job)
    return replace(verdict, job=job, culprit=culprit, second_culprit=second, ranks=ranks)


def sentence(verdict: Verdict) -> str:
    """One sentence, and a second one about the group of ranks in which ranks waited, where that is known."""
    waits = verdict.group_waits
    return f"{_sentence(verdict)}. {waits[:1].upper()}{waits[1:]}" if waits else _sentence(verdict)


def _sentence(verdict: Verdict) -> str:
    if verdict.cause == Cause.CHANGE:
        return f"job {verdict.job}: {reason(verdict)}"
    number = f"~{verdict.iteration}" if verdict.relative else str(verdict.iteration)
    text = f"iteration {number} of job {verdict.job} took "
    if not verdict.baseline_ns:
        return f"{text}{format_duration(verdict.duration_ns)}; {reason(verdict)}"
    text += f"{verdict.duration_ns / verdict.baseline_ns:.1f} × its usual {format_duration(verdict.baseline_ns)}"
    if verdict.excess_ns <= 0:
        return f"{text}: {reason(verdict)}"
    return f"{text} because {reason(verdict)}" if verdict.cause else f"{text}; {reason(verdict)}"


def reason(verdict: Verdict) -> str:
    """Why it took longer than its baseline, without the iteration and its duration."""
    if not verdict.baseline_ns:
        return "there is no usual time to compare it with"
    if verdict.cause == Cause.CHANGE:
        return _change(verdict)
    if verdict.excess_ns <= 0:
        return "not longer than usual"
    about = CAUSES[verdict.cause]
    text = _reason(verdict)
    if verdict.second_cause:
        second = CAUSES[verdict.second_cause]
        who = f" ({verdict.second_culprit})" if verdict.second_culprit else ""
        text += f"; also {second.line}{who}, {format_duration(getattr(verdict, f'{second.share}_ns'))}"
    return text + (_windows(verdict) if about.windows else "")


def place(found: Verdict | Incident) -> dict[str, object]:
    """Values for the templates in netmon.views.ABOUT: the place and the culprit."""
    sent = found.direction == Direction.TX
    at = found.host + (f" (rank {found.rank})" if found.rank >= 0 else "")
    return {
        **{"host": found.host, "rank": found.rank, "at": at, "culprit": found.culprit},
        "why": f" ({found.culprit})" if found.culprit else "",
        "at_host": f" at {found.host}" if found.host else "",
        "way": "out of" if sent else "into",
        "left": "left" if sent else "entered",
        "leaves": "leaves" if sent else "enters",
        "packets": f"packets that {'left' if sent else 'were to enter'} {at}" if found.interface else "packets",
    }


def _reason(verdict: Verdict) -> str:
    more = not verdict.cause and verdict.transfer_ns >= _MOST * verdict.excess_ns
    about = OF_SHARE["transfer"] if more else CAUSES[verdict.cause]
    return about.reason.format(
        **place(verdict),
        ns=format_duration(getattr(verdict, f"{about.share}_ns")),
        bytes=format_bytes(verdict.bytes),
        without=_without(verdict),
    )


def _change(verdict: Verdict) -> str:
    number = f"~{verdict.iteration}" if verdict.relative else str(verdict.iteration)
    reason = CAUSES[verdict.cause].reason.format(longer="longer" if verdict.excess_ns > 0 else "less")
    return (
        f"iterations take {verdict.duration_ns / verdict.baseline_ns:.1f} × the {format_duration(verdict.baseline_ns)} "
        f"that they took before, since {number}: {reason}"
    )


def _windows(verdict: Verdict) -> str:
    """What TCP says of its windows, where that is worth a word."""
    parts = [
        f"{format_duration(ns)} for {what}"
        for ns, what in ((verdict.receiver_ns, "its receiver's window"), (verdict.sender_ns, "room in its send buffer"))
        if ns >= _WORTH_A_WORD * verdict.excess_ns
    ]
    return f"; TCP waited {' and '.join(parts)}" if parts else ""


def _without(verdict: Verdict) -> str:
    if verdict.counterfactual_ns < 0:
        return ""
    low, high = verdict.counterfactual_low_ns, verdict.counterfactual_high_ns
    below, above = verdict.counterfactual_ns - low, high - verdict.counterfactual_ns
    alike = abs(below - above) <= _ALIKE * max(below, above)
    about = f" ± {format_duration(below)}" if alike else f" ({format_duration(low)} to {format_duration(high)})"
    return f"; without it, it would have taken {format_duration(verdict.counterfactual_ns)}{about}"


def arithmetic(verdict: Verdict) -> Iterator[str]:
    """Lines: what the excess is made of; none where there is none."""
    if not verdict.baseline_ns or verdict.excess_ns <= 0:
        return
    yield (
        f"{format_duration(verdict.duration_ns)} − {format_duration(verdict.baseline_ns)} = "
        f"{format_duration(verdict.excess_ns)} ± {format_duration(verdict.error_ns)}, of which"
    )
    for name, about in OF_SHARE.items():
        ns = getattr(verdict, f"{name}_ns")
        if abs(ns) >= _LEAST_NS:
            yield f"{format_duration(ns):>8}  {ns / verdict.excess_ns:4.0%}  {about.line}"
    yield f"confidence {verdict.confidence:.2f}"
