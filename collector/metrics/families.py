# SPDX-License-Identifier: Apache-2.0
"""A frozen view in Prometheus' words. No flow is a label; of jobs MOST_JOBS are, of a host MOST_INTERFACES."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily

from collector.flushing import DELAY_BOUNDS_S, Delays
from collector.view.frozen import Frozen
from collector.view.job_views import BOUNDS_S, LOST, JobCounts
from netmon.dl.grouped import starts
from netmon.dl.hangs import line
from netmon.records import CLASS_NAMES, Direction
from netmon.telemetry.endpoint import Condition, Endpoint, Used, counter, gauge, own_families
from netmon.units import format_utc
from netmon.views import Cause
from netmon.wire.security import Role, Security

_LINK = ("host", "interface", "direction")
MOST_INTERFACES = 32
"""Of a host, in each direction: those with the most traffic."""
_LOST = ("overflow", "lost_kernel", "lost_agent")
_LABELS = [f"{bound:g}" for bound in BOUNDS_S] + ["+Inf"]


@dataclass(frozen=True)
class Seen:
    """What the collector knows at one moment."""

    frozen: Frozen
    jobs: Mapping[str, JobCounts]
    waiting_rows: int  # that have come and are not taken in
    unwritten: float  # share of the memory for rows on their way to the disk that is used
    pending_bytes: int  # of rows that have settled and are not stored
    used: Used  # by this process
    delays: Delays = field(default_factory=Delays)  # from a batch's arrival to the word that it is stored
    clock_jumps: int = 0
    helpers: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # CPU time (s), RSS of its other processes
    bus: tuple[int, int] | None = None  # batches and bytes that wait on the bus; None: there is none, or it is silent


def families(seen: Seen) -> Iterator[Metric]:
    yield from own_families("collector", seen.used)
    yield from _helpers(seen.helpers)
    yield from _hosts(seen.frozen)
    yield from _links(seen.frozen)
    yield from _jobs(seen)
    yield from _own(seen)


def _helpers(helpers: Mapping[str, tuple[float, int]]) -> Iterator[Metric]:
    used = {"cpu_seconds": "CPU time of the collector's other processes", "resident_bytes": "Memory of the same"}
    for index, (name, help_) in enumerate(used.items()):
        values = (((helper,), now[index]) for helper, now in helpers.items())
        yield (gauge if index else counter)(f"netmon_collector_helper_{name}", help_, ("helper",), values)


def _hosts(frozen: Frozen) -> Iterator[Metric]:
    hosts = frozen.hosts
    series = (
        ("netmon_agent_connected", "Whether the agent is connected", hosts["connected"].astype(int)),
        ("netmon_agent_age_seconds", "Age of the host's last report", frozen.age_ns / 1e9),
        (
            "netmon_clock_error_seconds",
            "Bound of the host's clock against the collector's",
            hosts["clock_error_ns"] / 1e9,
        ),
        ("netmon_agent_cpu_ratio", "Of one core, over the last seconds", hosts["cpu_fraction"]),
        ("netmon_agent_resident_bytes", "Memory of the agent's processes", hosts["rss_bytes"]),
        ("netmon_agent_spool_bytes", "What the agent keeps until it is stored", hosts["spool_bytes"]),
        ("netmon_agent_bucket_seconds", "Width of the rows that it streams now", hosts["bucket_ns"] / 1e9),
        ("netmon_agent_warnings", "Marks and messages that led to nothing, since its start", hosts["warnings"]),
    )
    for name, help_, values in series:
        yield gauge(name, help_, ("host",), zip(((host,) for host in frozen.host_names), values.tolist(), strict=True))


def _shown_links(frozen: Frozen) -> npt.NDArray[np.intp]:
    """The links with series of their own."""
    links, names = frozen.links, frozen.link_names
    link_bytes = np.maximum(links["nic_bytes"], links["attributed_bytes"])
    direction = np.fromiter((name.direction for name in names), np.int64, len(names))
    group = links["host"].astype(np.int64) * len(Direction) + direction
    order = np.lexsort((-link_bytes, group))
    first = starts(group[order])
    index = np.arange(len(order)) - np.repeat(first, np.diff([*first.tolist(), len(order)]))
    return np.sort(order[index < MOST_INTERFACES])


def _links(frozen: Frozen) -> Iterator[Metric]:
    shown = _shown_links(frozen)
    links = frozen.links[shown]
    left_out = np.bincount(np.delete(frozen.links["host"], shown), minlength=len(frozen.host_names)).tolist()
    help_ = f"Links without series: beyond {MOST_INTERFACES} interfaces of a host"
    hosts = zip(frozen.host_names, left_out, strict=True)
    yield gauge("netmon_agent_links_left_out", help_, ("host",), (((host,), count) for host, count in hosts if count))
    names = [
        (name.host, name.interface, name.direction.name.lower()) for name in map(frozen.link_names.__getitem__, shown)
    ]
    rates = [
        ((*name, word), rate)
        for name, row in zip(names, frozen.now_bps[shown].tolist(), strict=True)
        for word, rate in zip(CLASS_NAMES, row, strict=True)
    ]
    yield gauge("netmon_link_bits_per_second", "Wire rate over the last second", (*_LINK, "class"), rates)
    series = (
        ((*name, word), value)
        for name, row in zip(names, frozen.class_bytes[shown].tolist(), strict=True)
        for word, value in zip(CLASS_NAMES, row, strict=True)
    )
    help_ = "Wire bytes of rows that are final, since the link came"
    yield counter("netmon_link_class_bytes", help_, (*_LINK, "class"), series)
    yield gauge(
        "netmon_link_capacity_bits_per_second",
        "Where it is known",
        _LINK,
        ((name, bps) for name, bps in zip(names, links["capacity_bps"].tolist(), strict=True) if bps),
    )
    covered = zip(names, links["attributed_bytes"].tolist(), links["nic_bytes"].tolist(), strict=True)
    ratios = ((name, attributed / nic) for name, attributed, nic in covered if nic)
    yield gauge("netmon_link_coverage_ratio", "Attributed bytes of those that the NIC counted", _LINK, ratios)
    for kind, help_ in (("nic", "Wire bytes as the NIC counts them"), ("attributed", "Wire bytes with a flow")):
        values = zip(names, links[f"{kind}_bytes"].tolist(), strict=True)
        yield counter(f"netmon_link_{kind}_bytes", f"{help_}, since the agent's start", _LINK, values)
    lost = (
        ((*name, index), value)
        for index in _LOST
        for name, value in zip(names, links[f"{index}_bytes"].tolist(), strict=True)
    )
    yield counter("netmon_link_unattributed_bytes", "Wire bytes without a flow, by place", (*_LINK, "place"), lost)


def _jobs(seen: Seen) -> Iterator[Metric]:
    shown = [fact for fact in seen.frozen.jobs if fact.job in seen.jobs]
    named = (((fact.job, fact.name), 1) for fact in shown)
    yield gauge("netmon_job_info", "What people call the job", ("job", "name"), named)
    ranks = (((fact.job,), fact.ranks) for fact in shown)
    yield gauge("netmon_job_ranks", "Ranks of the job", ("job",), ranks)
    shared = (((fact.job,), fact.shared) for fact in shown)
    yield gauge("netmon_job_shared_ranks", "Ranks whose node was DL-shared in their last iteration", ("job",), shared)
    now_ns = seen.frozen.time_ns
    hung = (
        (
            (fact.job, hang.what.name.lower(), str(hang.rank), hang.host, hang.collective, line(hang, format_utc)),
            (now_ns - hang.since_ns) / 1e9,
        )
        for fact in seen.frozen.jobs
        if (hang := fact.hang)
    )
    help_ = "For how long the job has hung; none while it goes on"
    yield gauge("netmon_job_hung_seconds", help_, ("job", "what", "rank", "host", "collective", "line"), hung)
    histogram = HistogramMetricFamily("netmon_iteration_seconds", "Iterations of ranks", labels=["job"])
    for name, job in seen.jobs.items():
        histogram.add_metric([name], _buckets(job), job.seconds)
    yield histogram
    exposed = (((name,), job.exposed_s) for name, job in seen.jobs.items() if job.exposed_of)
    yield counter("netmon_exposed_communication_seconds", "For which ranks only waited", ("job",), exposed)
    series = (((name,), job.exposed_of) for name, job in seen.jobs.items() if job.exposed_of)
    yield counter("netmon_exposed_communication_iterations", "Iterations that report it", ("job",), series)
    causes = [cause.name.lower() for cause in Cause]
    verdicts = (((name, cause), job.verdicts.get(cause, 0)) for name, job in seen.jobs.items() for cause in causes)
    yield counter("netmon_verdicts", "Slow iterations, by cause", ("job", "cause"), verdicts)
    lost = (((name, *whose), seconds) for name, job in seen.jobs.items() for whose, seconds in job.lost_s.items())
    yield counter("netmon_lost_seconds", "Time that slow iterations took beyond their baseline", ("job", *LOST), lost)


def _buckets(job: JobCounts) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Cumulative, with the last slow iteration in each class."""
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    below = 0
    for index, (label, count) in enumerate(zip(_LABELS, job.iterations, strict=True)):
        below += count
        slow = job.slow.get(index)
        if slow:
            about = {"iteration": slow.iteration, "cause": slow.cause}
            buckets.append((label, below, Exemplar(about, slow.seconds, slow.time_ns / 1e9)))
        else:
            buckets.append((label, below))
    return buckets


