# SPDX-License-Identifier: Apache-2.0
"""What is posted to RDMA devices: told of each queue pair to the byte, as the program and the meter count it.

The device is a stand-in: a libibverbs and a provider with the real ones' tables, which move what is posted over TCP.
"""

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import End
from pair import Watched

from netmon.kernel import loader, machine, verbs
from netmon.kernel.meter.memory import choose_geometry
from netmon.kernel.processes import ProcessTable
from netmon.lab.network import Host
from netmon.lab.process import Process

pytestmark = pytest.mark.kernel

SOURCES = Path(__file__).with_name("verbs")
PORT = 6001
_PATIENCE_S = 60


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, with its libraries beside it."""
    folder = tmp_path_factory.mktemp("verbs")
    os.chmod(folder, 0o755)
    flags = ["cc", "-O2", "-Wall", "-Werror"]
    shared = [*flags, "-shared", "-fPIC"]
    versions = f"-Wl,-soname,libibverbs.so.1,--version-script={SOURCES}/libibverbs.map"
    library, built = folder / "libibverbs.so.1", folder / "program"
    for command in (
        [*shared, versions, "-o", library, SOURCES / "libibverbs.c", "-ldl"],
        [*shared, "-s", "-o", folder / "libstandin-rdmav34.so", SOURCES / "provider.c"],
        [*flags, "-o", built, SOURCES / "program.c", library, "-lpthread"],
    ):
        subprocess.run(command, check=True)
    return built


class Posting:
    """The program, posting by its schedule from the watched host."""

    def __init__(self, watched: Watched, program: Path, cleanup: ExitStack, **environment: str) -> None:
        self._watched, self._program, self._cleanup = watched, program, cleanup
        self._environment = {"LD_LIBRARY_PATH": str(program.parent)} | environment

    def begin(self, name: str, pairs: int, calls: int, pause_us: int = 0, way: str = "post") -> subprocess.Popen:
        """Returns when its queue pairs are ready; it goes on when it is told a line. way: "post" or "build"."""
        self.account = self._watched.folder / f"{name}.account"
        where = [self._watched.left.address, str(PORT), str(pairs), str(calls), str(pause_us), str(self.account)]
        command = self._watched.right.namespace.inside(str(self._program), way, *where)
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ) | self._environment,
        )
        self._cleanup.callback(ended, child)
        assert line(child) == "ready"
        return child


def line(child: subprocess.Popen) -> str:
    assert child.stdout
    return child.stdout.readline().strip()


def ended(child: subprocess.Popen) -> None:
    child.kill()
    child.communicate()


def told_a_line(child: subprocess.Popen) -> None:
    assert child.stdin
    child.stdin.write("\n")
    child.stdin.flush()


def posted_by(child: subprocess.Popen) -> pd.DataFrame:
    """What it says that it has posted, by queue pair and kind: rows of (bytes, requests)."""
    told_a_line(child)
    rows = []
    while (said := line(child)) != "posted":
        queue, kind, count, requests = said.split()
        rows.append((int(queue), kind, int(count), int(requests)))
    told = pd.DataFrame(rows, columns=["queue", "verb", "bytes", "requests"])
    return sums(told[told["requests"] > 0])


def sums(rows: pd.DataFrame) -> pd.DataFrame:
    keys = [rows["queue"].astype("int64"), rows["verb"].astype(str)]
    return rows.groupby(keys)[["bytes", "requests"]].sum().sort_index()


def start(watched: Watched, program: Path, cleanup: ExitStack, monkeypatch: pytest.MonkeyPatch) -> tuple[Process, ...]:
    """Collector, agent and the other end; somebody has opened a device, so that it is known where it posts."""
    monkeypatch.setenv(verbs.EVERYWHERE, "1")
    collector, agent = watched.both()
    left = Host("left", watched.left.namespace.name, watched.left.address)
    command = [str(program), "serve", watched.left.address, str(PORT)]
    environment = {"LD_LIBRARY_PATH": str(program.parent)}
    server = cleanup.enter_context(Process("server", command, watched.folder, host=left, environment=environment))
    server.wait_output("listening", _PATIENCE_S)
    first = Posting(watched, program, cleanup).begin("first", 1, 0)
    agent.wait_output("probing .*libibverbs", _PATIENCE_S)
    first.kill()
    second = Posting(watched, program, cleanup).begin("second", 1, 0)
    for way in ("posted", "built"):
        agent.wait_output(f"probing .*libstandin.* that are {way}", _PATIENCE_S)
    second.kill()
    return collector, agent


def test_what_processes_post_in_either_way_is_told_to_the_byte_with_its_owner_and_peer(
    namespaces: Callable, tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as cleanup:
        watched = Watched(*namespaces(), tmp_path, cleanup)
        collector, agent = start(watched, program, cleanup, monkeypatch)
        rank = {"RANK": "1", "WORLD_SIZE": "2", "NETMON_JOB": "train"}
        children = [
            Posting(watched, program, cleanup, **rank).begin("rank", 5, 300, 300),
            Posting(watched, program, cleanup).begin("storage", 2, 200, 300),
            Posting(watched, program, cleanup).begin("builder", 3, 300, 300, way="build"),
        ]
        said = [posted_by(child) for child in children]
        time.sleep(2.5)
        for child in children:
            told_a_line(child)
            child.wait(_PATIENCE_S)
        agent.end_in_order(seconds=_PATIENCE_S)
        collector.end_in_order(seconds=_PATIENCE_S)
    rows, flows = watched.table("rdma"), watched.table("flows")
    sent_again = sum(retransmitted(end) for end in (watched.left, watched.right))
    for child, own in zip(children, said, strict=True):
        told = rows[rows["pid"] == child.pid]
        pd.testing.assert_frame_equal(sums(told), own, check_names=False, check_dtype=False)
        assert told["whole"].all()
        assert (told["unread"] == 0).all()
        assert (told["end_ns"] > told["start_ns"]).all()
        assert set(told["rdma_device"]) == {"standin0"}
        assert set(told["remote"]) == {watched.left.address}
        assert (told["remote_queue"] == told["queue"] + 84).all()  # 100 and up where its own are 16 and up
        assert set(told["process"]) == {"program"}
        assert set(told["user"]) == {"root"}
        # What the stand-in moves over TCP is the same, as the meter counts it.
        sent = own[own.index.get_level_values(1).isin(["send", "write"])]["bytes"].sum()
        read = own[own.index.get_level_values(1) == "read"]["bytes"].sum()
        metered = _payload(watched, flows[flows["pid"] == child.pid]["flow_id"])
        for counted, own_count in ((metered["tx", PORT], sent), (metered["rx", PORT + 1], read)):
            assert counted == own_count or (sent_again and counted > own_count)
    of_rank = rows[rows["pid"] == children[0].pid]
    assert set(of_rank["job"]) == {"train"}
    assert set(of_rank["rank"]) == {1}
    assert set(rows[rows["pid"].isin([child.pid for child in children[1:]])]["job"]) == {""}


def retransmitted(end: End) -> int:
    """Segments that TCP has sent again there: on a busy machine it does."""
    names, values = (text.split() for text in end.namespace.run("cat", "/proc/net/snmp").splitlines() if "Tcp:" in text)
    return int(values[names.index("RetransSegs")])


def _payload(watched: Watched, flow_ids: pd.Series) -> dict[tuple[str, int], int]:
    """Payload of these flows by direction and the other end's port."""
    flows, buckets = watched.table("flows"), watched.table("buckets")
    joined = buckets[buckets["flow_id"].isin(flow_ids)].merge(flows, on=["flow_id", "direction"], suffixes=("", "_"))
    port = joined["dst_port"].where(joined["direction"] == "tx", joined["src_port"])
    return joined.groupby([joined["direction"].astype(str), port])["payload_bytes"].sum().to_dict()


