# SPDX-License-Identifier: Apache-2.0
"""What an agent may send, and in which order. What a message holds is checked where it is decoded."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from netmon.errors import WireError
from netmon.marks import printable
from netmon.records import SCHEMA_VERSION, Flow, Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_batch, decode_hello
from netmon.wire.identity import Identity, proves
from netmon.wire.limits import MAX_HOST
from netmon.wire.versions import misunderstanding

if TYPE_CHECKING:  # who only reads what comes needs nothing of what is made of it
    from collector.host.session import Session


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


class BatchOrder:
    """The batches of one connection: ascending; those that the session has processed before are recognised.

    An agent sends all that it has from the first batch that is not acknowledged, in order, and what has left its spool
    never comes back. So a number is left out because it was acknowledged, also while it is being sent again, or because
    the agent gave it up; that is in its own account of losses, and worth a warning here.
    """

    def __init__(self, session: "Session", acknowledged: int) -> None:
        """Begin a connection of the session. acknowledged: as the agent knows."""
        self._session = session
        self._known = max(acknowledged, session.stored_before)
        self._last = 0  # batch of this connection

    def accept(self, message: netmon_pb2.AgentMessage) -> bool:
        """Whether the next message is a batch to be taken in; False where it was before. Raises WireError.

        Any other exception is the collector's failure.
        """
        if message.WhichOneof("message") != "batch":
            raise WireError(f"a message of {self._session.hello.host} after its hello is not a batch")
        fresh = self.accept_number(message.batch.sequence)
        if not fresh:
            self._describe(message.batch)
        return fresh

    def accept_number(self, sequence: int) -> bool:
        """As `accept` of a batch of that number; what one that was before says of flows is for `describe`."""
        if sequence <= self._last:
            raise RefusedBatchError(sequence, self._session.hello.host, f"batch {self._last} came before it")
        self._notice_gap(sequence)
        self._last = sequence
        fresh = sequence > self._session.queued
        if fresh:
            self._session.queued = sequence
        return fresh

    def accept_run(self, sequences: list[int]) -> bool:
        """Whether these follow each other and are all fresh: then they are accepted; else nothing is, see above."""
        first, last = sequences[0], sequences[-1]
        if first <= max(self._last, self._session.queued) or list(range(first, last + 1)) != sequences:
            return False
        self._notice_gap(first)
        self._last = self._session.queued = last
        return True

    def describe(self, flows: Iterable[Flow]) -> None:
        """Of a batch that was before, only what it says of flows counts. Raises WireError."""
        for flow in flows:
            self._session.window.describe(flow)

    def _describe(self, message: netmon_pb2.Batch) -> None:
        try:
            self.describe(decode_batch(message).flows)
        except WireError as error:
            raise RefusedBatchError(message.sequence, self._session.hello.host, error) from None

    def _notice_gap(self, sequence: int) -> None:
        first = max(self._known, self._last, self._session.queued) + 1
        if sequence > first:
            host = self._session.hello.host
            self._session.missing += sequence - first
            self._session.window.ranks.odd.warn(f"batches {first} to {sequence - 1} of {host} never arrived")
