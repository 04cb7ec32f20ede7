# SPDX-License-Identifier: Apache-2.0
"""Which flows that repeat themselves do so together, and so make a job."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.candidates import Candidate, addresses, common, connected
from netmon.dl.inference.job_split import one_with, parted
from netmon.dl.inference.pattern import Edge
from netmon.dl.inference.repetition import INTERVALS, Repetition

_SAME_VOLUME = 0.03  # of a flow's bytes per iteration
_AS_MUCH = 0.1  # of the bytes of the core's least flow
_LEAST_BUCKETS = 10  # of an iteration: in a shorter one neither pauses nor beginnings are to be seen
_SURE = 3 * INTERVALS  # iterations
_SAME_PERIOD = 0.75
_MOST_COMPARED = 256  # flows that are distinguished by their rhythm, each against each
_SAME_TIME = 0.15  # of the period: how much the distance of two flows' onsets may vary
_LATE = 0.15  # of the onsets, at either end


@dataclass(frozen=True)
class Group:
    """Flows that make a job, and how they repeat themselves together."""

    flows: dict[int, Edge]
    repetition: Repetition


def groups(candidates: Sequence[Candidate], now_ns: int, resolution_ns: int) -> list[Group]:
    """The jobs among the candidates.

    Who can reach each other along flows that repeat themselves may be one job. It is one if all those flows together
    repeat themselves, too: if the ranks compute all at the same time. If they do not, there may be several jobs on
    one host: then flows are distinguished by their rhythm. Where only one host holds two parts together, they have to
    show that they wait for each other; as long as that is open, nothing is reported.
    """
    repeating = [c for c in candidates if c.repetition]
    at_hosts = _AtHosts(candidates)
    found: list[Group] = []
    for flows in connected(repeating):
        parts = parted(flows, now_ns, resolution_ns)
        for part in [part for part, sure in parts if sure]:
            apart = {c.flow for other, _ in parts if other is not part for c in other}
            found += _of_part(part, at_hosts, apart, now_ns, resolution_ns)
    return found


class _AtHosts:
    """Candidates by the addresses between which they are, so that a part looks at its own and at no others."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = candidates
        self._indices: dict[str, list[int]] = {}
        for index, candidate in enumerate(candidates):
            for address in candidate.edge:
                self._indices.setdefault(address, []).append(index)

    def around(self, members: Iterable[str], apart: Collection[int]) -> list[Candidate]:
        """Those from or to the members, in their order, but for the flows that are apart."""
        indices = sorted({index for member in members for index in self._indices.get(member, ())})
        found = [self._candidates[index] for index in indices]
        return [candidate for candidate in found if candidate.flow not in apart] if apart else found


def _of_part(
    part: Sequence[Candidate], at_hosts: _AtHosts, apart: Collection[int], now_ns: int, resolution_ns: int
) -> list[Group]:
    whole = _group(part, at_hosts, apart, now_ns, resolution_ns)
    if whole or len(part) > _MOST_COMPARED:
        return [whole] if whole else []
    alike = (flows for by_period in _by_period(part) for flows in connected(by_period))
    found = (_group(flows, at_hosts, apart, now_ns, resolution_ns) for flows in alike)
    return [group for group in found if group]


def joined(group: Sequence[Candidate], job: Sequence[Candidate], now_ns: int, resolution_ns: int) -> Group | None:
    """A group and a job on one of its hosts as one group, if all their flows keep one rhythm."""
    both = [*group, *job]
    whole = _group(both, _AtHosts(both), (), now_ns, resolution_ns)
    if whole is None or len(whole.flows) < len(both):
        return None
    return whole if len(one_with(both, both, now_ns, resolution_ns)) == len(both) else None


