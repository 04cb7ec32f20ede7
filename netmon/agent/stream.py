# SPDX-License-Identifier: Apache-2.0
"""Keeps a connection to the collector for as long as the agent lives."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable

from netmon.agent.connection import Connect, Connection, End, Outgoing, Patience, connect_by_grpc
from netmon.agent.exchange import ClockExchanges
from netmon.agent.pressure import Backpressure
from netmon.agent.recorder import Pulls
from netmon.agent.settings import Settings
from netmon.agent.spool import Spool
from netmon.errors import KernelError

log = logging.getLogger(__name__)


def channel(settings: Settings) -> tuple[str, Connect]:
    """What it leads to, for the log, and how to connect. Raises UnsupportedError where nats-py is missing."""
    if not settings.bus:
        return f"the collector at {settings.collector}", connect_by_grpc(settings.collector, settings.security)
    # Whoever has no bus need not have nats-py, nor the memory that it takes.
    from netmon.agent.bus_connection import connect_by_bus
    from netmon.wire.bus import BusSettings

    bus = BusSettings(settings.bus, security=settings.security)
    return f"the bus at {bus.name}", connect_by_bus(bus)


class Worker(threading.Thread):
    """A thread that remembers what it died of."""

    def __init__(self, name: str) -> None:
        """`start` starts it."""
        super().__init__(name=name, daemon=True)
        self.died_of: BaseException | None = None

    def run(self) -> None:
        """Works, and remembers why it could not."""
        try:
            self.work()
        except BaseException as error:
            self.died_of = error
            raise

    def work(self) -> None:
        raise NotImplementedError


def check_alive(threads: Iterable[threading.Thread]) -> None:
    """Raises KernelError where one of them has ended: an agent without it would look healthy, and send nothing."""
    for thread in threads:
        if not thread.is_alive():
            cause = getattr(thread, "died_of", None)
            because = f": {type(cause).__name__}: {cause}" if cause else ""
            raise KernelError(f"the agent's thread {thread.name!r} has ended{because}; start the agent again")


# --- How long to wait before the next attempt.

_LEAST_S = 0.2


class Backoff:
    """Twice as long after each attempt, from 0.2 s to most_s, and each time between half of that and all of it."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._next_s = _LEAST_S

    def after_failure(self) -> float:
        """Seconds to wait now."""
        wait_s = self._next_s * random.uniform(0.5, 1)
        self._next_s = min(self._most_s, 2 * self._next_s)
        return wait_s

    def reset(self) -> None:
        """An attempt has led to something."""
        self._next_s = _LEAST_S


# --- stream


_UNREACHED_S = 0.5  # the longest wait for a network that may come back; an attempt takes another second
_LASTED_S = 5.0  # a connection that has is no part of a series of failures
_REASONS = 5  # named of one outage
_ANSWERED_S = 2.0  # for a collector that answers, but ends the stream


class Sender:
    """Sends one spool over one connection after another. `send` blocks; the others may be called from any thread."""

    def __init__(
        self,
        connect: Connect,
        spool: Spool,
        pulls: Pulls,
        exchanges: ClockExchanges | None,
        note: Callable[[bool, str], None],
    ) -> None:
        """note(connected, reason): called at each beginning and end. exchanges: None: the time is not requested."""
        self._connect, self._spool, self._pulls, self._exchanges = connect, spool, pulls, exchanges
        self._note = note
        self._ended = threading.Event()
        self._finishing = threading.Event()
        self._connection: Connection | None = None
        self._strikes: dict[int, int] = {}

    def send(self, last_word: Callable[[End], bool] = lambda end: False) -> None:
        """Until everything has been sent and nothing more will come, or `end`, or last_word(how one ended) holds."""
        unreached, answered, patience = Backoff(_UNREACHED_S), Backoff(_ANSWERED_S), Patience()
        while not self._done():
            before, since = self._spool.acknowledged, time.monotonic()
            outgoing = Outgoing(self._spool, self._pulls, self._finishing.is_set)
            self._connection = self._connect(outgoing, self._exchanges, patience.most_s)
            end = self._connection.run(lambda: self._note(True, ""), self._strikes)
            if self._done() or last_word(end):
                return
            if end.reason:
                self._note(False, end.reason)
            if end.silent and end.answered:
                patience.lost()
            if self._spool.acknowledged > before or time.monotonic() - since > _LASTED_S:
                answered.reset()
            if end.answered:
                unreached.reset()
            self._ended.wait((answered if end.answered or end.refused else unreached).after_failure())

    def check(self) -> None:
        """To be called now and then: a connection on which nothing is received is given up."""
        if self._connection:
            self._connection.check()

    @property
    def backpressure(self) -> Backpressure:
        """What the collector can take now."""
        return self._connection.backpressure if self._connection else Backpressure()

    def finish(self) -> None:
        """Nothing more will be appended."""
        self._finishing.set()
        self._spool.wake()

    def end(self) -> None:
        """At once; what was not acknowledged stays in the spool."""
        self._ended.set()
        if self._connection:
            self._connection.end("the agent ends")

    def _done(self) -> bool:
        return self._ended.is_set() or (self._finishing.is_set() and not self._spool.waits)


class Stream(Worker):
    """The thread that sends the agent's own session."""

    def __init__(self, where: str, connect: Connect, spool: Spool, pulls: Pulls, exchanges: ClockExchanges) -> None:
        """where: as "the collector at …"; exchanges: with its clock, to which new ones are added."""
        super().__init__("stream")
        self.where = where
        """For a line, as "the collector at …"."""
        self._sender = Sender(connect, spool, pulls, exchanges, self._note)
        self.connected = False
        """Whether somebody answers there."""
        self._reasons: set[str] = set()  # named since the last connection

    def work(self) -> None:
        """Streams until `finish`."""
        self._sender.send()

    def check(self) -> None:
        """To be called now and then: a connection on which nothing is received is given up."""
        self._sender.check()

    @property
    def backpressure(self) -> Backpressure:
        """What the collector can take now."""
        return self._sender.backpressure

    def finish(self, timeout_s: float) -> None:
        """Sends what is left, tells the collector that it is all, and waits for it at most so long.

        What the collector has not acknowledged then stays in the spool.
        """
        self._sender.finish()
        self.join(timeout_s)
        self._sender.end()
        self.join(timeout_s)

    def _note(self, connected: bool, reason: str) -> None:
        if connected:
            if not self.connected:
                log.info("connected to %s", self.where)
            self._reasons.clear()
        elif reason not in self._reasons and len(self._reasons) < _REASONS:
            log.warning("no connection to %s (%s); batches wait", self.where, reason)
            self._reasons.add(reason)
        self.connected = connected
