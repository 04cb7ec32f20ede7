# SPDX-License-Identifier: Apache-2.0
"""An agent among others' programs, on interfaces that come and go: nothing foreign changes, nothing of ours stays."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pair import NETMON, Watched, run
from pyroute2 import IPRoute, netns
from waiting import DIES_WITH_US, wait_for

pytestmark = pytest.mark.kernel

# Attaches an empty program of somebody else's to an interface, says so, and stays until its input closes.
FOREIGN = """
import sys
from netmon.bench.kernel import Yardsticks
from netmon.kernel import bpf_calls
how, index = sys.argv[1], int(sys.argv[2])
yardsticks = Yardsticks()
if how == "xdp":
    links = [bpf_calls.link_create(yardsticks.program("empty", "xdp"), index, bpf_calls.XDP)]
else:
    program = yardsticks.program("empty", "tc_ingress")
    links = [bpf_calls.link_create(program, index, kind) for kind in (bpf_calls.TCX_INGRESS, bpf_calls.TCX_EGRESS)]
print("attached", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def watched(namespaces: Callable, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as cleanup:
        yield Watched(*namespaces(), tmp_path, cleanup)


@pytest.fixture
def foreign(watched: Watched) -> Iterator[Callable[[str], None]]:
    """A function that attaches somebody else's program, "xdp" or "tcx"."""
    with ExitStack() as cleanup:

        def attach(how: str) -> None:
            command = watched.right.namespace.inside(sys.executable, "-c", FOREIGN, how, str(watched.right.index))
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            cleanup.enter_context(process)  # closes its input, and waits
            assert process.stdout.readline() == "attached\n"

        yield attach


def counts_everything(watched: Watched) -> None:
    """A transfer between two looks at the NIC's counter is in the dataset to the byte."""
    before = watched.counters()
    watched.transfer(5)
    moved = {way: count - before[way] for way, count in watched.settled().items()}
    assert moved["rx"] > 1_000_000


def test_tcx_programs_before_and_after_ours_stay(watched: Watched, foreign: Callable[[str], None]) -> None:
    foreign("tcx")
    collector, agent = watched.both()
    assert watched.attached() == (0, 2, 2)
    foreign("tcx")
    assert watched.attached() == (0, 3, 3)
    counts_everything(watched)
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    assert watched.attached() == (0, 2, 2)
    ledger = watched.table("ledger")
    assert (ledger["attributed_bytes"].sum(), ledger["nic_bytes"].sum() > 0) == (ledger["nic_bytes"].sum(), True)


def test_an_xdp_program_stays_and_is_named_when_it_is_in_the_way(
    watched: Watched, foreign: Callable[[str], None]
) -> None:
    foreign("xdp")
    _, agent = watched.both()
    assert watched.attached() == (1, 1, 1)
    agent.end_in_order(seconds=60)
    assert watched.attached() == (1, 0, 0)
    agent = watched.agent("--hook", "xdp", name="again")
    (line,) = [line for line in agent.output().splitlines() if "cannot attach" in line]
    assert f"cannot attach to {watched.right.interface} by XDP: its slot is taken by program" in line
    assert ", loaded by python" in line  # its name takes CAP_SYS_ADMIN, which the agent has given up
    assert line.endswith("; tc is used")
    assert watched.attached() == (1, 1, 1)
    counts_everything(watched)
    agent.end_in_order(seconds=60)
    assert watched.attached() == (1, 0, 0)


def test_a_foreign_clsact_keeps_its_filters(watched: Watched) -> None:
    namespace, interface = watched.right.namespace, watched.right.interface
    with netns_of(namespace.name) as route:
        route.tc("add", "clsact", watched.right.index)
    namespace.run("tc", "filter", "add", "dev", interface, "ingress", "prio", "7", "bpf", "bytecode", "1,6 0 0 0")

    def filters() -> str:
        return namespace.run("tc", "filter", "show", "dev", interface, "ingress")

    before = filters()
    assert "bytecode" in before
    _, agent = watched.both()
    counts_everything(watched)
    assert filters() == before
    agent.end_in_order(seconds=60)
    assert filters() == before
    assert "clsact" in namespace.run("tc", "qdisc", "show", "dev", interface)


def test_interfaces_by_pattern_and_what_matches_nothing(watched: Watched) -> None:
    collector, agent = watched.both("--interface", "veth*", "[v]eth?")
    assert watched.attached() == (0, 1, 1)
    counts_everything(watched)
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    ledger = watched.table("ledger")
    assert set(ledger["interface"]) == {watched.right.interface}
    assert ledger["attributed_bytes"].sum() == ledger["nic_bytes"].sum() > 1_000_000
    command = watched.right.namespace.inside(*watched.agent_command(), "--interface", "ens*f?np*")
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    name = watched.right.interface
    said = f"netmon: cannot watch 'ens*f?np*': no interface matches; there are lo, {name}\n"
    assert (refused.returncode, refused.stderr) == (1, said)


def netns_of(name: str) -> IPRoute:
    return IPRoute(netns=name) if name in netns.listnetns() else IPRoute()


def test_an_interface_that_goes_down_and_up_goes_on_being_counted(watched: Watched) -> None:
    collector, agent = watched.both()
    namespace, interface = watched.right.namespace, watched.right.interface
    namespace.run("ip", "link", "set", interface, "down")
    time.sleep(0.5)
    namespace.run("ip", "link", "set", interface, "up")
    permanent = ("lladdr", watched.left.hardware_address, "dev", interface, "nud", "permanent")
    namespace.run("ip", "neigh", "replace", watched.left.address, *permanent)
    counts_everything(watched)
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    ledger = watched.table("ledger")
    assert ledger["attributed_bytes"].sum() == ledger["nic_bytes"].sum()


def test_a_renamed_interface_keeps_its_name_in_the_dataset(watched: Watched) -> None:
    collector, agent = watched.both()
    namespace, interface = watched.right.namespace, watched.right.interface
    namespace.run("ip", "link", "set", interface, "down")
    namespace.run("ip", "link", "set", interface, "name", "other0")
    namespace.run("ip", "link", "set", "other0", "up")
    wait_for(lambda: f"it stays {interface} in the dataset" in agent.output())
    assert agent.status() is None
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    assert set(watched.table("ledger")["interface"]) == {interface}


def test_an_interface_that_is_removed_and_made_again_is_watched_again(watched: Watched) -> None:
    collector, agent = watched.both()
    left, right, interface = watched.left.namespace, watched.right.namespace, watched.right.interface
    watched.transfer(5)
    right.run("ip", "link", "del", interface)
    wait_for(lambda: "is gone" in agent.output())
    left.run("ip", "link", "add", interface, "type", "veth", "peer", "name", interface, "netns", right.name)
    for end in (watched.left, watched.right):
        end.namespace.run("ip", "address", "add", f"{end.address}/24", "dev", interface)
        end.namespace.run("ip", "link", "set", interface, "up")
    wait_for(lambda: "is back" in agent.output())
    time.sleep(2)  # the account of what was before ends: what an interface had counted when it went, nobody knows
    watched.transfer(5)
    watched.settled()
    (link,) = json.loads(right.run("ip", "-json", "link", "show", interface))
    assert link["ifindex"] != watched.right.index
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    flows = watched.table("flows")
    assert len(flows[(flows["dst_port"] == 5999) & (flows["direction"] == "rx")]) >= 3  # of both transfers
    last = watched.table("ledger").sort_values("start_ns").groupby("direction", observed=True).last()
    assert (last["attributed_bytes"] == last["nic_bytes"]).all()


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.long)])
def test_agents_killed_at_any_moment_leave_nothing(watched: Watched, rounds: int) -> None:
    """Four at once: some while they compile, some while they attach, some while they work."""
    rng, four = random.Random(1), range(4)
    begin = time.monotonic()
    working = [start(watched, f"first-{i}") for i in four]
    wait_for(lambda: watched.attached() == (0, 4, 4))
    until_all_work = time.monotonic() - begin
    for process in working:
        kill(process)
    for round_ in range(rounds):
        begin = time.monotonic()
        processes = [start(watched, f"{round_}-{i}") for i in four]
        for process, moment in zip(processes, sorted(rng.uniform(0, until_all_work) for _ in four), strict=True):
            time.sleep(max(0, begin + moment - time.monotonic()))
            kill(process)
    wait_for(lambda: watched.attached() == (0, 0, 0))
    wait_for(lambda: not run("ip", "netns", "pids", watched.right.namespace.name).strip())
    following = watched.agent(name="next")
    assert watched.attached() == (0, 1, 1)
    os.kill(following.pid, signal.SIGKILL)  # in order, it would wait for a collector


