# SPDX-License-Identifier: Apache-2.0
"""The input of a verdict: the iterations of one job, and whose bytes crossed its hosts' links, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.evidence import SAME_STEP_NS
from netmon.records import Direction, Table

CELL_NS = 250_000
"""Bytes are counted in cells of this width. The cell k is [k·CELL_NS, (k+1)·CELL_NS) of the UTC epoch."""

FINE_NS = 2_000_000
"""Buckets up to this width show losses, short stops and even transfers."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """Finished iterations of the ranks of one job, one entry per rank and iteration, in any order; moments in UTC."""

    number: Numbers
    rank: Numbers
    start_ns: Numbers
    end_ns: Numbers
    comm_start_ns: Numbers  # first gradient handed over; 0: unknown
    comm_end_ns: Numbers  # last one reduced; 0: unknown
    exposed_ns: Numbers  # of the communication, in which nothing was computed; −1: unknown
    error_ns: Numbers  # of either boundary
    shared: npt.NDArray[np.bool_]  # the host had foreign traffic meanwhile
    host: Numbers  # index into hosts
    hosts: Sequence[str]
    size: int  # ranks of the job; 0: unknown
    relative: bool = False  # numbers are counted since the first observation
    waited_ns: Numbers | None = None  # in calls anywhere in the iteration; −1: unknown
    received_bytes: Numbers | None = None  # of the rank's own transfers; −1: unknown


def with_waits(steps: Steps, calls: Mapping[str, npt.ArrayLike] | Table) -> Steps:
    """The steps with the time that ranks waited in their calls.

    calls: `rank`, `end_ns` (UTC) and `waited_ns` of rows of the table `collectives`, in any order.
    """
    rank, end_ns, waited_ns = (np.asarray(calls[name], np.int64) for name in ("rank", "end_ns", "waited_ns"))
    order, found = np.argsort(steps.end_ns, kind="stable"), np.full(len(steps.end_ns), -1, np.int64)
    for one in np.unique(rank).tolist():
        own, reported = order[steps.rank[order] == one], np.flatnonzero(rank == one)
        ends = steps.end_ns[own]
        if not len(own):
            continue
        near = np.searchsorted(ends[:-1] + np.diff(ends) // 2, end_ns[reported])
        same = np.abs(ends[near] - end_ns[reported]) <= SAME_STEP_NS
        near, reported = near[same], reported[same]
        waited = np.bincount(near, waited_ns[reported], len(own)).astype(np.int64)
        known = np.bincount(near, minlength=len(own)) > 0
        found[own[known]] = np.minimum(waited, ends - steps.start_ns[own])[known]
    return replace(steps, waited_ns=found)


class Link(NamedTuple):
    """One direction of an interface of a host."""

    host: str
    interface: str
    direction: Direction
    capacity_bps: int  # 0: unknown


class Whose(NamedTuple):
    """The owner of bytes."""

    job: str  # empty: not a rank's
    rank: int
    peer: int  # rank at the other end; −1: unknown
    control: bool  # a rank's, and no gradients
    name: str  # for people: the program, with its container; empty: not known
    far: str = ""  # of a rank's own transfer (netmon.dl.verdict.other_ends): its other end; empty: it is none


LINK_TOTAL = np.dtype([(name, "<i8") for name in ("link", "of", "cell", "wire_bytes", "payload_bytes")])
"""Bytes of one owner on one link in one cell: link and of are indices."""


@dataclass(frozen=True)
class LinkTotals:
    """Bytes by link, owner and cell."""

    links: Sequence[Link]
    whose: Sequence[Whose]
    rows: Table  # dtype LINK_TOTAL, in any order; a link, owner and cell may occur repeatedly
    clock_error_ns: int = 0  # the largest bound of the hosts' clocks
    waited: Table | None = None  # dtype WAITED (netmon.dl.verdict.host_part) of the job's ranks; None: not reported
    said: Table | None = None  # dtype SAID (netmon.dl.verdict.connections), `of`: index into whose; None: not reported
    width_ns: int = CELL_NS  # of the widest bucket


def no_link_totals() -> LinkTotals:
    """For jobs of which no rows are kept."""
    return LinkTotals((), (), np.empty(0, LINK_TOTAL))


def in_cells(
    link: Numbers, of: Numbers, start_ns: Numbers, width_ns: Numbers, wire: Numbers, payload: Numbers
) -> Table:
    """Rows of buckets (start in UTC) as cells, dtype LINK_TOTAL; what is wider than a cell is spread over them."""
    parts = np.maximum(1, width_ns // CELL_NS)
    row = np.repeat(np.arange(len(link)), parts)
    step = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    cells = np.empty(len(row), LINK_TOTAL)
    cells["link"], cells["of"], cells["cell"] = link[row], of[row], start_ns[row] // CELL_NS + step
    for name, values in (("wire_bytes", wire), ("payload_bytes", payload)):
        even, rest = np.divmod(values[row], parts[row])
        cells[name] = even + (step < rest)
    return cells
