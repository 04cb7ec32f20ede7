# SPDX-License-Identifier: Apache-2.0
"""What can be done to a training on purpose, and how it is written on a command line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from netmon import views
from netmon.errors import UsageError
from netmon.lab.traffic.profiles import PROFILES
from netmon.records import Direction
from netmon.units import format_duration, parse_duration

LONGEST_NS = 20_000_000_000
"""A rank gives its neighbours up when they are silent for longer than this and a half."""

TRANSFERS = ("upload", "download")
"""Done by a thread of one rank alongside its gradients, to and from a file server."""

FILE_PORT = 5501
"""Of the first injection's server, and so on."""

_NEEDS_RANK = ("stop", "hog", "quota", "late", "gc", *TRANSFERS)
_NEEDS_LINK = ("slow-link", "loss", "small-queue", "policer")
_OF_A_PORT = ("small-queue", "policer")
_OF_ALL_RANKS, _OF_A_RANK = ("evaluate", "checkpoint"), ("late", "gc")
BY_TRAINER = (*_OF_ALL_RANKS, *_OF_A_RANK, "batch")
"""Done by the script itself. By all ranks after a step: the lab's own trainer within it, the others between it and the
next. By one rank: before its first gradient, or in the middle of its backward pass."""

CAUSES = {
    "cross": "cross",
    "job": "other_job",
    "stop": "straggler",
    "stop-all": "pause",
    **dict.fromkeys(_OF_ALL_RANKS, "pause"),
    **dict.fromkeys(_OF_A_RANK, "straggler"),
    **dict.fromkeys(TRANSFERS, "own_transfer"),
    "batch": "change",
    "slow-link": "slow_link",
    "loss": "loss",
    "small-queue": "loss",
    "policer": "loss",
    "hog": "host",
    "quota": "host",
    "nothing": "",
}
"""Every kind, and the cause that it is, in the words of a verdict; "": none."""

NETWORK = tuple(cause.name.lower() for cause in views.NETWORK)
"""The causes that blame the network, in the words of a verdict."""

_STRENGTHS = {
    "cross": (0.0, 1.0, 0.8),
    **dict.fromkeys(TRANSFERS, (0.0, 4.0, 0.5)),
    "slow-link": (0.01, 1.0, 0.3),
    "loss": (0.0, 0.5, 0.02),
    "small-queue": (0.0, 1.0, 0.1),
    "policer": (0.05, 1.0, 0.6),
    "hog": (1.0, 64.0, 4.0),
    "quota": (0.01, 1.0, 0.1),
    "late": (0.0, 1.0, 0.0),
    "batch": (0.1, 10.0, 1.5),
}
"""Least, most and default strength of a kind that has one."""


