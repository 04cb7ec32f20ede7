# SPDX-License-Identifier: Apache-2.0
"""Full resolution from the agents' recorders: requests go out alongside acknowledgements, answers come between
batches."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from collector.host.iteration_rows import IterationRows
from collector.host.rows import SETTLED
from collector.host.session import Session
from collector.settings import Settings
from collector.view.job_views import Jobs
from netmon.dl.classify import NS_PER_S
from netmon.errors import DataError, WireError
from netmon.marks import printable
from netmon.records import BUCKET, Class, Columns, Table, empty, joined
from netmon.views import Hang
from netmon.wire import netmon_pb2
from netmon.wire.buckets import decode_buckets
from netmon.wire.limits import MAX_TEXT

# --- When the collector asks for full resolution by itself: a slow iteration, a hang, a burst, a change of class.

_HOUR_S = 3600.0
_MOST_NS = 10 * NS_PER_S  # of a window: its end
_AROUND_NS = 50_000_000  # a burst, and on either side
_BEFORE_NS, _AFTER_NS = 5 * NS_PER_S, 2 * NS_PER_S  # a hang's beginning


@dataclass(frozen=True)
class PullRequest:
    """A window and hosts of which full resolution is to be stored."""

    reason: str
    hosts: tuple[str, ...]
    since_ns: int  # utc
    until_ns: int


class Triggers:
    """Looks at what settles; bounded by a rest after each reason, and by rows per hour."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._quiet_until: dict[str, float] = {}
        self._stored: deque[tuple[float, int]] = deque()
        self._shared: dict[tuple[str, int], bool] = {}  # by session and link

    @property
    def watches_rows(self) -> bool:
        """Whether `look` can find anything."""
        return "burst" in self._settings.full_on or "class" in self._settings.full_on

    def check_rows(self, session: Session, rows: Columns) -> list[PullRequest]:
        """Which rows of a session that have settled make more worth storing."""
        if not _coarse(session):
            return []
        found = [*self._burst(session, rows), *self._class(session, rows)]
        now = time.monotonic()
        return [wanted for key, wanted in found if self._may(key, now)]

    def slow(self, sessions: Mapping[int, Session], rows: IterationRows, jobs: Jobs) -> list[PullRequest]:
        """Which iterations that have settled make more worth storing; sessions: by index."""
        if "slow" not in self._settings.full_on:
            return []
        now, wanted = time.monotonic(), []
        for row in jobs.standing_out(rows).tolist():
            session, one = sessions[int(rows.session[row])], rows.iteration(row)
            if _coarse(session) and self._may(f"slow {one.job}", now):
                utc, reason = session.window.alignment.utc, f"iteration {one.number} of job {one.job} was slow"
                wanted.append(_wanted(reason, jobs.hosts(one.job), utc(one.start_ns), utc(one.end_ns)))
        return wanted

    def hang(self, one: Hang, sessions: Sequence[Session]) -> list[PullRequest]:
        """What the job's hosts sent last, before it hung. sessions: of these."""
        hosts = tuple(session.hello.host for session in sessions if _coarse(session))
        if "hang" not in self._settings.full_on or not hosts or not self._may(f"hang {one.job}", time.monotonic()):
            return []
        reason, until_ns = f"job {one.job} hung", min(one.reported_ns, one.since_ns + _AFTER_NS)
        return [_wanted(reason, hosts, one.since_ns - _BEFORE_NS, until_ns)]

    def forget(self, session: str) -> None:
        for key in [key for key in self._shared if key[0] == session]:
            del self._shared[key]

    def stored(self, rows: int) -> None:
        self._stored.append((time.monotonic(), rows))

    def _may(self, key: str, now: float) -> bool:
        while self._stored and self._stored[0][0] < now - _HOUR_S:
            self._stored.popleft()
        rows = sum(rows for _, rows in self._stored)
        if now < self._quiet_until.get(key, 0) or rows >= self._settings.full_rows:
            return False
        self._quiet_until = {k: until for k, until in self._quiet_until.items() if until > now}
        self._quiet_until[key] = now + self._settings.full_rest_ns / NS_PER_S
        return True

    def _burst(self, session: Session, rows: Columns) -> list[tuple[str, PullRequest]]:
        if "burst" not in self._settings.full_on or not len(rows):
            return []
        links, host = session.window.links, session.hello.host
        limit = links.capacity_bps[rows["link"]] * (self._settings.full_burst * session.hello.bucket_ns / 8 / NS_PER_S)
        beyond = rows["peak_bytes"] > np.where(limit > 0, limit, np.inf)
        if not beyond.any():
            return []
        start, link, width_ns = (int(rows[name][beyond.argmax()]) for name in ("bucket_start_ns", "link", "bucket_ns"))
        name, until = links.interface(link).name, start + width_ns + _AROUND_NS
        return [(f"burst {host}", _wanted(f"a burst on {host} {name}", (host,), start - _AROUND_NS, until))]

    def _class(self, session: Session, rows: Columns) -> list[tuple[str, PullRequest]]:
        if "class" not in self._settings.full_on:
            return []
        host, found = session.hello.host, []
        dl = rows[np.isin(rows["class"], (Class.DL_ONLY, Class.DL_SHARED))]
        for link in np.unique(dl["link"]).tolist():
            own = dl[dl["link"] == link]
            shared = own["class"] == Class.DL_SHARED
            before, now = self._shared.get((session.hello.session, link)), bool(shared[-1])
            self._shared[session.hello.session, link] = now
            if before is not None and before != now:
                at = int(own["bucket_start_ns"][int(np.argmax(shared == now))])
                name = session.window.links.interface(link).name
                reason = f"{host} {name} is DL-{'shared' if now else 'only'} from here on"
                found.append((f"class {host} {link}", _wanted(reason, (host,), at - _AROUND_NS, at + _AROUND_NS)))
        return found


