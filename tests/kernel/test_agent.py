# SPDX-License-Identifier: Apache-2.0
"""The real agent and the real collector, as processes, on a veth pair between two namespaces."""

import contextlib
import dataclasses
import functools
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from pair import NETMON, Watched
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait_for

from netmon.agent.spool import summed
from netmon.agent.spool_folder import BatchTable
from netmon.errors import KernelError
from netmon.kernel import loader
from netmon.kernel.meter.memory import choose_geometry
from netmon.kernel.privilege import SERVICE_CAPABILITIES, effective_capabilities
from netmon.service import service_user

pytestmark = pytest.mark.kernel


ASK = (
    "import sys, urllib.request as u; print(u.urlopen('http://127.0.0.1:9465/' + sys.argv[1]).read().decode(), end='')"
)


@pytest.fixture
def watched(namespaces: Callable, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as cleanup:
        yield Watched(*namespaces(), tmp_path, cleanup)


def check_account(watched: Watched, before: dict[str, int], after: dict[str, int]) -> None:
    """What the NIC counted meanwhile is in the ledger and in the buckets, to the byte."""
    ledger = watched.table("ledger").groupby("direction", observed=True).sum(numeric_only=True)
    buckets = watched.table("buckets").groupby("direction", observed=True)["wire_bytes"].sum()
    for way in ("rx", "tx"):
        assert ledger.loc[way, "nic_counter_bytes"] == after[way] - before[way]
        assert ledger.loc[way, "attributed_bytes"] == ledger.loc[way, "nic_bytes"] == buckets[way]


@pytest.mark.parametrize("hook", ["tc", "xdp"])
def test_the_dataset_has_what_the_nic_counted_to_the_byte(watched: Watched, hook: str) -> None:
    collector, agent = watched.both("--hook", hook)
    before = watched.counters()
    watched.transfer()
    after = watched.settled()
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    check_account(watched, before, after)
    assert watched.attached() == (0, 0, 0)


def test_flows_name_their_process(watched: Watched) -> None:
    collector, agent = watched.both()
    watched.transfer(rate="200M")  # for a second: what is over in a few milliseconds has no socket to look up
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    flows = watched.table("flows")
    assert set(flows.loc[flows["dst_port"] == 5999, "process"]) == {"iperf3"}
    assert set(flows.loc[flows["dst_port"] == 5999, "class"]) == {"cross"}


def test_the_part_that_talks_to_the_network_has_no_capabilities_and_no_compiler(watched: Watched) -> None:
    _, agent = watched.both("--metrics", "127.0.0.1:9465")
    assert effective_capabilities(str(agent.pid)) == 0
    assert "libclang" not in Path(f"/proc/{agent.pid}/maps").read_text()
    assert "libbcc" not in Path(f"/proc/{agent.pid}/maps").read_text()
    watched.transfer(1)
    counted = watched.settled()
    ask = functools.partial(watched.right.namespace.run, sys.executable, "-c", ASK)

    def told() -> dict[str, float]:
        samples = [s for family in text_string_to_metric_families(ask("metrics")) for s in family.samples]
        return {s.labels["direction"]: s.value for s in samples if s.name == "netmon_agent_link_nic_bytes_total"}

    wait_for(lambda: told() == counted)
    assert ask("ready") == "ready\n"


def test_what_is_started_as_root_ends_as_under_its_unit(watched: Watched) -> None:
    """Both parts are another user, the one with the unit's capabilities and the other with none, for good."""
    user = service_user()
    agent = watched.agent()
    (privileged,) = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    service = sum(1 << bit for bit in SERVICE_CAPABILITIES.values()) & effective_capabilities()
    assert user
    for pid, held in ((str(agent.pid), 0), (privileged, service)):
        for task in Path(f"/proc/{pid}/task").iterdir():
            said = dict(line.split(":\t") for line in (task / "status").read_text().splitlines() if ":\t" in line)
            assert said["Uid"].split() == 4 * [str(user.uid)]
            assert said["Gid"].split() == 4 * [str(user.gid)]
            assert [int(said[name], 16) for name in ("CapPrm", "CapEff", "CapInh")] == 3 * [held]
            assert said["NoNewPrivs"] == "1"
    os.kill(agent.pid, signal.SIGKILL)


def test_the_part_without_capabilities_cannot_change_what_the_next_start_loads(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = watched.folder / "cache"
    monkeypatch.setenv("NETMON_CACHE", str(cache))
    agent = watched.agent()
    kept = list(cache.iterdir())
    assert kept
    user, script = service_user(), "import sys; open(sys.argv[1], 'r+b')"
    assert user
    assert (cache.stat().st_uid, cache.stat().st_mode & 0o777, {file.stat().st_uid for file in kept}) == (0, 0o700, {0})
    as_agent = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "/usr/bin/python3"]
    for file in kept:
        assert subprocess.run([*as_agent, "-c", script, str(file)], capture_output=True, check=False).returncode == 1
    os.kill(agent.pid, signal.SIGKILL)


def test_a_collector_that_goes_away_and_comes_back_misses_nothing(watched: Watched) -> None:
    collector, agent = watched.both()
    before = watched.counters()
    watched.transfer(5)
    collector.end_in_order(seconds=60)
    watched.transfer(5)
    assert agent.status() is None
    collector = watched.collector()
    watched.transfer(5)
    after = watched.settled()
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    check_account(watched, before, after)


def test_what_a_killed_agent_left_in_its_spool_is_sent_by_the_next(watched: Watched) -> None:
    agent = watched.agent()  # nobody collects yet
    before = watched.counters()
    watched.transfer(5)
    after = watched.settled()
    (left,) = (watched.folder / "spool-agent").glob("*.spool")
    wait_for(lambda: spooled_bytes(left, watched.folder) >= sum(after.values()) - sum(before.values()))
    os.kill(agent.pid, signal.SIGKILL)
    collector, agent = watched.both()
    wait_for(lambda: not left.exists())
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    buckets = watched.table("buckets").groupby("direction", observed=True)
    for way in ("rx", "tx"):  # what the NIC does not count is the headers of a super-packet's further segments
        sums = buckets.get_group(way)[["wire_bytes", "payload_bytes"]].sum()
        assert sums["payload_bytes"] < after[way] - before[way] <= sums["wire_bytes"]
    assert list((watched.folder / "spool-agent").iterdir()) == []


def spooled_bytes(session: Path, folder: Path) -> int:
    """Wire bytes of the buckets that wait in a living session's spool."""
    copy = folder / "copy"  # the agent holds the lock on its own
    for end in ("-wal", ""):
        shutil.copyfile(f"{session}{end}", f"{copy}{end}")
    try:
        table = BatchTable(copy)
    except sqlite3.Error:  # half a copy
        return 0
    with contextlib.closing(table):
        return int(summed([totals for *_, totals in table.batches()])["wire_bytes"].sum())


@pytest.mark.parametrize("hook", ["tc", "xdp"])
def test_a_killed_agent_leaves_nothing_attached(watched: Watched, hook: str) -> None:
    agent = watched.agent("--hook", hook)
    assert watched.attached() == ((1, 0, 1) if hook == "xdp" else (0, 1, 1))
    os.kill(agent.pid, signal.SIGKILL)
    wait_for(lambda: watched.attached() == (0, 0, 0))
    following = watched.agent("--hook", hook, name="next")
    os.kill(following.pid, signal.SIGKILL)  # in order, it would wait for a collector


def test_two_agents_count_the_same(watched: Watched) -> None:
    collector, first, second = watched.collector(), watched.agent(name="first"), watched.agent(name="second")
    assert watched.attached() == (0, 2, 2)
    watched.transfer(5)
    watched.settled()
    for agent in (first, second):
        agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    sums = watched.table("buckets").groupby(["session", "direction"], observed=True)["wire_bytes"].sum()
    for way in ("rx", "tx"):
        assert sums.xs(way, level="direction").nunique() == 1


def test_an_interrupt_ends_it_like_a_request_to_end(watched: Watched) -> None:
    collector, agent = watched.both()
    os.kill(agent.pid, signal.SIGINT)
    os.kill(agent.pid, signal.SIGTERM)  # an impatient user
    assert agent.end(seconds=60) == 0
    assert collector.end(seconds=60) == 0
    assert set(watched.table("ledger")["direction"]) == {"rx", "tx"}  # however short it was


def test_what_is_not_a_mark_is_refused_in_one_line(watched: Watched) -> None:
    collector, agent = watched.both()
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
            sender.connect(f"{watched.folder}/agent.sock")
            sender.send(b"not a mark")
    wait_for(lambda: "10 bytes that are not marks" in agent.output())
    assert agent.status() is None
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    assert agent.output().count("10 bytes that are not marks") == 1


NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
READS = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")  # also what is in root's home


def fails(*options: str, user: Sequence[str] = (), **environment: str) -> str:
    """The one line with which `netmon agent` refuses."""
    command = [*user, *NETMON, "agent", "--collector", "localhost:1", *options]
    variables = os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=variables)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.strip().splitlines()
    return line


