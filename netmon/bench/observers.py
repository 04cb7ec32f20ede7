# SPDX-License-Identifier: Apache-2.0
"""Who may watch a pair of hosts: nobody, netmon by one of its hooks, or tcpdump."""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds

from netmon.bench.pair import Pair
from netmon.errors import LabError
from netmon.lab.network import INTERFACE, Host
from netmon.lab.process import Process

_READY_SECONDS = 60
_END_SECONDS = 60
_DROPS = re.compile(r"(\d+) packets captured\s+(\d+) packets received by filter\s+(\d+) packets dropped by kernel")


@dataclass(frozen=True)
class Account:
    """What an observer has to show for a run. seen and carried are wire bytes for netmon, packets for tcpdump."""

    records: int
    lost: int
    seen: int
    carried: int
    unit: str  # "bytes" or "packets"


Observer = Callable[[Pair, Path], contextlib.AbstractContextManager[Callable[[], Account | None]]]
"""Watches a pair from when its context is entered; the function it gives ends it in order and tells its account.

The folder is for everything that it writes. Raises LabError.
"""


@contextlib.contextmanager
def _nobody(_pair: Pair, _folder: Path) -> Iterator[Callable[[], None]]:
    yield lambda: None


@contextlib.contextmanager
def _netmon(hook: str, pair: Pair, folder: Path) -> Iterator[Callable[[], Account]]:
    """An agent at both ends, the receiver's by `hook`, and a collector outside."""
    # A Unix socket crosses network namespaces: not a byte of netmon's own is on the link.
    address, data = f"unix:{folder / 'collector.sock'}", folder / "data"
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str, host: Host | None = None) -> Process:
            words, notify = [sys.executable, "-m", "netmon", *command], folder / f"notify-{name}.sock"
            process = stack.enter_context(Process(name, words, folder, host=host, notify=notify))
            process.wait_ready(_READY_SECONDS)
            return process

        def agent(host: Host, by: str) -> Process:
            what = ("--interface", INTERFACE, "--host", host.name, "--bucket", "10us", "--hook", by)
            where = ("--socket", str(folder / f"{host.name}.sock"), "--spool", str(folder / f"spool-{host.name}"))
            return start(f"agent-{host.name}", "agent", *what, *where, "--collector", address, host=host)

        collector = start("collector", "collector", "--listen", address, "--data", str(data))
        agents = (agent(pair.sender, "tc"), agent(pair.receiver, hook))

        def account() -> Account:
            for process in (*agents, collector):
                process.check_running()
                process.end_in_order(seconds=_END_SECONDS)
            return _of_dataset(data)

        yield account


def _of_dataset(data: Path) -> Account:
    ledger = ds.dataset(data / "ledger", format="parquet").to_table()
    sums = {name: pc.sum(ledger[name]).as_py() for name in ledger.column_names if name.endswith("_bytes")}
    return Account(
        records=ds.dataset(data / "buckets", format="parquet").count_rows(),
        lost=sums["lost_kernel_bytes"] + sums["lost_agent_bytes"],
        seen=sums["attributed_bytes"],
        carried=sums["nic_bytes"],
        unit="bytes",
    )


@contextlib.contextmanager
def _tcpdump(pair: Pair, folder: Path) -> Iterator[Callable[[], Account]]:
    """On the receiver, as the studies did it: the first 150 bytes of every packet into a file."""
    # It writes as root (-Z): the folder is root's.
    command = ["tcpdump", "-i", INTERFACE, "-n", "-s", "150", "-Z", "root", "-w", str(folder / "capture.pcap")]
    with Process("tcpdump", command, folder, host=pair.receiver) as process:
        process.wait_output("listening on", _READY_SECONDS)

        def account() -> Account:
            process.check_running()
            process.end_in_order(seconds=_END_SECONDS)
            if not (told := _DROPS.search(process.output())):
                raise LabError(f"cannot tell what tcpdump dropped: it ended without saying so; see {process.log}")
            captured, received, dropped = map(int, told.groups())
            # What is received but neither captured nor dropped still waited in its buffer when it was told to end.
            return Account(captured, dropped, received - dropped, received, "packets")

        yield account


OBSERVERS: dict[str, Observer] = {
    "nothing": _nobody,
    "tc": partial(_netmon, "tc"),
    "xdp": partial(_netmon, "xdp"),
    "tcpdump": _tcpdump,
}
"""By kind, the undisturbed one first."""
