# SPDX-License-Identifier: Apache-2.0
"""Runs of the lab with injections, drawn from a seed and executed one after the other."""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from netmon.dl.classify import ring_bytes
from netmon.errors import NetmonError
from netmon.lab.injections.spec import CAUSES, TRANSFERS, Injection
from netmon.lab.record import FOLDER, Run
from netmon.lab.run import run
from netmon.lab.spec import PARALLEL_TRAINERS, RunSpec
from netmon.records import Direction

log = logging.getLogger(__name__)
_Plan = TypeVar("_Plan")

KINDS = tuple(kind for kind in CAUSES if kind not in ("policer", "batch"))
"""The default injections, each as frequent. A policer slows a link and loses packets; either cause is right. A changed
batch size is not undone, so it is the last of its run."""

_LAST = "batch"
_AFTER_LAST = 15  # iterations

PER_RUN = 10
_QUIET_BEFORE = 14  # iterations, until there is a baseline
_QUIET_BETWEEN = 5
_PROFILES = ("iperf", "websearch", "burst")
_HOSTS = 5
_SPINS = ("horovod",)
"""Trainers whose ranks keep a core busy now and then while they wait (Horovod's Gloo does): with more of them than
cores a third of the iterations takes 1.3 × the baseline with nothing done to them."""
RINGS = ((0, 1, 3), (0, 1, 2, 3), (0, 2), (3, 1, 0))
_RANKS = {"hybrid": (4,), "tensor": (2, 4)}
"""Numbers of ranks of trainers that do not take any number."""

_UNABLE: dict[str, tuple[str, ...]] = dict.fromkeys(PARALLEL_TRAINERS, ("gc", "batch", *TRANSFERS))
_UNABLE |= {"nccl": ("loss", "small-queue", "policer", "batch", *TRANSFERS)}
"""Kinds that a trainer's script does not do, that affect TCP otherwise than RDMA, or that transfers alone do not show:
others are injected instead."""

RATES_MBPS = (200, 300, 500)


def plan(
    injections: int, seed: int, trainers: Sequence[str], data: Path, kinds: Sequence[str] = KINDS
) -> list[RunSpec]:
    """Runs with so many injections in all, PER_RUN in each, or a changed batch size alongside; run N writes to
    DATA/run-N. Every kind is as frequent."""
    generator = np.random.default_rng(seed)
    every = [kinds[number % len(kinds)] for number in range(injections)]
    generator.shuffle(every)
    others = [kind for kind in every if kind != _LAST]
    last = len(every) - len(others)
    runs = [others[begin : begin + PER_RUN] for begin in range(0, max(len(others), last * PER_RUN), PER_RUN)]
    for some in runs[:last]:
        some.append(_LAST)
    planned = []
    for number, some in enumerate(runs):
        trainer = trainers[number % len(trainers)]
        able = [kind for kind in kinds if kind not in _UNABLE.get(trainer, ())]
        done = [kind if kind in able else able[at % len(able)] for at, kind in enumerate(some)] if able else []
        planned.append(draw_run(generator, data / f"run-{number:03}", trainer, done, seed + number))
    return planned


def draw_run(
    generator: np.random.Generator,
    data: Path,
    trainer: str,
    kinds: Sequence[str],
    seed: int,
    rings: Sequence[tuple[int, ...]] = RINGS,
    rates_mbps: Sequence[int] = RATES_MBPS,
) -> RunSpec:
    """One run, with these injections in this order and quiet iterations between them."""
    few = [ring for ring in rings if trainer not in _SPINS or len(ring) <= max(2, os.cpu_count() or 1)]
    few = [ring for ring in few if len(ring) in _RANKS.get(trainer, (len(ring),))]
    ring = (few or rings)[int(generator.integers(len(few or rings)))]
    spec = RunSpec(
        data,
        trainer=trainer,
        hosts=_HOSTS,
        ring=ring,
        cross=(),
        cross_load=0.0,
        rate_bps=int(generator.choice(rates_mbps)) * 1_000_000,
        parameters=int(generator.integers(400_000, 1_500_000)),
        compute_ns=int(generator.integers(20, 80)) * 1_000_000,
        backward_share=float(generator.choice([0.0, 0.5])),
        stream_ns=1_000_000,
        seed=seed,
    )
    baseline_ns = typical_iteration_ns(spec)
    at, injections = float(_QUIET_BEFORE), []
    for kind in kinds:
        injection = _injection(generator, kind, spec, at + float(generator.uniform()), baseline_ns)
        injections.append(injection)
        at += math.ceil(injection.duration_ns / baseline_ns) + 1 + (_QUIET_BETWEEN if kind != _LAST else _AFTER_LAST)
    return replace(spec, injections=tuple(injections), iterations=math.ceil(at))


