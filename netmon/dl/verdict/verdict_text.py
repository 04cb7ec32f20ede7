# SPDX-License-Identifier: Apache-2.0
"""Verdicts in words, and as the columns that the dataset and JSON have."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from netmon.dl.account import JOB
from netmon.records import Direction
from netmon.units import format_bytes, format_duration
from netmon.views import CAUSE_OF, SHARES, Cause, RankTimes, Verdict

_LEAST_NS = 1_000  # of a share that is worth a line: less is what rounding left
_SHARES = {
    "compute": "computed longer",
    "late": "waiting for a rank that was late or had stopped",
    "transfer": "there was more to transfer",
    "cross": "the transfer was held up by traffic that is no training",
    "other_job": "the transfer was held up by another job",
    "own_transfer": "the transfer was held up by what a rank transferred beside its gradients",
    "loss": "the transfer was held up by lost packets",
    "slow_link": "the transfer was held up by a slow link that nobody shared",
    "host": "the host itself",
    "pause": "all ranks paused",
    "unknown": "not known",
}


_ALIKE = 0.1  # of the longer one: ends of an interval that are as far from its middle
_WORTH_A_WORD = 0.25  # of the excess
_NOBODY_ELSE = (Cause.SLOW_LINK, Cause.LOSS, Cause.UNKNOWN)  # else a full window is the culprit's doing

_CAUSES = {
    Cause.CROSS: "cross traffic",
    Cause.OTHER_JOB: "another job",
    Cause.OWN_TRANSFER: "an own transfer",
    Cause.STRAGGLER: "a late rank",
    Cause.PAUSE: "a pause of all ranks",
    Cause.COMPUTE: "computing",
    Cause.LOSS: "lost packets",
    Cause.SLOW_LINK: "a slow link",
    Cause.HOST: "the host",
    Cause.CHANGE: "a change of the job itself",
    Cause.UNKNOWN: "an unknown cause",
}


def cause_words(verdict: Verdict) -> str:
    """The cause and the culprit, shorter than a sentence."""
    culprit = verdict.culprit.removeprefix(JOB)
    return f"{_CAUSES[verdict.cause]} ({culprit})" if culprit else _CAUSES[verdict.cause]


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
    """names: what people call jobs; of those that are not there, what their ranks have in common stays."""
    culprits = (verdict.culprit, verdict.second_culprit)
    culprit, second = (
        JOB + names.get(who.removeprefix(JOB), who.removeprefix(JOB)) if who.startswith(JOB) else who
        for who in culprits
    )
    ranks = tuple(
        replace(each, held_by=culprit if each.held_by == verdict.culprit else each.held_by) for each in verdict.ranks
    )
    job = names.get(verdict.job, verdict.job)
    return replace(verdict, job=job, culprit=culprit, second_culprit=second, ranks=ranks)


def sentence(verdict: Verdict) -> str:
    """One sentence."""
    if verdict.cause == Cause.CHANGE:
        return f"job {verdict.job}: {reason(verdict)}"
    number = f"~{verdict.iteration}" if verdict.relative else str(verdict.iteration)
    text = f"iteration {number} of job {verdict.job} took "
    if not verdict.usual_ns:
        return f"{text}{format_duration(verdict.duration_ns)}; {reason(verdict)}"
    text += f"{verdict.duration_ns / verdict.usual_ns:.1f} × its usual {format_duration(verdict.usual_ns)}"
    if verdict.excess_ns <= 0:
        return f"{text}: {reason(verdict)}"
    return f"{text} because {reason(verdict)}" if verdict.cause else f"{text}; {reason(verdict)}"


def reason(verdict: Verdict) -> str:
    """Why it took longer than in the baseline, without which iteration that is and how much longer it took."""
    if not verdict.usual_ns:
        return "there is no usual time to compare it with"
    if verdict.cause == Cause.CHANGE:
        return _change(verdict)
    if verdict.excess_ns <= 0:
        return "not longer than usual"
    text = _reason(verdict)
    if verdict.second_cause:
        who = f" ({verdict.second_culprit})" if verdict.second_culprit else ""
        ns = getattr(verdict, f"{_NAMES[verdict.second_cause]}_ns")
        text += f"; also {_SHARES[_NAMES[verdict.second_cause]]}{who}, {format_duration(ns)}"
    return text + (_windows(verdict) if verdict.cause in _NOBODY_ELSE else "")


_NAMES = {Cause.CHANGE: "compute", Cause.UNKNOWN: "unknown"} | {cause: name for name, cause in CAUSE_OF.items()}


def _reason(verdict: Verdict) -> str:
    ns = format_duration(getattr(verdict, f"{_NAMES[verdict.cause]}_ns"))
    at = verdict.host + (f" (rank {verdict.rank})" if verdict.rank >= 0 else "")
    if verdict.cause in (Cause.CROSS, Cause.OTHER_JOB, Cause.OWN_TRANSFER):
        way = "left" if verdict.direction == Direction.TX else "entered"
        at = verdict.host if verdict.cause == Cause.OWN_TRANSFER else at  # the culprit says which rank
        text = f"{format_bytes(verdict.bytes)} of {verdict.culprit} {way} {at} and held the transfer up by {ns}"
        return text + _without(verdict)
    if verdict.cause == Cause.STRAGGLER:
        return f"rank {verdict.rank} ({verdict.host}) was {ns} late, and the others waited; no network cause"
    if verdict.cause == Cause.PAUSE:
        return f"all ranks paused for {ns}; no network cause"
    if verdict.cause == Cause.COMPUTE:
        return f"it computed {ns} longer; no network cause"
    if verdict.cause == Cause.LOSS:
        way = "left" if verdict.direction == Direction.TX else "were to enter"
        which = f"packets that {way} {at}" if verdict.interface else "packets"
        return f"{which} were lost with no other traffic on the link, which cost {ns}"
    if verdict.cause == Cause.SLOW_LINK:
        way = "leaves" if verdict.direction == Direction.TX else "enters"
        return f"the link that {way} {at} was slower than usual with no other traffic on it, which cost {ns}"
    if verdict.cause == Cause.HOST:
        return f"{at} itself was slow, which cost {ns}; no network cause"
    return "the cause is not known"


def _change(verdict: Verdict) -> str:
    number = f"~{verdict.iteration}" if verdict.relative else str(verdict.iteration)
    longer = "longer" if verdict.excess_ns > 0 else "less"
    return (
        f"iterations take {verdict.duration_ns / verdict.usual_ns:.1f} × the {format_duration(verdict.usual_ns)} that "
        f"they took before, since {number}: every rank computes {longer}; no network cause"
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
    if not verdict.usual_ns or verdict.excess_ns <= 0:
        return
    yield (
        f"{format_duration(verdict.duration_ns)} − {format_duration(verdict.usual_ns)} = "
        f"{format_duration(verdict.excess_ns)} ± {format_duration(verdict.error_ns)}, of which"
    )
    for name in SHARES:
        ns = getattr(verdict, f"{name}_ns")
        if abs(ns) >= _LEAST_NS:
            yield f"{format_duration(ns):>8}  {ns / verdict.excess_ns:4.0%}  {_SHARES[name]}"
    yield f"confidence {verdict.confidence:.2f}"
