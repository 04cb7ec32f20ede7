# SPDX-License-Identifier: Apache-2.0
"""A session and its connection, as the registry keeps it."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collector.agent_checks import RefusedBatchError
from collector.host.job_updates import JobUpdates
from collector.host.session import Session
from collector.quarantine import Sent
from netmon.errors import WireError
from netmon.records import Hello
from netmon.wire import netmon_pb2

MOST_SESSIONS, MOST_OF_HOST = 8_192, 64
"""Sessions that are known at a time, of all hosts and of one: those that are connected, and those just over."""

MOST_RECENT = 8
"""Messages of a session, kept for a bug report."""


def read_sent(message: Sent) -> netmon_pb2.AgentMessage:
    """The message."""
    return netmon_pb2.AgentMessage.FromString(message) if isinstance(message, bytes) else message


@dataclass
class Entry:
    """A session and its connection."""

    session: Session
    host_updates: JobUpdates
    connections: int = 0  # how often it has connected; a newer connection ends an older one
    connected: bool = False
    last_batch_s: float = 0.0
    behind: bool = False  # more of it waits on the bus
    settled: bool = True  # nothing has arrived since it was last settled altogether
    left: bool = False
    broken: bool = False  # the collector has failed at it: nothing more comes or goes, and it is to be discarded
    failure: str = ""  # at what, where that was no batch: for its agent
    refused: RefusedBatchError | None = None  # a batch that was not accepted: for its agent
    acknowledge: int = 0
    timed: tuple[int, float] | None = None  # a batch that is not stored, and when it came
    requests: deque[netmon_pb2.FullRequest] = field(default_factory=deque)  # to be sent
    recent: deque[Sent] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))
    news: asyncio.Event = field(default_factory=asyncio.Event)  # acknowledge has risen, or there are requests

    def stored(self, sequence: int) -> None:
        """Every batch up to there is."""
        if sequence > self.acknowledge:
            self.acknowledge = sequence
            self.news.set()

    def waited_since(self) -> float | None:
        """When the batch that was timed came, once: after it was stored."""
        if self.timed is None or self.timed[0] > self.acknowledge:
            return None
        came, self.timed = self.timed[1], None
        return came


class Came(NamedTuple):
    """Batches of a session that another process has read, at least one; rows: how many they have."""

    entry: Entry
    sequences: Sequence[int]
    rows: int
    horizon_ns: int  # of the last one
    raw: Sequence[bytes]


def check_sessions(known: Mapping[str, Entry], hello: Hello) -> None:
    """Raise WireError where there is no room for one more."""
    if hello.session in known:
        return
    if len(known) >= MOST_SESSIONS:
        reason = f"there are {MOST_SESSIONS} sessions already"
        raise WireError(f"session {hello.session} of {hello.host} is refused: {reason}")
    if sum(entry.session.hello.host == hello.host for entry in known.values()) >= MOST_OF_HOST:
        raise WireError(f"session {hello.session} is refused: {hello.host} has {MOST_OF_HOST} sessions already")
