# SPDX-License-Identifier: Apache-2.0
"""Everything that viewers can be shown at one moment. Nothing in it changes any more."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from collector.view.arrivals import COLUMNS, INTERVAL_NS, Seen, SeriesCopy
from collector.view.job_views import JobFacts, Jobs
from collector.view.sessions import CLOCK_SOURCES, LinkName, Sessions
from netmon.dl.classify import NS_PER_S, crosses
from netmon.marks import printable
from netmon.records import AgentCost, Class, Table
from netmon.views import (
    FULL_COVERAGE,
    LAG_NS,
    FlowView,
    HostView,
    JobView,
    LinkView,
    Page,
    Selection,
    Snapshot,
    Totals,
)

_Numbers = npt.NDArray[np.int64]

_NOW = NS_PER_S // INTERVAL_NS  # columns
_CROSS = np.flatnonzero(crosses(np.arange(len(Class))))
_STEPS = 10  # of a share: links do not change their order because of less
_LARGE_SPOOL = 16_000_000  # bytes


@dataclass(frozen=True)
class Frozen:
    """Arrays by host, link or (live) flow; links that are not shown are not in it."""

    time_ns: int  # utc
    share_threshold: float
    share_window_ns: int
    host_names: Sequence[str]
    hosts: Table  # dtype HOST
    link_names: Sequence[LinkName]
    links: Table  # dtype LINK
    class_bytes: _Numbers  # (links, class), wire bytes of rows that are final, since the link came
    series: SeriesCopy  # wire bytes by link; the last column ends with the host's horizon
    flows: Seen  # one row of each flow of the last second; its link is an index of link_names here
    flow_bps: npt.NDArray[np.float64]
    jobs: Sequence[JobFacts]
    forgotten_jobs: int
    warnings: Sequence[str]
    agent_versions: Sequence[str]  # by host

    @cached_property
    def age_ns(self) -> _Numbers:
        """What each host has reported, (hosts,)."""
        age: _Numbers = np.maximum(0, self.time_ns - self.hosts["horizon_utc_ns"])
        return age

    @cached_property
    def silent(self) -> npt.NDArray[np.bool_]:
        """Whether what each host has reported is outdated, (hosts,)."""
        silent: npt.NDArray[np.bool_] = ~self.hosts["connected"] | (self.age_ns > LAG_NS)
        return silent

    @cached_property
    def now_bps(self) -> npt.NDArray[np.float64]:
        """(links, class), of the last second."""
        rates: npt.NDArray[np.float64] = self.series.sums[:, -_NOW:].sum(axis=1) * (
            8.0 * NS_PER_S / (INTERVAL_NS * _NOW)
        )
        return rates

    @cached_property
    def unknown_columns(self) -> _Numbers:
        """How many of the columns of each link, oldest first, are from before the agent's start."""
        hosts = self.hosts[self.links["host"]]
        before = (hosts["begin_ns"] - hosts["horizon_ns"]) // INTERVAL_NS + COLUMNS
        unknown: _Numbers = np.clip(before, 0, COLUMNS).astype(np.int64)
        return unknown

    @cached_property
    def low(self) -> npt.NDArray[np.bool_]:
        """Whether each link fails to cover what its NIC counted."""
        low: npt.NDArray[np.bool_] = self.links["attributed_bytes"] < FULL_COVERAGE * self.links["nic_bytes"]
        return low

    @cached_property
    def by_name(self) -> npt.NDArray[np.intp]:
        names = self.link_names
        return np.array(sorted(range(len(names)), key=lambda place: names[place][:3]), np.intp)

    @cached_property
    def worst_first(self) -> npt.NDArray[np.intp]:
        """The links: those of jobs by their share of cross traffic, then what is not covered, the rest of the jobs'."""
        turn = np.empty(len(self.links), np.int64)
        turn[self.by_name] = np.arange(len(self.links))
        capacity = self.links["capacity_bps"]
        total = np.where(capacity > 0, capacity, self.now_bps.sum(axis=1))
        cross = np.divide(self.now_bps[:, _CROSS].sum(axis=1), total, out=np.zeros(len(total)), where=total > 0)
        sums = self.series.sums
        trains = (sums[:, :, Class.DL_ONLY] | sums[:, :, Class.DL_SHARED]).any(axis=1)
        met = trains & (cross >= self.share_threshold) & ~self.silent[self.links["host"]]
        lost = self.links["overflow_bytes"] + self.links["lost_kernel_bytes"] + self.links["lost_agent_bytes"]
        kind = np.select([met, self.low | (lost > 0), trains], [0, 1, 2], 3)
        step = np.select([kind == 0, kind == 1], [-np.floor(cross * _STEPS), -np.floor(np.log2(lost + 1.0))], 0)
        return np.lexsort((turn, step, kind))

    @cached_property
    def notable_hosts(self) -> npt.NDArray[np.intp]:
        """Hosts that something has to be said about."""
        hosts = self.hosts
        notable = self.silent | (hosts["spool_bytes"] > _LARGE_SPOOL) | (hosts["bucket_ns"] > hosts["stream_ns"])
        return np.flatnonzero(notable | (hosts["warnings"] > 0))

    @cached_property
    def totals(self) -> Totals:
        hosts, links, connected = self.hosts, self.links, self.hosts["connected"]
        present = self.now_bps[~self.silent[links["host"]]]
        return Totals(
            hosts=len(hosts),
            connected=int(connected.sum()),
            lagging=int((connected & self.silent).sum()),
            oldest_ns=int(self.age_ns[connected].max(initial=0)),
            links=len(links),
            low_links=int(self.low.sum()),
            **{
                name: int(links[name].sum())
                for name in (
                    *("capacity_bps", "nic_bytes", "attributed_bytes"),
                    *("overflow_bytes", "lost_kernel_bytes", "lost_agent_bytes"),
                )
            },
            class_bps=tuple(present.sum(axis=0).tolist()),
            jobs=len(self.jobs),
            ranks=sum(job.ranks for job in self.jobs),
            shared_ranks=sum(job.shared for job in self.jobs),
            behind_ranks=sum(len(job.stopped) for job in self.jobs),
            forgotten_jobs=self.forgotten_jobs,
            flows=len(self.flow_bps),
            warnings=len(self.warnings),
            cpu_fraction=float(hosts["cpu_fraction"].max(initial=0.0)),
            rss_bytes=int(hosts["rss_bytes"].max(initial=0)),
            clock_error_ns=int(hosts["clock_error_ns"].max(initial=0)),
            clock_sources=tuple(sorted(CLOCK_SOURCES[n] for n in np.unique(hosts["clock_source"]).tolist() if n)),
            hooks=tuple(sorted({name.hook for name in self.link_names if name.hook})),
        )


