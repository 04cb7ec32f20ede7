# SPDX-License-Identifier: Apache-2.0
"""The bytes on one job's links during some time, cell by cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from netmon.dl.account import JOB
from netmon.dl.verdict.connections import Connections, no_tcp_rows, of_job
from netmon.dl.verdict.evidence import CELL_NS, FINE_NS, Link, LinkTotals, Whose
from netmon.records import Direction

UNCLASSIFIED = "unclassified"
"""Name of traffic without a known owner."""

OWN_TRANSFER = "own_transfer"
_WORTH_NAMING = 0.1  # of the payload at the end that has the most
_NEARLY = 0.9  # of what left by a link
_MUCH = 0.1  # of what a rank gets of the job's gradients

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """Arrays over cells from `first` on. Links are those over which the job's gradients went."""

    first: int
    links: tuple[Link, ...]
    ends: tuple[tuple[int, int], ...]  # of each link, the rank there and the one at the other end with most payload
    names: tuple[str, ...]  # of the foreign traffic owners, which are others' and the ranks' own transfers
    causes: tuple[str, ...]  # of each of them: the cause, as in SHARES, if it delays gradients
    own: _Floats  # (links, cells) wire bytes of the job's gradients
    foreign: _Floats  # (traffic owners, links, cells) wire bytes
    foreign_payload: _Floats  # the same
    ranks: npt.NDArray[np.int64]  # (ranks,)
    sent: _Floats  # (ranks, cells) payload of gradients
    taken: _Floats  # (ranks, cells) payload of gradients that the rank received
    clock_cells: int  # the clocks' bound, in cells
    whole: bool  # every rank that is known has rows
    said: Connections  # of the job, of all the time that is known
    fine: bool = True  # cells are not merely parts of buckets that are much wider
    sends_to: tuple[frozenset[int], ...] = ()  # of each link, the ranks that get much of what they do by it
    arrived: Mapping[int, _Floats] = field(default_factory=dict)
    """By links by which ranks send, `own` when it came in at the ranks that it went to; only where those are seen."""

    @property
    def cells(self) -> int:
        """How many there are."""
        return int(self.own.shape[1])

    @cached_property
    def moved(self) -> _Floats:
        """(cells,): payload of the job's gradients that arrived anywhere; that left, where no receiver is seen; both
        where a rank's host is not: what goes there only leaves, what comes from there only arrives."""
        arrived, left = self.arrived_cells, self.left_cells
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

    @cached_property
    def left_cells(self) -> _Floats:
        """(cells,): payload of the job's gradients that left any rank."""
        return np.asarray(self.sent.sum(axis=0))

    @cached_property
    def arrived_cells(self) -> _Floats:
        """(cells,): payload of the job's gradients that arrived at any rank."""
        return np.asarray(self.taken.sum(axis=0))

    def cell(self, time_ns: float) -> int:
        """The place of a moment (UTC), within the window."""
        return min(max(int(time_ns) // CELL_NS - self.first, 0), self.cells)


class JobTraffic:
    """One job's bytes and the others' on its links, sorted once for many windows."""

    def __init__(self, link_totals: LinkTotals, job: str, baseline_spans: Sequence[tuple[int, int]] = ()) -> None:
        """link_totals: of all owners, on the links of the job's hosts and others; baseline_spans: as in of_job."""
        whose, rows = link_totals.whose, link_totals.rows
        order = np.argsort(rows["cell"], kind="stable")
        self._cell, self._link, self._of = (rows[name][order] for name in ("cell", "link", "of"))
        self._wire, self._payload = (rows[name][order].astype(np.float64) for name in ("wire_bytes", "payload_bytes"))
        ours = np.array([one.job == job and not one.far for one in whose], np.bool_)
        gradients = ours & ~np.array([one.control for one in whose], np.bool_)
        self._own = gradients[self._of] & (self._payload > 0)
        self._traffic_owners, self._name = _foreign(whose, ours, job)
        self._rank, self._peer = (
            np.array([getattr(one, name) for one in whose], np.int64) for name in ("rank", "peer")
        )
        self._receives = np.array([one.direction == Direction.RX for one in link_totals.links], np.bool_)
        self._known = _known(whose, job)
        said = no_tcp_rows() if link_totals.said is None else link_totals.said
        self._said = of_job(said, whose, job, baseline_spans)
        self._clock_cells = -(-link_totals.clock_error_ns // CELL_NS)
        self._totals = link_totals

    def window(self, since_ns: int, until_ns: int) -> Window | None:
        """The bytes on the job's links in [since, until) (UTC); None where nothing is known of its gradients then."""
        first, last = since_ns // CELL_NS, (until_ns - 1) // CELL_NS
        begin, end = np.searchsorted(self._cell, (first, last + 1)).tolist()
        own = np.flatnonzero(self._own[begin:end]) + begin
        if not len(own):
            return None
        totals, cells = self._totals, last - first + 1
        used = np.flatnonzero(np.bincount(self._link[own], minlength=len(totals.links)))
        position = np.full(len(totals.links), -1)
        position[used] = np.arange(len(used))
        own_link, arrived = position[self._link[own]], self._receives[self._link[own]]
        arriving, leaving = own[arrived], own[~arrived]
        ranks = np.unique(self._rank[np.flatnonzero(np.bincount(self._of[own]))])
        of_rank = np.searchsorted(ranks, self._rank)
        on_link, traffic_owner = position[self._link[begin:end]], self._name[self._of[begin:end]]
        other = np.flatnonzero((on_link >= 0) & (traffic_owner >= 0))
        pair, other = traffic_owner[other] * len(used) + on_link[other], other + begin

        def table(weights: _Floats, some: npt.NDArray[np.intp], index: npt.NDArray[np.integer], size: int) -> _Floats:
            flat = index * cells + (self._cell[some] - first)
            return np.asarray(np.bincount(flat, weights[some], size * cells), np.float64).reshape(size, cells)

        shape, pairs = (len(self._traffic_owners), len(used), cells), len(self._traffic_owners) * len(used)
        own_wire = table(self._wire, own, own_link, len(used))
        by = self._sent_by(leaving, own_link[~arrived], arriving)
        came_in = table(self._wire, arriving[by >= 0], by[by >= 0], len(used))
        seen_there = (came_in.sum(axis=1) >= _NEARLY * own_wire.sum(axis=1)) & ~self._receives[used]
        return Window(
            first=first,
            links=tuple(totals.links[number] for number in used.tolist()),
            ends=_ends(totals.whose, own_link, self._of[own], self._payload[own], len(used)),
            names=tuple(self._named(number, other) for number in range(len(self._traffic_owners))),
            causes=tuple(cause for cause, _ in self._traffic_owners),
            own=own_wire,
            foreign=table(self._wire, other, pair, pairs).reshape(shape),
            foreign_payload=table(self._payload, other, pair, pairs).reshape(shape),
            ranks=ranks,
            sent=table(self._payload, leaving, of_rank[self._of[leaving]], len(ranks)),
            taken=table(self._payload, arriving, of_rank[self._of[arriving]], len(ranks)),
            clock_cells=self._clock_cells,
            whole=self._known <= set(ranks.tolist()),
            said=self._said,
            fine=totals.width_ns <= FINE_NS,
            sends_to=self._sends_to(own_link, own, ~arrived, len(used)),
            arrived={link: came_in[link] for link in np.flatnonzero(seen_there).tolist()},
        )

    def _sent_by(
        self, leaving: npt.NDArray[np.intp], link: npt.NDArray[np.int64], arriving: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.int64]:
        """(arriving,): the link by which each row was sent; −1: its sender has several, or is not known.

        link: by which each of the rows leaves that do.
        """
        rank, peer = self._rank[self._of[leaving]], self._peer[self._of[arriving]]
        none = len(self._totals.links)
        first, last = np.full((2, max(rank.max(initial=0), peer.max(initial=0)) + 2), ((none,), (-1,)))
        np.minimum.at(first, rank, link)
        np.maximum.at(last, rank, link)
        only = np.where(first == last, last, -1)
        only[-1] = -1  # of ranks that are not known
        return np.asarray(only[peer])

    def _sends_to(
        self, link: npt.NDArray[np.int64], own: npt.NDArray[np.intp], leaves: npt.NDArray[np.bool_], links: int
    ) -> tuple[frozenset[int], ...]:
        """own: of each link's own rows; leaves: those that are sent."""
        peers, to = np.unique(self._peer[self._of[own[leaves]]], return_inverse=True)
        payload = np.bincount(link[leaves] * len(peers) + to, self._payload[own[leaves]], links * len(peers))
        sent = payload.reshape(links, -1)
        much = (sent > 0) & (sent >= _MUCH * sent.sum(axis=0))
        return tuple(frozenset(peers[some].tolist()) for some in much)

    def _named(self, traffic_owner: int, rows: npt.NDArray[np.intp]) -> str:
        """A traffic_owner's name; that of a rank's own transfers with the other end of most of these rows' payload."""
        cause, name = self._traffic_owners[traffic_owner]
        if cause != OWN_TRANSFER:
            return name
        own = rows[self._name[self._of[rows]] == traffic_owner]
        ends: dict[str, float] = {}
        for of in np.unique(self._of[own]).tolist():
            far = self._totals.whose[of].far
            ends[far] = ends.get(far, 0.0) + float(self._payload[own][self._of[own] == of].sum())
        first, *others = sorted(ends, key=lambda far: -ends[far]) or [""]
        more = sum(ends[far] >= _WORTH_NAMING * ends[first] for far in others)
        return f"{name} {first} and {more} more" if more else f"{name} {first}"


def _ends(
    whose: Sequence[Whose],
    link: npt.NDArray[np.int64],
    of: npt.NDArray[np.int64],
    payload: _Floats,
    links: int,
) -> tuple[tuple[int, int], ...]:
    size = links * len(whose)
    sums = np.bincount(link * len(whose) + of, weights=payload, minlength=size).reshape(links, -1)
    return tuple((whose[one].rank, whose[one].peer) for one in sums.argmax(axis=1).tolist())


def _known(whose: Sequence[Whose], job: str) -> set[int]:
    """The ranks of a job that are known, by themselves or at the other end of a flow."""
    own = (one for one in whose if one.job == job and not (one.control or one.far))
    return {rank for one in own for rank in (one.rank, one.peer) if rank >= 0}


def _foreign(
    whose: Sequence[Whose], own: npt.NDArray[np.bool_], job: str
) -> tuple[tuple[tuple[str, str], ...], npt.NDArray[np.int64]]:
    """Cause and name of those that are not the job's gradients or control, and which of them each of `whose` is, −1:
    none."""
    numbers: dict[tuple[str, str], int] = {}
    found = np.full(len(whose), -1, np.int64)
    for index, one in enumerate(whose):
        if not own[index]:
            traffic_owner = ("other_job", JOB + one.job) if one.job else ("cross", one.name or UNCLASSIFIED)
            traffic_owner = (OWN_TRANSFER, one.name) if one.far and one.job == job else traffic_owner
            found[index] = numbers.setdefault(traffic_owner, len(numbers))
    return tuple(numbers), found


def around(values: _Floats, reach: int) -> _Floats:
    """Sums over the cells from −reach to +reach, along the last axis."""
    return around_each(values, (reach,))[0]


def around_each(values: _Floats, reaches: Sequence[int]) -> list[_Floats]:
    """As around, once for each reach."""
    count, most = values.shape[-1], max(reaches)
    sums = np.zeros((*values.shape[:-1], count + 2 * most + 1))  # up to a cell, with `most` more on either side
    np.cumsum(values, axis=-1, out=sums[..., most + 1 : most + 1 + count])
    sums[..., most + 1 + count :] = sums[..., most + count : most + count + 1]
    return [
        sums[..., most + reach + 1 : most + reach + 1 + count] - sums[..., most - reach : most - reach + count]
        for reach in reaches
    ]