def kill(process: subprocess.Popen) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def start(watched: Watched, name: str) -> subprocess.Popen:
    places = ["--socket", f"{watched.folder}/{name}.sock", "--spool", f"{watched.folder}/spool"]
    options = ["agent", "--interface", watched.right.interface, "--collector", watched.address, *places]
    with open(watched.folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            [*DIES_WITH_US, *watched.right.namespace.inside(*NETMON, *options)], stdout=log, stderr=log
        )


def test_jumbo_frames_pass_xdp_and_are_counted_whole(watched: Watched) -> None:
    for end in (watched.left, watched.right):
        end.namespace.run("ip", "link", "set", end.interface, "mtu", "9000")
    collector, agent = watched.both("--hook", "xdp")
    counts_everything(watched)
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    ledger = watched.table("ledger")
    assert ledger["attributed_bytes"].sum() == ledger["nic_bytes"].sum() > 1_000_000
    assert set(ledger["hook"]) == {"xdp", "tcx"}


def test_an_agent_whose_namespace_loses_its_name_and_its_peer_ends_in_order(watched: Watched) -> None:
    collector, agent = watched.both()
    run("ip", "netns", "del", watched.left.namespace.name)  # takes the pair with it
    run("ip", "netns", "del", watched.right.namespace.name)  # lives on, nameless, as long as the agent
    wait_for(lambda: "is gone" in agent.output())
    assert agent.status() is None
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
