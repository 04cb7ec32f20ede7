# SPDX-License-Identifier: Apache-2.0
"""What an agent may begin with, and what is wrong with what it sends. What a message holds is checked where it is
decoded."""

from netmon.errors import WireError
from netmon.marks import printable
from netmon.records import SCHEMA_VERSION, Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_hello
from netmon.wire.identity import Identity, proves
from netmon.wire.limits import MAX_HOST
from netmon.wire.versions import misunderstanding


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
        """Name the batch and its sender."""
        super().__init__(f"batch {sequence} of {host}: {reason}")
        self.sequence = sequence


class FailedBatchError(RefusedBatchError):
    """The collector fails at a batch. It may be its own fault: the session is not what it should be any more."""


class FailedSessionError(WireError):
    """The collector fails at a session, and begins it anew from the dataset when it connects again."""
