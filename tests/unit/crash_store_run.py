# SPDX-License-Identifier: Apache-2.0
"""Collectors on one dataset, one after the other, many killed: python crash_store_run.py DIR SAID SEED RUNS FLUSHES.

Some are alone, some are two workers that take hosts from each other; they merge files and drop old hours. What they
say: "stored HOST NUMBER", once the flush with this number of a host is acknowledged.
"""

import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from collector_stream import hello
from crash_spool_run import Say, in_turn
from dataset_rows import BEGIN_NS, HOUR_NS, MS, flows, state, table

from collector.dataset import files
from collector.dataset.files import Keep
from collector.dataset.sink import ParquetSink
from netmon.dl.timemap import TimeMap
from netmon.errors import DataError
from netmon.records import ClockSample

HOSTS = ("a", "b")
LATER = ClockSample(0, BEGIN_NS + 1_000 * HOUR_NS, 0)
HELLOS = {host: hello(session=f"s-{host}", host=host, clock=LATER) for host in HOSTS}
ROWS = 3


def time_of(number: int) -> int:
    """Of a flush; now and then an hour begins."""
    return BEGIN_NS + number // 40 * HOUR_NS + number * 200 * MS


def number_of(time_ns: int) -> int:
    hours = (time_ns - BEGIN_NS) // HOUR_NS
    return (time_ns - BEGIN_NS - hours * HOUR_NS) // (200 * MS)


def rows_of(host: str, number: int) -> dict[str, pa.Table]:
    words = {"host": host, "session": f"s-{host}", "interface": "eth0", "direction": "tx"}
    times = [time_of(number) + row * MS for row in range(ROWS)]
    return {
        "buckets": table("buckets", ROWS, flow_id=[1] * ROWS, bucket_start_ns=times, **words),
        "flows": flows(host, [1, 10 + number], session=f"s-{host}", last_ns=time_of(number)),
        "ledger": table("ledger", 1, start_ns=[time_of(number)], **words),
    }


def flush(sink: ParquetSink, numbers: dict[str, int], say: Say) -> None:
    own = [rows_of(host, number) for host, number in numbers.items()]
    tables = {name: pa.concat_tables([rows[name] for rows in own]) for name in own[0]}
    states = {
        f"s-{host}": state(host, number, clock=TimeMap.constant(0), settled_ns=time_of(number))
        for host, number in numbers.items()
    }
    refused = sink.write(tables, states)
    for host, number in numbers.items():
        if host not in refused:
            say("stored", host, number)


def tidy(sink: ParquetSink, chance: random.Random) -> None:
    if chance.random() < 0.2:
        sink.merge_some(lambda: True)
    if chance.random() < 0.05:
        sink.drop([Keep("ledger", most_bytes=1)])
    if chance.random() < 0.1:
        sink.take_absent()


def opened(directory: Path, chance: random.Random, alone: bool) -> Iterator[ParquetSink]:
    if alone:
        yield ParquetSink(directory)
    else:
        for name in chance.sample(("w1", "w2", "w3"), 2):
            yield ParquetSink(directory, name)


def collectors(directory: Path, number: int, flushes: int, say: Say) -> None:
    files.ROLL_S = -10
    chance = random.Random(number)
    alone = number % 3 != 2
    sinks = list(opened(directory / "above" / "data", chance, alone))
    owner: dict[str, ParquetSink] = {}
    next_number: dict[str, int] = {}
    epoch = number * 1_000
    for _ in range(flushes):
        if not owner or (not alone and chance.random() < 0.2):
            for host in HOSTS if not owner else chance.sample(HOSTS, 1):
                epoch += 1
                owner[host] = chance.choice(sinks)
                if not alone:
                    owner[host].take({host: epoch})
                next_number[host] = owner[host].resume(HELLOS[host]).last_sequence + 1
        for sink in sinks:
            own = [host for host in HOSTS if owner[host] is sink and chance.random() < 0.9]
            if own:
                flush(sink, {host: next_number[host] for host in own}, say)
                next_number |= {host: next_number[host] + 1 for host in own}
            with suppress(DataError):
                tidy(sink, chance)
    if chance.random() < 0.3:
        for sink in sinks:
            sink.close()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def main(directory: str, said: str, seed: str, runs: str, flushes: str) -> None:
    say = Say(said)
    in_turn(int(runs), lambda number: collectors(Path(directory), int(seed) + number, int(flushes), say))


if __name__ == "__main__":
    main(*sys.argv[1:])