def test_a_missing_interface_is_refused(tmp_path: Path) -> None:
    line = fails("--interface", "nope0", "--socket", str(tmp_path / "s"), "--spool", str(tmp_path))
    assert "cannot watch nope0: no such interface; there are" in line


def test_without_root_it_says_what_is_missing() -> None:
    assert "cannot load BPF programs without CAP_NET_ADMIN" in fails("--interface", "lo", user=NOBODY + READS)


def test_without_bcc_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "bcc.py").write_text("raise ImportError('No module named bcc')\n")
    places = ("--socket", str(tmp_path / "s"), "--spool", str(tmp_path / "spool"))
    line = fails("--interface", "lo", *places, PYTHONPATH=str(tmp_path))
    assert "cannot import bcc" in line
    assert "install python3-bpfcc" in line


@pytest.mark.parametrize("width", ["10ns", "2s", "wide"])
def test_a_bucket_out_of_range_is_refused(tmp_path: Path, width: str) -> None:
    line = fails("--interface", "lo", "--bucket", width, "--socket", str(tmp_path / "s"), "--spool", str(tmp_path))
    assert "bucket" in line or "duration" in line


def test_more_flows_than_memory_holds_are_refused(tmp_path: Path) -> None:
    line = fails("--interface", "lo", "--flows", "1e12", "--socket", str(tmp_path / "s"), "--spool", str(tmp_path))
    assert "give a smaller --flows" in line


def test_what_the_compiler_or_the_verifier_says_is_shown() -> None:
    geometry = dataclasses.replace(choose_geometry(10_000), bucket_ns=0)
    with pytest.raises(KernelError, match=r"cannot load the BPF programs: .* zero"):
        loader.load(geometry)


def test_a_spool_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = fails("--interface", "lo", "--socket", str(tmp_path / "s"), "--spool", str(tmp_path / "file"))
    assert "as a spool" in line
