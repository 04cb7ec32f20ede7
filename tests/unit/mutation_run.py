# SPDX-License-Identifier: Apache-2.0
"""Mutated messages at a collector's door, with honest hosts beside them: python mutation_run.py MESSAGES SEED PART."""

import asyncio
import contextlib
import json
import logging
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from collector_stream import hello
from dataset_rows import stored_rows
from in_process import JobsHere
from mutations import Mutator, honest_batches

from collector.agent_checks import FailedBatchError, FailedSessionError, RefusedBatchError, read_hello
from collector.dataset.sink import ParquetSink
from collector.dataset.tables import SCHEMAS
from collector.host.session import Session
from collector.registry import Connection, Registry
from collector.settings import Settings
from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import decode_many
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.mapping import decode_snapshot, encode_snapshot

HONEST = ("h0", "h1")
EPOCH = 20_000  # messages, after which a collector has a fresh dataset
_HONEST_BATCHES, _AT_A_TIME, _FLUSH_ROUNDS = 60, 20, 25


class Sender:
    """An agent without gRPC: its messages go through what a stream does with them."""

    def __init__(
        self, listen_config: "Collector", opening: netmon_pb2.AgentMessage, messages: list[netmon_pb2.AgentMessage]
    ) -> None:
        self._listen_config, self._opening, self._messages = listen_config, opening, deque(messages)
        self.entry: Session | None = None
        self._connection: Connection | None = None

    async def send(self) -> bool:
        """The next message, on a new connection where the one before was ended; whether there was one."""
        if not self._messages:
            self._leave()
            return False
        if self.entry is None or self.entry.broken or self.entry.refused:
            try:
                introduction = read_hello(self._opening)
                self._connection = await Connection.open(self._listen_config.registry, introduction, asyncio.Event())
                self.entry = self._connection.session
            except WireError as error:
                self._listen_config.count("hello", error)
                self._messages.clear()
                return False
        assert self._connection
        try:
            await self._connection.process(self._messages.popleft())
            self._listen_config.counts["let in"] += 1
        except WireError as error:
            self._listen_config.count("batch", error)
            self.entry.connect(0, asyncio.Event())
            self._connection = Connection(self._listen_config.registry, self.entry)
        return True

    def look(self) -> None:
        """What a tick has said of it."""
        if self.entry and self.entry.refused:
            self._listen_config.count("batch", self.entry.refused)
        elif self.entry and self.entry.failure:
            self._listen_config.count("batch", FailedSessionError(self.entry.failure))

    def _leave(self) -> None:
        if self.entry:
            self.entry.connected, self.entry.last_batch_s = False, -1e9


class Collector:
    """A collector without gRPC."""

    def __init__(self, directory: Path) -> None:
        self.sink = ParquetSink(directory)
        self.registry = Registry(self.sink, Settings(), JobsHere())
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def look(self, opening: netmon_pb2.AgentMessage, messages: list[netmon_pb2.AgentMessage]) -> None:
        """What the door says of a session's messages, without letting them in."""
        with contextlib.suppress(WireError):
            read_hello(opening)
            self.counts["would be taken in"] += 1
        batches = [message.batch for message in messages if message.WhichOneof("message") == "batch"]
        many = decode_many(batches)
        assert not any("\n" in reason or len(reason) > 2_000 for reason in many.refused.values())
        self.counts["would be refused"] += len(many.refused)
        self.counts["would be taken in"] += len(batches) - len(many.refused)

    async def round(self, senders: list[Sender]) -> list[Sender]:
        """A message of each, and a tick; returns those that have more to send."""
        senders = [sender for sender in senders if await sender.send()]
        self.registry.tick()
        for sender in senders:
            sender.look()
        self.counts["rounds"] += 1
        if self.counts["rounds"] % _FLUSH_ROUNDS == 0:
            await self.flush()
        return senders

    def count(self, what: str, error: WireError) -> None:
        """A message was not taken in."""
        failed = isinstance(error, FailedBatchError | FailedSessionError)
        self.counts[f"{what} {'failed' if failed else 'refused'}"] += 1
        if failed:
            self.failures[str(error)[-160:]] += 1
        assert "\n" not in str(error)
        assert isinstance(error, RefusedBatchError) or failed or what == "hello" or "not a batch" in str(error), error

    async def flush(self) -> None:
        """What the collector does now and then."""
        self.registry.tidy()
        assert await self.registry.flush()
        decode_snapshot(netmon_pb2.Snapshot.FromString(encode_snapshot(self.registry.snapshot(10)).SerializeToString()))
        await self.registry.infer()


