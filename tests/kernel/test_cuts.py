# SPDX-License-Identifier: Apache-2.0
"""The real agent on a network that is cut: nothing is lost, and nothing is counted as lost that was not.

The collector is in a namespace of its own, behind a second link of the agent's host; that one is cut.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conftest import End, Network
from pair import Watched
from waiting import wait_for

from netmon.lab.network import Host
from netmon.lab.process import Process

pytestmark = pytest.mark.kernel

PORT = 9400
STEADY = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    while True:
        sender.sendto(b"x" * 100, (sys.argv[1], 9))
        time.sleep(0.01)
"""
# An agent for which a flow is over after a second.
IMPATIENT = """
import sys
from netmon.agent import flow_owners as flow_module
flow_module._IDLE_NS, flow_module._SWEEP_NS = 1_000_000_000, 200_000_000
from netmon.cli import main
sys.exit(main())
"""


class Impatient(Watched):
    def _start_agent(self, name: str, *options: str) -> Process:
        host = Host("right", self.right.namespace.name, self.right.address)
        command = [sys.executable, "-c", IMPATIENT, *self._agent(name), *options]
        notify = self.folder / f"notify-{name}"
        return self._cleanup.enter_context(Process(name, command, self.folder, host=host, notify=notify))


class Cut(Watched):
    """The agent's host has two links: one that it watches, and one to the collector."""

    def __init__(self, network: Network, folder: Path, cleanup: ExitStack) -> None:
        left, right = network.namespace(), network.namespace()
        super().__init__(*network.veth(left, right), folder, cleanup)
        self.near, self.far = network.veth(right, network.namespace())
        self.address, self.more = f"{self.far.address}:{PORT}", ["--insecure"]  # nobody else is there

    def _start_collector(self) -> Process:
        notify = self.folder / "notify-collector"
        notify.unlink(missing_ok=True)
        command = [
            *self.agent_command()[:3],
            "collector",
            "--listen",
            self.address,
            "--data",
            str(self.data),
            *self.more,
        ]
        host = Host("collector", self.far.namespace.name, self.far.address)
        return self._cleanup.enter_context(Process("collector", command, self.folder, host=host, notify=notify))

    def down(self) -> None:
        """The far side's port goes: the near one has no carrier."""
        self.far.namespace.run("ip", "link", "set", self.far.interface, "down")

    def up(self) -> None:
        self.far.namespace.run("ip", "link", "set", self.far.interface, "up")
        keep_neighbour(self.far, self.near)
        keep_neighbour(self.near, self.far)

    def swallow(self) -> None:
        """Everything for the agent vanishes on its way."""
        self.far.namespace.run("ip", "route", "add", "blackhole", f"{self.near.address}/32")

    def pass_again(self) -> None:
        self.far.namespace.run("ip", "route", "del", "blackhole", f"{self.near.address}/32")

    def more_is_stored(self) -> None:
        """Waits until what happens now has reached the collector."""
        before = stored(self)
        wait_for(lambda: stored(self) > before, 120)


def stored(watched: Watched) -> int:
    """Rows in the dataset until now."""
    return len(watched.table("buckets"))


def keep_neighbour(here: End, there: End) -> None:
    neighbour = (there.address, "lladdr", there.hardware_address, "dev", here.interface, "nud", "permanent")
    here.namespace.run("ip", "neigh", "replace", *neighbour)


@pytest.fixture
def hosts(network: Network, tmp_path: Path) -> Iterator[Cut]:
    with ExitStack() as cleanup:
        yield Cut(network, tmp_path, cleanup)


@contextmanager
def steady(watched: Watched) -> Iterator[None]:
    """A packet now and then, all the time, on a flow of its own."""
    command = watched.left.namespace.inside(sys.executable, "-c", STEADY, watched.right.address)
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.terminate()


def check_exact(hosts: Cut, before: dict[str, int], after: dict[str, int]) -> None:
    ledger, buckets = hosts.table("ledger"), hosts.table("buckets")
    # While the stream gets coarser, a wider row may begin where a narrower one did, and has what came after that.
    assert not buckets.duplicated(["session", "flow_id", "bucket_start_ns", "bucket_ns"]).any()
    assert (ledger["lost_agent_bytes"] == 0).all()
    per_way = ledger.groupby("direction", observed=True).sum(numeric_only=True)
    sums = buckets.groupby("direction", observed=True)["wire_bytes"].sum()
    for way in ("rx", "tx"):
        assert per_way.loc[way, "nic_counter_bytes"] == after[way] - before[way]
        assert per_way.loc[way, "attributed_bytes"] == per_way.loc[way, "nic_bytes"] == sums[way]


def outage(hosts: Cut, begin: Callable[[], None], end: Callable[[], None], seconds: float) -> None:
    begin()
    time.sleep(seconds)
    end()


def ride_out(hosts: Cut, outages: Callable[[], None]) -> None:
    """Traffic all the time, and the outages in the middle of it."""
    collector, agent = hosts.collector(), hosts.agent()  # it is not refused at its first attempt
    before = hosts.counters()
    with steady(hosts):
        hosts.more_is_stored()
        outages()
        hosts.more_is_stored()
    after = hosts.settled()
    assert agent.status() is None
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    check_exact(hosts, before, after)
    assert "refused" not in agent.output() + collector.output()
    assert "never arrived" not in collector.output()


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("unplugged", 1),
        ("blackholed", 8),
        pytest.param("unplugged", 8, marks=pytest.mark.long),
        pytest.param("blackholed", 1, marks=pytest.mark.long),
    ],
)
def test_a_cut(hosts: Cut, kind: str, seconds: float) -> None:
    begin, end = {"unplugged": (hosts.down, hosts.up), "blackholed": (hosts.swallow, hosts.pass_again)}[kind]
    ride_out(hosts, lambda: outage(hosts, begin, end, seconds))


@pytest.mark.long
def test_a_link_that_flaps(hosts: Cut) -> None:
    def flap() -> None:
        for seconds in (0.2, 1, 3, 0.5, 0.1):
            outage(hosts, hosts.down, hosts.up, seconds)
            time.sleep(seconds / 2)

    ride_out(hosts, flap)


def test_a_new_collector_hears_of_flows_that_ended_while_there_was_none(network: Network, tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        watched = Impatient(*network.veth(network.namespace(), network.namespace()), tmp_path, cleanup)
        collector, agent = watched.both()
        with steady(watched):
            wait_for(lambda: stored(watched), 60)
            collector.end_in_order(seconds=60)
            time.sleep(1)
        time.sleep(3)  # the flow is over
        with steady(watched):
            time.sleep(3)  # another one began, and the introduction was written since
        watched.data = tmp_path / "other"
        collector = watched.collector()
        wait_for(lambda: stored(watched), 60)
        agent.end_in_order(seconds=60)
        collector.end_in_order(seconds=60)
    flows, buckets = watched.table("flows"), watched.table("buckets")
    sent = flows[(flows["dst_port"] == 9) & (flows["direction"] == "rx")]["flow_id"]
    assert len(sent) == 2
    assert sent.isin(buckets["flow_id"]).all()
    assert (watched.table("ledger")["lost_agent_bytes"] == 0).all()
    assert "is lost" not in agent.output()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [30, 300])
@pytest.mark.parametrize("kind", ["unplugged", "blackholed"])
def test_a_long_cut(hosts: Cut, kind: str, seconds: float) -> None:
    test_a_cut(hosts, kind, seconds)
