# SPDX-License-Identifier: Apache-2.0
"""What the collector and the process that receives for it tell each other.

Streams and calls are known by numbers that the receiving process gives. What has come on all streams goes over in one
frame.
"""

from dataclasses import dataclass, field

import numpy as np

from collector.settings import DEFAULT_RATES, ListenConfig, Rates
from collector.stream_ends import End
from netmon.records import Hello, Table
from netmon.wire.batch_fields import ManyBatches
from netmon.wire.identity import Identity

STREAM_STATE = np.dtype(
    [("stream", "<i8"), ("sequence", "<u8"), ("bucket_ns", "<u8"), ("batch_ns", "<u8"), ("rows_per_s", "<f8")]
)
"""What an agent is sent; rows_per_s: no more are read of it, 0: as they come."""

# --- to the receiving process


@dataclass(frozen=True)
class Listen:
    """The first frame. streams: agents may connect, and do not come by the bus."""

    address: str
    listen_config: ListenConfig
    streams: bool


@dataclass(frozen=True)
class Give:
    """All that has come. allowance: in force from now on."""

    rates: Rates = DEFAULT_RATES


@dataclass(frozen=True)
class Opened:
    """A stream's session is there; place: of it in the host stage."""

    stream: int
    session: int


@dataclass(frozen=True)
class StreamStates:
    """To the agents of many streams; dtype STREAM_STATE."""

    streams: Table


@dataclass(frozen=True)
class AgentRequest:
    """An acknowledgement with a request, as it goes to the agent of one stream."""

    stream: int
    data: bytes


@dataclass(frozen=True)
class Ended:
    """A stream or call ends; how: the status for gRPC, None: in order."""

    number: int
    how: End | None = None


@dataclass(frozen=True)
class Answer:
    """A message for whoever has called."""

    call: int
    data: bytes


@dataclass(frozen=True)
class Serves:
    """Whether rows are taken in; leaving: and will not be any more."""

    why_not: str
    leaving: bool = False


@dataclass(frozen=True)
class Stop:
    """Whoever is still connected is cut off after so long."""

    grace_s: float


# --- from the receiving process


@dataclass(frozen=True)
class Listening:
    """It does; trouble: why it does not, and as which NetmonError."""

    trouble: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Introduced:
    """An agent has said hello on a stream."""

    stream: int
    hello: Hello


@dataclass(frozen=True)
class Received:
    """What has come since the last time, by session index, each session in its own order. Sequences of one length."""

    many: ManyBatches
    streams: list[int]  # of each batch
    sequences: list[int]
    raw: list[bytes]  # the messages
    failed: list[tuple[int, bytes, str]] = field(default_factory=list)  # stream, message, at which reading fails
    left: list[int] = field(default_factory=list)  # streams that have said their last word


@dataclass(frozen=True)
class CutOff:
    """A stream is gone before its agent had said its last word."""

    stream: int


@dataclass(frozen=True)
class Full:
    """An agent's FullAnswer."""

    stream: int
    data: bytes


@dataclass(frozen=True)
class Called:
    """Somebody calls a method that the collector answers."""

    call: int
    method: str
    data: bytes
    identity: Identity | None


@dataclass(frozen=True)
class Written:
    """The last answer of a call is on its way: the next one may follow."""

    call: int


@dataclass(frozen=True)
class HungUp:
    """Who has called has gone."""

    call: int