def test_of_a_process_that_is_killed_everything_that_it_posted_is_told(
    namespaces: Callable, tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as cleanup:
        watched = Watched(*namespaces(), tmp_path, cleanup)
        collector, agent = start(watched, program, cleanup, monkeypatch)
        posting = Posting(watched, program, cleanup)
        child = posting.begin("killed", 3, 1_000_000, 500)
        told_a_line(child)
        time.sleep(2)
        child.kill()
        child.wait()
        account = np.fromfile(posting.account, np.uint64).reshape(-1, 2)
        agent.end_in_order(seconds=_PATIENCE_S)
        collector.end_in_order(seconds=_PATIENCE_S)
    rows = watched.table("rdma")
    told = rows[rows["pid"] == child.pid].groupby("queue")["bytes"].sum().sort_index()
    begun, ended = account[:3].astype(np.int64).T
    assert len(told) == 3
    assert (told.to_numpy() <= begun).all()
    assert (told.to_numpy() >= ended).all()
    assert (begun - ended > 0).sum() <= 1  # in the midst of one call at most


class Counting:
    """The privileged part's counts, without an agent."""

    def __init__(self, program: Path, cleanup: ExitStack) -> None:
        self._program, self._cleanup = program, cleanup
        programs = loader.load(choose_geometry(10_000, 1, 0))
        self._processes = ProcessTable()
        self.verbs = verbs.Verbs(programs, self._processes)
        for descriptor in programs.values():
            cleanup.callback(os.close, descriptor)
        cleanup.callback(self.verbs.close)
        self.warnings: list[str] = []

    def look(self, child: subprocess.Popen) -> None:
        self._processes.scan(time.monotonic_ns())
        self.verbs.follow([child.pid])
        self.warnings += self.verbs.warnings()

    def begin(self, what: str, count: int) -> subprocess.Popen:
        """A hostile program that is ready, and has been looked at since it began."""
        environment = dict(os.environ) | {"LD_LIBRARY_PATH": str(self._program.parent)}
        command = [str(self._program), what, str(count)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self._cleanup.callback(ended, child)
        assert child.stdout
        while not select.select([child.stdout], [], [], 0.01)[0]:
            self.look(child)
        assert line(child) == "ready"
        self.look(child)
        return child

    def known(self) -> None:
        """Once it is known where processes of this provider post, all that follow are seen from their first post on."""
        deadline = time.monotonic() + _PATIENCE_S
        while {verbs.WAYS[way] for *_, way in self.verbs._functions} != {*verbs.WAYS}:
            assert time.monotonic() < deadline
            self.begin("nothing", 0).kill()

    def rows(self) -> list[verbs.Posted]:
        found, more = list[verbs.Posted](), True
        while more:
            rows, _, more = self.verbs.read()
            assert len(rows) <= verbs.MOST_ROWS
            found += rows
        self.warnings += self.verbs.warnings()
        return found


@pytest.fixture
def counting(program: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    monkeypatch.setenv(verbs.EVERYWHERE, "1")
    with ExitStack() as cleanup:
        found = Counting(program, cleanup)
        found.known()
        yield found


def posted(counting: Counting, what: str, count: int) -> tuple[subprocess.Popen, list[verbs.Posted]]:
    """All of a hostile program's rows."""
    child = counting.begin(what, count)
    told_a_line(child)
    assert line(child) == "posted"
    return child, counting.rows()


def probed(counting: Counting, program: str) -> list[int]:
    """Offsets of the functions that this program counts."""
    return [offset for _, _, offset, way in counting.verbs._functions if verbs.WAYS[way] == program]


def test_tables_and_lists_that_lead_nowhere_count_as_what_could_not_be_read(counting: Counting) -> None:
    child, rows = posted(counting, "tables", 1)
    assert [(row.pid, row.bytes, row.requests, row.unread) for row in rows] == [(child.pid, 0, 1, 2)]


def test_lengths_beyond_all_measure_are_summed_and_lists_that_are_too_long_are_said(counting: Counting) -> None:
    _, rows = posted(counting, "huge", 10)
    assert [(row.bytes, row.requests, row.unread) for row in rows] == [(11 * 16 * (2**32 - 1), 11, 1)]


def test_a_list_that_is_a_circle_is_read_so_far_and_said(counting: Counting) -> None:
    _, rows = posted(counting, "circle", 1)
    assert [(row.bytes, row.requests, row.unread) for row in rows] == [(16 * 1000, 16, 1)]


def test_what_is_given_up_while_it_is_built_is_said(counting: Counting) -> None:
    _, rows = posted(counting, "abort", 10)
    assert [(verbs.KINDS[row.kind], row.bytes, row.requests, row.unread) for row in rows] == [("write", 10_000, 10, 10)]


def test_nonsense_that_is_built_is_counted_as_far_as_it_is_read(counting: Counting) -> None:
    _, rows = posted(counting, "built", 1)
    found = {(row.device, row.bytes, row.requests, row.unread) for row in rows}
    assert found == {("standin0", 3 + 7 + 16 * (2**32 - 1), 1, 1), ("", 0, 1, 0)}


def test_of_ten_thousand_queue_pairs_each_is_told_and_forgotten_when_its_process_ends(counting: Counting) -> None:
    child, rows = posted(counting, "many", 10_000)
    assert [(row.bytes, row.requests, row.whole) for row in rows] == [(1000, 1, True)] * 10_000
    assert len({row.queue for row in rows}) == 10_000
    assert counting.rows() == []
    child.kill()
    child.wait()
    for _ in range(2):
        assert counting.rows() == []
    assert child.pid not in counting.verbs._entries()[0]["pid"]
    assert counting.warnings == []


def test_who_lies_about_where_it_posts_gets_no_probe_into_the_midst_of_code_nor_into_other_libraries(
    counting: Counting,
) -> None:
    child = counting.begin("lie", 100_000)
    told_a_line(child)
    assert line(child) == "told"
    deadline = time.monotonic() + _PATIENCE_S
    while len(counting.warnings) < 2 or len(probed(counting, "verbs_post")) < 2:
        assert time.monotonic() < deadline
        counting.look(child)
    text = "\n".join(counting.warnings)
    assert "no function" in text  # a byte behind its beginning
    assert "libc" in text
    assert "no provider's library" in text
    assert len(probed(counting, "verbs_post")) == 2  # the true one, and one that it does not post by
    counting.rows()
    told_a_line(child)
    for _ in range(100):
        time.sleep(0.1)
        counting.rows()
        if len(probed(counting, "verbs_post")) == 1:
            break
    assert len(probed(counting, "verbs_post")) == 1
    assert "is not counted any more" in "\n".join(counting.warnings)


def test_who_has_ended_without_a_queue_pair_is_forgotten_too(counting: Counting) -> None:
    """Whoever has its number next would be told as what it was."""
    child = subprocess.Popen(["sleep", "60"])
    counting.look(child)
    assert counting.verbs._remember(child.pid)
    counting.verbs._miss(child.pid, "it posts by something that is no function")
    ended(child)
    for _ in range(2):
        counting.rows()
    assert child.pid not in counting.verbs._since_of.keys() | counting.verbs._of.keys()


def test_without_a_device_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    if verbs.DEVICES.exists() and any(verbs.DEVICES.iterdir()):
        pytest.skip("there is an RDMA device")
    monkeypatch.delenv(verbs.EVERYWHERE, raising=False)
    programs = loader.load(choose_geometry(10_000, 1, 0))
    for descriptor in programs.values():
        os.close(descriptor)
    assert not programs.keys() & {*verbs.PROGRAMS, *verbs.MAPS}


def test_the_doctor_says_who_uses_rdma_and_by_which_provider(counting: Counting) -> None:
    child = counting.begin("nothing", 0)
    user = next(user for user in verbs.users() if user.pid == child.pid)
    assert user == verbs.User(child.pid, "program", 0, ("libstandin-rdmav34.so",), True)
    (check,) = [check for check in machine.machine_checks() if check.name == "RDMA"]
    assert f"program ({child.pid}): counted, by libstandin-rdmav34.so" in check.detail
