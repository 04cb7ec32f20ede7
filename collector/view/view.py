# SPDX-License-Identifier: Apache-2.0
"""What viewers can be shown, kept up to date by news of rows, and frozen when somebody looks."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from collector.host.session import Session
from collector.host.stage import Settled
from collector.host.tables import Tables
from collector.settings import Settings
from collector.view.arrivals import INTERVAL_NS, Arrivals, LinkSeries, Present, ShareHysteresis
from collector.view.frozen import Frozen
from collector.view.job_views import Jobs
from collector.view.sessions import FINAL, Sessions
from netmon.dl.classify import NS_PER_S
from netmon.dl.transfers import COLUMNS, NOTHING, ProcessBytes, pair_views, partners, process_numbers, rank_pairs, ways
from netmon.evidence import UNKNOWN
from netmon.records import Class, Columns, Direction, Table, joined
from netmon.views import NOT_UNDERSTOOD, RankPair

_MOST_TABLES = 256  # of final rows that nobody has looked at
_MOST_ROWS = 1 << 18
_LOOKED_NS = NS_PER_S  # after it, what was seen is of the past


class View:
    """The view of one worker's hosts; lives on the thread that tells the news."""

    def __init__(self, state: Sessions, jobs: Jobs, settings: Settings) -> None:
        self._state, self._jobs, self._settings = state, jobs, settings
        self._arrivals = Arrivals(settings.hold_windows)
        self._series = LinkSeries(settings.settle_ns)
        self._hysteresis = ShareHysteresis(settings.hold_windows)
        self._final: list[Columns] = []
        self._final_rows = 0
        self._looked_ns = 0  # utc

    def publish(self, settled: Settled) -> None:
        """What a tick of the stage has brought."""
        for rows in settled.arrived:
            self.arrived(self._state.arrived(rows))
        for found in settled.final:
            self.final(self._state.final(found))

    def arrived(self, rows: Columns) -> None:
        """Rows have come, of ARRIVED; they are not written any more."""
        if len(rows) and self._arrivals.add(rows):
            self._arrivals.prune(self._present(self._state.hosts(), self._state.links()))

    def final(self, rows: Columns) -> None:
        """Rows are final, of FINAL; they are not written any more."""
        if not len(rows):
            return
        self._final.append(rows)
        self._final_rows += len(rows)
        if len(self._final) >= _MOST_TABLES or self._final_rows >= _MOST_ROWS:
            self._count_final(self._present(self._state.hosts(), self._state.links()))

    def forget_links(self, links: npt.NDArray[np.integer]) -> None:
        """These links have gone; their numbers may be others' from now on."""
        self._final = [rows[~np.isin(rows["link"], links)] for rows in self._final]
        self._series.forget(links)
        self._hysteresis.forget(links)
        self._arrivals.forget(links)

    def freeze(self, now_utc_ns: int, trouble: Sequence[str] = ()) -> Frozen:
        """Everything as it is now; trouble: the collector's own, one line each."""
        host_names, hosts, links = self._state.host_names, self._state.hosts().copy(), self._state.links()
        present = self._present(hosts, links)
        self._count_final(present)
        looked, self._looked_ns = now_utc_ns - self._looked_ns < _LOOKED_NS, now_utc_ns
        self._arrivals.classify(present, None if looked else self._hysteresis)
        series = self._series.copy(np.maximum(present.horizon_ns, 0) // INTERVAL_NS)
        self._arrivals.add_to(series, present)
        flows, rates = self._arrivals.flow_rates(present, _of_host(hosts["begin_ns"], links["host"], 0))
        names = self._state.link_names
        shown = np.flatnonzero(links["host"] >= 0)
        jobs = self._jobs.facts()
        unclear = (f"job {job.name}: {NOT_UNDERSTOOD}" for job in jobs if job.unclear)
        self._jobs.take_scores(self._state.scores(), self._state.stepping_jobs())
        place = np.full(len(links), -1, np.int64)
        place[shown] = np.arange(len(shown))
        live = np.flatnonzero(place[flows.link] >= 0)
        flows = flows._replace(link=place[flows.link]).take(live)
        return Frozen(
            time_ns=now_utc_ns,
            share_threshold=self._settings.share_threshold,
            share_window_ns=int(hosts["window_ns"].max(initial=0)) or self._settings.share_window_ns,
            host_names=host_names,
            hosts=hosts,
            link_names=[names[number] for number in shown.tolist()],
            links=links[shown],
            class_bytes=self._series.totals[shown],
            series=series.of(shown) if len(shown) < len(links) else series,
            flows=flows,
            flow_bps=rates[live],
            jobs=jobs,
            forgotten_jobs=self._jobs.forgotten,
            agent_versions=self._state.agent_versions,
            warnings=(*trouble, *unclear, *(line for job in jobs for line in job.stopped), *self._state.warnings()),
        )

    def _present(self, hosts: Table, links: Table) -> Present:
        self._series.extend(len(links))
        window_ns = _of_host(hosts["window_ns"], links["host"], 1)
        enough = self._settings.share_threshold * links["capacity_bps"] / 8 * window_ns / NS_PER_S
        return Present(
            _of_host(hosts["horizon_ns"], links["host"], -1),
            _of_host(hosts["settled_ns"], links["host"], 0),
            window_ns,
            enough,
            self._state.flow_states(),
        )

    def _count_final(self, present: Present) -> None:
        rows = joined([Columns.zeros(0, FINAL), *self._final])
        self._final, self._final_rows = [], 0
        there = present.horizon_ns.take(rows["link"]) >= 0
        rows = rows if there.all() else rows[there]
        classes = rows["class"].copy()
        dl = np.flatnonzero((classes == Class.DL_ONLY) | (classes == Class.DL_SHARED))
        own = rows.take(dl)
        window = own["start_ns"] // present.window_ns.take(own["link"])
        shared = self._hysteresis.flags(own["link"], own["job"], window, own["class"] == Class.DL_SHARED)
        classes[dl] = np.where(shared, Class.DL_SHARED, Class.DL_ONLY)
        self._series.add(rows["start_ns"], rows["link"], classes, rows["wire_bytes"])


def _of_host(values: npt.NDArray[np.int64], host: npt.NDArray[np.int32], none: int) -> npt.NDArray[np.int64]:
    """The value of each link's host; none: of a link that is not shown."""
    if not len(values):
        return np.full(len(host), none, np.int64)
    return np.where(host >= 0, values[host], none)


# --- What the ranks of jobs have sent each other by NCCL in the last seconds, and by which way.

_EVERY_S = 1.0
_LATELY_NS = 10_000_000_000
_MOST_PAIRS = 256  # of a job that viewers are shown
_POSTED = ("write", "send")  # what a read brings is the other end's


class RankPairs:
    """Of one worker."""

    def __init__(self, tables: Tables, sessions: Mapping[int, Session]) -> None:
        """tables: of all sessions, which are known by index."""
        self._tables, self._sessions = tables, sessions
        self._looked_s = 0.0

    def due(self, sizes: Mapping[str, int]) -> dict[str, tuple[RankPair, ...]] | None:
        """By job; None: it has been looked at a moment ago. sizes: how many ranks jobs have."""
        now = time.monotonic()
        if now < self._looked_s + _EVERY_S:
            return None
        self._looked_s = now
        rows = self._tables.evidence.lately["transfers"].all(("session", "job", "pid", *COLUMNS))
        if rows is None:
            return {}
        until = time.time_ns()
        since = until - _LATELY_NS
        found = self._lately(rows, since)
        if not len(found["rank"]):
            return {}
        numbers = {job: number for number, job in enumerate(self._tables.flows.jobs)}
        known = {numbers[job]: size for job, size in sizes.items() if job in numbers}
        pairs = rank_pairs(found, partners(found, known).rank)
        sending = {name: column[found["sends"] == 1] for name, column in found.items()}
        sent = self._posted(since), self._by_tcp(since, sending)
        views = pair_views(pairs, ways(sending["process"], sending["bytes"], *sent))
        return {self._tables.flows.jobs[job]: own[:_MOST_PAIRS] for job, own in views.items() if job >= 0}

    def _lately(self, rows: Columns, since_ns: int) -> dict[str, npt.NDArray[np.int64]]:
        session = rows["session"]
        end_ns = self._tables.sessions.utc(session, rows["end_ns"])
        there = np.isin(session, list(self._sessions))
        own = np.flatnonzero(there & (end_ns > since_ns) & (rows["rank"] >= 0))
        found = {name: rows[name][own].astype(np.int64) for name in ("job", *COLUMNS)}
        found["start_ns"], found["end_ns"] = self._tables.sessions.utc(session[own], rows["start_ns"][own]), end_ns[own]
        found["process"] = process_numbers(session[own], rows["pid"][own])
        return found

    def _posted(self, since_ns: int) -> ProcessBytes:
        """What processes have handed to RDMA devices."""
        rows = self._tables.evidence.lately["rdma"].all(("session", "pid", "end_ns", "rdma_device", "verb", "bytes"))
        if rows is None:
            return NOTHING
        end_ns = self._tables.sessions.utc(rows["session"], rows["end_ns"])
        rows = rows.take(np.flatnonzero((end_ns > since_ns) & np.isin(rows["verb"].astype(str), _POSTED)))
        return ProcessBytes(process_numbers(rows["session"], rows["pid"]), rows["rdma_device"], rows["bytes"])

    def _by_tcp(self, since_ns: int, sent: Mapping[str, npt.NDArray[np.int64]]) -> ProcessBytes:
        """What the ranks' connections have sent, by interface."""
        names = ("session", "flow_id", "end_ns", "sent_bytes", "retransmitted_bytes")
        rows = self._tables.evidence.lately["transport"].all(names)
        if rows is None:
            return NOTHING
        flows, sessions = self._tables.flows, self._tables.sessions
        flow = flows.keys.find(rows["session"], rows["flow_id"])
        good = (flow >= 0) & (sessions.utc(rows["session"], rows["end_ns"]) > since_ns) & (rows["sent_bytes"] > 0)
        good &= (flows.state["rank"][flow] >= 0) & (flows.state["link"][flow] % 2 == Direction.TX)
        rows, state = rows.take(np.flatnonzero(good)), flows.state[flow[good]]
        ranks = zip((sent["process"] >> 32).tolist(), sent["job"].tolist(), sent["rank"].tolist(), strict=True)
        process_of = dict(zip(ranks, sent["process"].tolist(), strict=True))
        whose = zip(rows["session"].tolist(), state["job"].tolist(), state["rank"].tolist(), strict=True)
        process = np.array([process_of.get(who, UNKNOWN) for who in whose], np.int64)
        links = zip(rows["session"].tolist(), state["link"].tolist(), strict=True)
        name = np.array([self._sessions[n].window.links.interface(link).name for n, link in links], object)
        return ProcessBytes(process, name, rows["sent_bytes"] - np.maximum(0, rows["retransmitted_bytes"]))
