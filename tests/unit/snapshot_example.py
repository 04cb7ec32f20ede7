# SPDX-License-Identifier: Apache-2.0
"""A snapshot to draw and to send: three hosts train, a fourth sends cross traffic to the first."""

from dataclasses import replace

import numpy as np

from netmon.records import AgentCost, Class, Direction, Flow, Owner, Source
from netmon.views import (
    Cause,
    FlowView,
    HostView,
    JobView,
    LinkView,
    Page,
    RankTimes,
    RankView,
    Snapshot,
    SourceScore,
    Totals,
    Verdict,
)

HOSTS = ("h0", "h1", "h2", "h3")
GIGABIT = 1_000_000_000


def example(time_ns: int = 1_795_255_933_000_000_000, shift: int = 0) -> Snapshot:
    """`shift` moves the series on, in columns, as time would."""
    return Snapshot(
        time_ns=time_ns,
        share_threshold=0.01,
        share_window_ns=10_000_000,
        hosts=tuple(_host(name) for name in HOSTS),
        links=tuple(_link(name, direction, shift) for name in HOSTS for direction in Direction),
        jobs=(_job(),),
        flows=tuple(_flows()),
        warnings=("h3: 2 marks name a job that nobody joined",),
    )


def cluster(links_from: int = 0, jobs_from: int = 0) -> Snapshot:
    """A thousand hosts with 125 jobs, as far as they travel to a terminal; jobs have the names that launchers give."""
    few = example()
    names = [f"198.19.7.{2 + number // 100}:29{500 + number}" for number in range(125)]
    hosts = [f"gpu-{number:04}" for number in range(1000)]
    return replace(
        few,
        hosts=(
            *(replace(few.hosts[3], host=name) for name in hosts[:6]),
            *(replace(few.hosts[0], host=name) for name in hosts[6:70]),
        ),
        links=tuple(
            replace(few.links[number % 4], host=hosts[6 + number])
            for number in range(links_from, min(64, 2000 - links_from) + links_from)
        ),
        jobs=tuple(
            replace(few.jobs[0], job=name, size=8, known_ranks=8, shared_ranks=number % 3, ranks=())
            for number, name in enumerate(names[jobs_from : jobs_from + 32])
        ),
        flows=tuple(
            replace(
                view,
                host=hosts[7 + number],
                flow=replace(view.flow, owner=replace(view.flow.owner, job=names[number], rank=number)),
            )
            for number in range(12)
            for view in few.flows[:1]
        ),
        warnings=tuple(f"rank {number} of job {names[0]!r}: no iteration since 12" for number in range(5)),
        totals=Totals(
            *(
                1000,
                994,
                1,
                3_100_000_000,
                2000,
                17,
                50_000 * GIGABIT,
                9 * 10**15,
                9 * 10**15 - 5 * 10**9,
                0,
                5 * 10**9,
                0,
            ),
            *((2e8, 6.1e12, 3.4e11, 8.8e10), 125, 1000, 42, 3, 0, 51_234, 612),
            *(0.034, 121_000_000, 240_000, ("exchange", "ptp"), ("tcx", "xdp")),
        ),
        page=Page(1000, 2000, links_from, 125, jobs_from),
    )


def _host(name: str) -> HostView:
    return HostView(
        name, name != "h3", 12_000_000_000 if name == "h3" else 150_000_000, 85_000, AgentCost(0.021, 118_000_000)
    )


