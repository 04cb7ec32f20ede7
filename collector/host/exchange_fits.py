# SPDX-License-Identifier: Apache-2.0
"""What the exchanges of several hosts tell of their clocks, estimated together."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.host.exchanges import Exchanges
from netmon.dl.clocks import AGEING, OffsetFit, Present, fit_offsets
from netmon.dl.corridors import Points

_Numbers = npt.NDArray[np.int64]

_times = attrgetter("agent_sent_ns", "collector_received_ns", "collector_sent_ns", "agent_received_ns")


class Wanted(NamedTuple):
    """One host's estimate at now_ns (mono); what it starts from, and how far it goes: see fit_offsets."""

    exchanges: Exchanges
    now_ns: int
    present: OffsetFit | None
    share: float


def fit_exchanges(wanted: Sequence[Wanted]) -> list[OffsetFit | None]:
    """Collector − agent of each host that has exchanges; None where they say nothing."""
    if not wanted:
        return []
    known = [one.exchanges.all() for one in wanted]
    counts = [len(some) for some in known]
    told = np.fromiter(chain.from_iterable(map(_times, chain.from_iterable(known))), np.int64, 4 * sum(counts))
    of, times = np.repeat(np.arange(len(wanted)), counts), told.reshape(-1, 4)
    possible = (times[:, 3] >= times[:, 0]) & (times[:, 2] >= times[:, 1])
    of, times = of[possible], times[possible]
    sent, collector_received, collector_sent, received = times.T
    at_ns, begin_ns = (np.array(column, np.int64) for column in _columns(wanted))
    upper = collector_received - sent + _aged(begin_ns[of] - sent)
    lower = collector_sent - received - _aged(begin_ns[of] - received)
    base = np.zeros(len(wanted), np.int64)
    base[of[::-1]] = upper[::-1]  # the first one of each
    above = Points.padded(of, sent - at_ns[of], upper - base[of], len(wanted), np.inf)
    below = Points.padded(of, received - at_ns[of], lower - base[of], len(wanted), -np.inf)
    share = np.array([one.share for one in wanted])
    fits = fit_offsets(above, below, base, at_ns, _present(wanted), share)
    rows = zip(*(c.tolist() for c in (at_ns, fits.offset_ns, fits.skew, fits.error_ns, fits.since_ns)), strict=True)
    return [OffsetFit(*row) if there else None for there, row in zip(fits.there.tolist(), rows, strict=True)]


def _columns(wanted: Sequence[Wanted]) -> tuple[list[int], list[int]]:
    return [one.now_ns for one in wanted], [one.exchanges.begin_ns for one in wanted]


def _aged(before_ns: _Numbers) -> _Numbers:
    """By how much bounds from so long before the window are loosened, for a line that holds since."""
    return np.ceil(np.maximum(before_ns, 0) * AGEING).astype(np.int64)


def _present(wanted: Sequence[Wanted]) -> Present:
    lines = [(one.present.offset_at(one.now_ns), one.present.skew) if one.present else (0, 0.0) for one in wanted]
    offset_ns, skew = zip(*lines, strict=True)
    there = np.array([one.present is not None for one in wanted])
    return Present(there, np.array(offset_ns, np.int64), np.array(skew, np.float64))