def _coarse(session: Session) -> bool:
    """Whether its host has more than it sends."""
    return session.hello.streamed_ns != session.hello.bucket_ns


def _wanted(reason: str, hosts: tuple[str, ...], since_ns: int, until_ns: int) -> PullRequest:
    return PullRequest(reason, hosts, max(since_ns, until_ns - _MOST_NS), until_ns)


MOST_ROWS = 2_000_000
"""Of one host and request."""

_AT_A_TIME = 4
_OF_FLOW = {
    "src": pa.string(),
    "dst": pa.string(),
    "src_port": pa.uint16(),
    "dst_port": pa.uint16(),
    "protocol": pa.uint8(),
}
_OF_OWNER = {
    **{"process": ("process", pa.string()), "container": ("container", pa.string()), "user": ("user", pa.string())},
    **{"pid": ("pid", pa.int64()), "owner_job": ("job", pa.string()), "owner_rank": ("rank", pa.int64())},
    "owner_source": ("source", pa.string()),
}
"""By column, the field of its owner. The column `job` is of the row: whose training met it."""

_SILENT_S = 30.0  # without an answer
_SLICE_ROWS = 100_000  # worked on before others have their turn


@dataclass(frozen=True)
class Pulled:
    """What an agent had of a window."""

    rows: Columns  # of SETTLED
    gap: str  # what is missing, and why; empty: nothing


@dataclass
class _Pull:
    session: Session
    tables: list[Table] = field(default_factory=lambda: [empty(BUCKET)])
    rows: int = 0
    gap: str = ""
    error: str = ""
    over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


