# SPDX-License-Identifier: Apache-2.0
"""An hour of a cluster that never was, of any size, made up as it is asked for; and pages of it.

python tests/web/synthetic_source.py 500 9480        500 hosts on http://localhost:9480
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from netmon.errors import DataError
from netmon.views import Cause, Hang, RankPair, RowQuery, Verdict
from netmon.web.server import Access, serve
from netmon.web.source import JOB, RANK, SERIES, STEP, Catalogue, Rates, State, arranged, by_lane
from netmon.wire.security import PLAIN

BEGIN_NS = 1_795_219_200_000_000_000
HOUR_NS = 3_600_000_000_000
MS = 1_000_000
RANKS = 8
CAPACITY_BPS = 25e9


class Synthetic:
    """Jobs of eight hosts, each with a rank; iterations take 0.8 to 1.3 s, and now and then one stands out."""

    title, synthetic = "a cluster that never was", True

    def __init__(self, hosts: int, seconds: int = 3_600) -> None:
        self.names = [f"gpu-{number:04}" for number in range(hosts)]
        jobs = [f"job-{number:03}" for number in range(-(-hosts // RANKS))]
        ranks = [(jobs[number // RANKS], number % RANKS, name) for number, name in enumerate(self.names)]
        end = BEGIN_NS + seconds * 1_000 * MS
        self.known = Catalogue(
            arranged(ranks, self.names),
            BEGIN_NS,
            end,
            dict.fromkeys(self.names, CAPACITY_BPS),
            {job: job for job in jobs},
        )
        self.lanes = by_lane(_steps(hosts, seconds), _places(self.known, jobs))
        self.end_ns, self.live, self.trouble = end, False, ""
        self.hangs: tuple[Hang, ...] = ()
        self.pairs: dict[str, tuple[RankPair, ...]] = {}
        self.found = [self.slow(job, at) for at, job in enumerate(jobs[:3])]

    def slow(self, job: str, number: int) -> Verdict:
        """On the slowest step of a job, the number-th."""
        lane = next(at for at, one in enumerate(self.known.lanes) if one.job == job)
        rows = slice(int(self.lanes.first[lane]), int(self.lanes.last[lane]))
        start, end = self.lanes.bounds[rows, 0], self.lanes.end_ns[rows]
        usual = int(np.median(end - start))
        at = int(np.argmax(end - start))
        took, victim = int(end[at] - start[at]), self.names[number * RANKS]
        return Verdict(
            *(job, int(self.lanes.number[rows][at]), int(start[at]), int(end[at]), took, usual, took - usual),
            *(Cause.CROSS, "<script>alert(1)</script>", victim, "eth0"),
            rank=0,
            cross_ns=took - usual,
            confidence=0.9,
            culprit_user="ann",
            sender=self.names[-1],
            receiver=victim,
        )

    def state(self) -> State:
        known = self.known.generation, self.end_ns, self.live, len(self.found), self.trouble
        return State(*known, hangs=self.hangs, pairs=self.pairs)

    def catalogue(self) -> Catalogue:
        return self.known

    def rates(self, hosts: Any, begin_ns: int, width_ns: int, bins: int, full: bool) -> Rates:
        time = (begin_ns - BEGIN_NS + width_ns * np.arange(bins)) / 1e9
        values = np.zeros((len(hosts), SERIES, bins))
        for at, host in enumerate(hosts):
            number = int(host[4:])
            busy = np.clip(np.sin(time * (5 + number // RANKS % 7) + number // RANKS), 0, 1)
            values[at, 1] = values[at, 5] = busy
            values[at, 3] = 0.3 * (np.sin(time / 60 + number) > 0.7)
        inside = (time >= 0) & (time < (self.end_ns - BEGIN_NS) / 1e9)
        return Rates(values * inside * CAPACITY_BPS / 8e9 * width_ns, width_ns)

    def totals(self, hosts: Any, begin_ns: int, width_ns: int, bins: int) -> Any:
        return self.rates(hosts[:RANKS], begin_ns, width_ns, bins, False).wire_bytes.sum(axis=0)

    def steps(self, begin_ns: int, end_ns: int) -> Any:
        return [self.lanes], False

    def verdicts(self) -> list[Verdict]:
        return self.found

    def explain(self, job: str, iteration: int, end_ns: int) -> Any:
        raise DataError("nobody measured it")

    def advice(self) -> dict[str, Any]:
        raise DataError("nobody measured it")

    def rows(self) -> Any:
        return MadeUp()

    def close(self) -> None:
        pass


class MadeUp:
    """A flow of 1 GB in the last second of any time that is asked for, and none before."""

    name = "made up"

    def batches(self, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        row: dict[str, Any] = {"session": "s", "host": "gpu-0000", "flow_id": 1}
        if wanted.table == "buckets":
            more = {"direction": "tx", "class": "cross", "bucket_start_ns": wanted.until_ns - 1, "wire_bytes": 10**9}
        else:
            ends = {"src": "198.18.0.1", "src_port": 1, "dst": "198.18.0.2", "dst_port": 2}
            more = {**ends, "process": "<b>backup</b>", "user": '=HYPERLINK("x")', "job": "", "rank": -1}
        yield pa.RecordBatch.from_pylist([row | more])


def _places(known: Catalogue, jobs: list[str]) -> list[tuple[int, int]]:
    number = {job: at for at, job in enumerate(jobs)}
    return [
        (number[lane.job], lane.rank if lane.kind == RANK else -1) if lane.kind in (JOB, RANK) else (-1, 0)
        for lane in known.lanes
    ]


def _steps(hosts: int, seconds: int) -> np.ndarray:
    random, pieces = np.random.default_rng(1), []
    for job in range(-(-hosts // RANKS)):
        usual = (800 + 60 * (job % 9)) * MS
        count = seconds * 1_000 * MS // usual
        took = np.where(random.random(count) < 0.03, 1.8, 1.0) * usual * random.normal(1, 0.01, count)
        ends = np.cumsum(took).astype(np.int64)
        starts = ends - took.astype(np.int64)
        for rank in range(min(RANKS, hosts - job * RANKS)):
            rows = np.zeros(count, STEP)
            rows["job"], rows["rank"], rows["number"] = job, rank, np.arange(count)
            rows["start_ns"], rows["end_ns"] = BEGIN_NS + starts, BEGIN_NS + ends
            rows["comm_start_ns"] = BEGIN_NS + starts + (usual * random.uniform(0.3, 0.4, count)).astype(np.int64)
            rows["wait_start_ns"], rows["comm_end_ns"] = rows["comm_start_ns"], rows["end_ns"] - 20 * MS
            pieces.append(rows)
    return np.concatenate(pieces)


@contextlib.contextmanager
def serving(source: Any, access: Any = None, listen: str = "localhost:0") -> Iterator[str]:
    """The address of a page, until the context ends."""
    loop, ready, at = asyncio.new_event_loop(), threading.Event(), []
    stop: list[asyncio.Event] = []
    failed: list[BaseException] = []

    def told(address: str) -> None:
        at.append(address)
        ready.set()

    async def work() -> None:
        stop.append(asyncio.Event())
        await serve(source, access or Access(listen, PLAIN, None), listen, told, stop[0])

    def run() -> None:
        try:
            loop.run_until_complete(work())
        except BaseException as error:
            failed.append(error)
        finally:
            loop.close()
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait()
        if failed:
            raise failed[0]
        yield at[0]
    finally:
        if stop and not loop.is_closed():
            loop.call_soon_threadsafe(stop[0].set)
        thread.join()


if __name__ == "__main__":
    asyncio.run(
        serve(Synthetic(int(sys.argv[1])), Access("localhost:0", PLAIN, None), f"localhost:{sys.argv[2]}", print)
    )