def typical_iteration_ns(spec: RunSpec) -> float:
    """Expected duration: computing, and communicating after the first gradients of the backward pass."""
    communication = 8e9 * ring_bytes(len(spec.ring), spec.parameters) / spec.rate_bps
    overlap = spec.backward_share * spec.compute_ns
    return spec.compute_ns - overlap + max(overlap, communication)


def _injection(generator: np.random.Generator, kind: str, spec: RunSpec, at: float, baseline_ns: float) -> Injection:
    ranks, hosts = len(spec.ring), range(spec.hosts)
    rank = int(generator.integers(ranks))
    one = int(generator.choice(spec.ring))
    other = int(generator.choice([host for host in hosts if host != one]))
    ends = (one, other) if generator.integers(2) else (other, one)
    lasts = float(generator.uniform(0.6, 3.0)) * baseline_ns
    if kind in _LASTING and generator.integers(2):
        lasts = float(generator.uniform(2e9, 4e9))
    low, high = _STRENGTHS.get(kind, (0.0, 0.0))
    if kind in TRANSFERS:
        servers = [host for host in hosts if host != spec.ring[rank]]
        ends = (ends[0], int(generator.choice(servers)))
    strength = float(generator.uniform(low, high))
    if kind == _LAST:
        strength = min(10.0, 1 + (strength - 1) * baseline_ns / spec.compute_ns)  # as far as the lab goes
    return Injection(
        kind,
        at=round(at, 3),
        duration_ns=round(max(100e6, lasts)),
        strength=round(strength, 3),
        rank=rank,
        host=spec.ring[rank],
        direction=int(generator.choice([Direction.TX, Direction.RX])),
        source=ends[0],
        target=ends[1],
        profile=str(generator.choice(_PROFILES)),
        hosts=(one, other),
        parameters=int(generator.integers(500_000, 3_000_000)),
    )


_LASTING = ("slow-link", "loss")
"""Half of these last for so many iterations that the ones alongside them are slow, too."""

_STRENGTHS = {
    "cross": (0.4, 0.95),
    **dict.fromkeys(TRANSFERS, (0.6, 1.5)),
    "slow-link": (0.1, 0.6),
    "loss": (0.01, 0.1),
    "small-queue": (0.01, 0.3),
    "policer": (0.4, 0.85),
    "hog": (3.0, 12.0),
    "quota": (0.05, 0.12),
    "late": (0.0, 1.0),
    "batch": (1.4, 2.0),  # of an iteration, of which computing is a part
}


def in_turn(
    plans: Mapping[str, _Plan],
    do: Callable[[_Plan], None],
    failed: list[str],
    progress: Callable[[int], None] = lambda _: None,
) -> bool:
    """Do each; blocks. One that fails does not end the others. Returns whether Ctrl-C ended it.

    plans: by name. failed: those that did, by name, with the reason. progress: called with how many are over.
    """
    try:
        for number, (name, plan) in enumerate(plans.items()):
            progress(number)
            try:
                do(plan)
            except NetmonError as error:
                failed.append(f"{name}: {error}")
                log.warning("bench: %s: %s", name, error)
    except KeyboardInterrupt:
        return True
    return False


def ensure_run(spec: RunSpec) -> bool:
    """Do a run unless it lies there, complete; whether it was done. Blocks. Raises DataError or LabError."""
    if Run(spec.data / FOLDER).complete:
        return False
    spec.data.parent.mkdir(parents=True, exist_ok=True)
    run(replace(spec, overwrite=True))
    return True
