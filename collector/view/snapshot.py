# SPDX-License-Identifier: Apache-2.0
"""What a viewer sees: every row that has arrived, with a provisional class where it has not settled."""

import math
from collections.abc import Iterable

import numpy as np

from collector.host.series import INTERVAL_NS
from collector.host.window import HostWindow
from collector.settings import Settings
from collector.view.job_views import Jobs
from netmon.dl.traffic import TRAFFIC_NAMES
from netmon.records import Class, Table
from netmon.views import FlowView, HostView, LinkView, Snapshot


def take_snapshot(
    windows: Iterable[tuple[HostWindow, bool]],
    jobs: Jobs,
    settings: Settings,
    now_utc_ns: int,
    flows: int,
    warnings: tuple[str, ...] = (),
) -> Snapshot:
    """One frozen view of all hosts, (window, connected) each, with the `flows` fastest flows."""
    hosts = sorted(windows, key=lambda host: host[0].hello.host)
    rows = [window.provisional() for window, _ in hosts]
    fastest = [view for (window, _), r in zip(hosts, rows, strict=True) for view in _flows(window, r, flows)]
    return Snapshot(
        time_ns=now_utc_ns,
        share_threshold=settings.share_threshold,
        share_window_ns=max((window.window_ns for window, _ in hosts), default=settings.share_window_ns),
        hosts=tuple(_host(window, connected, now_utc_ns) for window, connected in hosts),
        links=tuple(view for (window, _), r in zip(hosts, rows, strict=True) for view in _links(window, r)),
        jobs=jobs.views(
            [score for window, _ in hosts for score in window.ranks.scores()],
            {job for window, _ in hosts for job in window.ranks.stepping_jobs()},
        ),
        flows=tuple(sorted(fastest, key=lambda view: -view.wire_bps)[:flows]),
        warnings=(*warnings, *jobs.warnings(), *(line for window, _ in hosts for line in window.ranks.warnings)),
    )


def _host(window: HostWindow, connected: bool, now_utc_ns: int) -> HostView:
    age = now_utc_ns - window.alignment.utc(window.horizon_ns)
    clock = window.alignment
    about_clock = clock.error_ns, window.cost, clock.source, clock.host_offset_ns, clock.skew_ppm
    return HostView(
        *(window.hello.host, connected, max(0, age), *about_clock),
        bucket_ns=window.bucket_ns,
        stream_ns=window.hello.streamed_ns,
    )


def _links(window: HostWindow, rows: Table) -> list[LinkView]:
    link, classes = rows["link"].astype(np.int64), rows["class"]
    rates = window.series.rates(window.horizon_ns, rows["bucket_start_ns"], link, classes, rows["wire_bytes"])
    before = (window.hello.clock.mono_ns - window.horizon_ns) // INTERVAL_NS + len(rates)
    rates[: max(0, before)] = np.nan  # the agent was not there: nobody knows
    views = []
    for number in range(len(window.links)):
        interface = window.links.interface(number)
        nic, attributed, overflow, lost_kernel, lost_agent = window.ledger.totals[number].tolist()
        views.append(
            LinkView(
                host=window.hello.host,
                interface=interface.name,
                direction=window.links.direction(number),
                capacity_bps=interface.capacity_bps,
                hook=window.links.hook(number),
                interval_ns=INTERVAL_NS,
                wire_bps=rates[:, number],
                coverage=attributed / nic if nic else math.nan,
                nic_bytes=nic,
                attributed_bytes=attributed,
                overflow_bytes=overflow,
                lost_kernel_bytes=lost_kernel,
                lost_agent_bytes=lost_agent,
                invisible_bytes=nic - attributed - overflow - lost_kernel - lost_agent,
            )
        )
    return views


def _flows(window: HostWindow, rows: Table, count: int) -> list[FlowView]:
    indices, rates = window.rates.largest(count)
    mostly_shared = window.mostly_shared(rows)
    views = []
    for index, rate in zip(indices.tolist(), rates.tolist(), strict=True):
        flow, state = window.flows.flows[index], window.flows.state[index]
        class_ = Class(int(state["class"]))
        if class_ == Class.DL_ONLY and mostly_shared[index]:
            class_ = Class.DL_SHARED
        name, traffic = window.links.interface(int(state["link"])).name, TRAFFIC_NAMES[state["traffic"]]
        views.append(FlowView(window.hello.host, name, flow, class_, rate, int(state["wire_bytes"]), traffic))
    return views
