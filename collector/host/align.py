# SPDX-License-Identifier: Apache-2.0
"""One host's monotonic clock on the UTC axis that all hosts share: the collector's."""

from collections import deque
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.clocks import AGEING, ROOM_NS, Correction, OffsetFit, Points, Present, fit_offsets, refutes
from netmon.dl.timemap import STEP_NS, TimeMap
from netmon.records import ClockExchange, ClockSample

# --- What one host's exchanges of the last two minutes show of its clock.

WINDOW_NS = 16_000_000_000
"""Exchanges of so long determine the skew to a tenth of a ppm; within it a clock's rate may be taken as constant."""

_SLOT_NS = 4_000_000_000
_MOST_REMEMBERED = 30  # slots
_MOST_EXCHANGES = 1_024
_FURTHEST_NS = 60_000_000_000
_LATEST_UTC_NS = 4_000_000_000_000_000_000  # in 2096


class Exchanges:
    """All exchanges of a window, and of the time before it the best of every few seconds.

    Those say what a window under load, in which none is exact, does not.
    """

    def __init__(self) -> None:
        self._window: deque[ClockExchange] = deque(maxlen=_MOST_EXCHANGES)
        self._earlier: deque[ClockExchange] = deque(maxlen=_MOST_REMEMBERED)

    def add_exchanges(self, exchanges: Sequence[ClockExchange], now_ns: int) -> bool:
        """Take in those of a batch of now_ns (mono) that can be true; whether one of them is exact."""
        plausible = [exchange for exchange in exchanges if _plausible(exchange, now_ns)]
        if not plausible:
            return False
        self._window.extend(plausible)
        oldest = self._window[-1].agent_received_ns - WINDOW_NS
        while self._window and self._window[0].agent_sent_ns < oldest:
            self._remember(self._window.popleft())
        return any(_on_the_way(exchange) <= 2 * ROOM_NS for exchange in plausible)

    def forget(self, since_ns: int) -> None:
        """Drop what is older: the clock has jumped."""
        for memory in (self._earlier, self._window):
            while memory and memory[0].agent_sent_ns < since_ns:
                memory.popleft()

    def __bool__(self) -> bool:
        """Whether there is something in the window."""
        return bool(self._window)

    @property
    def begin_ns(self) -> int:
        """When the window begins; there is something in it."""
        return self._window[-1].agent_received_ns - WINDOW_NS

    def all(self) -> list[ClockExchange]:
        """The best of the time before the window, and all in it."""
        return [*self._earlier, *self._window]

    def _remember(self, exchange: ClockExchange) -> None:
        last = self._earlier[-1] if self._earlier else None
        if last is None or last.agent_sent_ns // _SLOT_NS != exchange.agent_sent_ns // _SLOT_NS:
            self._earlier.append(exchange)
        elif _on_the_way(exchange) < _on_the_way(last):
            self._earlier[-1] = exchange


def _plausible(exchange: ClockExchange, now_ns: int) -> bool:
    """Whether it can have been made by a collector, near the batch that brings it."""
    away_ns = max(abs(exchange.agent_sent_ns - now_ns), abs(exchange.agent_received_ns - now_ns))
    possible = 0 < exchange.collector_received_ns <= exchange.collector_sent_ns < _LATEST_UTC_NS
    return possible and away_ns < _FURTHEST_NS


def _on_the_way(exchange: ClockExchange) -> int:
    away_ns = exchange.agent_received_ns - exchange.agent_sent_ns
    return away_ns - (exchange.collector_sent_ns - exchange.collector_received_ns)


# --- What the exchanges of all hosts show of their clocks, estimated together.

_Numbers = npt.NDArray[np.int64]

_times = attrgetter("agent_sent_ns", "collector_received_ns", "collector_sent_ns", "agent_received_ns")


class ClockQuery(NamedTuple):
    """One host's estimate at now_ns (mono); what it starts from, and how far it goes: see fit_offsets."""

    exchanges: Exchanges
    now_ns: int
    present: OffsetFit | None
    share: float


