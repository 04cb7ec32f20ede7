# SPDX-License-Identifier: Apache-2.0
"""Everything that viewers can be shown at one moment. Nothing in it changes any more."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collector.view.arrivals import Seen
from collector.view.job_views import JobFacts
from collector.view.series import COLUMNS, INTERVAL_NS, SeriesCopy
from collector.view.state import CLOCK_SOURCES, LinkName
from netmon.dl.classify import NS_PER_S
from netmon.records import Class, Table
from netmon.views import FULL_COVERAGE, LAG_NS, Totals

_NOW = NS_PER_S // INTERVAL_NS  # columns
_STEPS = 10  # of a share: links do not change places because of less
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
    class_bytes: npt.NDArray[np.int64]  # (links, class), wire bytes of rows that are final, since the link came
    series: SeriesCopy  # wire bytes by link; the last column ends with the host's horizon
    flows: Seen  # one row of each flow of the last second; its link is an index of link_names here
    flow_bps: npt.NDArray[np.float64]
    jobs: Sequence[JobFacts]
    forgotten_jobs: int
    warnings: Sequence[str]
    agent_versions: Sequence[str]  # by host

    @cached_property
    def age_ns(self) -> npt.NDArray[np.int64]:
        """What each host has reported, (hosts,)."""
        age: npt.NDArray[np.int64] = np.maximum(0, self.time_ns - self.hosts["horizon_utc_ns"])
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
    def unknown_columns(self) -> npt.NDArray[np.int64]:
        """How many of the columns of each link, oldest first, are from before the agent's start."""
        hosts = self.hosts[self.links["host"]]
        before = (hosts["begin_ns"] - hosts["horizon_ns"]) // INTERVAL_NS + COLUMNS
        unknown: npt.NDArray[np.int64] = np.clip(before, 0, COLUMNS).astype(np.int64)
        return unknown

    @cached_property
    def low(self) -> npt.NDArray[np.bool_]:
        """Whether each link fails to cover what its NIC counted."""
        low: npt.NDArray[np.bool_] = self.links["attributed_bytes"] < FULL_COVERAGE * self.links["nic_bytes"]
        return low

    @cached_property
    def by_name(self) -> npt.NDArray[np.intp]:
        """The links in the order of their names."""
        names = self.link_names
        return np.array(sorted(range(len(names)), key=lambda place: names[place][:3]), np.intp)

    @cached_property
    def worst_first(self) -> npt.NDArray[np.intp]:
        """The links: those of jobs by their share of cross traffic, then what is not covered, the rest of the jobs'."""
        session_index = np.empty(len(self.links), np.int64)
        session_index[self.by_name] = np.arange(len(self.links))
        capacity = self.links["capacity_bps"]
        total = np.where(capacity > 0, capacity, self.now_bps.sum(axis=1))
        cross = np.divide(self.now_bps[:, Class.CROSS], total, out=np.zeros(len(total)), where=total > 0)
        sums = self.series.sums
        trains = (sums[:, :, Class.DL_ONLY] | sums[:, :, Class.DL_SHARED]).any(axis=1)
        met = trains & (cross >= self.share_threshold) & ~self.silent[self.links["host"]]
        lost = self.links["overflow_bytes"] + self.links["lost_kernel_bytes"] + self.links["lost_agent_bytes"]
        kind = np.select([met, self.low | (lost > 0), trains], [0, 1, 2], 3)
        step = np.select([kind == 0, kind == 1], [-np.floor(cross * _STEPS), -np.floor(np.log2(lost + 1.0))], 0)
        return np.lexsort((session_index, step, kind))

    @cached_property
    def notable_hosts(self) -> npt.NDArray[np.intp]:
        """Hosts that something has to be said about."""
        hosts = self.hosts
        notable = self.silent | (hosts["spool_bytes"] > _LARGE_SPOOL) | (hosts["bucket_ns"] > hosts["stream_ns"])
        return np.flatnonzero(notable | (hosts["warnings"] > 0))

    @cached_property
    def totals(self) -> Totals:
        """Everything added up."""
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
