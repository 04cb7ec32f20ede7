# SPDX-License-Identifier: Apache-2.0
"""A live collector in Python: what it shows at this moment. Each call asks for one snapshot."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import pandas as pd
import pyarrow as pa

from netmon.analysis.explanation import Explanation, incident_rows, listed, overview, pair_rows, verdict_rows
from netmon.analysis.recording import Moment, frame, moment_ns
from netmon.errors import DataError, UsageError
from netmon.history.judging import worst_lines
from netmon.records import CLASS_NAMES
from netmon.top.options import called
from netmon.units import format_moment
from netmon.views import Incident, JobView, Selection, Snapshot
from netmon.wire.queries import get_full
from netmon.wire.security import Security
from netmon.wire.watch import split, watch_once

_RANK = (
    *("rank", "host", "iteration", "duration_ns", "communication_ns", "exposed_ns", "node_shared", "dl_tx_bytes"),
    *("cross_tx_bytes", "cross_rx_bytes"),
)


class Live:
    """A collector, or several workers. Raises as netmon.wire.watch.watch_once does, of each call."""

    def __init__(self, address: str, tls: str | None = None) -> None:
        """address: HOST:PORT or unix:PATH, of workers with commas. tls: a folder with certificates; None: plaintext.

        Raises UnreachableError where nobody answers.
        """
        self.address = ",".join(split(address))
        self._security = Security(Path(tls) if tls else None)
        self.snapshot(Selection(most_links=1, most_jobs=1, most_hosts=1))

    def __repr__(self) -> str:
        """Its time, hosts, jobs and incidents."""
        shown = self.snapshot(Selection(most_links=1, most_ranks=1))
        facts = {
            "time": format_moment(shown.time_ns),
            "hosts": listed(sorted(host.host for host in shown.hosts)),
            "jobs": listed(sorted(job.job for job in shown.jobs)),
        }
        return overview(f"netmon collector {self.address}", facts, _incidents(shown.jobs), {})

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def snapshot(self, selection: Selection = Selection(flows=1000)) -> Snapshot:  # noqa: B008 (frozen)
        """Everything that it shows, or what of it is requested; jobs as people call them."""
        return called(watch_once(self.address, selection, self._security))

    @property
    def jobs(self) -> list[str]:
        return sorted(job.job for job in self._jobs(None))

    def iterations(self, *, job: str | None = None) -> pd.DataFrame:
        """The last finished iteration of each rank."""
        rows = [[view.job, *(getattr(rank, name) for name in _RANK)] for view in self._jobs(job) for rank in view.ranks]
        return pd.DataFrame(rows, columns=["job", *_RANK])

    def durations(self, *, job: str | None = None) -> pd.DataFrame:
        """How long the recent iterations of each job took (duration_ns), oldest first, by its slowest rank."""
        rows = [
            (view.job, view.iteration - len(view.durations_ns) + 1 + index, int(ns))
            for view in self._jobs(job)
            for index, ns in enumerate(view.durations_ns)
        ]
        return pd.DataFrame(rows, columns=["job", "iteration", "duration_ns"])

    def verdicts(self, *, job: str | None = None) -> pd.DataFrame:
        """On the last iterations that stood out, with `sentence`."""
        return verdict_rows([verdict for view in self._jobs(job) for verdict in reversed(view.verdicts)])

    def incidents(self, *, job: str | None = None) -> pd.DataFrame:
        """Who slowed whom lately: a row per incident, with `line`, which says it."""
        return incident_rows(sorted(_incidents(self._jobs(job)), key=lambda one: one.since_ns), {})

    def rank_pairs(self, *, job: str | None = None) -> pd.DataFrame:
        """A row per job and pair of ranks, of what NCCL carried between them in the last seconds."""
        return pair_rows({view.job: view.pairs for view in self._jobs(job)})

    def summary(self) -> pd.DataFrame:
        """A row per job: hosts, ranks, iterations, their time, what they lost to incidents, and the worst one."""
        jobs = self._jobs(None)
        rows = [
            {
                **{"job": job.job, "hosts": len({rank.host for rank in job.ranks}), "ranks": job.size},
                **{"iteration": job.iteration, "median_ns": job.median_ns, "incidents": len(job.incidents)},
                **{"slow_steps": sum(one.steps for one in job.incidents)},
                **{"lost_ns": sum(one.lost_ns for one in job.incidents)},
                "worst": "".join(worst_lines(job.incidents, {}, 1)[:1]),
            }
            for job in jobs
        ]
        return pd.DataFrame(rows)

    def flows(self, *, job: str | None = None, most: int = 1000) -> pd.DataFrame:
        """The largest flows of the last second, by rate (bit/s)."""
        rows = [
            {
                **{"host": view.host, "interface": view.interface, "direction": view.flow.direction.name.lower()},
                **{name: getattr(view.flow, name) for name in ("src", "dst", "src_port", "dst_port", "protocol")},
                **{"process": view.flow.owner.process, "job": view.flow.owner.job, "rank": view.flow.owner.rank},
                **{"class": CLASS_NAMES[view.class_], "traffic": view.traffic},
                **{"wire_bps": view.wire_bps, "wire_bytes": view.wire_bytes, "rtt_ns": view.rtt_ns, "loss": view.loss},
            }
            for view in self.snapshot(Selection(jobs=_one(job), flows=most)).flows
        ]
        return pd.DataFrame(rows)

    def links(self) -> pd.DataFrame:
        """Each link over the last seconds: its mean rate by class (bit/s), capacity and coverage."""
        rows = [
            {
                **{"host": view.host, "interface": view.interface, "direction": view.direction.name.lower()},
                **{f"{name} bit/s": float(view.wire_bps[:, n].mean()) for n, name in enumerate(CLASS_NAMES)},
                **{"capacity_bps": view.capacity_bps, "coverage": view.coverage, "hook": view.hook},
            }
            for view in self.snapshot().links
        ]
        return pd.DataFrame(rows)

    def buckets(self, *, since: Moment, until: Moment, host: str | Sequence[str] | None = None) -> pd.DataFrame:
        """Full resolution of a time that has passed, from the agents' recorders; `gap` says what is missing."""
        begin, end = moment_ns(since), moment_ns(until)
        if begin is None or end is None or end <= begin:
            raise UsageError("cannot get buckets of a live collector without a window: give since and a later until")
        hosts = (host,) if isinstance(host, str) else tuple(host or ())
        if hosts and (unknown := self.snapshot(Selection(hosts=hosts, most_links=1)).page.unknown):
            known = sorted(one.host for one in self.snapshot(Selection(most_links=1, most_jobs=1)).hosts)
            raise DataError(f"no host {', '.join(unknown)} at {self.address}: it has {listed(known)}")
        parts = list(get_full(self.address, hosts, begin, end, self._security))
        tables = [part.rows.append_column("gap", pa.repeat(part.gap, len(part.rows))) for part in parts]
        return pd.concat([frame(table) for table in tables], ignore_index=True) if tables else pd.DataFrame()

    def explain(self, iteration: int, job: str | None = None) -> Explanation:
        """Why, where the iteration is one of the last that stood out. Raises DataError where it is not."""
        views = self._jobs(job)
        found = [verdict for view in views for verdict in view.verdicts if verdict.iteration == iteration]
        if not found:
            raise DataError(
                f"cannot explain iteration {iteration}: a collector knows the last few that stood out; open its dataset"
            )
        if len({verdict.job for verdict in found}) > 1:
            raise DataError(f"cannot tell which iteration {iteration}: several jobs have one; give job=")
        return Explanation.of(found[0], ())

    def _jobs(self, job: str | None) -> tuple[JobView, ...]:
        snapshot = self.snapshot(Selection(jobs=_one(job), most_links=1))
        if job is not None and job in snapshot.page.unknown:
            raise DataError(
                f"cannot show job {job}: the collector at {self.address} knows no such job; it has {listed(self.jobs)}"
            )
        return snapshot.jobs


def _incidents(jobs: Sequence[JobView]) -> list[Incident]:
    return [one for job in jobs for one in job.incidents]


def _one(job: str | None) -> tuple[str, ...]:
    return (job,) if job is not None else ()