def _link(host: str, direction: Direction, shift: int) -> LinkView:
    series = np.zeros((100, 4))
    columns = np.arange(100) + shift
    training = (columns % 3 > 0) * 0.6 * GIGABIT
    if host == "h2":
        series[:, Class.CROSS] = 0.8 * GIGABIT * (direction == Direction.TX)
    else:
        crossed = (columns > 50) & (host == "h0") & (direction == Direction.RX)
        series[:, Class.DL_SHARED] = np.where(crossed, training / 2, 0)
        series[:, Class.DL_ONLY] = np.where(crossed, 0, training)
        series[:, Class.CROSS] = np.where(crossed, 0.55 * GIGABIT, 0)
        series[:, Class.UNCLASSIFIED] = 2e5
    lossy = host == "h1" and direction == Direction.RX
    unknown = host == "h3"
    return LinkView(
        host=host,
        interface="eth0",
        direction=direction,
        capacity_bps=0 if unknown else GIGABIT,
        hook="tcx",
        interval_ns=100_000_000,
        wire_bps=series,
        coverage=float("nan") if unknown else 0.9949 if lossy else 1.0,
        nic_bytes=1_000_000_000,
        attributed_bytes=994_900_000 if lossy else 1_000_000_000,
        overflow_bytes=0,
        lost_kernel_bytes=5_000_000 if lossy else 0,
        lost_agent_bytes=0,
        invisible_bytes=1_000_000 if lossy else 0,
    )


def _job() -> JobView:
    durations = np.full(40, 310_000_000, np.int64)
    durations[25:] = 455_000_000
    return JobView(
        job="resnet",
        size=3,
        iteration=412,
        last_ns=455_000_000,
        median_ns=312_000_000,
        p99_ns=471_000_000,
        source=Source.UPROBE,
        error_ns=1_500_000,
        relative=True,
        parameters=4_000_000,
        measured_bytes=21_400_000.0,
        theory_bytes=21_333_333.3,
        durations_ns=durations,
        baseline_ns=312_000_000,
        ranks=tuple(
            RankView(
                *(rank, host, 412, 455_000_000, 350_000_000, rank == 0, 21_400_000, 0, 33_000_000 * (rank == 0)),
                exposed_ns=-1 if rank == 2 else 300_000_000,
            )
            for rank, host in enumerate(("h0", "h1", "h3"))
        ),
        pattern="ring",
        scores=(SourceScore(Source.INFERRED, Source.UPROBE, 400, 398, 397, 420_000),),
        verdicts=(
            Verdict(
                *("resnet", 409, 1_790_000_000_000_000_000, 1_790_000_000_590_000_000),
                *(590_000_000, 312_000_000, 278_000_000, Cause.CROSS, "backup (backup.service)"),
                *("h0", "eth0", Direction.RX, 0, 310_000_000),
                late_ns=17_000_000,
                cross_ns=261_000_000,
                error_ns=3_000_000,
                counterfactual_ns=329_000_000,
                counterfactual_low_ns=320_000_000,
                counterfactual_high_ns=338_000_000,
                confidence=0.94,
                reported_ns=1_790_000_001_900_000_000,
                relative=True,
                ranks=(
                    RankTimes(0, "h0", 590_000_000, True, 210_000_000, 2_000_000, waited_for=3, stalled_by="backup"),
                ),
            ),
        ),
    )


def _flows() -> list[FlowView]:
    trainer = Owner(4711, "python3", "", "resnet", 0, "socket")
    iperf = Owner(999, "iperf3", "lab", source="socket")
    return [
        flow("h0", Direction.TX, "10.77.0.10", 40000, "10.77.0.13", 5000, trainer, Class.DL_ONLY, 4.1e8),
        flow("h2", Direction.TX, "10.77.0.12", 5201, "10.77.0.10", 40112, iperf, Class.CROSS, 8e8),
        flow("h1", Direction.RX, "fd00::1:2:3", 1234, "fd00::9", 443, Owner(), Class.UNCLASSIFIED, 2e5),
    ]


def flow(
    host: str,
    direction: Direction,
    src: str,
    src_port: int,
    dst: str,
    dst_port: int,
    owner: Owner,
    class_: Class,
    rate: float,
) -> FlowView:
    """One flow of TCP on eth0 of a host."""
    key = Flow(src_port, 2, direction, src, dst, src_port, dst_port, 6, 1_000, owner)
    return FlowView(host, "eth0", key, class_, rate, int(rate))
