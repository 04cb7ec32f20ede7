# SPDX-License-Identifier: Apache-2.0
"""What each benchmark measures: the fields of its spec are its options. Light: the command line reads nothing else."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

from netmon.errors import UsageError
from netmon.options import DIR, option
from netmon.units import parse_count
from netmon.wire.limits import MAX_ROWS


class Progress(Protocol):
    """Called with what is done, of how much."""

    def __call__(self, done: float, of: float, text: str = "") -> None:
        """text: what is done now, where a count does not say it."""


def silent(done: float, of: float, text: str = "") -> None:
    """Shows no progress."""


def _rounds(default: int) -> Any:
    return option(default, "repetitions (default: %(default)s)", type=int, metavar="N")


def _seconds(default: float, text: str) -> Any:
    return option(default, f"{text} (default: %(default)s)", type=float, metavar="S")


@dataclass(frozen=True)
class Spec:
    """Of any benchmark. Making one raises UsageError where it cannot be measured."""

    name: ClassVar[str]
    text: ClassVar[str]
    as_root: ClassVar[bool] = True

    @property
    def measured_by(self) -> str:
        """MODULE:FUNCTION of netmon.bench: it takes the spec and returns a result."""
        return f"{self.name}:measure"

    @property
    def root(self) -> bool:
        """Whether measuring takes it."""
        return self.as_root

    def __post_init__(self) -> None:
        for wrong, reason in self.objections():
            if wrong:
                raise UsageError(reason)

    def objections(self) -> list[tuple[bool, str]]:
        """What may be wrong, and the words for it."""
        rounds = getattr(self, "rounds", 1)
        return [(rounds < 1, f"cannot measure in {rounds} rounds: give --rounds 1 or more")]


@dataclass(frozen=True)
class KernelSpec(Spec):
    name, text = "kernel", "ns per packet of the BPF programs, by test runs in the kernel"
    rounds: int = _rounds(15)


_MOST_CPUS = 1024


@dataclass(frozen=True)
class DrainSpec(Spec):
    name, text = "drain", "records per second of the agent's drain"
    rounds: int = _rounds(15)
    cpus: int = option(128, "CPUs of a simulated host (default: %(default)s)", type=int, metavar="N")

    def objections(self) -> list[tuple[bool, str]]:
        wrong = not 1 <= self.cpus <= _MOST_CPUS
        return [*super().objections(), (wrong, f"cannot simulate {self.cpus} CPUs: give --cpus from 1 to {_MOST_CPUS}")]


@dataclass(frozen=True)
class OverheadSpec(Spec):
    name, text = "overhead", "throughput and CPU time of iperf3 when it is watched by nobody, netmon and tcpdump"
    rounds: int = _rounds(7)
    seconds: float = _seconds(3, "seconds of each run")
    evidence: bool = option(False, "instead: what verdicts and their evidence cost agents and collector")

    @property
    def measured_by(self) -> str:
        return "overhead:measure_evidence" if self.evidence else "overhead:measure"

    def objections(self) -> list[tuple[bool, str]]:
        return [
            *super().objections(),
            (self.seconds <= 0, f"cannot measure for {self.seconds:g} s: give --seconds more than 0"),
        ]


@dataclass(frozen=True)
class FlowsSpec(Spec):
    name, text = "flows", "CPU and memory of the agent and the collector under a flood of new flows"
    rate: int = option(20_000, "new flows a second (20000)", type=parse_count, metavar="N")
    seconds: float = _seconds(60, "seconds to send")

    def objections(self) -> list[tuple[bool, str]]:
        wrong = self.seconds <= 0 or self.rate < 1
        return [(wrong, f"cannot send {self.rate} flows/s for {self.seconds:g} s: give more than 0 of both")]


@dataclass(frozen=True)
class HookSpec(Spec):
    name, as_root = "hook", False
    text = "time that marking a step by netmon.horovod costs the training, with and without an agent (needs no root)"
    rounds: int = _rounds(5)


@dataclass(frozen=True)
class PostsSpec(Spec):
    name, measured_by = "posts", "transfers:measure_posts"
    text = "time that counting a post to an RDMA device costs who posts (no device; takes a C compiler)"
    rounds: int = _rounds(5)


@dataclass(frozen=True)
class CollectivesSpec(Spec):
    name, measured_by = "collectives", "transfers:measure_collectives"
    text = "time that telling NCCL's transfers costs NCCL (no GPU, no NCCL; takes a C compiler)"
    rounds: int = _rounds(5)


@dataclass(frozen=True)
class CallsSpec(Spec):
    name, text = (
        "calls",
        "what watching a training library's calls costs the rank and the agent (builds PyTorch's environment)",
    )
    rounds: int = _rounds(7)
    rates: tuple[int, ...] = (1_000, 5_000, 20_000)  # calls a second of a rank


_SHORTEST_S = 10.0


@dataclass(frozen=True)
class ClockSpec(Spec):
    name = "clock"
    text = "how well injected clock offsets and skews are recovered, by exchange and by traffic (two minutes)"
    seconds: float = _seconds(12, "seconds of each of six runs")

    def objections(self) -> list[tuple[bool, str]]:
        wrong = self.seconds < _SHORTEST_S
        return [(wrong, f"cannot recover a clock in {self.seconds:g} s: give --seconds {_SHORTEST_S:g} or more")]


@dataclass(frozen=True)
class InferenceSpec(Spec):
    name, as_root = "inference", False
    text = "jobs and iterations found in traffic alone, compared with the trainers' log (needs no root)"
    path: Path | None = option(
        None,
        "a labelled table, the DATA of a `netmon lab run`, or a directory of either (the checkout's recorded runs)",
        positional=True,
        type=Path,
        nargs="?",
        metavar="PATH",
    )


WIDTH_MS = 1
"""Of the rows that a simulated agent streams unless it is requested coarser ones."""

WIDTHS_MS = (1, 5, 20)
"""Of the rows that it can stream."""

_SECOND_MS = 1000
_COARSEST_MS = WIDTHS_MS[-1]
_MOST_HOSTS = 4096
_LEAST_FLOWS = 4  # two of the job, two others


def _count(default: int, text: str) -> Any:
    return option(default, text if not default else f"{text} (%(default)s)", type=parse_count, metavar="N")


@dataclass(frozen=True)
class Load:
    """What the simulated agents are to send. Rates are per second and host; rows of WIDTH_MS.

    flows: live on each host; 0: as many as the rows need. new_flows: that begin in a second, each in the place of one
    that ends. cut: the collector is stopped while the agents send. Raises UsageError where nothing of the kind can be
    sent.
    """

    hosts: int = _count(8, "agents")
    rows: int = _count(200, "rows of 1 ms that each agent sends in a second")
    flows: int = _count(0, "flows alive on each host (as many as the rows need)")
    jobs: int = _count(1, "training jobs; neighbouring hosts are the ranks of one")
    seconds: int = _count(20, "seconds to send")
    batches: int = _count(5, "batches of each agent in a second while somebody waits for them; else it is one")
    new_flows: int = _count(0, "flows that begin, and as many that end, on each host in a second (0)")
    cut: bool = option(False, "end the collector while the agents still send")

    def __post_init__(self) -> None:
        need = -(-2 * self.rows * WIDTH_MS // _SECOND_MS)
        if not self.flows:
            object.__setattr__(self, "flows", max(8, need))
        for name in ("hosts", "rows", "flows", "seconds", "batches"):
            if getattr(self, name) < 1:
                raise UsageError(f"cannot simulate {getattr(self, name)} {name}: give 1 or more")
        for wrong, reason in (
            (self.flows < _LEAST_FLOWS, f"cannot simulate {self.flows} flows: give --flows {_LEAST_FLOWS} or more"),
            (self.hosts > _MOST_HOSTS, f"cannot simulate {self.hosts} hosts: give at most {_MOST_HOSTS}"),
            (
                not 0 <= self.jobs <= self.hosts,
                f"cannot simulate {self.jobs} jobs on {self.hosts} hosts: each needs a host",
            ),
            (
                bool(_SECOND_MS % (self.batches * _COARSEST_MS)),
                f"cannot send {self.batches} batches a second: give 1, 2, 5, 10, 25 or 50",
            ),
            (
                self.rows > self.batches * MAX_ROWS,
                f"cannot send {self.rows} rows/s in {self.batches} batches a second, each of {MAX_ROWS} rows at most: "
                "give more --batches",
            ),
            (
                self.rows > self.flows * _SECOND_MS // WIDTH_MS // 2,
                f"cannot make {self.rows} rows/s of {self.flows} flows in buckets of {WIDTH_MS} ms: "
                f"give --flows {need} or more",
            ),
            (
                self.new_flows < 0 or bool(self.new_flows % self.batches),
                f"cannot begin {self.new_flows} flows a second: give a multiple of {self.batches}",
            ),
        ):
            if wrong:
                raise UsageError(reason)

    @property
    def span_ms(self) -> int:
        """Of one batch."""
        return _SECOND_MS // self.batches

    def job_of(self, host: int) -> int:
        """−1: none. Neighbouring hosts are ranks of one job."""
        return host * self.jobs // self.hosts if self.jobs else -1

    def members(self, job: int) -> range:
        """The hosts of a job, by rank."""
        first = -(-job * self.hosts // self.jobs)
        return range(first, -(-(job + 1) * self.hosts // self.jobs))


@dataclass(frozen=True)
class PipelineSpec(Spec, Load):
    name, as_root = "pipeline", False
    text = "the collector under simulated agents: cost, delay, and whether its dataset is right (needs no root)"
    collectors: int = _count(1, "workers, compared with one; more than 1 need --bus nats and root")
    bus: str = option("grpc", "channel between agents and collector (%(default)s)", choices=("grpc", "nats"))
    cpu: float = option(
        0.0, "cores for each of multiple workers (0.4 of the machine's, shared out)", type=float, metavar="CORES"
    )
    data: Path | None = option(None, "keep the dataset here (it is removed)", **DIR)

    def __post_init__(self) -> None:
        Spec.__post_init__(self)
        Load.__post_init__(self)

    @property
    def measured_by(self) -> str:
        return f"pipeline.{'run' if self.collectors == 1 else 'workers'}:measure"

    @property
    def load(self) -> Load:
        return Load(**{each.name: getattr(self, each.name) for each in fields(Load)})

    def objections(self) -> list[tuple[bool, str]]:
        alone = self.collectors == 1
        return [
            (
                not alone and self.bus != "nats",
                f"cannot share agents out to {self.collectors} collectors over {self.bus}: give --bus nats",
            ),
            (
                not alone and (self.collectors < 1 or self.cpu < 0),
                f"cannot measure {self.collectors} collectors with {self.cpu:g} cores each: give more than 0",
            ),
            (
                not alone and (self.cut or self.data is not None),
                "--cut and --data are of one collector: leave --collectors out",
            ),
        ]


_TRAINERS = ("ring", "horovod", "ddp")
_PARALLEL = ("fsdp", "pipeline", "experts", "tensor", "hybrid")


@dataclass(frozen=True)
class VerdictSpec(Spec):
    name, measured_by = "verdict", "verdict.campaign:measure"
    text = "known causes of slow iterations, brought about in the lab, and what `netmon why` says of each"
    lab: int = option(20, "causes to inject in the lab (%(default)s)", type=parse_count, metavar="N")
    simulated: int = option(100, "causes in simulated tables (%(default)s)", type=parse_count, metavar="N")
    rerun: int = option(0, "configurations to run with and without the culprit (0)", type=parse_count, metavar="N")
    shift: int = option(0, "pairs of jobs to run unshifted and shifted as advised (0)", type=parse_count, metavar="N")
    seed: int = option(1, "seed of what is random (%(default)s)", type=int)
    trainer: tuple[str, ...] | None = option(
        None,
        "trainer; repeatable, runs take turns (ring, horovod, ddp)",
        action="append",
        choices=(*_TRAINERS, *_PARALLEL, "nccl"),
    )
    kinds: str = option("", "kinds to inject, as in --inject of `netmon lab run` (all)", metavar="K,…")
    data: Path | None = option(
        None,
        "keep the runs' datasets here; complete ones that are there already are judged again (they are removed)",
        **DIR,
    )

    @property
    def root(self) -> bool:
        """Simulated tables need none."""
        return bool(self.lab or self.rerun or self.shift)

    @property
    def trainers(self) -> tuple[str, ...]:
        return self.trainer or _TRAINERS

    def objections(self) -> list[tuple[bool, str]]:
        counts = self.lab, self.simulated, self.rerun, self.shift
        wrong = min(counts) < 0 or not any(counts)
        return [(wrong, "cannot judge nothing: give --lab, --simulated, --rerun or --shift 1 or more")]


HANG_TRAINERS = ("horovod", "ddp", "fsdp", "tensor", "pipeline", "experts")
HANG_KINDS = ("sleep", "stop", "kill", "call", "size", "cross", "disk", "compute", "link", "host")


@dataclass(frozen=True)
class HangSpec(Spec):
    name = "hang"
    text = "training in the lab that is made to hang, and what is reported of it: who, in what, how soon"
    runs: int = option(12, "trainings, with up to three injections each (%(default)s)", type=parse_count, metavar="N")
    kinds: str = option("", f"what is done: {', '.join(HANG_KINDS)} (all)", metavar="K,…")
    trainer: tuple[str, ...] | None = option(
        None, "trainer; repeatable, runs take turns (all of them)", action="append", choices=HANG_TRAINERS
    )
    seed: int = option(1, "seed of what is random (%(default)s)", type=int)
    undisturbed: float = option(
        0.0, "instead: so many hours of training in which nothing hangs", type=float, metavar="HOURS"
    )
    data: Path | None = option(None, "keep the dataset and the logs here (they are removed)", **DIR)

    @property
    def measured_by(self) -> str:
        return "undisturbed:measure" if self.undisturbed else "hang:measure"

    @property
    def trainers(self) -> tuple[str, ...]:
        return self.trainer or HANG_TRAINERS

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(kind for kind in self.kinds.split(",") if kind) or HANG_KINDS

    def objections(self) -> list[tuple[bool, str]]:
        unknown = [kind for kind in self.wanted if kind not in HANG_KINDS]
        return [
            (self.runs < 1, f"cannot measure in {self.runs} runs: give --runs 1 or more"),
            (self.undisturbed < 0, f"cannot measure for {self.undisturbed:g} hours: give --undisturbed more than 0"),
            (bool(unknown), f"cannot do {' or '.join(unknown)}: choose from {', '.join(HANG_KINDS)}"),
            (self.data is not None and self.data.exists(), f"cannot keep the dataset in {self.data}: it exists"),
        ]


SPECS: tuple[type[Spec], ...] = (
    *(KernelSpec, DrainSpec, OverheadSpec, FlowsSpec, HookSpec, CallsSpec, ClockSpec, InferenceSpec, PipelineSpec),
    *(VerdictSpec, HangSpec, PostsSpec, CollectivesSpec),
)
