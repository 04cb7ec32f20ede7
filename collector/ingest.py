# SPDX-License-Identifier: Apache-2.0
"""What an agent may send, and in which order."""

from collector.host.session import Session
from collector.host.window import Output
from netmon.errors import WireError
from netmon.records import SCHEMA_VERSION, Batch, Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_batch, decode_hello


def read_hello(message: netmon_pb2.AgentMessage) -> Hello:
    """The first message of a stream. Raises WireError where it is no hello that this collector understands."""
    if message.WhichOneof("message") != "hello":
        raise WireError("the first message of a stream is not a hello; send one before the batches")
    version = message.hello.schema_version
    if version != SCHEMA_VERSION:
        raise WireError(
            f"hello of {message.hello.host}: schema version {version} where the collector has {SCHEMA_VERSION}; "
            "run the same netmon on both"
        )
    return decode_hello(message.hello)


class RefusedBatchError(WireError):
    """A batch that breaks the contract, or one at which the collector fails."""

    def __init__(self, sequence: int, host: str, reason: Exception | str) -> None:
        """Name the batch and its sender."""
        super().__init__(f"batch {sequence} of {host}: {reason}")
        self.sequence = sequence


class FailedBatchError(RefusedBatchError):
    """The collector fails at a batch. It may be its own fault: the session is not what it should be any more."""


class BatchOrder:
    """The batches of one connection: ascending; those that the session has processed before are recognised.

    An agent sends all that it has from the first batch that is not acknowledged, in order, and what has left its spool
    never comes back. So a number is left out because it was acknowledged, also while it is being sent again, or because
    the agent gave it up; that is in its own account of losses, and worth a warning here.
    """

    def __init__(self, session: Session, acknowledged: int) -> None:
        """Begin a connection of the session. acknowledged: as the agent knows."""
        self._session = session
        self._known = max(acknowledged, session.stored_before)
        self._last = 0  # batch of this connection

    def accept(self, message: netmon_pb2.AgentMessage) -> Output | None:
        """Process the next message; None for a batch that was processed before. Raises WireError."""
        host = self._session.hello.host
        if message.WhichOneof("message") != "batch":
            raise WireError(f"a message of {host} after its hello is not a batch")
        try:
            return self._process(decode_batch(message.batch))
        except WireError as error:
            raise RefusedBatchError(message.batch.sequence, host, error) from None
        except Exception as error:
            raise FailedBatchError(message.batch.sequence, host, f"{type(error).__name__}: {error}") from error

    def _process(self, batch: Batch) -> Output | None:
        if batch.sequence <= self._last:
            raise WireError(f"batch {self._last} came before it")
        self._notice_gap(batch.sequence)
        self._last = batch.sequence
        if batch.sequence <= self._session.received:
            self._session.window.describe(batch)
            return None
        return self._session.process(batch)

    def _notice_gap(self, sequence: int) -> None:
        first = max(self._known, self._last, self._session.received) + 1
        if sequence > first:
            host = self._session.hello.host
            self._session.missing += sequence - first
            self._session.window.ranks.warn(f"batches {first} to {sequence - 1} of {host} never arrived")
