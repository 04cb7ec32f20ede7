# SPDX-License-Identifier: Apache-2.0
"""Advice in sentences, as one JSON document, and in rows of tables that are drawn from that document."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from netmon.dl.sharing.advice import LASTS, WORTH, Advice, Share, culprit_row, culprit_sentence, renamed
from netmon.dl.sharing.compatibility import FEWEST, Fit
from netmon.units import format_bytes, format_duration, format_rate

_OF_JOBS = ("job", "others", "unjudged", "jobs", "never_alone")  # keys of documents
_MOST_NAMED = 5
_TREND = 0.02  # of a score: less is no trend
_MOST_IN_A_ROW = 3


def sentences(advice: Advice) -> list[str]:
    """What to do, most worth first; says so where there is nothing. Those of its culprits are the first ones."""
    first = sorted((s for s in advice.shares if s.saves), key=lambda s: (not s.advised, -s.fit.gain))
    said = [culprit_sentence(culprit_row(one)) for one in advice.culprits]
    said += [of_share(share, advice.links) for share in [*first, *(s for s in advice.shares if not s.saves)]]
    said += [
        f"jobs {_some(jobs)} share {advice.links[link]}, whose capacity is not known: no shift can be advised"
        for link, jobs in advice.unknown_links.items()
    ]
    said += _of_pairs(advice)
    if advice.uncompared:
        said.append(
            f"{len(advice.uncompared)} more jobs share links; for advice on one, give its name: {advice.uncompared[0]}"
        )
    if len(advice.jobs) > 1 and not (advice.shares or advice.unknown_links or advice.uncompared):
        said.append(f"no two of the {len(advice.jobs)} jobs share a link")
    said += [
        f"job {job}: too few iterations with their bytes in this time for advice (fewer than {FEWEST})"
        for job in advice.unjudged
    ]
    return said or ["nothing to advise: no two jobs share a link, and no pair of ranks is slower than the others"]


def of_share(share: Share, links: Sequence[str]) -> str:
    """Of a job that shares links with others: the shift, or why there is none."""
    fit, where = share.fit, _where(share.fit, links)
    others = _some(fit.others)
    gains = (
        f"its iterations would take {format_duration(fit.shifted_ns)} instead of {format_duration(fit.shared_ns)}, "
        f"{fit.gain:.0%} of all jobs' time saved"
    )
    if share.advised:
        holds = "for good" if share.lasts == float("inf") else f"for about {share.lasts:.0f} iterations"
        return (
            f"start job {fit.job} {format_duration(fit.shift_ns)} later, next to {others} ({where}): {gains}, {holds}; "
            f"compatibility {fit.score:.2f} → {fit.best_score:.2f}"
        )
    both = f"jobs {fit.job} and {others} share {where} with a compatibility of {fit.score:.2f}"
    if not share.sure:
        return f"{both}: the start of their iterations is known only to {format_duration(share.error_ns)}: too coarse"
    if not share.saves:
        doubt = f", as far as is known: {_some(share.never_alone)} never trained alone" if share.never_alone else ""
        return f"{both}: no shift would save more than {WORTH:.0%} of their time{doubt}"
    if share.drift_ns is None:
        why = "how they move against each other is not known"
    else:
        drifts = f"they drift {_way(fit.trend)}by {format_duration(share.drift_ns)} an iteration"
        why = f"{drifts}, so that no shift would last"
    if share.offset_ns is None:
        return f"{both}: {why}"
    return (
        f"{both}: {why} by itself; where both begin an iteration every {format_duration(fit.hold_ns)}, {fit.job} "
        f"{format_duration(share.offset_ns)} after {fit.others[0]}, {gains}"
    )


def _way(trend: float) -> str:
    """Whether the demands of jobs on their links come to lie more or less at the same time, by the score's trend."""
    return "" if abs(trend) < _TREND else "apart " if trend > 0 else "together "


def _of_pairs(advice: Advice) -> list[str]:
    said = [
        f"job {p.job}: {p.source} → {p.target} is slow: {format_rate(p.pace_bps)} while it sends"
        for p in advice.pairs
        if p.slow
    ]
    had = sorted((pair for pair in advice.pairs if pair.to_be_had_bps), key=lambda pair: -pair.to_be_had_bps)
    return said + [
        f"job {p.job}: {p.source} → {p.target} could do with {format_rate(p.pace_bps - p.to_be_had_bps)} instead of "
        f"{format_rate(p.pace_bps)} and end no later (at most: it sends for {p.busy:.0%} of the communication)"
        for p in had[:_MOST_NAMED]
    ]


def _where(fit: Fit, links: Sequence[str]) -> str:
    return _some([links[link] for link in fit.links])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_IN_A_ROW]) + (
        f" and {len(names) - _MOST_IN_A_ROW} more" if names[_MOST_IN_A_ROW:] else ""
    )


