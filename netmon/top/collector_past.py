# SPDX-License-Identifier: Apache-2.0
"""The past as a collector has it: iterations that it reports, and what the hosts' recorders hold of their time."""

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from netmon.dl.grouped import SAME_NS, last_versions
from netmon.errors import NetmonError
from netmon.records import Class, Direction, Flow, Owner, Table
from netmon.units import format_duration
from netmon.views import (
    HOUR_NS,
    STEP,
    Frame,
    GroupLine,
    JobView,
    Page,
    Past,
    PastSteps,
    RankSpan,
    RankTimes,
    RankView,
    Selection,
    Snapshot,
    Verdict,
)
from netmon.wire.security import PLAIN, Security
from netmon.wire.watch import Outage, UnreachableError, split, watch_once

STEPS_NS = 60_000_000_000
"""How far back a collector is queried when somebody goes back."""

_STEPS_LIVE_NS = 5_000_000_000  # and with every snapshot: what comes is remembered
if TYPE_CHECKING:
    import pandas as pd

_MOST_FLOWS, _MOST_HOSTS = 200, 32
_MOST_STEPS = 1_000_000  # rows


def with_steps(selection: Selection) -> Selection:
    """The selection with the steps that are needed to go back to what has been shown."""
    return replace(selection, steps_ns=_STEPS_LIVE_NS)


