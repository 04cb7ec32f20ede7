# SPDX-License-Identifier: Apache-2.0
"""What an agent needs of a collector, and nothing else: every batch is acknowledged, counted and forgotten.

As a program: ADDRESS REPORT. It prints that it listens; on SIGTERM it writes its counts to the file REPORT.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc
import numpy as np

from netmon.service_user import give_socket
from netmon.wire import netmon_pb2, netmon_pb2_grpc
from netmon.wire.buckets import decode_buckets
from netmon.wire.channel import ALIVE_EVERY_S, COLLECTOR_OPTIONS

LISTENS = "listens"
_THREADS = 16  # each holds one stream


@dataclass
class Received:
    """What agents have sent. bytes: of batches, as encoded; lost_bytes, wire_bytes: of the ledgers, all links."""

    batches: int = 0
    bytes: int = 0
    records: int = 0
    record_bytes: int = 0  # wire bytes of the records
    flows: int = 0  # described
    links: dict[str, dict[str, int]] = field(default_factory=dict)  # the newest ledger of each
    begun: dict[str, dict[str, int]] = field(default_factory=dict)  # the first

    def total(self, counter: str) -> int:
        """Of a counter of the ledgers, over all links, since the first sample of each."""
        return sum(link[counter] - self.begun[name][counter] for name, link in self.links.items())


class Sink(netmon_pb2_grpc.CollectorServicer):
    """The service."""

    def __init__(self) -> None:
        self.received = Received()
        self._lock = threading.Lock()

    def Stream(  # noqa: N802 (gRPC's name)
        self, messages: Iterator[netmon_pb2.AgentMessage], context: grpc.ServicerContext
    ) -> Iterator[netmon_pb2.Acknowledgement]:
        """Acknowledges as often as a collector says that it is alive; at the end, everything."""
        session, acknowledged, pending, due = "", 0, 0, time.monotonic()
        for message in messages:
            if message.HasField("batch"):
                with self._lock:
                    self._count(session, message.batch)
                pending = message.batch.sequence
            else:
                session = message.hello.session
            if pending > acknowledged and time.monotonic() >= due:
                acknowledged, due = (
                    pending,
                    time.monotonic() + ALIVE_EVERY_S * 0.9,
                )  # a batch a second is acknowledged each time
                yield netmon_pb2.Acknowledgement(sequence=acknowledged)
        if pending > acknowledged:
            yield netmon_pb2.Acknowledgement(sequence=pending)

    def _count(self, session: str, batch: netmon_pb2.Batch) -> None:
        received = self.received
        received.batches += 1
        received.bytes += batch.ByteSize()
        received.flows += len(batch.flows)
        received.records += batch.buckets.rows
        received.record_bytes += int(decode_buckets(batch.buckets)["wire_bytes"].sum(dtype=np.int64))
        for sample in batch.ledger:
            name = f"{session}/{sample.interface}/{sample.direction}"
            counters = {f.name: int(getattr(sample, f.name)) for f in sample.DESCRIPTOR.fields}
            received.begun.setdefault(name, counters)
            received.links[name] = counters

    def Clock(  # noqa: N802
        self, probes: Iterator[netmon_pb2.ClockProbe], context: grpc.ServicerContext
    ) -> Iterator[netmon_pb2.ClockEcho]:
        """The time."""
        for probe in probes:
            now = time.time_ns()
            yield netmon_pb2.ClockEcho(number=probe.number, received_ns=now, sent_ns=time.time_ns())


def read_report(path: Path) -> Received:
    """What a sink that has ended received."""
    return Received(**json.loads(path.read_text()))


def main(address: str, report: str) -> None:
    """Blocks until SIGTERM or SIGINT comes."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    sink = Sink()
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=COLLECTOR_OPTIONS)
    netmon_pb2_grpc.add_CollectorServicer_to_server(sink, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    server.start()
    give_socket(Path(address.removeprefix("unix:")))
    print(LISTENS, flush=True)
    ended.wait()
    server.stop(1).wait()
    Path(report).write_text(json.dumps(asdict(sink.received)))


if __name__ == "__main__":
    main(*sys.argv[1:])
