# SPDX-License-Identifier: Apache-2.0
"""An agent as a process: python agent_run.py SPOOL WHERE HOST SESSION NUMBER RECORD; WHERE: a bus, or unix:PATH.

It appends a batch every 20 ms until SIGTERM, and writes down how many there are once each is in the file; then it
sends what is left.
"""

import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from collector_stream import Host, clock, hello
from sent_agent import Sent, introduction

from netmon.agent import sending
from netmon.agent.bus_connection import connect_by_bus
from netmon.agent.connection import connect_by_grpc
from netmon.records import Batch
from netmon.wire.bus import BusSettings

APART_MS = 1_000_000  # between two sessions, on the host's clock


def main(spool: str, where: str, host: str, session: str, number: int, record: Path) -> None:
    sending._LOOK_AGAIN_S = 0.2
    # No Event: where the signal comes while this thread looks at it, its handler would wait for the lock for ever.
    signalled: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signalled.append(number))
    grpc = where.startswith("unix:")
    connect = connect_by_grpc(where) if grpc else connect_by_bus(BusSettings(tuple(where.split(","))))
    sent = Sent(Path(spool), where, session, connect)
    sent.host = Host(now_ms=number * APART_MS)
    sent.spool.hello = introduction(hello(host=host, session=session, clock=clock(number * APART_MS * 1_000_000)))
    sent.start()

    def of_host(batch: Batch) -> Batch:
        """Each host trains a job of its own."""
        ranks = [replace(rank, job=f"train-{host}", size=1) for rank in batch.training.ranks]
        return replace(batch, training=replace(batch.training, ranks=ranks))

    while not signalled:
        sent.append(change=of_host)
        while sent.spool.memory_bytes and not signalled:  # what only memory has goes with its agent
            time.sleep(0.001)
        written = record.with_name(f".{record.name}")
        written.write_text(str(sent.host.sequence))
        written.replace(record)  # a kill leaves the old one or the new one
        time.sleep(0.02)
    sent.finish(30)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), Path(sys.argv[6]))
