# SPDX-License-Identifier: Apache-2.0
"""Flows between hosts that can reach each other, parted into those of different jobs."""

from collections.abc import Sequence

from netmon.dl.inference.candidates import Candidate, addresses, common
from netmon.dl.inference.pattern import blocks
from netmon.dl.inference.repetition import Repetition
from netmon.dl.inference.synchrony import Relation, Side, relation

_MOST_BLOCKS = 128  # that are held against each other


def parted(flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> list[tuple[list[Candidate], bool]]:
    """Flows parted where they may be several jobs, and whether it is sure of each part that it is one.

    Whoever may belong together stays together.
    """
    units = _units(flows)
    whole = common(flows, now_ns, resolution_ns) if len(units) > 1 else None
    parts: list[tuple[list[list[Candidate]], bool]] = []
    for unit in units:
        sure, together = True, [unit]
        apart = []
        for part, known in parts:
            relations = [_relation(unit, each, whole, now_ns, resolution_ns) for each in part if _meet(unit, each)]
            if all(r is Relation.APART for r in relations):
                apart.append((part, known))
                continue
            together += part
            sure &= known and all(r is Relation.ONE_JOB for r in relations)
        parts = [*apart, (together, sure)]
    return [([c for unit in part for c in unit], sure) for part, sure in parts]


def _units(flows: Sequence[Candidate]) -> list[list[Candidate]]:
    """The flows of each block; of very many blocks, those of the ones that carry most."""
    found = blocks({c.edge for c in flows})
    block_of = {edge: number for number, block in enumerate(found) for edge in block}
    units: list[list[Candidate]] = [[] for _ in found]
    for c in flows:
        units[block_of[c.edge]].append(c)
    if len(units) > _MOST_BLOCKS:
        units = sorted(units, key=lambda unit: -sum(c.bursts.total for c in unit))[:_MOST_BLOCKS]
    return units


def _meet(one: Sequence[Candidate], other: Sequence[Candidate]) -> bool:
    return not addresses(one).isdisjoint(addresses(other))


def _relation(
    one: Sequence[Candidate],
    other: Sequence[Candidate],
    whole: Repetition | None,
    now_ns: int,
    resolution_ns: int,
) -> Relation:
    """whole: how they repeat themselves together with all that they may make a job with."""
    shared = addresses(one) & addresses(other)
    a, b = (_side(flows, shared, now_ns, resolution_ns) for flows in (one, other))
    return relation(a, b, (whole, common([*one, *other], now_ns, resolution_ns)), now_ns, resolution_ns)


def _side(flows: Sequence[Candidate], shared: set[str], now_ns: int, resolution_ns: int) -> Side:
    sends = [c.bursts for c in flows if c.edge[1] in shared]
    receives = [c.bursts for c in flows if c.edge[0] in shared]
    return Side(sends, receives, common(flows, now_ns, resolution_ns))


def are_several(flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> bool:
    """Whether flows that were taken for one job turn out to be several jobs'."""
    return len(parted(flows, now_ns, resolution_ns)) > 1


def one_with(core: Sequence[Candidate], flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> list[Candidate]:
    """Those of the flows that are of one job with the core, which is one; empty as long as that is not sure."""
    for part, sure in parted(flows, now_ns, resolution_ns):
        if addresses(core) <= addresses(part):
            return part if sure else []
    return []
