# SPDX-License-Identifier: Apache-2.0
"""How well one source of iterations does, compared with another: precision and recall, and the distance in time."""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from netmon.dl.step_alignment import Events, StepMoment, nearest, period
from netmon.records import Source
from netmon.views import SourceScore


def matched(
    reference_ns: npt.NDArray[np.int64], found_ns: npt.NDArray[np.int64], within_ns: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Pairs of indices into the two (ascending times) that are each other's nearest and not farther than within_ns."""
    if not len(reference_ns) or not len(found_ns):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    to_found, to_reference = nearest(found_ns, reference_ns), nearest(reference_ns, found_ns)
    own = np.arange(len(reference_ns))
    mutual = (to_reference[to_found] == own) & (np.abs(found_ns[to_found] - reference_ns) <= within_ns)
    return own[mutual], to_found[mutual]


def score(
    source: Source, reference: Source, found: Mapping[StepMoment, Events], true: Mapping[StepMoment, Events]
) -> SourceScore | None:
    """The source's iterations against the reference's, by the first beat that both tell; None where there is none.

    A pair is the same iteration when the two are each other's nearest, within half a period. What lies more than
    half a period outside of the time that both cover does not count, so that a source which lags is not blamed.
    """
    for step_moment in StepMoment:
        ours, theirs = found[step_moment].time_ns, true[step_moment].time_ns
        if len(ours) and len(theirs):
            half = min(period(true[step_moment]), period(found[step_moment])) / 2
            first, last = max(ours[0], theirs[0]) - half, min(ours[-1], theirs[-1]) + half
            ours, theirs = (times[(times >= first) & (times <= last)] for times in (ours, theirs))
            one, other = matched(theirs, ours, half)
            error = int(np.median(np.abs(theirs[one] - ours[other]))) if len(one) else 0
            return SourceScore(source, reference, len(theirs), len(ours), len(one), error)
    return None


def combined(scores: Iterable[SourceScore]) -> tuple[SourceScore, ...]:
    """One score per source and reference: of all ranks together, best source first."""
    groups: dict[tuple[Source, Source], list[SourceScore]] = {}
    for one in scores:
        groups.setdefault((one.source, one.reference), []).append(one)
    return tuple(_sum(groups[key]) for key in sorted(groups))


def _sum(scores: list[SourceScore]) -> SourceScore:
    iterations, found, pairs = (sum(getattr(s, name) for s in scores) for name in ("iterations", "found", "matched"))
    error = int(np.median([one.error_ns for one in scores if one.matched] or [0]))
    return SourceScore(scores[0].source, scores[0].reference, iterations, found, pairs, error)
