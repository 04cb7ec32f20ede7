# SPDX-License-Identifier: Apache-2.0
"""The end of the collector's Full call that asks for full resolution."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
import pyarrow as pa
import pyarrow.ipc

from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.secure import open_channel
from netmon.wire.security import PLAIN, Security
from netmon.wire.watch import VIEWERS, UnreachableError, reason

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_retries", 0),
)
_TOLD = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT)


@dataclass(frozen=True)
class FullPart:
    """What one host had."""

    host: str
    rows: pa.Table
    gap: str  # what is missing, and why; empty: nothing


def get_full(
    address: str, hosts: Sequence[str], since_ns: int, until_ns: int, security: Security = PLAIN
) -> Iterator[FullPart]:
    """Full resolution of [since_ns, until_ns) UTC of these hosts, none named: of all; blocks for each.

    Raises UnreachableError where the collector does not answer or cannot get it, WireError where it answers nonsense,
    UsageError and CertificateError where none may be asked.
    """
    query = netmon_pb2.FullQuery(hosts=hosts, since_ns=since_ns, until_ns=until_ns)
    with open_channel(address, security, _OPTIONS, *VIEWERS) as channel:
        call = CollectorStub(channel).Full(query)  # type: ignore[no-untyped-call]
        try:
            for part in call:
                with pyarrow.ipc.open_stream(part.rows) as reader:
                    yield FullPart(part.host, reader.read_all(), part.gap)
        except pa.ArrowException as error:
            raise WireError(f"what the collector at {address} answers is no Arrow stream: {error}") from None
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() in _TOLD:
                raise UnreachableError(str(error.details())) from None
            raise UnreachableError(f"cannot reach the collector at {address}: {reason(error, security)}") from None
        finally:
            call.cancel()
