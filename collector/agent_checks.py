# SPDX-License-Identifier: Apache-2.0
"""What an agent may begin with, and what is wrong with what it sends. What a message holds is checked where it is
decoded.
"""

from typing import NamedTuple

import grpc

from netmon.errors import DataError, NetmonError, WireError
from netmon.marks import printable
from netmon.records import SCHEMA_VERSION, Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_hello, misunderstanding
from netmon.wire.limits import MAX_HOST
from netmon.wire.security import Identity, proves


class ImpostorError(WireError):
    """Who says it may not say it."""


def read_hello(message: netmon_pb2.AgentMessage, identity: Identity | None = None) -> Hello:
    """The first message of a stream. Raises WireError where it is no hello that this collector understands.

    identity: whose agent it is; ImpostorError where it speaks for another host. None: it may be anybody's.
    """
    if message.WhichOneof("message") != "hello":
        raise WireError("the first message of a stream is not a hello; send one before the batches")
    if identity and message.hello.host != identity.name:
        other = printable(message.hello.host[:MAX_HOST])
        raise ImpostorError(
            f"{identity} says that it is {other}: give the agent --host {identity.name}, or a certificate of {other}"
        )
    if reason := misunderstanding(message.hello, SCHEMA_VERSION):
        raise WireError(f"hello of {printable(message.hello.host[:MAX_HOST])}: {reason}")
    hello = decode_hello(message.hello)
    if not proves(hello.session, message.hello.proof):
        raise ImpostorError(f"session {hello.session} of {printable(hello.host)} is another agent's")
    return hello


class RefusedBatchError(WireError):
    """A batch that breaks the contract, or one at which the collector fails."""

    def __init__(self, sequence: int, host: str, reason: Exception | str) -> None:
        super().__init__(f"batch {sequence} of {host}: {reason}")
        self.sequence = sequence


class FailedBatchError(RefusedBatchError):
    """The collector fails at a batch. It may be its own fault: the session is not what it should be any more."""


class FailedSessionError(WireError):
    """The collector fails at a session, and begins it anew from the dataset when it connects again."""


# --- How the stream of an agent ends, and what gRPC tells its agent of that.

HELLO_WITHIN_S = 10.0
"""A stream whose hello has not come by then is let go."""

SILENT_S = 60.0
"""A stream on which nothing has come for so long is let go: an agent that lives sends twice a second."""

BREAK_S = 0.1
"""A broken stream looks ended at first; gRPC cancels its handler a moment later."""


class SilentError(NetmonError):
    """Nobody is at the other end."""


class End(NamedTuple):
    """The status of a call, as gRPC's abort takes it."""

    code: grpc.StatusCode
    text: str
    metadata: tuple[tuple[str, str], ...] = ()


def check_silence(host: str, silent_s: float) -> None:
    """Raise SilentError for a stream on which nothing was received for too long. host: empty: it has not said hello."""
    most_s = SILENT_S if host else HELLO_WITHIN_S
    if silent_s > most_s:
        who = host or "an agent that has not said who it is"
        raise SilentError(f"nothing was received from {who} for {most_s:.0f} s: its stream is closed")


def end_of(error: NetmonError) -> End:
    """What the agent is reported it."""
    if isinstance(error, RefusedBatchError):
        failed = isinstance(error, FailedBatchError)
        code = grpc.StatusCode.INTERNAL if failed else grpc.StatusCode.INVALID_ARGUMENT
        return End(code, str(error), (("netmon-sequence", str(error.sequence)),))
    if isinstance(error, FailedSessionError):
        return End(grpc.StatusCode.INTERNAL, str(error))
    if isinstance(error, SilentError):
        return End(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
    if isinstance(error, DataError):
        return End(grpc.StatusCode.UNAVAILABLE, str(error))
    impostor = isinstance(error, ImpostorError)
    return End(grpc.StatusCode.PERMISSION_DENIED if impostor else grpc.StatusCode.INVALID_ARGUMENT, str(error))
