# SPDX-License-Identifier: Apache-2.0
"""What one host's exchanges of the last two minutes tell of its clock."""

from collections import deque
from collections.abc import Sequence

from netmon.dl.clocks import ROOM_NS
from netmon.records import ClockExchange

WINDOW_NS = 16_000_000_000
"""Exchanges of so long tell the skew to a tenth of a ppm; within it a clock's rate may be taken as constant."""

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
        """Begin with none."""
        self._window: deque[ClockExchange] = deque(maxlen=_MOST_EXCHANGES)
        self._earlier: deque[ClockExchange] = deque(maxlen=_MOST_REMEMBERED)

    def hear(self, exchanges: Sequence[ClockExchange], now_ns: int) -> bool:
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