def document(advice: Advice, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """The advice as one JSON document; times in ns, rates in bit/s, what is not known null.

    names: what people call jobs. The sentences have these; elsewhere jobs are what they are, and `names` stands
    alongside.
    """
    return {
        "begin_ns": advice.begin_ns,
        "end_ns": advice.end_ns,
        "advice": sentences(renamed(advice, names)),
        "culprits": [culprit_row(one) for one in advice.culprits],
        "names": {job: names[job] for job in _jobs(advice) if names.get(job, job) != job},
        "jobs": [
            {
                "job": one.job,
                "iterations": len(one.starts_ns) - 1,
                "duration_ns": one.measured_ns,
                "alone_ns": one.period_ns,
                "alone": one.alone,
                "busy": one.busy,
                "intensity": one.intensity if one.busy else None,
                "links": [advice.links[link] for link in one.links],
            }
            for one in advice.jobs
        ],
        "unjudged": list(advice.unjudged),
        "shares": [_share(share, advice.links) for share in advice.shares],
        "unknown_links": [
            {"link": advice.links[link], "jobs": list(jobs)} for link, jobs in advice.unknown_links.items()
        ],
        "pairs": [
            {
                "job": p.job,
                "source": p.source,
                "target": p.target,
                "bytes": p.bytes,
                "pace_bps": p.pace_bps,
                "busy": p.busy,
                "share": p.share,
                "slow": p.slow,
                "to_be_had_bps": p.to_be_had_bps,
            }
            for p in advice.pairs
        ],
        "links": [
            {
                "link": advice.links[one.link],
                "capacity_bps": one.capacity_bps or None,
                "pace_bps": one.pace_bps,
                "enough_bps": one.enough_bps,
                "to_be_had_bps": one.to_be_had_bps,
            }
            for one in advice.spares
        ],
    }


def _jobs(advice: Advice) -> list[str]:
    return [*(one.job for one in advice.jobs), *advice.unjudged, *(one.incident.job for one in advice.culprits)]


def called(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with jobs called what people call them everywhere: for reading."""
    names = document.get("names") or {}

    def renamed_in(value: Any, key: str = "") -> Any:
        if isinstance(value, list):
            return [renamed_in(one, key) for one in value]
        if isinstance(value, dict):
            return {name: renamed_in(one, name) for name, one in value.items()}
        return names.get(value, value) if key in _OF_JOBS and isinstance(value, str) else value

    return {name: renamed_in(value, "" if name == "jobs" else name) for name, value in document.items()}


def _share(share: Share, links: Sequence[str]) -> dict[str, Any]:
    fit, moves = share.fit, share.drift
    return {
        "job": fit.job,
        "others": list(fit.others),
        "links": [links[link] for link in fit.links],
        "compatibility": fit.score,
        "best_compatibility": fit.best_score,
        "compatibility_trend": fit.trend,
        "shift_ns": fit.shift_ns,
        "hold_ns": fit.hold_ns or None,
        "offset_ns": share.offset_ns,
        "shared_ns": fit.shared_ns,
        "shifted_ns": fit.shifted_ns,
        "others_shared_ns": list(fit.others_shared_ns),
        "others_shifted_ns": list(fit.others_shifted_ns),
        "gain": fit.gain,
        "advised": share.advised,
        "to_be_held": share.needs_hold,
        "lasts_iterations": min(share.lasts, 1e9),
        "least_iterations": LASTS,
        "phase_ns": moves and moves.phase_ns,
        "drift_ns": moves and moves.per_iteration_ns,
        "drift_spread_ns": moves and moves.spread_ns,
        "error_ns": share.error_ns,
        "never_alone": list(share.never_alone),
    }


def _proposed(one: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """What the jobs would take, what that saves, and the shift that does it; nothing where none is worth it."""
    if not (one.get("advised") or one.get("to_be_held")):
        return "", "0%", "", ""
    return (
        _durations(one["shifted_ns"], *one["others_shifted_ns"]),
        f"{max(0.0, one['gain']):.0%}",
        format_duration(one["shift_ns"]),
        format_duration(one["hold_ns"]) if one["hold_ns"] else "",
    )


def _durations(*ns: float) -> str:
    return ", ".join(map(format_duration, ns))


TABLES: Mapping[str, tuple[str, ...]] = {
    "jobs": ("job", "iterations", "takes", "alone", "transfers"),
    "jobs that share links": (
        *("job", "other job", "compatibility", "best", "take", "would take", "saves"),
        *("later by", "every", "drift", ""),
    ),
    "pairs of ranks": ("job", "pair", "bytes", "pace", "sends", "spare", ""),
    "links": ("link", "capacity", "training sends", "enough", "spare"),
}
"""Titles and headings of what rows() gives."""


def rows(document: Mapping[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    """The tables for people, by title, from a document."""
    return {
        "jobs": [
            (
                one["job"],
                str(one["iterations"]),
                format_duration(one["duration_ns"]),
                format_duration(one["alone_ns"]) + ("" if one["alone"] else " (fastest)"),
                f"{one['busy']:.0%}",
            )
            for one in document["jobs"]
        ],
        "jobs that share links": [
            (
                one["job"],
                _some(one["others"]),
                f"{one['compatibility']:.2f}",
                f"{one['best_compatibility']:.2f}",
                _durations(one["shared_ns"], *one["others_shared_ns"]),
                *_proposed(one),
                "" if one["drift_ns"] is None else format_duration(one["drift_ns"]),
                _way(one.get("compatibility_trend", 0.0)).strip(),
            )
            for one in document["shares"]
        ],
        "pairs of ranks": [
            (
                one["job"],
                f"{one['source']} → {one['target']}",
                format_bytes(one["bytes"]),
                format_rate(one["pace_bps"]),
                f"{one['share']:.0%}",
                format_rate(one["to_be_had_bps"]),
                "slow" if one["slow"] else "",
            )
            for one in document["pairs"]
        ],
        "links": [
            (
                one["link"],
                format_rate(one["capacity_bps"]) if one["capacity_bps"] else "unknown",
                *(format_rate(one[name]) for name in ("pace_bps", "enough_bps", "to_be_had_bps")),
            )
            for one in document["links"]
        ],
    }
