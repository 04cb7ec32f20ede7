# SPDX-License-Identifier: Apache-2.0
"""An agent's end for tests: the real spool, stream and leftovers, with a synthetic host's batches."""

import threading
from collections.abc import Callable
from pathlib import Path

from collector_stream import Host, hello
from dataset_rows import stored_rows

from netmon.agent.connection import Connect, connect_by_grpc
from netmon.agent.exchange import ClockExchanges
from netmon.agent.recorder import Pulls
from netmon.agent.sending import Leftovers
from netmon.agent.spool import NOTHING, Spool, link_totals
from netmon.agent.spool_folder import SpoolFolder
from netmon.agent.stream import Stream
from netmon.records import Batch, Hello, Table
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_body, encode_hello, serialise_buckets, serialise_flow

LIMIT = 64 << 20
_working: "list[Sent]" = []


def end_all() -> None:
    """Those that a test which failed has left: their threads would go on beside all tests that follow."""
    while _working:
        _working[0].finish(0.1)


class Sent:
    """An agent's end: its spool, its stream, and a thread that looks at both as the agent's loop does."""

    def __init__(
        self,
        directory: Path,
        address: str,
        session: str = "s1",
        connect: Connect | None = None,
        pulls: Pulls | None = None,
    ) -> None:
        """connect: to what else than the collector at the address."""
        self.lost = NOTHING
        self.session = session
        self.host = Host()
        self.rows = 0
        self.spool = Spool(SpoolFolder(directory), session, LIMIT, self._lose)
        self.spool.hello = introduction(hello(session=session))
        connect = connect or connect_by_grpc(address)
        self.exchanges = ClockExchanges()
        self.stream = Stream(f"the collector at {address}", connect, self.spool, pulls or Pulls(None), self.exchanges)
        self.leftovers = Leftovers(connect, self.spool, LIMIT)
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def _lose(self, lost: Table) -> None:
        self.lost = lost

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.stream.check()
            self.leftovers.check()

    def start(self) -> None:
        _working.append(self)
        for thread in (self.stream, self.leftovers, self._looking):
            thread.start()

    def append(self, batches: int = 1, change: Callable[[Batch], Batch] = lambda batch: batch) -> None:
        for _ in range(batches):
            batch = change(self.host.batch())
            self.rows += len(batch.buckets)
            put(self.spool, batch)

    def finish(self, seconds: float = 60) -> None:
        if self in _working:
            _working.remove(self)
        self.leftovers.finish(seconds)
        self.stream.finish(seconds)
        self._ended.set()
        if self._looking.ident:
            self._looking.join()
        self.spool.close()


def introduction(opening: Hello) -> bytes:
    return netmon_pb2.AgentMessage(hello=encode_hello(opening)).SerializeToString()


def put(spool: Spool, batch: Batch) -> None:
    known = {flow.flow_id: flow for flow in Host().batch().flows}
    body = netmon_pb2.AgentMessage(batch=encode_body(batch)).SerializeToString()
    loss = link_totals(batch.buckets[np_known(batch.buckets, known)], known).tobytes()
    described = [(flow.flow_id, serialise_flow(flow)) for flow in batch.flows]
    spool.append(batch.sequence, body, serialise_buckets(batch.buckets, batch.bucket_ns), loss, described)


def np_known(buckets: Table, known: dict[int, object]) -> list[bool]:
    return [flow in known for flow in buckets["flow_id"].tolist()]


def check_whole(data: Path, sent: Sent) -> None:
    """Every row is stored, none twice, none is counted as lost."""
    buckets = stored_rows(data, "buckets")
    buckets = buckets[buckets["session"] == sent.session]
    assert not buckets.duplicated(["flow_id", "bucket_start_ns"]).any()
    assert len(buckets) == sent.rows
    ledger = stored_rows(data, "ledger")
    assert (ledger["lost_agent_bytes"] == 0).all()
    assert (ledger["coverage"] == 1).all()
    assert sent.lost.tolist() == []
