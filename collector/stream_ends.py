# SPDX-License-Identifier: Apache-2.0
"""How the stream of an agent ends, and what gRPC tells its agent of that."""

from typing import NamedTuple

import grpc

from collector.agent_checks import FailedBatchError, FailedSessionError, ImpostorError, RefusedBatchError
from netmon.errors import DataError, NetmonError

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
    """Raise SilentError for a stream on which nothing was heard for too long. host: empty: it has not said hello."""
    most_s = SILENT_S if host else HELLO_WITHIN_S
    if silent_s > most_s:
        who = host or "an agent that has not said who it is"
        raise SilentError(f"nothing was heard of {who} for {most_s:.0f} s: its stream is let go")


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