@dataclass(frozen=True)
class Injection:
    """One thing that is done to a run. Hosts and ranks by number; −1: not of this kind's concern."""

    kind: str
    at: float = 20.5  # in iterations: whole ones have finished on rank 0, and the share of a typical one has passed
    duration_ns: int = 300_000_000
    strength: float = 0.0  # 0: the kind's default
    rank: int = -1
    host: int = -1
    direction: int = int(Direction.TX)
    source: int = -1
    target: int = -1
    profile: str = "iperf"
    hosts: tuple[int, ...] = ()  # of the other job's ranks
    parameters: int = 4_000_000  # of the other job

    @property
    def cause(self) -> str:
        """What a verdict has to say."""
        return CAUSES[self.kind]

    @property
    def effective_strength(self) -> float:
        """The strength, or the default of its kind where none was given."""
        return self.strength or _STRENGTHS.get(self.kind, (0.0, 0.0, 0.0))[2]

    @property
    def way(self) -> str:
        """Which way of the link it is, rx or tx; a port of the switch is on the way to the host."""
        return Direction(Direction.RX if self.kind in _OF_A_PORT else self.direction).name.lower()

    def transferred_bytes(self, rate_bps: int) -> int:
        """Of an upload or download: its strength is the share of the link's rate that it is over its duration."""
        return round(self.effective_strength * self.duration_ns * rate_bps / 8e9)

    @property
    def share_left(self) -> float:
        """Of the rate, for the training, roughly."""
        return self.effective_strength if self.kind == "slow-link" else 1.0

    def objections(self, ring: tuple[int, ...], hosts: int, iterations: int) -> list[tuple[bool, str]]:
        """Why it cannot be done to a run with these ranks, as RunSpec.check asks."""
        least, most, _ = _STRENGTHS.get(self.kind, (0.0, float("inf"), 0.0))
        ends = (self.source, self.target)
        known = range(hosts)
        what = f"injection {self.kind}"
        return [
            (self.kind not in CAUSES, f"no injection {self.kind!r}; choose {', '.join(CAUSES)}"),
            (not 0 < self.duration_ns <= LONGEST_NS, f"{what} for {format_duration(self.duration_ns)}; at most 20 s"),
            (not 1 <= self.at < iterations, f"{what} at iteration {self.at:g}; there are 1 to {iterations - 1}"),
            (not least <= self.effective_strength <= most, f"{what} of {self.strength:g}; {least:g} to {most:g}"),
            (self.kind in _NEEDS_RANK and self.rank not in range(len(ring)), f"{what} needs a rank= of the job"),
            (self.kind in _NEEDS_LINK and self.host not in known, f"{what} needs a host= of 0 to {hosts - 1}"),
            (
                self.kind == "cross" and (not {*ends} <= {*known} or ends[0] == ends[1]),
                f"{what} needs from= and to=, two hosts of 0 to {hosts - 1}",
            ),
            (
                self.kind in TRANSFERS
                and (self.target not in known or (self.rank in range(len(ring)) and self.target == ring[self.rank])),
                f"{what} needs to=, the file server's host: not the rank's, of 0 to {hosts - 1}",
            ),
            (self.kind == "cross" and self.profile not in PROFILES, f"no cross profile {self.profile!r}"),
            (self.kind == "cross" and self.profile == "file", f"{what} of a load file: that is --cross-file's"),
            (
                self.kind == "job" and (len({*self.hosts}) < 2 or not {*self.hosts} <= {*known}),
                f"{what} needs hosts=A+B, two hosts or more of 0 to {hosts - 1}",
            ),
        ]


def pauses_of(injections: tuple[Injection, ...]) -> str:
    """Those that the trainers do themselves, as their option --pauses has them."""
    own = (each for each in injections if each.kind in BY_TRAINER)
    return ",".join(
        f"{int(each.at)}:{each.duration_ns / 1e9}:{each.kind}:{each.rank}:{each.effective_strength}" for each in own
    )


def transfers_of(injections: tuple[Injection, ...], rank: int, addresses: Sequence[str], rate_bps: int) -> str:
    """What a rank transfers itself, as the trainers' option --transfers has it. addresses: of all hosts."""
    return ",".join(
        f"{each.at}:{each.kind}:{each.transferred_bytes(rate_bps)}:{addresses[each.target]}:{FILE_PORT + number}"
        for number, each in enumerate(injections)
        if each.kind in TRANSFERS and each.rank == rank
    )


def host_number(text: str) -> int:
    """`2` or `h2` → 2. Raises ValueError."""
    return int(text.removeprefix("h"))


_NAMES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "at": ("at", float),
    "for": ("duration_ns", parse_duration),
    "strength": ("strength", float),
    "load": ("strength", float),
    "rank": ("rank", int),
    "host": ("host", host_number),
    "from": ("source", host_number),
    "to": ("target", host_number),
    "profile": ("profile", str),
    "params": ("parameters", lambda text: int(float(text))),
    "hosts": ("hosts", lambda text: tuple(map(host_number, text.split("+")))),
    "direction": ("direction", lambda text: int(Direction[text.upper()])),
}


def injection(text: str) -> Injection:
    """`stop:rank=1,at=20.5,for=300ms` → an Injection. Raises UsageError."""
    kind, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        name, _, value = part.partition("=")
        if name not in _NAMES:
            raise UsageError(f"cannot read {text!r} as an injection: no {name!r}; there are {', '.join(_NAMES)}")
        field, read = _NAMES[name]
        try:
            values[field] = read(value)
        except (ValueError, KeyError):
            raise UsageError(f"cannot read {text!r} as an injection: {name} cannot be {value!r}") from None
    if kind not in CAUSES:
        raise UsageError(f"cannot read {text!r} as an injection: choose {', '.join(CAUSES)}")
    return Injection(kind, **values)