# --- What one viewer requested of everything that is frozen.

MOST_WARNINGS = 32
MOST_STEPS_NS = 60 * NS_PER_S  # of iterations that are reported
LONGEST_WARNING = 400  # characters; a message carries 1,024
_BPS = 8.0 * NS_PER_S / INTERVAL_NS
_OF_COST = tuple(field.name for field in fields(AgentCost))
_OF_HOST = "clock_offset_ns", "clock_skew_ppm", "bucket_ns", "stream_ns"  # the last ones of HostView but for one

Indices = npt.NDArray[np.intp]
T = TypeVar("T", Indices, Sequence[JobFacts])


def page(frozen: Frozen, selection: Selection, state: Sessions, jobs: Jobs) -> Snapshot:
    """The snapshot for this viewer. state, jobs: read only for what the few flows and jobs in it are."""
    chosen = _jobs(frozen, selection)
    hosts = _hosts(frozen, selection, chosen)
    order = frozen.worst_first if selection.most_links else frozen.by_name
    wanted = order if hosts is None else order[np.isin(frozen.links["host"][order], hosts)]
    links = _part(wanted, selection.links_from, selection.most_links)
    shown_jobs = _part(chosen, selection.jobs_from, selection.most_jobs)
    return Snapshot(
        time_ns=frozen.time_ns,
        share_threshold=frozen.share_threshold,
        share_window_ns=frozen.share_window_ns,
        hosts=_host_views(frozen, _shown_hosts(frozen, selection, hosts, links)),
        links=_link_views(frozen, links),
        jobs=_job_views(frozen, selection, jobs, shown_jobs),
        flows=_flow_views(frozen, hosts, selection.flows, state.flow_facts),
        warnings=tuple(printable_line(line) for line in frozen.warnings[:MOST_WARNINGS]),
        totals=frozen.totals,
        page=Page(
            hosts=len(frozen.hosts) if hosts is None else len(hosts),
            links=len(wanted),
            links_from=min(selection.links_from, len(wanted)),
            jobs=len(chosen),
            jobs_from=min(selection.jobs_from, len(chosen)),
            unknown=_unknown(frozen, selection),
        ),
    )