def fit_exchanges(wanted: Sequence[ClockQuery]) -> list[OffsetFit | None]:
    """Collector − agent of each host that has exchanges; None where they say nothing."""
    if not wanted:
        return []
    known = [one.exchanges.all() for one in wanted]
    counts = [len(some) for some in known]
    all_times = np.fromiter(chain.from_iterable(map(_times, chain.from_iterable(known))), np.int64, 4 * sum(counts))
    of, times = np.repeat(np.arange(len(wanted)), counts), all_times.reshape(-1, 4)
    possible = (times[:, 3] >= times[:, 0]) & (times[:, 2] >= times[:, 1])
    of, times = of[possible], times[possible]
    sent, collector_received, collector_sent, received = times.T
    at_ns = np.array([one.now_ns for one in wanted], np.int64)
    begin_ns = np.array([one.exchanges.begin_ns for one in wanted], np.int64)
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


def _aged(before_ns: _Numbers) -> _Numbers:
    """By how much bounds from so long before the window are loosened, for a line that holds since."""
    return np.ceil(np.maximum(before_ns, 0) * AGEING).astype(np.int64)


def _present(wanted: Sequence[ClockQuery]) -> Present:
    lines = [(one.present.offset_at(one.now_ns), one.present.skew) if one.present else (0, 0.0) for one in wanted]
    offset_ns, skew = zip(*lines, strict=True)
    there = np.array([one.present is not None for one in wanted])
    return Present(there, np.array(offset_ns, np.int64), np.array(skew, np.float64))


_SETTLING_NS = 4_000_000_000  # in which an estimate that is near a wall has come most of the way to the middle
_FIT_EVERY_NS = 1_000_000_000
_CALM_FIT_EVERY_NS = 4_000_000_000  # once it is well known, and no exchange says else
_FITS_AT_FIRST = 8
_AHEAD_NS = 1_000_000_000
_LEAST_TOLERANCE_NS = 1_000
SET_NS = 1_000_000_000
"""A host whose own UTC has moved by so much against its mono has slept, or was set."""
_ASLEEP_WITHIN_NS = 2_000_000_000  # a clock that goes on while the host sleeps may have whole seconds only


class Update(NamedTuple):
    """What batches report of a host's clock; rows before settled_ns keep their place (mono ns)."""

    alignment: "Alignment"
    sample: ClockSample
    exchanges: Sequence[ClockExchange]
    now_ns: int
    settled_ns: int


