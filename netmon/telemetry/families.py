# SPDX-License-Identifier: Apache-2.0
"""Families of metrics for prometheus_client, and what a process uses."""

import os
import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from netmon.version import __version__

Values = Iterable[tuple[Sequence[str], float]]
"""(the labels' values, the sample's) each."""


def gauge(name: str, help_: str, labels: Sequence[str], values: Values) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=[*labels])
    for own, value in values:
        family.add_metric([*own], value)
    return family


def counter(name: str, help_: str, labels: Sequence[str], values: Values) -> Metric:
    """A family of counters with these labels; name without `_total`."""
    family = CounterMetricFamily(name, help_, labels=[*labels])
    for own, value in values:
        family.add_metric([*own], value)
    return family


@dataclass(frozen=True)
class Used:
    """By this process, and in CPU time by its children that have ended."""

    cpu_s: float
    rss_bytes: int
    descriptors: int
    threads: int


def used() -> Used:
    """As it is now; reads /proc/self."""
    cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    counts = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
    return Used(cpu, pages * resource.getpagesize(), *counts)


def used_by(pid: int) -> tuple[float, int] | None:
    """CPU time (s) and memory (bytes, RSS) of another process; None: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK"), pages * resource.getpagesize()


def own_families(part: str, now: Used) -> Iterator[Metric]:
    """part: "agent" or "collector"."""
    yield InfoMetricFamily("netmon_build", f"Version of the {part}", {"version": __version__, "part": part})
    name = f"netmon_{part}_process"
    yield CounterMetricFamily(f"{name}_cpu_seconds", "CPU time of its process that is scraped", now.cpu_s)
    yield GaugeMetricFamily(f"{name}_resident_bytes", "Memory of the same", now.rss_bytes)
    yield GaugeMetricFamily(f"{name}_descriptors", "Open file descriptors of the same", now.descriptors)
    yield GaugeMetricFamily(f"{name}_threads", "Threads of the same", now.threads)