async def epoch(
    directory: Path, mutator: Mutator | None, count: int, behind: float, totals: dict[str, Counter[str]]
) -> list[Any]:
    """So many mutated messages, a part of them let in; returns the honest hosts' rows."""
    listen_config, sent = Collector(directory), 0
    honest = [
        Sender(
            listen_config,
            netmon_pb2.AgentMessage(hello=encode_hello(hello(host=host, session=f"s{host}"))),
            [
                netmon_pb2.AgentMessage(batch=encode_batch(batch))
                for batch in honest_batches(_HONEST_BATCHES, f"of {host}")
            ],
        )
        for host in HONEST
    ]
    evil: list[Sender] = []
    for number in range(_HONEST_BATCHES):
        for sender in honest:
            await sender.send()
        listen_config.registry.tick()
        while mutator and sent < count * (number + 1) // _HONEST_BATCHES:
            while len(evil) < _AT_A_TIME:
                name = mutator.random.choice((f"evil{sent}", "evil", HONEST[0]))
                opening = netmon_pb2.AgentMessage(hello=encode_hello(hello(host=name, session=f"e{sent}")))
                if mutator.random.random() < 0.5:
                    opening = mutator.mutated(opening)
                messages = list(mutator.batches())
                sent += 1 + len(messages)
                if mutator.random.random() < behind:
                    evil.append(Sender(listen_config, opening, messages))
                else:
                    listen_config.look(opening, messages)
            evil = await listen_config.round(evil)
        if not mutator and number % 10 == 0:
            await listen_config.flush()
    while evil:
        evil = await listen_config.round(evil)
    await listen_config.flush()
    listen_config.registry.settle_everything()
    assert await listen_config.registry.flush()
    assert not any(sender.entry is None or sender.entry.broken or sender.entry.refused for sender in honest)
    listen_config.sink.close()
    totals["counts"] += listen_config.counts
    totals["counts"]["sent"] += sent
    totals["failures"] += listen_config.failures
    return honest_rows(directory)


def honest_rows(directory: Path) -> list[Any]:
    """All rows of the honest sessions, by table, in an order of their own; of all tables every row can be read."""
    tables = []
    for table in SCHEMAS:
        stored_rows(directory, table)
    for table, columns in (
        ("buckets", ["session", "direction", "flow_id", "bucket_start_ns", "packets", "wire_bytes", "payload_bytes"]),
        ("iterations", ["session", "job", "rank", "iteration", "start_ns", "end_ns", "dl_tx_bytes", "cross_rx_bytes"]),
        ("ledger", ["session", "direction", "start_ns", "nic_bytes", "attributed_bytes"]),
    ):
        rows = stored_rows(directory, table, columns)
        rows = rows.astype({name: str for name in rows.columns if str(rows[name].dtype) == "category"})
        rows = rows[rows["session"].isin([f"s{host}" for host in HONEST])]
        tables.append(sorted(rows.itertuples(index=False, name=None)))
    return tables


def run(messages: int, seed: int, behind: float = 1.0) -> dict[str, Any]:
    """Send them, a part of the sessions also past the door; returns what came of it."""
    logging.disable(logging.CRITICAL)
    try:
        return _run(messages, seed, behind)
    finally:
        logging.disable(logging.NOTSET)


def _run(messages: int, seed: int, behind: float) -> dict[str, Any]:
    totals: dict[str, Counter[str]] = {"counts": Counter(), "failures": Counter()}
    mutator, began, peaks = Mutator(seed), time.process_time(), []
    with tempfile.TemporaryDirectory() as scratch:
        wanted = asyncio.run(epoch(Path(scratch, "honest"), None, 0, 1.0, totals))
        at_start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        whole = True
        while totals["counts"]["sent"] < messages:
            directory = Path(scratch, "data")
            count = min(EPOCH, messages - totals["counts"]["sent"])
            whole &= asyncio.run(epoch(directory, mutator, count, behind, totals)) == wanted
            shutil.rmtree(directory)
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
    cpu = time.process_time() - began
    return {
        **totals["counts"],
        "failures": dict(totals["failures"].most_common(20)),
        "honest_rows_whole": whole,
        "cpu_s": round(cpu, 1),
        "per_s": round(totals["counts"]["sent"] / cpu),
        "rss_mb_at_start": at_start,
        "rss_mb_peaks": peaks,
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])), indent=1))
