# SPDX-License-Identifier: Apache-2.0
"""Every table that a command prints, by the command, from figures that take room."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

import pandas as pd
from rich.console import RenderableType

from netmon import views
from netmon.bench.calls import AgentCost, CallsResult
from netmon.bench.clock import INJECTIONS, ClockResult, Recovery
from netmon.bench.drain import BusyDrain, CpusResult, DrainResult
from netmon.bench.flows import FlowsResult
from netmon.bench.hang import HangResult
from netmon.bench.hang import Injection as HangInjection
from netmon.bench.hang import Outcome as HangOutcome
from netmon.bench.hook import HookResult, StepCost
from netmon.bench.inference import InferenceResult, RunScore
from netmon.bench.kernel import CaseResult, KernelResult
from netmon.bench.observers import OBSERVERS, Account
from netmon.bench.overhead import Costs, EvidenceResult, Idle, OverheadResult, Run
from netmon.bench.pipeline.agents import Report
from netmon.bench.pipeline.run import Cost, PipelineResult, Seen
from netmon.bench.pipeline.truth import Difference, Stored, TableDifference, Verdict
from netmon.bench.pipeline.workers import Played, Worker, WorkersResult
from netmon.bench.result import Result
from netmon.bench.specs import HANG_KINDS, Load
from netmon.bench.transfers import CollectivesResult, PostCost, PostsResult, TransferCost
from netmon.bench.undisturbed import UndisturbedResult
from netmon.bench.verdict.campaign import ORDER, VerdictResult
from netmon.bench.verdict.predictions import Rerun, RerunResult, Shifted, ShiftResult
from netmon.bench.verdict.scoring import NOTHING, RIGHT, Outcome
from netmon.commands.advise import tables
from netmon.commands.certificates import certificates_table
from netmon.commands.doctor import checks_table, interfaces_table
from netmon.commands.lab_results import sweep_tables
from netmon.commands.why import groups_table, ranks_table
from netmon.dl.groups import PIPELINE, GroupUse, OperationUse
from netmon.dl.verdict.verdict_text import columns
from netmon.history.groups import group_lines
from netmon.kernel.interfaces import HookChoice, Interfaces
from netmon.kernel.machine import Check, Status
from netmon.records import CLASS_NAMES
from netmon.report.summary import LINK, PERIODS, Summary, render
from netmon.views import RankTimes

MS = 1_000_000


def every_table(interfaces: Interfaces) -> dict[str, Iterable[RenderableType]]:
    """By the command; interfaces: of a machine."""
    load = Load(hosts=1000, rows=200, flows=64, jobs=125, seconds=30)
    return {
        "doctor": (checks_table(_checks()), interfaces_table(interfaces, [_HOOK] * len(interfaces.watchable))),
        "why": (ranks_table(_ranks()), groups_table(group_lines(_groups()))),
        "advise": tables(_advice()),
        "certificates": (certificates_table(_certificates(), _NOW),),
        "lab run, lab demo": (render(_summary()),),
        "lab sweep": sweep_tables(_runs()),
        **{f"bench {name}": tables_of(result) for name, result in _results(load).items()},
    }


def _groups() -> list[GroupUse]:
    calls = (
        OperationUse("receives", (4, 8), (1.6e6, 3.2e6), 2, 68 * MS),
        OperationUse("sends", (4, 8), (1.6e6, 3.2e6), 2, 0),
    )
    return [GroupUse(1, "group 3", PIPELINE, tuple(range(number, 64, 8)), 8, calls) for number in range(2)]


def tables_of(result: Result) -> list[RenderableType]:
    return [part for part in result.shown() if not isinstance(part, str)]


def _results(load: Load) -> dict[str, Result]:
    return {
        "kernel": _kernel(),
        "drain": _drain(),
        "overhead": _overhead(),
        "overhead --evidence": EvidenceResult(30.0, (Costs(0.0123, 0.0456),) * 5, (Costs(0.0119, 0.0421),) * 5),
        "flows": _flows(),
        "hang": _hangs(),
        "hang --undisturbed 8": UndisturbedResult({"horovod": 4.25, "pipeline": 3.75}, Counter(horovod=12)),
        "calls": CallsResult(22_345.6, 24_567.8, 2.97, (AgentCost("sums by the script", 20_000, 10.1, 0.201, 140),)),
        "hook": HookResult(*(StepCost(2300.0, 12_345.6),) * 4, 10_000, 5),
        "posts": PostsResult((PostCost(0, 1, 1, 2.3, 812.3, 187.6), PostCost(1, 8, 8, 2.4, 1_702.1, 998.7)), True, 5),
        "collectives": CollectivesResult(
            (
                TransferCost("operations", 512.3, 1.25, 187.6, 0.026),
                TransferCost("each transfer", 912.3, 2.25, 287.6, 0.046),
            ),
            5,
        ),
        "clock": _clock(),
        "inference": _inference(),
        "pipeline": _pipeline(load),
        "pipeline --bus nats": _workers(load),
        "verdict": _verdicts(),
        "verdict --rerun": _reruns(),
        "verdict --shift": _shifts(),
    }


_NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)
_HOOK = HookChoice("tcx", "tcx", "works")


def _checks() -> list[Check]:
    advice = "install linux-headers, or a kernel with CONFIG_DEBUG_INFO_BTF=y, as distributions build it"
    return [
        Check("kernel", Status.OK, "6.12.48+deb13-amd64"),
        Check("BTF (/sys/kernel/btf/vmlinux)", Status.MISSING, "not there", advice),
        Check("clocks", Status.NOTE, "chrony: 1.2 ms from UTC, root dispersion 4.5 ms, last update 12 s ago"),
    ]


def _ranks() -> list[RankTimes]:
    whole = (300 * MS, True, 100_100_000, 123_400_000, 2, 51_200_000, 20_100_000)
    return [
        RankTimes(0, "gpu-node-17", *whole, "iperf3 of h2, and 2 more", 5_170_000),
        RankTimes(11, "gpu-node-18", 212 * MS),
    ]


def _advice() -> dict:
    job = {"job": "train.py@gpu-node-17", "iterations": 200, "duration_ns": 300 * MS, "alone_ns": 200 * MS}
    pair = {"source": "gpu-node-17 (rank 0)", "target": "gpu-node-18 (rank 1)", "bytes": 123_456_789, "pace_bps": 9.4e8}
    link = {"link": "gpu-node-17 eth0 tx", "capacity_bps": 1e9, "pace_bps": 9.4e8, "enough_bps": 8e8}
    share = {
        "advised": True,
        "compatibility": 0.61,
        "best_compatibility": 0.98,
        "gain": 0.21,
        "shift_ns": 45 * MS,
        "hold_ns": 12 * MS,
    }
    share |= {"shared_ns": 300 * MS, "others_shared_ns": [290 * MS], "drift_ns": 1_200_000}
    share |= {"job": job["job"], "others": ["resnet50"], "shifted_ns": 240 * MS, "others_shifted_ns": [231 * MS]}
    return {
        "shares": [share],
        "jobs": [job | {"alone": False, "busy": 0.56}],
        "pairs": [pair | {"job": "resnet50", "share": 0.5, "to_be_had_bps": 1.23e8, "slow": True}],
        "links": [link | {"to_be_had_bps": 1.4e8}],
    }


def _certificates() -> list[tuple[str, str, datetime]]:
    return [
        ("authority", "", _NOW + timedelta(days=3000)),
        ("agent", "gpu-node-17.cluster.example.org", _NOW + timedelta(days=300)),
        ("jobs (token)", "grafana", _NOW - timedelta(days=3)),
    ]


def _summary() -> Summary:
    sizes = {"measured_bytes": 21.3e6, "theory_bytes": 21.3e6, "parameters_basis": "sent by the hook"}
    times = {"quiet_ns": 292e6, "shared_ns": 535e6, "quiet_iterations": 35, "shared_iterations": 35}
    jobs = [{"name": f"train.py@gpu-node-{n}", "source": "hook/inferred", "ranks": 3} | sizes | times for n in (1, 2)]
    links = [dict(zip(LINK, ("gpu-node-17", "enp4s0f0", direction), strict=True)) for direction in ("rx", "tx")]
    volumes = [
        link | {"period": period, "class": name, "wire_bytes": 123_456_789}
        for link in links
        for period in PERIODS
        for name in CLASS_NAMES
    ]
    lost = {"overflow_bytes": 1000, "lost_kernel_bytes": 2_000_000, "lost_agent_bytes": 0, "invisible_bytes": 30_000}
    accounts = [link | lost | {"coverage": coverage} for link, coverage in zip(links, (0.98, 1.0), strict=True)]
    return Summary(pd.DataFrame(jobs), pd.DataFrame(volumes), pd.DataFrame(accounts), ("iteration 18 was slow",))


def _runs() -> list[dict]:
    error = {"median_ns": 20_100.0, "p99_ns": 312_000.0, "largest_ns": 400_000.0, "left_out": 0}
    errors = dict.fromkeys(("step_start", "first_enqueue", "last_wait", "step_end"), error)
    source = {"source": "hook", "logged": 60, "found": 58, "invented": 1, "errors": errors}
    told = {"sources": [source], "scores": [], "classification": {"right_share": 0.99876}}
    return [
        {"id": f"inceptionv3-websearch-{level}-1", "model": "inceptionv3", "profile": "websearch"}
        | {"level": level / 100, "median_ns": 1.23e8}
        | told
        for level in (0, 20, 40, 60, 80, 90)
    ]


def _kernel() -> KernelResult:
    names = ("same flow", "64 flows in turn", "4096 flows", "bucket closes", "another flow's slot is taken")
    cases = tuple(CaseResult(name, program, 116.2, 71.4, 1.97, 2.1) for name in names for program in ("tc", "xdp"))
    return KernelResult(cases, {"tc": 45.0, "xdp": 30.0}, {"tc": 61.0, "xdp": 60.0}, 15)


def _drain() -> DrainResult:
    busy = tuple(BusyDrain(records, 1234.5) for records in (2048, 16384, 131072))
    return DrainResult(140.2e6, 3.1e6, 1 << 20, 123.0, 65536, 15, CpusResult(128, 1_048_448, 25.0, 31.0, busy))


def _overhead() -> OverheadResult:
    def run(kind: str) -> Run:
        account = None
        if kind not in ("nothing", "programs"):
            unit = "packets" if kind == "tcpdump" else "bytes"
            account = Account(123_456_789, 1_234_567, 99_999, 100_000, unit, 1_234_567 if kind == "agent" else None)
        return Run(30_000_000_000 if kind == "nothing" else 27_000_000_000, 10.0, 20.0, 1.5, account)

    idle = Idle(30.0, 0.004, 40.0, 120 << 20, 90 << 20, 300.0)
    return OverheadResult(3, 2.0, "cubic", idle, {kind: (run(kind),) * 3 for kind in OBSERVERS})


def _flows() -> FlowsResult:
    memory = (104 << 20, 140 << 20)
    counts = (12_000_000, 0, 12_345, 0, 1_234_567_890, 0)
    return FlowsResult(
        600.0, 20_000.0, 12_000_000, 0.1, *memory, 0.3, 300 << 20, 6100, 240, 11_993_900, *counts, 0.99999
    )


def _clock() -> ClockResult:
    known = (31_900.0, 124_500.0, 1_200.0, 4_800.0, 191_000)
    only = (float("nan"), float("nan"), 1_200.0, 4_800.0, 191_000)
    runs = tuple(Recovery(i, 100, *(known if i.source == "exchange" else only), "", 0, 200.1) for i in INJECTIONS)
    return ClockResult(12.0, 10_000, 10**9, runs)


def _inference() -> InferenceResult:
    def run(name: str, exact: bool) -> RunScore:
        shape = (exact, True, exact, 1, 3, 0.0085, 0.9998, 0.012, "horovod", "ring", "ring", 4, 1, int(exact), 0)
        return RunScore(name, 0.8, "websearch", 119, 120, 0.991, 0.0012, 0.0008, *shape)

    return InferenceResult((run("horovod-websearch-80", True), run("two jobs share a host, second", False)))


def _pipeline(load: Load) -> PipelineResult:
    cost = Cost(0.92, 834 << 20, 790 << 20)
    verdict = Verdict(Difference(6_000_000, 12, 3), Difference(9000), Difference(60_000), 1, 2, 12_300, 4)
    return PipelineResult(
        load,
        *(30.0, 200_000.0, 199_876.0, 5000.0),
        {"collector": cost, "job process": cost, "generator": cost},
        *(0.18, 0.9, 35.1, 40.2, 0.1, 3.0),
        Seen(60, 2.2, 10.9, 1.2, 3.4, 2_345_678),
        1.2,
        {"buckets": Stored(6_000_000, 55_800_000, 120), "iterations": Stored(9000, 400_000, 30)},
        *(4.1, 720.0, {1: 900, 5: 90, 20: 10}, 123_456, 12),
        ["host-17: the collector closed the stream after 30 s without a word"],
        *(4.2, 0, verdict),
        Report(0, 0, [], 0.9, 35.1, 40.2, 0.1, 3.0),
    )


def _workers(load: Load) -> WorkersResult:
    worker = Worker(101_234.0, 0.39, 260_000.0)
    one, two = (Played(30.0, 100_000.0, 250_000.0, 0.2, (worker,) * n, n, Verdict()) for n in (1, 2))
    shown = ("missing: host-3 eth0 rx flow 17 at 1795219200000000000: 12 packets",)
    return WorkersResult(load, 0.4, one, two, {"buckets": TableDifference(6_000_000, 1, 0, shown)})


def _hangs() -> HangResult:
    whole = [(kind, rank) for kind in HANG_KINDS for rank in range(12)]
    told = views.Hang("run", 0, 0, 12_345 * MS, views.Hung.NOT_ENTERED, "all-gather", -1, "", 1, "h1", "", (1,), (0,))
    return HangResult(
        40, [HangOutcome(HangInjection("run", "fsdp", kind, rank), 0, -1, hang=told) for kind, rank in whole]
    )


def _verdicts() -> VerdictResult:
    result = VerdictResult(3)
    for cause in ORDER:
        for told in ORDER:
            blank = ("run", "ring", "stop", cause, told, RIGHT, 0, 1e8, 2e8, None, 500 * MS)
            said = views.Verdict("train", 7, 0, 300 * MS, 300 * MS, 100 * MS, 200 * MS)
            row = None if told == NOTHING else columns(said) | {"cause": told}
            done = {"cause": cause, "rank": 1, "processes": [], "hosts": [], "host": "h0", "job": "b", "far": ""}
            result.outcomes.append(Outcome(*blank, done, row))
    return result


def _reruns() -> RerunResult:
    result = RerunResult(2)
    result.done += [
        Rerun("rerun-3-horovod", "horovod", "cross", 100e6, 101e6, 312e6, 103e6, 98.7e6, 9),
        Rerun("rerun-4-ddp", "ddp", "job", 100e6, 101e6, 110e6, 103e6, None, 1),
    ]
    return result


def _shifts() -> ShiftResult:
    result = ShiftResult(1)
    result.done.append(Shifted("shift-0", 10**9, 123 * MS, 456 * MS, 3.01e8, 4.12e8, 3.1e8, 4.2e8, 3.05e8))
    return result
