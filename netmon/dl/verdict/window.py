# SPDX-License-Identifier: Apache-2.0
"""What the links of one job carried during some time, cell by cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from netmon.dl.account import JOB
from netmon.dl.verdict.connections import Connections, nothing_said, of_job
from netmon.dl.verdict.evidence import CELL_NS, FINE_NS, Carried, Link, Whose
from netmon.records import Direction

UNCLASSIFIED = "unclassified"
"""What traffic is called of which nobody knows whose it is."""

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """Arrays over cells from `first` on. Links are those over which the job's gradients went."""

    first: int
    links: tuple[Link, ...]
    ends: tuple[tuple[int, int], ...]  # of each link, the rank there and the one at the other end with most payload
    names: tuple[str, ...]  # of the foreign parties
    own: _Floats  # (links, cells) wire bytes of the job's gradients
    foreign: _Floats  # (parties, links, cells) wire bytes
    foreign_payload: _Floats  # the same
    ranks: npt.NDArray[np.int64]  # (ranks,)
    sent: _Floats  # (ranks, cells) payload of gradients
    taken: _Floats  # (ranks, cells) payload of gradients that the rank received
    clock_cells: int  # the clocks' bound, in cells
    whole: bool  # every rank that is known has rows
    said: Connections  # of the job, of all the time that is known
    fine: bool = True  # cells are not merely parts of buckets that are much wider

    @property
    def cells(self) -> int:
        """How many there are."""
        return int(self.own.shape[1])

    @cached_property
    def moved(self) -> _Floats:
        """(cells,): payload of the job's gradients that arrived anywhere; that left, where no receiver is seen; both
        where a rank's host is not: what goes there only leaves, what comes from there only arrives."""
        arrived, left = self.taken.sum(axis=0), self.sent.sum(axis=0)
        if not self.whole:
            both: _Floats = arrived + left
            return both
        moved: _Floats = arrived if 2 * arrived.sum() >= left.sum() else left
        return moved

    @cached_property
    def capacity(self) -> _Floats:
        """(links,): wire bytes of a cell at the link's capacity; nan: unknown."""
        bps = np.array([link.capacity_bps or np.nan for link in self.links], np.float64)
        return bps / 8 * CELL_NS / 1e9

    def cell(self, time_ns: float) -> int:
        """The place of a moment (UTC), within the window."""
        return int(np.clip(int(time_ns) // CELL_NS - self.first, 0, self.cells))


def window(carried: Carried, job: str, since_ns: int, until_ns: int) -> Window | None:
    """What the job's links carried in [since, until) (UTC); None where nothing is known of its gradients then."""
    rows = carried.between(since_ns, until_ns)
    link, of = rows["link"], rows["of"]
    own_kind = np.array([one.job == job and not one.control for one in carried.whose], np.bool_)
    ours = np.array([one.job == job for one in carried.whose], np.bool_)
    if not len(rows) or not (own_kind[of] & (rows["payload_bytes"] > 0)).any():
        return None
    own = np.flatnonzero(own_kind[of] & (rows["payload_bytes"] > 0))
    first = since_ns // CELL_NS
    cells = (until_ns - 1) // CELL_NS - first + 1
    used, place = np.unique(link[own]), np.full(len(carried.links), -1)
    place[used] = np.arange(len(used))
    receives = np.array([one.direction == Direction.RX for one in carried.links], np.bool_)
    arriving, leaving = own[receives[link[own]]], own[~receives[link[own]]]
    ranks = np.unique([carried.whose[one].rank for one in np.unique(of[own]).tolist()])
    rank_of = np.searchsorted(ranks, [one.rank for one in carried.whose])
    names, name_of = _foreign(carried.whose, ours)
    other = np.flatnonzero((place[link] >= 0) & (name_of[of] >= 0))
    pair = name_of[of[other]] * len(used) + place[link[other]]
    at = rows["cell"] - first

    def table(some: npt.NDArray[np.intp], index: npt.NDArray[np.integer], size: int, what: str) -> _Floats:
        weights = rows[what][some].astype(np.float64)
        flat = np.bincount(index * cells + at[some], weights=weights, minlength=size * cells)
        return flat.astype(np.float64).reshape(size, cells)

    shape = len(names), len(used), cells
    return Window(
        first=first,
        links=tuple(carried.links[number] for number in used.tolist()),
        ends=_ends(carried.whose, place[link[own]], of[own], rows["payload_bytes"][own], len(used)),
        names=names,
        own=table(own, place[link[own]], len(used), "wire_bytes"),
        foreign=table(other, pair, len(names) * len(used), "wire_bytes").reshape(shape),
        foreign_payload=table(other, pair, len(names) * len(used), "payload_bytes").reshape(shape),
        ranks=ranks,
        sent=table(leaving, rank_of[of[leaving]], len(ranks), "payload_bytes"),
        taken=table(arriving, rank_of[of[arriving]], len(ranks), "payload_bytes"),
        clock_cells=-(-carried.clock_error_ns // CELL_NS),
        whole=_known(carried.whose, job) <= set(ranks.tolist()),
        said=of_job(nothing_said() if carried.said is None else carried.said, carried.whose, job),
        fine=carried.width_ns <= FINE_NS,
    )


def _ends(
    whose: Sequence[Whose],
    link: npt.NDArray[np.int64],
    of: npt.NDArray[np.int64],
    payload: npt.NDArray[np.int64],
    links: int,
) -> tuple[tuple[int, int], ...]:
    size = links * len(whose)
    sums = np.bincount(link * len(whose) + of, weights=payload, minlength=size).reshape(links, -1)
    return tuple((whose[one].rank, whose[one].peer) for one in sums.argmax(axis=1).tolist())


def _known(whose: Sequence[Whose], job: str) -> set[int]:
    """The ranks of a job that are known, by themselves or at the other end of a flow."""
    return {rank for one in whose if one.job == job and not one.control for rank in (one.rank, one.peer) if rank >= 0}


def _foreign(whose: Sequence[Whose], own: npt.NDArray[np.bool_]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Names of those that are not the job, and the name of each of `whose`, −1: the job's."""
    numbers: dict[str, int] = {}
    found = np.full(len(whose), -1, np.int64)
    for place, one in enumerate(whose):
        if not own[place]:
            name = JOB + one.job if one.job else one.name or UNCLASSIFIED
            found[place] = numbers.setdefault(name, len(numbers))
    return tuple(numbers), found


def around(values: _Floats, reach: int) -> _Floats:
    """Sums over the cells from −reach to +reach, along the last axis."""
    padded = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    place = np.arange(values.shape[-1])
    high, low = np.minimum(place + reach + 1, values.shape[-1]), np.maximum(place - reach, 0)
    found: _Floats = padded[..., high] - padded[..., low]
    return found
