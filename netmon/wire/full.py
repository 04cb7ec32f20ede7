# SPDX-License-Identifier: Apache-2.0
"""The end of the collector's Full call that asks for full resolution."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.ipc

from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.secure import open_channel
from netmon.wire.security import PLAIN, Security
from netmon.wire.watch import OPTIONS, VIEWERS, answers


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
    with open_channel(address, security, OPTIONS, *VIEWERS) as channel:
        call = CollectorStub(channel).Full(query)  # type: ignore[no-untyped-call]
        for part in answers(call, address, security):
            yield FullPart(part.host, read_rows(part.rows, address), part.gap)


def read_rows(data: bytes, address: str) -> pa.Table:
    """An Arrow stream of a collector's. Raises WireError."""
    try:
        with pyarrow.ipc.open_stream(data) as reader:
            return reader.read_all()
    except pa.ArrowException as error:
        raise WireError(f"what the collector at {address} answers is no Arrow stream: {error}") from None