class FullResolution:
    """The requests of one collector that have not been answered yet; lives on one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, _Pull] = {}
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    def answer(self, session: Session, message: netmon_pb2.FullAnswer) -> None:
        """An agent has answered. Raises WireError."""
        pull = self._open.get(message.number)
        if pull is None or pull.session is not session:
            return  # it was given up meanwhile
        table = decode_buckets(message.buckets)
        if table.dtype != BUCKET or pull.rows + len(table) > MOST_ROWS:
            raise WireError(f"{session.hello.host} answers with other rows, or more, than were requested")
        pull.tables.append(table)
        pull.rows += len(table)
        pull.gap, pull.over = printable(message.gap, 4 * MAX_TEXT), message.last
        pull.news.set()

    def disconnected(self, session: Session) -> None:
        """The connection has broken: nothing will be answered on it."""
        for pull in self._open.values():
            if pull.session is session:
                pull.error, pull.over = "it went away before it had answered", True
                pull.news.set()

    async def pull(self, session: Session, since_utc: int, until_utc: int) -> Pulled:
        """Rows of full resolution whose buckets begin in [since_utc, until_utc). Raises DataError."""
        window, host = session.window, session.hello.host
        clock, width = window.alignment.map, window.window_ns
        # Whole share windows: a part of one would be classified as another thing than the whole.
        since, until = clock.mono(since_utc) // width * width, -(-clock.mono(until_utc) // width) * width
        async with self._turns:
            pull = await self._request(session, max(0, since), max(0, until))
        if pull.error:
            raise DataError(f"cannot get full resolution from {host}: {pull.error}")
        tables = [Columns.zeros(0, SETTLED)]
        buckets = np.concatenate(pull.tables)
        buckets = buckets[np.argsort(buckets["bucket_start_ns"], kind="stable")]
        ends = np.flatnonzero(np.diff(buckets["bucket_start_ns"] // np.uint64(width))) + 1
        start = 0
        while start < len(buckets):
            later = ends[np.searchsorted(ends, start + _SLICE_ROWS) :]
            end = int(later[0]) if len(later) else len(buckets)
            settled = window.full(buckets[start:end])
            inside = (settled["bucket_start_ns"] >= since_utc) & (settled["bucket_start_ns"] < until_utc)
            tables.append(settled[inside])
            start = end
            await asyncio.sleep(0)
        rows = joined(tables)
        unknown = len(buckets) and not window.flows.known(buckets["flow_id"]).min() >= 0
        gaps = [pull.gap, "rows of flows that are long over are left out" if unknown else ""]
        return Pulled(rows, "; ".join(filter(None, gaps)))

    async def _request(self, session: Session, since_ns: int, until_ns: int) -> _Pull:
        number, pull = next(self._numbers), _Pull(session)
        if not session.connected:
            pull.error = "it is not connected"
            return pull
        self._open[number] = pull
        request = netmon_pb2.FullRequest(number=number, since_ns=since_ns, until_ns=until_ns, most_rows=MOST_ROWS)
        session.request(request)
        try:
            while not pull.over:
                pull.news.clear()
                await asyncio.wait_for(pull.news.wait(), _SILENT_S)
        except asyncio.TimeoutError:
            pull.error = f"no answer for {_SILENT_S:.0f} s"
        finally:
            del self._open[number]
        return pull


def arrow_stream(rows: pa.Table) -> bytes:
    """The table as one Arrow stream, compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def with_addresses(session: Session, rows: pa.Table) -> pa.Table:
    """The same with, of each row's flow, addresses, ports, protocol and owner."""
    ids, index = np.unique(rows["flow_id"].to_numpy(), return_inverse=True)
    flows = [session.window.flows.flow(flow_id) for flow_id in ids.tolist()]
    for name, kind in _OF_FLOW.items():
        values = pa.array([flow and getattr(flow, name) for flow in flows], kind)
        rows = rows.append_column(name, values.take(pa.array(index)))
    for name, (own, kind) in _OF_OWNER.items():
        values = pa.array([flow and getattr(flow.owner, own) for flow in flows], kind)
        rows = rows.append_column(name, values.take(pa.array(index)))
    return rows