def _group(
    core: Sequence[Candidate], at_hosts: _AtHosts, apart: Collection[int], now_ns: int, resolution_ns: int
) -> Group | None:
    """The core, if it repeats itself together, with the other flows that keep its rhythm.

    Where hosts of the core exchange as much in another rhythm, it may be a part of a job, at a part of its iteration.
    Then it takes more iterations to be sure.
    """
    own_period = common(core, now_ns, resolution_ns)
    if own_period is None or own_period.period_ns < _LEAST_BUCKETS * resolution_ns:
        return None
    members = addresses(core)
    around = at_hosts.around(members, apart)
    near = [c for c in around if _keeps(c, own_period)]
    keeping = {c.flow for c in near}
    begun = int(own_period.onsets_ns[0])
    least = min(c.bursts.since(begun) for c in core)
    others = [c for c in around if c.flow not in keeping and c.bursts.since(begun) > _AS_MUCH * least]
    if others and len(own_period.onsets_ns) <= _SURE:
        return None
    for flows in connected(near):
        if members.issubset(addresses(flows)):
            return _whole(core, flows, now_ns, resolution_ns)
    return None


def _whole(core: Sequence[Candidate], flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> Group | None:
    """The flows as one group; they are the core and what keeps its rhythm, maybe also with hosts beyond the core's."""
    if addresses(flows) != addresses(core):
        flows = one_with(core, flows, now_ns, resolution_ns)
    own_period = common(flows, now_ns, resolution_ns) if flows else None
    return Group({c.flow: c.edge for c in flows}, own_period) if own_period else None


def _keeps(candidate: Candidate, common: Repetition) -> bool:
    """Whether a flow is silent when the iterations begin, and sends the same bytes in each.

    It may not repeat itself several times meanwhile: that is how two jobs look of which one makes three iterations in
    the time of the other's two.
    """
    rows, onsets, own = candidate.bursts.rows, common.onsets_ns, candidate.repetition
    if own and own.period_ns < _SAME_PERIOD * common.period_ns:
        return False
    index = np.searchsorted(rows["start_ns"], onsets)
    if index[-1] == len(rows) or index[0] == index[1]:
        return False
    before = index[index > 0]
    if (rows["end_ns"][before - 1] > onsets[index > 0]).any():
        return False
    volumes = np.diff(rows["level"][index])
    return bool((np.abs(volumes - np.median(volumes)) <= _SAME_VOLUME * np.median(volumes)).all())


def _by_period(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Candidates parted so that those of one part begin their iterations at a constant distance from each other."""
    parts: list[list[Candidate]] = []
    for candidate in candidates:
        alike = [part for part in parts if any(_same_period(candidate, other) for other in part)]
        parts = [part for part in parts if part not in alike]
        parts.append([candidate, *(c for part in alike for c in part)])
    return parts


def _same_period(one: Candidate, other: Candidate) -> bool:
    if one.repetition is None or other.repetition is None:
        return False
    a, b = one.repetition.onsets_ns, other.repetition.onsets_ns
    a, b = _overlapping(a, b), _overlapping(b, a)
    if min(len(a), len(b)) < 2 or abs(len(a) - len(b)) > 1:
        return False
    a, b = (a, b) if len(a) <= len(b) else (b, a)
    after = np.clip(np.searchsorted(b, a), 1, len(b) - 1)
    nearest = np.where(a - b[after - 1] <= b[after] - a, after - 1, after)
    distances = a - b[nearest]
    period = min(one.repetition.period_ns, other.repetition.period_ns)
    # Where a flow has to wait for another job's, a beginning now and then is late: of many, that counts for nothing.
    late = _LATE if len(a) > _SURE else 0
    least, most = np.quantile(distances, (late, 1 - late))
    return len(set(nearest.tolist())) == len(a) and float(most - least) <= _SAME_TIME * period


def _overlapping(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    half = int(np.median(np.diff(a))) // 2 if len(a) > 1 else 0
    within: npt.NDArray[np.int64] = a[(a >= b[0] - half) & (a <= b[-1] + half)]
    return within
