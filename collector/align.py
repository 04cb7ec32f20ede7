# SPDX-License-Identifier: Apache-2.0
"""One host's monotonic clock on the UTC axis that all hosts share: the collector's."""

from collections import deque
from collections.abc import Sequence

from netmon.dl.clocks import OffsetFit, exchange_bounds, fit_offset
from netmon.dl.corrections import Correction
from netmon.dl.timemap import STEP_NS, TimeMap
from netmon.records import ClockExchange, ClockSample

WINDOW_NS = 16_000_000_000
"""Exchanges of so long tell the skew to a tenth of a ppm; within it a clock's rate may be taken as constant."""

_SETTLING_NS = 4_000_000_000  # in which an estimate that is near a wall has come most of the way to the middle
_SLOT_NS = 4_000_000_000
_MOST_REMEMBERED = 30  # of a slot each: the best exchange of two minutes of them tells what a loaded window does not
_AHEAD_NS = 1_000_000_000
_LEAST_TOLERANCE_NS = 1_000
_MOST_EXCHANGES = 1_024
_FURTHEST_NS = 60_000_000_000
_LATEST_UTC_NS = 4_000_000_000_000_000_000  # in 2096


class Alignment:
    """utc = mono + offset, within error_ns: a line that follows the best source that there is.

    The host's own UTC is believed until an exchange refutes it: hosts on one kernel, or kept well, are then exact. From
    then on the estimate moves only as far as exchanges demand; a loaded machine, whose exchanges say little, does not
    disturb it. Rows that have been stored keep their place. From there on the line slews towards the newest estimate, and only when
    it is off by more than the tolerance (an eighth of a bucket, or of the bound): the grid of buckets stays
    regular in UTC as long as that is true to the clocks, and rows of a flow stay in order. Only a clock that has
    jumped makes a step.
    """

    def __init__(self, sample: ClockSample, bucket_ns: int, known: TimeMap | None = None) -> None:
        """Begin with the host's own UTC, or with what earlier rows of the session used."""
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
        self._exchanges: deque[ClockExchange] = deque(maxlen=_MOST_EXCHANGES)
        self._remembered: deque[ClockExchange] = deque(maxlen=_MOST_REMEMBERED)
        own = OffsetFit(sample.mono_ns, sample.offset_ns, 0.0, self.error_ns, 0)
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
    def uncorrected(self) -> OffsetFit:
        """The offset to UTC that corrections add to: by the exchange, or as the host itself says."""
        sample = self.sample
        own = sample.offset_ns + self.coarse_ns
        return self.fit or OffsetFit(sample.mono_ns, own, 0.0, sample.error_ns + sample.utc_error_ns, 0)

    @property
    def offset_ns(self) -> int:
        """UTC − mono now."""
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

    def update(
        self, sample: ClockSample, exchanges: Sequence[ClockExchange], now_ns: int, settled_ns: int
    ) -> int | None:
        """Take in what a batch tells; rows before settled_ns keep their place (mono ns).

        Returns by how many ns the map steps there, where the clock has jumped or is only now known.
        """
        self.sample, self._now_ns = sample, now_ns
        self._hear([exchange for exchange in exchanges if _plausible(exchange, now_ns)])
        since = max(settled_ns, self._begin_ns)
        self._fresh = self._fresh and since == self._begin_ns
        target = self._target(now_ns)
        if self._fresh:
            self.map = TimeMap.constant(target.offset_at(since), since).steered(
                since, target.offset_at(since), target.skew
            )
            self.error_ns = target.error_ns
            return None
        gap = self._gap(target, since)
        if max(abs(gap), abs(self._gap(target, since + _AHEAD_NS))) > self._tolerance(target):
            self.map = self.map.steered(since, target.offset_at(since), target.skew)
        self.error_ns = target.error_ns + abs(self._gap(target, now_ns))
        return gap if abs(gap) >= STEP_NS else None

    def _hear(self, exchanges: Sequence[ClockExchange]) -> None:
        if not exchanges:
            return
        self._exchanges.extend(exchanges)
        oldest = self._exchanges[-1].agent_received_ns - WINDOW_NS
        while self._exchanges and self._exchanges[0].agent_sent_ns < oldest:
            self._remember(self._exchanges.popleft())
        since = self.fit.since_ns if self.fit else 0
        for memory in (self._remembered, self._exchanges):
            while memory and memory[0].agent_sent_ns < since:  # of before a jump
                memory.popleft()

    def _remember(self, exchange: ClockExchange) -> None:
        last = self._remembered[-1] if self._remembered else None
        if last is None or last.agent_sent_ns // _SLOT_NS != exchange.agent_sent_ns // _SLOT_NS:
            self._remembered.append(exchange)
        elif _on_the_way(exchange) < _on_the_way(last):
            self._remembered[-1] = exchange

    def _target(self, now_ns: int) -> OffsetFit:
        self._estimate(now_ns)
        if self.trusts_host:
            sample = self.sample
            return OffsetFit(sample.mono_ns, sample.offset_ns, 0.0, sample.error_ns + sample.utc_error_ns, 0)
        return self.correction.of(self.uncorrected) if self.correction else self.uncorrected

    def _estimate(self, now_ns: int) -> None:
        """The fit by the exchanges; without new ones it is the same, with a wider bound."""
        if not self._exchanges:
            return
        newest = self._exchanges[-1].agent_received_ns
        bounds = exchange_bounds([*self._remembered, *self._exchanges]).aged(newest - WINDOW_NS)
        if self._believed:
            fit = fit_offset(bounds, now_ns, self._believed, share=0)
            if fit and _alike(fit, self._believed):
                self.fit = self._present = fit
                return
            self._believed = None
        present = None if self._fresh else self._present
        share = min(1.0, max(0, now_ns - present.at_ns) / _SETTLING_NS) if present else 1.0
        self.fit = self._present = fit_offset(bounds, now_ns, present, share) or self.fit

    def _gap(self, target: OffsetFit, at_ns: int) -> int:
        return target.offset_at(at_ns) - self.map.offset(at_ns)

    def _tolerance(self, target: OffsetFit) -> int:
        return max(_LEAST_TOLERANCE_NS, min(self._tolerance_ns, target.error_ns // 8))


def _plausible(exchange: ClockExchange, now_ns: int) -> bool:
    """Whether it can have been made by a collector, near the batch that brings it."""
    away_ns = max(abs(exchange.agent_sent_ns - now_ns), abs(exchange.agent_received_ns - now_ns))
    possible = 0 < exchange.collector_received_ns <= exchange.collector_sent_ns < _LATEST_UTC_NS
    return possible and away_ns < _FURTHEST_NS


def _on_the_way(exchange: ClockExchange) -> int:
    away_ns = exchange.agent_received_ns - exchange.agent_sent_ns
    return away_ns - (exchange.collector_sent_ns - exchange.collector_received_ns)


def _alike(fit: OffsetFit, own: OffsetFit) -> bool:
    """Whether they are one line, but for what the reading of a clock takes."""
    return fit.skew == own.skew and abs(fit.offset_ns - own.offset_ns) <= max(_LEAST_TOLERANCE_NS, own.error_ns)
