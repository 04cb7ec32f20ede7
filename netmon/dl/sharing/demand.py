# SPDX-License-Identifier: Apache-2.0
"""What a job asks of each link over one iteration, as one iteration showed that met nobody else there."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Times = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

FEWEST = 5
"""Iterations of a job, from which on it is judged."""

_BINS = 256  # of an iteration
_ALONE = 0.02  # of the bytes that pass while the job sends: so many may be others'
_QUIET = 0.05  # of the busiest bin: less than this is no transfer


@dataclass(frozen=True)
class LinkBytes:
    """What passed one link, by bins of one width. Arrays (bins,), wire bytes; the first bin begins at begin_ns."""

    begin_ns: int
    bin_ns: int
    of_job: Mapping[str, _Floats]
    total: _Floats  # everything, jobs included

    def within(self, start_ns: int, end_ns: int) -> slice:
        """The bins of a time; those that it does not cover wholly count by their beginning."""
        first = -(-(start_ns - self.begin_ns) // self.bin_ns)
        return slice(max(0, first), max(0, -(-(end_ns - self.begin_ns) // self.bin_ns)))


@dataclass(frozen=True)
class Demand:
    """One iteration of a job without others, and when its iterations began.

    rates: bit/s per link and bin, (links, bins), the links in the order of `links`. The bins cover period_ns.
    """

    job: str
    links: tuple[int, ...]
    starts_ns: _Times  # of its iterations, (iterations + 1,): the last one is the end
    period_ns: int  # of the iteration that met nobody
    rates: _Floats
    alone: bool  # whether there was one that met nobody; else it is one of the fastest
    weights: _Floats  # (links,): flows that carry its gradients there

    @property
    def measured_ns(self) -> float:
        """Median duration of its iterations as they were."""
        return float(np.median(np.diff(self.starts_ns)))

    @property
    def mean_ns(self) -> float:
        """Mean duration of its iterations, without pauses between them."""
        took = np.diff(self.starts_ns)
        return float(took[took <= 2 * np.median(took)].mean())

    @property
    def busy(self) -> float:
        """Share of the iteration in which it transfers, on the link that it uses longest."""
        loud = self.rates > _QUIET * self.rates.max(axis=1, keepdims=True)
        return float(loud.mean(axis=1).max())

    @property
    def intensity(self) -> float:
        """Computing per transferring: Crux' intensity by proxy, as nobody tells the operations (SIGCOMM'24, 3.1)."""
        return (1 - self.busy) / self.busy if self.busy else float("inf")

    def at(self, link: int) -> _Floats:
        """Its rates on a link, (bins,); zeros where it does not use it."""
        return self.rates[self.links.index(link)] if link in self.links else np.zeros(self.rates.shape[1])

    def over(self, link: int, begin_ns: int, bin_ns: int, bins: int, shift_ns: float = 0.0) -> _Floats:
        """What it would ask of a link from begin_ns on if nobody were there: each iteration where it really began.

        An iteration that lasted longer than one without others asks nothing more in the rest of its time; one that
        was shorter is cut. shift_ns: later than it was.
        """
        times = begin_ns + bin_ns * (np.arange(bins) + 0.5) - shift_ns
        number = np.searchsorted(self.starts_ns, times, "right") - 1
        inside = (number >= 0) & (number < len(self.starts_ns) - 1)
        into = times - self.starts_ns[np.clip(number, 0, len(self.starts_ns) - 1)]
        index = (into * self.rates.shape[1] / self.period_ns).astype(np.int64)
        rates = self.at(link)[np.clip(index, 0, self.rates.shape[1] - 1)]
        return np.where(inside & (index < self.rates.shape[1]), rates, 0.0)


def demand(
    job: str,
    starts_ns: _Times,
    traffic: Mapping[int, LinkBytes],
    flows: Mapping[int, int] | None = None,
    capacity_bps: Mapping[int, float] | None = None,
) -> Demand | None:
    """What a job asks of the links, by the iteration of median length among those that met nobody.

    starts_ns: (iterations + 1,), ascending. traffic: of every link on which the job sends. flows: of its gradients, by
    link. capacity_bps: of links, as far as known. None where it has fewer than FEWEST iterations, or no bytes in them.
    """
    links = tuple(link for link, seen in traffic.items() if job in seen.of_job)
    if len(starts_ns) <= FEWEST or not links:
        return None
    met = np.array(
        [
            max(_others(job, traffic[link], start, end) for link in links)
            for start, end in zip(starts_ns[:-1].tolist(), starts_ns[1:].tolist(), strict=True)
        ]
    )
    lengths = np.diff(starts_ns)
    alone = np.flatnonzero(met <= _ALONE)
    middle = np.median(lengths[alone]) if len(alone) else 0.0
    alone = alone[lengths[alone] <= 2 * middle]  # a pause between two steps is no step
    chosen = alone if len(alone) else np.argsort(lengths, kind="stable")[: max(1, len(lengths) // 10)]
    one = int(chosen[np.argsort(lengths[chosen], kind="stable")[len(chosen) // 2]])
    start, period = int(starts_ns[one]), int(lengths[one])
    speeds = capacity_bps or {}
    rates = np.stack([_passed(_rates(traffic[link], job, start, period), speeds.get(link, 0.0)) for link in links])
    if not rates.any():
        return None
    weights = np.array([max(1, (flows or {}).get(link, 1)) for link in links], np.float64)
    return Demand(job, links, starts_ns, period, rates, bool(len(alone)), weights)


def _others(job: str, seen: LinkBytes, start_ns: int, end_ns: int) -> float:
    """Share of others in what passes a link while the job sends there."""
    span = seen.within(start_ns, end_ns)
    own, total = seen.of_job[job][span], seen.total[span]
    if not own.any():
        return 1.0  # nothing is known of this one
    busy = own > _QUIET * own.max()
    return float(1 - own[busy].sum() / total[busy].sum())


def _rates(seen: LinkBytes, job: str, start_ns: int, period_ns: int) -> _Floats:
    """Bit/s by _BINS bins of the iteration; the bytes of a bin of the link are spread over the time that it covers."""
    span = seen.within(start_ns, start_ns + period_ns)
    own = seen.of_job[job][span]
    edges = seen.begin_ns + seen.bin_ns * np.arange(span.start, span.start + len(own) + 1)
    grid = start_ns + period_ns * np.arange(_BINS + 1) / _BINS
    sent = np.interp(grid, edges, np.concatenate([[0.0], np.cumsum(own)]))
    rates: _Floats = np.diff(sent) * 8e9 / (period_ns / _BINS)
    return rates


def _passed(rates: _Floats, capacity_bps: float) -> _Floats:
    """What a link lets through, (bins,): bytes are counted as they reach its queue, which takes bursts at any speed.

    What is left at the end of the iteration passes at the beginning of the next one. 0: the capacity is not known.
    """
    if not capacity_bps:
        return rates
    came = np.concatenate([[0.0], np.cumsum(np.tile(rates, 2))])
    room = capacity_bps * np.arange(len(came))
    through: _Floats = np.diff(room + np.minimum.accumulate(came - room))[len(rates) :]
    return through