def _job_views(frozen: Frozen, selection: Selection, jobs: Jobs, shown: Sequence[JobFacts]) -> tuple[JobView, ...]:
    views = tuple(_limited(job, selection.most_ranks) for job in jobs.views(job.job for job in shown))
    if not selection.steps_ns:
        return views
    differences = (frozen.hosts["horizon_utc_ns"] - frozen.hosts["horizon_ns"]).tolist()
    offsets = dict(zip(frozen.host_names, differences, strict=True))
    since = frozen.time_ns - min(selection.steps_ns, MOST_STEPS_NS)
    return tuple(replace(view, steps=jobs.steps(view.job, since, offsets)) for view in views)


def printable_line(text: str) -> str:
    line = printable(text, 4 * LONGEST_WARNING)
    return line if len(line) <= LONGEST_WARNING else f"{line[: LONGEST_WARNING - 1]}…"


def _jobs(frozen: Frozen, selection: Selection) -> Sequence[JobFacts]:
    """The jobs that match; where not all may come, first those with stopped ranks, then those with shared nodes."""
    chosen = frozen.jobs
    if selection.jobs:
        chosen = [job for job in chosen if job.job in selection.jobs or job.name in selection.jobs]
    if selection.hosts:
        chosen = [job for job in chosen if not job.hosts.isdisjoint(selection.hosts)]
    if selection.most_jobs:
        chosen = sorted(chosen, key=lambda job: (job.hang is None, -len(job.stopped), -job.shared, job.job))
    return chosen


def _hosts(frozen: Frozen, selection: Selection, jobs: Iterable[JobFacts]) -> Indices | None:
    """The numbers of the hosts that match; None: all of them."""
    if not (selection.hosts or selection.jobs):
        return None
    wanted = set(selection.hosts) or {host for job in jobs for host in job.hosts}
    return np.array([number for number, name in enumerate(frozen.host_names) if name in wanted], np.intp)


def _unknown(frozen: Frozen, selection: Selection) -> tuple[str, ...]:
    if not (selection.hosts or selection.jobs):
        return ()
    known = {name for job in frozen.jobs for name in (job.job, job.name)}
    missing = set(selection.hosts) - set(frozen.host_names) | set(selection.jobs) - known
    return tuple(printable_line(name) for name in sorted(missing))[:MOST_WARNINGS]


def _part(items: T, begin: int, most: int) -> T:
    return items[begin : begin + most] if most else items[begin:]


def _shown_hosts(frozen: Frozen, selection: Selection, hosts: Indices | None, links: Indices) -> list[int]:
    """By name: those of the links, and of the others those about which there is something to say."""
    matching = np.arange(len(frozen.hosts)) if hosts is None else hosts
    if selection.most_hosts and len(matching) > selection.most_hosts:
        notable = frozen.notable_hosts[np.isin(frozen.notable_hosts, matching)][: selection.most_hosts]
        matching = np.union1d(notable, frozen.links["host"][links])
    return sorted(matching.tolist(), key=lambda number: frozen.host_names[number])


