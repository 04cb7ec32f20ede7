# SPDX-License-Identifier: Apache-2.0
"""How a frame is drawn, and what of a snapshot stands on it."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from netmon.dl.verdict.incidents import renamed as renamed_incident
from netmon.dl.verdict.verdict_text import renamed
from netmon.views import LAG_NS, FlowView, HostView, JobView, LinkView, Snapshot


def silent(host: HostView) -> bool:
    """Whether what the host's agent sent last is outdated."""
    return not host.connected or host.age_ns > LAG_NS


def present_links(snapshot: Snapshot) -> tuple[LinkView, ...]:
    """The links; those of a silent host with nan for every column since its agent's horizon."""
    ages = {host.host: host.age_ns for host in snapshot.hosts if silent(host)}
    return tuple(_continued(link, ages[link.host]) if link.host in ages else link for link in snapshot.links)


def present_flows(snapshot: Snapshot) -> tuple[FlowView, ...]:
    """The flows; those of a silent host with rate nan."""
    gone = {host.host for host in snapshot.hosts if silent(host)}
    return tuple(replace(view, wire_bps=np.nan) if view.host in gone else view for view in snapshot.flows)


def _continued(link: LinkView, age_ns: int) -> LinkView:
    columns, classes = link.wire_bps.shape
    missing = min(max(age_ns, 0) // max(link.interval_ns, 1), columns)
    unknown = np.full((missing, classes), np.nan)
    return replace(link, wire_bps=np.concatenate([link.wire_bps[missing:], unknown]))


def called(snapshot: Snapshot) -> Snapshot:
    """The same, with jobs called what people call them: it is for reading only, queries use `job`."""
    names = {job.job: job.name for job in snapshot.jobs if job.name and job.name != job.job}
    if not names:
        return snapshot
    jobs = tuple(named(job, names) for job in snapshot.jobs)
    flows = tuple(
        replace(view, flow=replace(view.flow, owner=replace(view.flow.owner, job=names[view.flow.owner.job])))
        if view.flow.owner.job in names
        else view
        for view in snapshot.flows
    )
    return replace(snapshot, jobs=jobs, flows=flows)


def named(job: JobView, names: Mapping[str, str]) -> JobView:
    """The same, called as it is there."""
    verdicts = tuple(renamed(verdict, names) for verdict in job.verdicts)
    incidents = tuple(renamed_incident(incident, names) for incident in job.incidents)
    called = names.get(job.job, job.job)
    hangs = tuple(replace(one, job=called) for one in job.hangs)
    return replace(job, job=called, verdicts=verdicts, incidents=incidents, hangs=hangs)


def short_names(names: Iterable[str], width: int) -> dict[str, str]:
    """Each name in at most `width` (≥ 6) characters; with a number where the middle makes the difference."""
    distinct = sorted(set(names))
    short = {name: _shortened(name, width) for name in distinct}
    count = Counter(short.values())
    taken = {text for text, names_of_it in count.items() if names_of_it == 1}
    for name in distinct:
        if count[short[name]] > 1:
            short[name] = _numbered(name, width, taken)
            taken.add(short[name])
    return short


def _shortened(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def _numbered(name: str, width: int, taken: set[str]) -> str:
    number = 1
    while True:
        ending = f"…~{number}"
        text = name[: max(width - len(ending), 0)] + ending
        if text not in taken:
            return text
        number += 1


@dataclass(frozen=True)
class Options:
    """How things look."""

    colour: bool = True
    bytes_: bool = False  # rates in byte/s instead of bit/s
    past: bool = False  # rates are of a whole span of time, not of its last second
    jobs: Mapping[str, str] = field(default_factory=dict)  # names that are short enough

    def job(self, name: str) -> str:
        """A job's name as it is shown."""
        return self.jobs.get(name, name)


def arrange(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the largest rates first, those that are not known last; jobs by their names."""
    snapshot = called(snapshot)
    flows = sorted(present_flows(snapshot), key=lambda view: (math.isnan(view.wire_bps), -view.wire_bps))
    return replace(snapshot, flows=tuple(flows))
