# SPDX-License-Identifier: Apache-2.0
"""The groups of a job's ranks, as far as its traffic tells them, and what they are for.

Who sends as much per step is of one kind of group, and those of them that are connected are one group, if they make a
ring, a chain or a clique. What it is for is told where only one thing does so; else it is UNKNOWN.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from netmon.dl.inference.bursts import Bursts, Edge
from netmon.dl.inference.grouping import _numerically, connected_pairs, pattern_of
from netmon.dl.inference.types import TrafficGroup
from netmon.records import Table

DATA, SHARDED_DATA, PIPELINE, UNKNOWN = "data", "sharded data", "pipeline", "unknown"

_AS_MUCH = 0.03  # of the bytes per step
_TWICE = 0.1  # that the one way carries what the other does, or twice as much
_AT_ONCE, _IN_TURN = 0.5, 0.2  # of the time in which either sends, both do

Pair = frozenset[str]


def groups_of(
    flows: Mapping[int, Edge],
    volumes: Mapping[int, float],
    bursts: Mapping[int, Bursts],
    since_ns: int,
    one_phase: bool,
) -> tuple[TrafficGroup, ...]:
    """volumes: of each flow per step; since_ns: of what they have sent since then; one_phase: all pause together once
    in each step, and no more.
    """
    ways: dict[Edge, float] = {}
    rows: dict[Edge, list[Table]] = {}
    for flow, edge in flows.items():
        if volumes.get(flow, 0) > 0 and flow in bursts:
            ways[edge] = ways.get(edge, 0.0) + volumes[flow]
            rows.setdefault(edge, []).append(bursts[flow].rows)
    if one_phase and ways:
        members = {address for edge in ways for address in edge}
        purpose = DATA if _all_at_once(ways, rows, since_ns, len(members)) else UNKNOWN
        return (_group(purpose, sorted(members, key=_numerically), ways),)
    pairs: dict[Pair, float] = {}
    for edge, volume in ways.items():
        pairs[frozenset(edge)] = max(volume, pairs.get(frozenset(edge), 0.0))
    found = []
    for alike in _alike(pairs):
        for members in connected_pairs(alike):
            own = {edge: volume for edge, volume in ways.items() if set(edge) <= members and frozenset(edge) in alike}
            kind = _kind(own, rows, since_ns, len(members))
            if kind is not None:
                found.append(_group(kind, _in_order(kind, members, own, rows, since_ns), own))
    return tuple(sorted(found, key=lambda group: (group.kind, group.members)))


def _group(kind: str, members: Sequence[str], ways: Mapping[Edge, float]) -> TrafficGroup:
    return TrafficGroup(kind, tuple(members), int(sum(ways.values()) / len(members)))


def _alike(pairs: Mapping[Pair, float]) -> list[list[Pair]]:
    """Pairs parted by what they carry."""
    parts: list[list[Pair]] = []
    last = 0.0
    for pair in sorted(pairs, key=lambda pair: pairs[pair]):
        if not parts or pairs[pair] > (1 + _AS_MUCH) * last:
            parts.append([])
        parts[-1].append(pair)
        last = pairs[pair]
    return parts


def _kind(ways: Mapping[Edge, float], rows: Mapping[Edge, Sequence[Table]], since_ns: int, size: int) -> str | None:
    """None: it is no shape that one group has."""
    around = {(a, b) for a, b in ways} | {(b, a) for a, b in ways}
    degrees = [sum(edge[0] == member for edge in around) for member in {a for a, _ in around}]
    both = [(ways[a, b], ways[b, a]) for a, b in ways if a < b and (b, a) in ways]
    even = all(abs(one - other) <= _TWICE * max(one, other) for one, other in both)
    if size == 2:
        if len(both) != 1 or not even:
            return UNKNOWN
        (a, b) = next(iter(ways))
        return PIPELINE if _both_at_once(rows[a, b], rows[b, a], since_ns) <= _IN_TURN else UNKNOWN
    is_chain = len(around) == 2 * (size - 1) and max(degrees) == 2
    is_ring = max(degrees) == min(degrees) == 2
    if is_chain:
        return PIPELINE if even and len(ways) == len(around) else None
    if is_ring and len(ways) == len(around):
        twice = all(abs(max(pair) / min(pair) - 2) <= 2 * _TWICE for pair in both)
        return SHARDED_DATA if twice else UNKNOWN
    return UNKNOWN if is_ring or pattern_of([*ways]) == "clique" else None


def _all_at_once(ways: Mapping[Edge, float], rows: Mapping[Edge, Sequence[Table]], since_ns: int, size: int) -> bool:
    """Whether it is no chain, along which the one may wait for the other."""
    pairs = {frozenset(edge) for edge in ways}
    if size == 2 and len(ways) == 2:
        one, other = ways
        return _both_at_once(rows[one], rows[other], since_ns) >= _AT_ONCE
    return len(pairs) != size - 1 or max(sum(member in pair for pair in pairs) for pair in pairs for member in pair) > 2


def _both_at_once(one: Sequence[Table], other: Sequence[Table], since_ns: int) -> float:
    """Of the time in which either sends, the share in which both do."""
    edges = []
    for number, tables in enumerate((one, other)):
        for rows in tables:
            own = rows[rows["start_ns"] >= since_ns]
            for name, sign in (("start_ns", 1), ("end_ns", -1)):
                edges.append(np.stack([own[name], np.full(len(own), number), np.full(len(own), sign)], axis=1))
    moments = np.concatenate(edges)
    moments = moments[np.argsort(moments[:, 0], kind="stable")]
    lasts = np.diff(moments[:, 0])
    busy = [np.cumsum(np.where(moments[:, 1] == number, moments[:, 2], 0))[:-1] > 0 for number in (0, 1)]
    either = float(lasts[busy[0] | busy[1]].sum())
    return float(lasts[busy[0] & busy[1]].sum()) / either if either else 1.0


def _in_order(
    kind: str, members: set[str], ways: Mapping[Edge, float], rows: Mapping[Edge, Sequence[Table]], since_ns: int
) -> list[str]:
    """Of a pipeline the stages, the first one sends first; else sorted."""
    ascending = sorted(members, key=_numerically)
    if kind != PIPELINE:
        return ascending
    following = {member: [b for a, b in ways if a == member] for member in ascending}
    ends = [member for member in ascending if len(following[member]) == 1]

    def begins(end: str) -> int:
        return min(
            int(table["start_ns"][table["start_ns"].searchsorted(since_ns)])
            for table in rows[end, following[end][0]]
            if table["start_ns"][-1] >= since_ns
        )

    order = [min(ends, key=begins)]
    while len(order) < len(members):
        order.append(next(member for member in following[order[-1]] if member not in order))
    return order
