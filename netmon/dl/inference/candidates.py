# SPDX-License-Identifier: Apache-2.0
"""Flows that may be of a job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from netmon.dl.inference.bursts import Bursts, together
from netmon.dl.inference.pattern import Edge, strongly_connected
from netmon.dl.inference.repetition import Repetition, repetition


@dataclass(frozen=True)
class Candidate:
    """A flow, each 5-tuple once, that belongs to no job."""

    flow: int
    edge: Edge
    bursts: Bursts
    repetition: Repetition | None


def addresses(flows: Sequence[Candidate]) -> set[str]:
    """Of both ends."""
    return {address for c in flows for address in c.edge}


def connected(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Those between hosts that can reach each other along them, together."""
    groups = strongly_connected({c.edge for c in candidates})
    group_of = {address: number for number, group in enumerate(groups) for address in group}
    flows: list[list[Candidate]] = [[] for _ in groups]
    for c in candidates:
        number = group_of.get(c.edge[0])
        if number is not None and number == group_of.get(c.edge[1]):
            flows[number].append(c)
    yield from flows


def common(flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> Repetition | None:
    """How they repeat themselves, all together, as far back as all of them are known."""
    known = [c.bursts.rows for c in flows]
    begins = (int(rows["start_ns"][0]) for rows, c in zip(known, flows, strict=True) if c.bursts.forgetful)
    since = max(begins, default=0)
    return repetition(together([rows[rows["start_ns"].searchsorted(since) :] for rows in known], resolution_ns), now_ns)