class Alignment:
    """utc = mono + offset, within error_ns: a line that follows the best source that there is.

    The host's own UTC is believed until an exchange refutes it: hosts on one kernel, or kept well, are then exact. From
    then on the estimate moves only as far as exchanges demand; a loaded machine, whose exchanges say little, does not
    disturb it. Rows that have been stored keep their place. From there on the line slews towards the newest estimate,
    and only when it is off by more than the tolerance (an eighth of a bucket, or of the bound): the grid of buckets
    stays regular in UTC as long as that is true to the clocks, and rows of a flow stay in order. Only a clock that has
    jumped makes a step.
    """

    def __init__(self, sample: ClockSample, bucket_ns: int, known: TimeMap | None = None) -> None:
        self.map = known or TimeMap.constant(sample.offset_ns, sample.mono_ns)
        self.fit: OffsetFit | None = None  # by the exchange alone
        self.correction: Correction | None = None  # by the traffic between hosts
        self.coarse_ns = 0  # what to add to the host's own UTC, by the traffic, where there is no exchange
        self.trusts_host = False  # every host's own UTC is kept, and better than the exchange
        self.sample = sample
        self.error_ns = sample.error_ns + sample.utc_error_ns
        self._fresh = known is None
        self._begin_ns = sample.mono_ns
        self._now_ns = sample.mono_ns
        self._tolerance_ns = bucket_ns // 8
        self.exchanges = Exchanges()
        self._exact = False  # one of those that came last is
        self._since_ns = sample.mono_ns  # from where on the map may change
        self._set = (0, 0)  # when the host's own UTC has moved (mono), and by how much
        self._slept_ns = sample.mono_ns  # rows before it keep their place, settled or not
        self._waiting: list[ClockExchange] = []  # that no fit has used
        self._fitted_ns, self._fits = sample.mono_ns, 0
        self._used: tuple[tuple[object, ...], ClockSample] = ((None, False, 0), sample)
        own = OffsetFit(sample.mono_ns, sample.offset_ns, 0.0, sample.error_ns, 0)
        begun = OffsetFit(sample.mono_ns, known.offset(sample.mono_ns), known.slope, 0, 0) if known else None
        self._believed: OffsetFit | None = None if begun and not _alike(begun, own) else own
        self._present = begun  # where the next estimate starts from

    @property
    def source(self) -> str:
        """Whose estimate it is: "exchange", "traffic" (and exchange), "ptp", "ntp"; empty: the host's own UTC."""
        if self.trusts_host:
            return self.sample.discipline
        if self.correction and not (self.fit and self.fit.error_ns <= self.correction.error_ns):
            return "traffic"
        return "exchange" if self.fit else self.sample.discipline

    @property
    def unrefuted(self) -> bool:
        """Whether the host's own UTC is what exchanges have not refuted so far."""
        return self.fit is not None and self._believed is not None

    @property
    def uncorrected(self) -> OffsetFit:
        """The offset to UTC that corrections add to: by the exchange, or as the host itself says."""
        sample = self.sample
        own = sample.offset_ns + self.coarse_ns
        return self.fit or OffsetFit(sample.mono_ns, own, 0.0, sample.error_ns + sample.utc_error_ns, 0)

    @property
    def offset_ns(self) -> int:
        return self.map.offset(self._now_ns)

    @property
    def host_offset_ns(self) -> int:
        """The host's own UTC minus the collector's; 0 where the collector knows no better."""
        return self.sample.offset_ns - self.fit.offset_at(self.sample.mono_ns) if self.fit else 0

    @property
    def skew_ppm(self) -> float:
        """How much faster the host's clock runs than the collector's."""
        return -self.fit.skew * 1e6 if self.fit else 0.0

    def utc(self, mono_ns: int) -> int:
        """A time of this host's clock in ns of the UTC epoch."""
        return self.map.utc(mono_ns)

    def add_sample(
        self, sample: ClockSample, exchanges: Sequence[ClockExchange], now_ns: int
    ) -> list[ClockExchange] | None:
        """Add a batch's exchanges. Returns those that `update` has to be called with now; None: it need not be.

        That is where there is something new, and exchanges no more often than it is needed: a fit is work.
        """
        self._waiting += exchanges
        due = self._fit_due(now_ns)
        if not (due or self._moved(sample)):
            self.sample, self._now_ns = sample, now_ns
            return None
        if not due:
            return []
        received, self._waiting, self._fitted_ns = self._waiting, [], now_ns
        self._fits += 1
        return received

    def _fit_due(self, now_ns: int) -> bool:
        if not self._waiting:
            return False
        if self.fit is None or self._fresh:
            return True
        since_ns = now_ns - self._fitted_ns
        if since_ns < _FIT_EVERY_NS or self._fits < _FITS_AT_FIRST:
            return since_ns >= _FIT_EVERY_NS
        return since_ns >= _CALM_FIT_EVERY_NS or any(refutes(exchange, self.fit) for exchange in self._waiting)

    def _moved(self, sample: ClockSample) -> bool:
        """Whether what the line follows, if not an exchange, is another one than at the last update."""
        if self._followed() != self._used[0]:
            return True
        if self.fit and not self.trusts_host:
            return False
        known = self._used[1]
        far = abs(sample.offset_ns - known.offset_ns) > _LEAST_TOLERANCE_NS
        return far or (sample.error_ns, sample.utc_error_ns) != (known.error_ns, known.utc_error_ns)

    def _followed(self) -> tuple[object, ...]:
        return self.correction, self.trusts_host, self.coarse_ns

    def add_clock_set(self, at_ns: int, by_ns: int) -> None:
        """The host's own UTC has moved so far shortly before at_ns (mono): it has slept, or was set.

        Exchanges show which. Where it has slept the map steps there, and not from what is settled on.
        """
        self._set = at_ns, by_ns

    def begin(self, sample: ClockSample, exchanges: Sequence[ClockExchange], now_ns: int, settled_ns: int) -> bool:
        """The first part of an update; whether the exchanges are to be fitted before `end`."""
        self.sample, self._now_ns = sample, now_ns
        self._used = self._followed(), sample
        self._since_ns = max(settled_ns, self._begin_ns, self._slept_ns)
        self._fresh = self._fresh and self._since_ns == self._begin_ns
        self._exact = self.exchanges.add_exchanges(exchanges, now_ns)
        if (exchanges or self.fit is None) and self.exchanges:
            return True
        if not exchanges and self.fit:
            self.fit = self._present = self.fit.moved(now_ns)
        return False

    def end(self) -> int | None:
        """The last part: by how many ns the map steps, as `update_all` tells."""
        target, since = self._target(), self._since_ns
        if self._fresh:
            self.map = TimeMap.constant(target.offset_at(since), since).steered(
                since, target.offset_at(since), target.skew
            )
            self.error_ns = target.error_ns
            return None
        gap = self._gap(target, since)
        if self._set[0] > since and abs(gap) >= STEP_NS and abs(gap - self._set[1]) < _ASLEEP_WITHIN_NS:
            since = self._slept_ns = self._set[0]
        tolerance_ns = max(_LEAST_TOLERANCE_NS, min(self._tolerance_ns, target.error_ns // 8))
        if max(abs(gap), abs(self._gap(target, since + _AHEAD_NS))) > tolerance_ns:
            self.map = self.map.steered(since, target.offset_at(since), target.skew)
        self.error_ns = target.error_ns + abs(self._gap(target, self._now_ns))
        return gap if abs(gap) >= STEP_NS else None

    def _target(self) -> OffsetFit:
        if self.trusts_host:
            sample = self.sample
            return OffsetFit(sample.mono_ns, sample.offset_ns, 0.0, sample.error_ns + sample.utc_error_ns, 0)
        return self.correction.of(self.uncorrected) if self.correction else self.uncorrected

    def believed(self, now_ns: int) -> ClockQuery | None:
        """The first question to the exchanges: whether the host is still right; None where it is not believed."""
        return ClockQuery(self.exchanges, now_ns, self._believed, 0.0) if self._believed else None

    def keeps(self, fit: OffsetFit | None) -> bool:
        """Whether that is what is believed, and is the estimate now."""
        if not (fit and self._believed and _alike(fit, self._believed)):
            self._believed = None
            return False
        self.take(fit)
        return True

    def refuted(self, now_ns: int) -> ClockQuery:
        """The second question: what else they say."""
        present = None if self._fresh else self._present
        share = min(1.0, max(0, now_ns - present.at_ns) / _SETTLING_NS) if present and self._exact else 0.0
        return ClockQuery(self.exchanges, now_ns, present, share)

    def take(self, fit: OffsetFit | None) -> None:
        """That is the estimate now, if there is one."""
        if fit:
            self.fit = self._present = fit
            self.exchanges.forget(fit.since_ns)

    def _gap(self, target: OffsetFit, at_ns: int) -> int:
        return target.offset_at(at_ns) - self.map.offset(at_ns)


def _alike(fit: OffsetFit, own: OffsetFit) -> bool:
    """Whether they are one line, but for what the reading of a clock takes."""
    return fit.skew == own.skew and abs(fit.offset_ns - own.offset_ns) <= max(_LEAST_TOLERANCE_NS, own.error_ns)


def update_all(updates: Sequence[Update]) -> list[int | None]:
    """Take in what is new of many hosts.

    Returns of each by how many ns its map steps, where the clock has jumped or is only now known.
    """
    due = [one for one in updates if one.alignment.begin(*one[1:])]
    queries = [(one, wanted) for one in due if (wanted := one.alignment.believed(one.now_ns))]
    fits = fit_exchanges([wanted for _, wanted in queries])
    kept = {id(one) for (one, _), fit in zip(queries, fits, strict=True) if one.alignment.keeps(fit)}
    rest = [one for one in due if id(one) not in kept]
    for one, fit in zip(rest, fit_exchanges([one.alignment.refuted(one.now_ns) for one in rest]), strict=True):
        one.alignment.take(fit)
    return [one.alignment.end() for one in updates]