def _host_views(frozen: Frozen, numbers: list[int]) -> tuple[HostView, ...]:
    hosts = frozen.hosts[numbers]
    cost = map(AgentCost, *(hosts[name].tolist() for name in _OF_COST))
    return tuple(
        map(
            HostView,
            [frozen.host_names[number] for number in numbers],
            hosts["connected"].tolist(),
            frozen.age_ns[numbers].tolist(),
            hosts["clock_error_ns"].tolist(),
            cost,
            [CLOCK_SOURCES[source] for source in hosts["clock_source"].tolist()],
            *(hosts[name].tolist() for name in _OF_HOST),
            [frozen.agent_versions[number] for number in numbers],
        )
    )


def _link_views(frozen: Frozen, links: Indices) -> tuple[LinkView, ...]:
    rates = frozen.series.sums[links] * _BPS
    unknown = frozen.unknown_columns[links]
    for link in np.flatnonzero(unknown).tolist():
        rates[link, : unknown[link]] = np.nan
    hosts = frozen.hosts[frozen.links["host"][links]]
    ends = frozen.series.end[links] * INTERVAL_NS + hosts["horizon_utc_ns"] - hosts["horizon_ns"]
    rows = zip(links.tolist(), frozen.links[links].tolist(), rates, ends.tolist(), strict=True)
    return tuple(_link(frozen.link_names[number], row, series, end) for number, row, series, end in rows)


def _link(name: LinkName, row: tuple[int, ...], series: npt.NDArray[np.float64], end_ns: int) -> LinkView:
    _, capacity, nic, attributed, overflow, lost_kernel, lost_agent = row
    invisible = nic - attributed - overflow - lost_kernel - lost_agent
    return LinkView(
        *(name.host, name.interface, name.direction, capacity, name.hook, INTERVAL_NS, series),
        attributed / nic if nic else math.nan,
        *(nic, attributed, overflow, lost_kernel, lost_agent, invisible, end_ns),
    )


def _limited(job: JobView, most_ranks: int) -> JobView:
    """The job with its slowest and its shared ranks only."""
    known, shared = len(job.ranks), sum(rank.node_shared for rank in job.ranks)
    ranks = job.ranks
    if most_ranks and known > most_ranks:
        worst = sorted(ranks, key=lambda rank: (not rank.node_shared, -rank.duration_ns))[:most_ranks]
        ranks = tuple(sorted(worst, key=attrgetter("rank")))
    return replace(job, ranks=ranks, known_ranks=known, shared_ranks=shared)


def _flow_views(
    frozen: Frozen,
    hosts: Indices | None,
    count: int,
    facts: Callable[[_Numbers], Sequence[Mapping[str, Any] | None]],
) -> tuple[FlowView, ...]:
    """The `count` largest of these hosts."""
    wanted = np.arange(len(frozen.flow_bps))
    if hosts is not None:
        wanted = wanted[np.isin(frozen.links["host"][frozen.flows.link], hosts)]
    rates = frozen.flow_bps[wanted]
    if len(wanted) > count:
        wanted = wanted[np.argpartition(-rates, count - 1)[:count]] if count else wanted[:0]
    wanted = wanted[np.argsort(-frozen.flow_bps[wanted], kind="stable")]
    flows = frozen.flows.take(wanted)
    return tuple(
        FlowView(
            host=frozen.link_names[link].host,
            interface=frozen.link_names[link].interface,
            class_=Class(class_),
            wire_bps=rate,
            **sent,
        )
        for link, class_, rate, sent in zip(
            flows.link.tolist(),
            flows.classes.tolist(),
            frozen.flow_bps[wanted].tolist(),
            facts(flows.flow),
            strict=True,
        )
        if sent
    )
