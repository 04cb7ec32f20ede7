# SPDX-License-Identifier: Apache-2.0
"""How well the collector recovers the clock of a host: two real agents, one of which has another clock injected.

The machine knows the truth: both hosts and the collector read the same clock, and the relay that gives one of them
another notes what it made of every sample of the ledger. What the dataset says those samples' times are is compared.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from netmon.bench import bursts
from netmon.bench.relay import Relay, Shift
from netmon.errors import LabError
from netmon.lab.network import INTERFACE, Host, network
from netmon.lab.process import Process
from netmon.lab.record import utc_minus_mono_ns
from netmon.views import HostView, Selection
from netmon.wire.watch import watch_once

RATE_BPS = 1_000_000_000
BUCKET_NS = 10_000
_READY_S = 60.0
SHORTEST_S = 10.0
_CONVERGENCE_NS = 6_000_000_000  # of the traffic: some dozen bursts


@dataclass(frozen=True)
class Injection:
    """What is done to the clock of one of two hosts. source: "exchange" (and traffic), "traffic" (no exchange)."""

    source: str
    offset_ns: int
    skew_ppm: float


INJECTIONS = (
    Injection("exchange", 0, 0.0),
    Injection("exchange", 250_000_000, 50.0),
    Injection("exchange", 5_000_000_000, 200.0),
    Injection("exchange", -5_000_000_000, -200.0),
    Injection("traffic", 250_000_000, 50.0),
    Injection("traffic", -5_000_000_000, -200.0),
)


@dataclass(frozen=True)
class Recovery:
    """One run. Errors in ns, after the first seconds: per host against the truth, and of the two hosts' difference.

    Without the exchange only the difference can be known. bound_ns is what the collector itself said at the end.
    """

    injection: Injection
    samples: int
    host_error_ns: float  # median of the shifted host's absolute error; nan without the exchange
    host_error_most_ns: float
    difference_ns: float  # median of the absolute difference of both hosts' errors
    difference_most_ns: float
    bound_ns: int
    source: str
    offset_ns: int  # as shown by the collector: the host's UTC minus its own
    skew_ppm: float


@dataclass(frozen=True)
class ClockResult:
    """All runs."""

    seconds: float
    bucket_ns: int
    rate_bps: int
    runs: tuple[Recovery, ...]

    def document(self) -> dict[str, Any]:
        """For --json; figures that are not known are null."""
        document: dict[str, Any] = _without_nan(asdict(self))
        return document


def measure(
    seconds: float,
    injections: Sequence[Injection] = INJECTIONS,
    progress: Callable[[float], None] = lambda _: None,
) -> ClockResult:
    """Blocks for about (seconds + 8 s) per injection; progress is called with the injections done.

    Raises UnsupportedError, LabError. Everything it made is gone afterwards, also on failure.
    """
    runs = []
    for number, injection in enumerate(injections):
        with tempfile.TemporaryDirectory(prefix="netmon-bench-") as folder:
            os.chmod(folder, 0o711)  # for the agent, which is not root
            runs.append(recover(injection, seconds, Path(folder)))
        progress(number + 1)
    return ClockResult(seconds, BUCKET_NS, RATE_BPS, tuple(runs))


def recover(injection: Injection, seconds: float, folder: Path) -> Recovery:
    """One run, with its files in `folder`; blocks. Raises LabError."""
    shifts = (Shift(time.monotonic_ns(), injection.offset_ns, injection.skew_ppm / 1e6), Shift(0))
    collector, tells_time = f"unix:{folder}/collector.sock", injection.source == "exchange"
    with contextlib.ExitStack() as stack, network(2, RATE_BPS) as testbed:
        processes = contextlib.ExitStack()
        stack.enter_context(processes)
        last = processes.enter_context(_collector(collector, folder))
        last.wait_ready(_READY_S)
        relays, agents = [], []
        for host, shift in zip(testbed.hosts, shifts, strict=True):
            address = f"unix:{folder}/{host.name}-relay.sock"
            relays.append(processes.enter_context(Relay(address, collector, shift, tells_time)))
            agents.append(processes.enter_context(_agent(host, address, folder)))
        for agent in agents:
            agent.wait_ready(_READY_S)
        with _traffic(testbed.hosts, folder) as senders:
            time.sleep(seconds)
            for process in (last, *agents, *senders):
                process.check_running()
            view = next(view for view in watch_once(collector, Selection()).hosts if view.host == testbed.hosts[0].name)
        for agent in agents:
            agent.end_in_order(seconds=30)
        last.end_in_order(seconds=60)
    pairs = zip(testbed.hosts, relays, strict=True)
    return _recovery(injection, [_errors(folder / "data", host.name, relay.samples) for host, relay in pairs], view)


def _collector(address: str, folder: Path) -> Process:
    command = [sys.executable, "-m", "netmon", "collector", "--listen", address, "--data", str(folder / "data")]
    return Process("collector", command, folder, notify=folder / "notify-collector")


def _agent(host: Host, collector: str, folder: Path) -> Process:
    command = [sys.executable, "-m", "netmon", "agent", "--interface", INTERFACE, "--collector", collector]
    command += [
        "--host",
        host.name,
        "--bucket",
        f"{BUCKET_NS}ns",
        "--stream-bucket",
        f"{BUCKET_NS}ns",
        "--capacity",
        f"{RATE_BPS}bit",
    ]
    command += ["--socket", str(folder / f"{host.name}.sock"), "--spool", str(folder / f"spool-{host.name}")]
    return Process(f"agent-{host.name}", command, folder, host=host, notify=folder / f"notify-{host.name}")


@contextlib.contextmanager
def _traffic(hosts: Sequence[Host], folder: Path) -> Iterator[list[Process]]:
    """Bursts that each host begins and the other answers, for as long as the context is open."""
    program = [sys.executable, "-m", bursts.__name__]
    with contextlib.ExitStack() as stack:
        processes = []
        for here, there in (hosts, hosts[::-1]):
            listen, connect = [*program, "listen", there.address], [*program, "connect", there.address]
            listener = stack.enter_context(Process(f"listen-{there.name}", listen, folder, host=there))
            listener.wait_output(bursts.LISTENING, 10)
            connector = stack.enter_context(Process(f"connect-{here.name}", connect, folder, host=here))
            processes += [listener, connector]
        yield processes


def _errors(data: Path, host: str, samples: Sequence[tuple[int, int]]) -> pd.Series:
    """How far the dataset's times of the ledger's samples are from the truth, in ns, by the true UTC."""
    utc = utc_minus_mono_ns()
    true = np.unique([mono for mono, _ in samples])[1:] + utc  # the first is not the end of an interval
    table = pd.read_parquet(data / "ledger")
    told = np.unique(table.loc[table["host"] == host, "end_ns"])
    if len(true) != len(told):
        raise LabError(f"cannot compare {host}'s clock: {len(told)} intervals in the ledger of {len(true)} sent")
    return pd.Series(told - true, index=true)


def _recovery(injection: Injection, errors: Sequence[pd.Series], view: HostView) -> Recovery:
    shifted, other = (error[error.index >= error.index[0] + _CONVERGENCE_NS] for error in errors)
    if not (len(shifted) and len(other)):
        raise LabError("cannot tell how well a clock was recovered: the run was too short; give more --seconds")
    own = np.abs(shifted.to_numpy()) if injection.source == "exchange" else np.array([np.nan])
    between = np.abs(shifted.to_numpy() - np.interp(shifted.index, other.index, other.to_numpy()))
    return Recovery(
        injection=injection,
        samples=len(shifted),
        host_error_ns=float(np.median(own)),
        host_error_most_ns=float(own.max()),
        difference_ns=float(np.median(between)),
        difference_most_ns=float(between.max()),
        bound_ns=view.clock_error_ns,
        source=view.clock_source,
        offset_ns=view.clock_offset_ns,
        skew_ppm=view.clock_skew_ppm,
    )


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and np.isnan(value) else value