class CollectorPast:
    """Remembers iterations and verdicts of snapshots for an hour. `remember` runs on the thread that reads them."""

    def __init__(
        self, addresses: str, security: Security = PLAIN, open_stored: Callable[[], Past] | None = None
    ) -> None:
        """addresses: of a collector, or of multiple workers with commas.

        open_stored: what their dataset has of the hour, opened when somebody goes back: pandas and pyarrow, which read
        rows, are larger than all the rest of a viewer.
        """
        self._addresses, self._security, self._open_stored = addresses, security, open_stored
        self._lock = threading.Lock()
        self._steps: dict[str, Table] = {}
        self._verdicts: dict[tuple[str, int, int], Verdict] = {}
        self._newest: dict[str, JobView] = {}
        self._last: Snapshot | None = None

    @cached_property
    def _stored(self) -> Past | None:
        return self._open_stored() if self._open_stored else None

    def remember(self, updates: Iterable[Snapshot | Outage]) -> Iterator[Snapshot | Outage]:
        """The same updates; what they report of iterations is kept."""
        for update in updates:
            if isinstance(update, Snapshot):
                self._take(update)
            yield update

    def _take(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._last = snapshot
            for job in snapshot.jobs:
                self._newest[job.job] = job
                self._verdicts |= {(one.job, one.iteration, one.end_ns): one for one in job.verdicts}
                if len(job.steps):
                    known = self._steps.get(job.job, np.zeros(0, STEP))
                    news = np.searchsorted(known["end_ns"], job.steps["end_ns"].min() - SAME_NS)
                    newest = last_versions(np.concatenate([known[news:], job.steps]), "end_ns", "rank", "number")
                    rows = np.concatenate([known[:news], np.sort(newest, order="end_ns")])
                    since = np.searchsorted(rows["end_ns"], rows["end_ns"][-1] - HOUR_NS, side="right")
                    self._steps[job.job] = rows[max(since, len(rows) - _MOST_STEPS) :]
            hour_ago = snapshot.time_ns - HOUR_NS
            for key in list(takewhile(lambda key: key[2] <= hour_ago, self._verdicts)):  # they came in this order
                del self._verdicts[key]

    def steps(self) -> PastSteps:
        """The last hour's iterations: those that the dataset has, and those of snapshots; blocks.

        Where the dataset may not be read, of the last minute and since the program began. Raises NetmonError.
        """
        import pandas as pd

        from netmon.dl.past_frames import joined_times, step_times

        selection = Selection(steps_ns=STEPS_NS, most_links=1, most_hosts=1)
        self._take(watch_once(self._addresses, selection, self._security))
        stored = self._hour()
        with self._lock:
            jobs = dict(self._steps)
            verdicts = sorted(self._verdicts.values(), key=lambda one: one.end_ns)
            names = {job.job: job.name or job.job for job in self._newest.values()}
            views = {job: self._newest[job] for job in jobs}
        times = dict[str, Table]()
        for job, rows in jobs.items():
            steps = pd.DataFrame(rows).rename(columns={"number": "iteration"})
            known = (rows["wait_start_ns"] > 0) & (rows["comm_end_ns"] > 0)
            exposed = np.where(known, rows["comm_end_ns"] - rows["wait_start_ns"], -1)
            view = views[job]
            times |= step_times(steps.assign(job=job, exposed_ns=exposed, size=view.size, relative=view.relative))
        later = {(one.job, one.iteration, one.end_ns) for one in verdicts}
        earlier = [one for one in stored.verdicts if (one.job, one.iteration, one.end_ns) not in later]
        return PastSteps(
            joined_times(stored.jobs, times),
            sorted([*earlier, *verdicts], key=lambda one: one.end_ns),
            {**stored.names, **names},
        )

    def _hour(self) -> PastSteps:
        try:
            return self._stored.steps() if self._stored else PastSteps({})
        except NetmonError:  # of an earlier version, or of a viewer who sees jobs only: what snapshots have is enough
            return PastSteps({})

    def frame(self, job: str, number: int, since_ns: int, until_ns: int) -> Frame:
        """What the recorders of the job's hosts hold of [since, until), and what its ranks did; blocks.

        Raises UnreachableError where no collector can get it.
        """
        from netmon.dl.past_frames import flows_of, links_of

        with self._lock:
            view, last = self._newest.get(job), self._last
            steps = self._steps.get(job, np.zeros(0, STEP))
        own = steps[(steps["number"] == number) & (steps["end_ns"] > since_ns) & (steps["start_ns"] < until_ns)]
        if self._stored and (view is None or not len(own)):
            return self._stored_frame(self._stored, job, number, since_ns, until_ns)
        if view is None:
            raise NetmonError(f"cannot show that moment: the collector does not know {job} any more")
        own = np.sort(own, order="rank")
        host_of = {rank.rank: rank.host for rank in view.ranks}
        hosts = sorted(set(host_of.values()))
        gaps = [f"{len(hosts) - _MOST_HOSTS} more hosts of the job are not queried"] if len(hosts) > _MOST_HOSTS else []
        try:
            rows, missing = self._full(hosts[:_MOST_HOSTS], since_ns, until_ns)
        except UnreachableError:  # an agent has gone
            if self._stored is None:
                raise
            return self._stored.frame(job, number, since_ns, until_ns)
        if self._stored and not len(rows):  # recorders hold less than an hour
            with suppress(NetmonError):  # it is not stored yet
                return self._stored.frame(job, number, since_ns, until_ns)
        now = watch_once(self._addresses, Selection(jobs=(job,), most_ranks=1), self._security)
        capacity = {(link.host, link.interface): link.capacity_bps for link in now.links}
        links = links_of(rows, since_ns, until_ns, capacity)
        shared = {link.host for link in links if link.wire_bps[:, Class.DL_SHARED].any()}
        ranks = tuple(_rank(row, view, host_of, shared) for row in own)
        verdicts = tuple(one for one in self._verdicts.values() if one.job == job and one.iteration == number)
        taken = np.array([rank.duration_ns for rank in ranks], np.int64)
        moment = replace(
            view,
            iteration=number,
            last_ns=int(taken.max(initial=0)),
            ranks=ranks,
            known_ranks=len(ranks),
            shared_ranks=sum(rank.node_shared for rank in ranks),
            verdicts=verdicts,
            measured_bytes=float("nan"),
        )
        snapshot = replace(
            last or now,
            time_ns=until_ns,
            hosts=now.hosts,
            links=links,
            jobs=(moment,),
            flows=flows_of(rows, since_ns, until_ns, _describer(rows), _MOST_FLOWS),
            warnings=(),
            page=Page(len(hosts), 0, 0, 1, 0),
        )
        spans = tuple(_span(row, host_of) for row in own)
        return Frame(since_ns, until_ns, snapshot, spans, _basis(rows), (*gaps, *missing))

    def _stored_frame(self, stored: Past, job: str, number: int, since_ns: int, until_ns: int) -> Frame:
        """As the dataset has it; with the recorders' rows, where these still have them."""
        from netmon.dl.past_frames import flows_of, links_of

        frame = stored.frame(job, number, since_ns, until_ns)
        hosts = sorted({span.host for span in frame.spans})[:_MOST_HOSTS]
        try:
            rows, missing = self._full(hosts, since_ns, until_ns)
        except NetmonError:
            return frame
        if not len(rows):
            return frame
        capacity = {(link.host, link.interface): link.capacity_bps for link in frame.snapshot.links}
        return replace(
            frame,
            snapshot=replace(
                frame.snapshot,
                links=links_of(rows, since_ns, until_ns, capacity),
                flows=flows_of(rows, since_ns, until_ns, _describer(rows), _MOST_FLOWS),
            ),
            basis=_basis(rows),
            gaps=(*frame.gaps, *missing),
        )

    def times(self, job: str, number: int, end_ns: int) -> tuple[RankTimes, ...]:
        """As the collector has sent it with its verdict; does not block."""
        with self._lock:
            found = self._verdicts.get((job, number, end_ns))
        return tuple(getattr(found, "ranks", ()))

    def groups(self, job: str) -> Sequence[GroupLine]:
        """See Past; of the rows that the collector stored."""
        return self._stored.groups(job) if self._stored else ()

    def _full(self, hosts: Sequence[str], since_ns: int, until_ns: int) -> "tuple[pd.DataFrame, list[str]]":
        """Rows of all workers; sentences on what is missing."""
        import pyarrow as pa

        from netmon.wire.questions import get_full

        pieces, gaps, last = list[pa.Table](), list[str](), NetmonError("")
        for address in split(self._addresses):
            for host in hosts:
                try:
                    for part in get_full(address, [host], since_ns, until_ns, self._security):
                        pieces.append(part.rows)
                        gaps += [f"{part.host}: {part.gap}"] if part.gap else []
                except UnreachableError as error:
                    last = error
        if not pieces:
            raise UnreachableError(str(last))
        return pa.concat_tables(pieces, promote_options="permissive").to_pandas(), gaps


def _basis(rows: "pd.DataFrame") -> str:
    if not len(rows):
        return "no row of that time"
    return f"buckets of {format_duration(int(rows['bucket_ns'].min()))}, from the hosts' recorders"


def _describer(rows: "pd.DataFrame") -> Any:
    known = rows.drop_duplicates(["session", "flow_id"]) if len(rows) else rows

    def describe(wanted: Sequence[tuple[str, int]]) -> list[Flow | None]:
        flows = {(str(row["session"]), int(row["flow_id"])): _flow(row) for row in known.to_dict("records")}
        return [flows.get(key) for key in wanted]

    return describe


def _flow(row: Mapping[Any, Any]) -> Flow | None:
    if row["src"] is None or row["src"] != row["src"]:
        return None
    return Flow(
        flow_id=int(row["flow_id"]),
        interface=0,
        direction=Direction[str(row["direction"]).upper()],
        src=str(row["src"]),
        dst=str(row["dst"]),
        src_port=int(row["src_port"]),
        dst_port=int(row["dst_port"]),
        protocol=int(row["protocol"]),
        first_ns=0,
        owner=Owner(
            pid=_number(row.get("pid"), 0),
            process=_word(row.get("process")),
            container=_word(row.get("container")),
            job=_word(row.get("owner_job")),
            rank=_number(row.get("owner_rank"), -1),
            source=_word(row.get("owner_source")),
            user=_word(row.get("user")),
        ),
    )


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object, unknown: int) -> int:
    return int(value) if isinstance(value, int | float) and value == value else unknown


def _span(row: Any, host_of: Mapping[int, str]) -> RankSpan:
    times = (int(row[name]) for name in ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns"))
    return RankSpan(int(row["rank"]), host_of.get(int(row["rank"]), ""), *times)


def _rank(row: Any, view: JobView, host_of: Mapping[int, str], shared: Container[str]) -> RankView:
    """Bytes are known of a rank's last iteration only: of another one they are unknown. shared: DL-shared hosts."""
    span = _span(row, host_of)
    same = next((one for one in view.ranks if one.rank == span.rank and one.iteration == int(row["number"])), None)
    exposed = int(row["comm_end_ns"] - row["wait_start_ns"]) if row["wait_start_ns"] and row["comm_end_ns"] else -1
    return same or RankView(
        rank=span.rank,
        host=span.host,
        iteration=int(row["number"]),
        duration_ns=span.end_ns - span.start_ns,
        communication_ns=max(span.comm_end_ns - span.comm_start_ns, 0) if span.comm_start_ns else 0,
        node_shared=span.host in shared,
        dl_tx_bytes=-1,
        cross_tx_bytes=-1,
        cross_rx_bytes=-1,
        exposed_ns=exposed,
    )