def _own(seen: Seen) -> Iterator[Metric]:
    totals = seen.frozen.totals
    yield GaugeMetricFamily("netmon_collector_hosts", "Hosts that are known", totals.hosts)
    yield GaugeMetricFamily("netmon_collector_flows", "Flows with traffic in the last second", totals.flows)
    yield GaugeMetricFamily("netmon_collector_jobs", "Jobs that are known", totals.jobs)
    yield GaugeMetricFamily("netmon_collector_warnings", "What viewers are warned of", totals.warnings)
    yield GaugeMetricFamily("netmon_collector_waiting_rows", "Rows that have come and wait", seen.waiting_rows)
    yield GaugeMetricFamily(
        "netmon_collector_unwritten_ratio", "Memory in use for rows that the disk has not taken", seen.unwritten
    )
    yield GaugeMetricFamily("netmon_collector_unwritten_bytes", "Rows that the disk has not taken", seen.pending_bytes)
    help_ = "How often this machine's clock was set by more than a second"
    yield CounterMetricFamily("netmon_collector_clock_jumps", help_, seen.clock_jumps)
    delays = HistogramMetricFamily(
        "netmon_acknowledgement_seconds", "From a batch's arrival to the word that it is stored, of some batches"
    )
    labels = [f"{bound:g}" for bound in DELAY_BOUNDS_S] + ["+Inf"]
    cumulative = map(float, accumulate(seen.delays.counts))
    delays.add_metric([], list(zip(labels, cumulative, strict=True)), seen.delays.seconds)
    yield delays
    if seen.bus:
        yield GaugeMetricFamily("netmon_bus_batches", "Batches that wait on the bus", seen.bus[0])
        yield GaugeMetricFamily("netmon_bus_bytes", "Bytes that wait on the bus", seen.bus[1])


# --- The collector's /metrics, /health and /ready: read on its loop at each request, rendered in a thread.

_WITHIN_S = 5.0
_T = TypeVar("_T")


def metrics_endpoint(
    address: str, security: Security, look: Callable[[], Coroutine[Any, Any, Seen]], condition: Callable[[], Condition]
) -> Endpoint:
    """Listens on HOST:PORT until it is closed; look, condition: called on this loop.

    Raises UsageError, UnsupportedError, CertificateError.
    """
    loop = asyncio.get_running_loop()

    def on_loop(work: Coroutine[Any, Any, _T]) -> _T:
        asking = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return asking.result(_WITHIN_S)
        except LateError:  # the loop is busy: the answer is an error
            asking.cancel()
            raise

    async def now() -> Condition:
        return condition()

    def metrics() -> Iterable[Metric]:
        return families(on_loop(look()))

    return Endpoint(address, security, metrics, lambda: on_loop(now()), Role.COLLECTOR)
