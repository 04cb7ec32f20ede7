# SPDX-License-Identifier: Apache-2.0
"""What NCCL's proxies send, as the probes tell it, against their own count and the meter's; libraries that are not what
they seem to be.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stand_in_nccl
from pair import Watched

from netmon.kernel import bpf_calls, loader
from netmon.kernel.meter.memory import RingBuffer, choose_geometry
from netmon.kernel.training.nccl import EACH, OPERATIONS, Library, NcclTransfers
from netmon.lab.nccl_library import Version, build
from netmon.records import (
    TRANSFER,
    TRANSFER_IMPLAUSIBLE,
    TRANSFER_LAYOUT,
    TRANSFER_ONE,
    TRANSFER_UNREPORTED,
    TRANSFER_UNREPORTED_BYTES,
    Table,
)

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no cc"),
    pytest.mark.skipif(not bpf_calls.has_uprobe_links(), reason="this kernel cannot distinguish probes"),
]

ALL_REDUCE, ALL_GATHER = 5, 3  # as we number them; NCCL: 4 and 2


class Rank:
    """A process that uses a library; its calls are answered one by one."""

    def __init__(self, library: Path, *before: str, **environment: str) -> None:
        """before: what starts it."""
        command = [*before, sys.executable, stand_in_nccl.__file__, str(library)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=os.environ | environment, **pipes)
        assert self.hear() == "mapped"

    def ask(self, *call: Any) -> None:
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        return json.loads(self.process.stdout.readline() or "null")

    def call(self, *call: Any) -> Any:
        self.ask(*call)
        return self.hear()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Seen:
    """The probes on a library, and what they tell, without an agent."""

    def __init__(self, wanted: int) -> None:
        geometry = choose_geometry(10_000)
        for descriptor in loader.load(geometry).values():  # what is compiled is kept
            os.close(descriptor)
        self._loaded: dict[str, int] = {}
        self.nccl = NcclTransfers(lambda: self._load(geometry), wanted)
        self.files: list[tuple[int, int]] = []
        self._ring: RingBuffer | None = None
        self._told = [np.zeros(0, TRANSFER)]

    def _load(self, geometry: Any) -> dict[str, int]:
        self._loaded = loader.load_collectives(geometry)
        return self._loaded

    def probe(self, library: Path) -> list[str]:
        """What is said of it, once it is known; empty: it is probed."""
        status = library.stat()
        file = status.st_dev, status.st_ino
        self.files.append(file)
        descriptor = os.open(library, os.O_RDONLY)
        self.nccl.take(Library(file, 0, str(library), descriptor, lambda _: True, True))
        warnings, until = list[str](), time.monotonic() + 30
        while not warnings and file not in self.nccl._probed and time.monotonic() < until:
            self.follow()
            warnings += self.nccl.warnings()
            time.sleep(0.02)
        return warnings

    def follow(self) -> None:
        self.nccl.follow(self.files, lambda uid, cost_ns: None)
        if maps := self.nccl.hand_over():
            self._ring = RingBuffer(maps[0], loader.TRANSFER_RING_BYTES, TRANSFER)
            for descriptor in maps:
                os.close(descriptor)

    def close(self) -> None:
        self.nccl.close()
        if self._ring is not None:
            self._ring.close()

    def count(self, which: int) -> int:
        entry = bpf_calls.array_entry(self._loaded["transfer_counts"], which, 8)
        return int.from_bytes(entry, "little")

    def told(self, pid: int) -> Table:
        """All rows of a process so far."""
        self._told.append(self._ring.take() if self._ring is not None else np.zeros(0, TRANSFER))
        rows = np.concatenate(self._told)
        return rows[rows["pid"] == pid]


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def seen(cleanup: ExitStack) -> Seen:
    seen = Seen(OPERATIONS)
    cleanup.callback(seen.close)
    return seen


def a_rank(cleanup: ExitStack, library: Path) -> Rank:
    rank = Rank(library)
    cleanup.callback(rank.close)
    return rank


@pytest.mark.parametrize(
    "version", [Version(), Version(turned=True), Version(total=True), Version(total=True, turned=True)]
)
def test_operations_have_the_bytes_of_their_transfers(
    tmp_path: Path, cleanup: ExitStack, seen: Seen, version: Version
) -> None:
    rank = a_rank(cleanup, build(tmp_path, version))
    assert seen.probe(tmp_path / "libnccl.so.2") == []
    ends = [rank.call("end", -1, sends, 5, 7, channel) for sends, channel in ((1, 0), (0, 0), (1, 11))]
    operations = [[1000 + n, 2 * n, 12345] for n in range(1, 40)]
    own = rank.call("operate", 100, 4, operations, ends)
    rows = seen.told(rank.process.pid)
    assert len(rows) == len(ends) * len(operations)
    assert rows["bytes"].sum() == sum(bytes_ for bytes_, _ in own)
    assert rows["transfers"].sum() == sum(transfers for _, transfers in own)
    assert not rows["missed"].any()
    assert set(rows["operations"]) == {1}
    assert [set(rows[name]) for name in ("rank", "peer", "device", "collective", "algorithm", "protocol")] == [
        *({5}, {7}, {3}, {ALL_REDUCE}, {1}, {2})
    ]
    assert len(set(rows["thread"])) == 3
    for sends, channel, (bytes_, _) in zip((1, 0, 1), (0, 0, 11), own, strict=True):
        of_end = rows[(rows["receives"] != sends) & (rows["channel"] == channel)]
        assert of_end["bytes"].sum() == bytes_
        assert of_end["number"].tolist() == list(range(100, 100 + len(operations)))
        assert of_end["bytes"].tolist() == [sum(sizes) for sizes in operations]
        assert (of_end["queued_ns"] <= of_end["start_ns"]).all()
        assert (of_end["start_ns"] <= of_end["end_ns"]).all()
        assert (np.diff(of_end["end_ns"].astype(np.int64)) > 0).all()


def test_nothing_is_probed_that_spins(tmp_path: Path, cleanup: ExitStack, seen: Seen) -> None:
    """The stand-in tells 50 times that its peer is not ready, before each transfer."""
    rank = a_rank(cleanup, build(tmp_path, Version()))
    seen.probe(tmp_path / "libnccl.so.2")
    before = seen.count(0)
    rank.call("operate", 0, 4, [[1] * 20] * 10, [rank.call("end", -1, 1, 0, 1, 0)])
    assert seen.count(0) - before == 200


def test_each_transfer_is_told_where_that_is_wanted(tmp_path: Path, cleanup: ExitStack) -> None:
    seen = Seen(EACH)
    cleanup.callback(seen.close)
    rank = a_rank(cleanup, build(tmp_path, Version()))
    assert seen.probe(tmp_path / "libnccl.so.2") == []
    ends = [rank.call("end", -1, sends, 0, 1, 0) for sends in (1, 0)]
    operations = [[100 + n, 7, 9000 + n] for n in range(30)]
    own = rank.call("operate", 0, 4, operations, ends)
    rows = seen.told(rank.process.pid)
    single = rows[rows["level"] == TRANSFER_ONE]
    for sends in (1, 0):
        of_way = single[single["receives"] != sends]
        assert of_way["bytes"].tolist() == [size for sizes in operations for size in sizes]
        assert (of_way["start_ns"] < of_way["end_ns"]).all()
        assert (of_way["start_ns"][1:] >= of_way["end_ns"][:-1]).all()
    assert rows["bytes"].sum() == sum(bytes_ for bytes_, _ in own)
    assert not rows["bytes"][rows["level"] != TRANSFER_ONE].any()


def test_one_who_is_killed_has_told_what_was_over(tmp_path: Path, cleanup: ExitStack, seen: Seen) -> None:
    library = build(tmp_path, Version())
    rank, after = (a_rank(cleanup, library) for _ in range(2))
    seen.probe(library)
    end = rank.call("end", -1, 1, 0, 1, 0)
    rank.ask("repeat", end, 100_000_000, [1000] * 4)
    time.sleep(0.3)
    rank.process.kill()
    rank.process.wait()
    rows = seen.told(rank.process.pid)
    assert len(rows)
    assert (rows["bytes"] == rows["transfers"].astype(np.uint64) * 1000).all()
    assert (rows["transfers"] == 4 * rows["operations"]).all()
    own = after.call("operate", 0, 4, [[5]], [after.call("end", -1, 1, 0, 1, 0)])
    assert seen.told(after.process.pid)["bytes"].sum() == own[0][0] == 5


def test_an_agent_tells_of_jobs_that_run_what_they_send(
    namespaces: Callable, tmp_path: Path, cleanup: ExitStack
) -> None:
    """Ranks 1 and 2, one of them in a mount namespace of its own, send to rank 0 on another host over TCP, each in two
    communicators: the rows have what the ranks have counted, and what the meter has, to the byte.
    """
    watched = Watched(*namespaces(), tmp_path, cleanup)
    library = build(tmp_path / "library", Version(turned=True))
    apart = tmp_path / "apart"
    apart.mkdir()
    script = f'mount -t tmpfs none {apart} && cp {library} {apart}/ && exec "$@"'
    inside = ["unshare", "-m", "sh", "-c", script, "sh"]
    ranks = []
    for number, (end, path, before) in enumerate(
        (
            (watched.left, library, []),
            (watched.right, apart / library.name, inside),
            (watched.right, library, []),
        )
    ):
        own = {"RANK": str(number), "WORLD_SIZE": "3", "NETMON_JOB": "job"}
        ranks.append(Rank(path, *end.namespace.inside(*before), **own))
        cleanup.callback(ranks[-1].close)
    receiver, *senders = ranks
    receives: list[int] = []
    for number, sender in enumerate(senders, 1):
        receiver.ask("listen", watched.left.address, 7777, 2)
        assert receiver.hear() == "listens"
        sender.call("connect", watched.left.address, 7777, 2)
        assert receiver.hear() == 2
        # The second communicator counts its ranks the other way round.
        for n, rank in enumerate((number, 9 - number)):
            sender.call("end", n, 1, rank, 4, n)
            receives.append(receiver.call("end", len(receives), 0, 4, rank, n))
    time.sleep(1.5)  # they have run for a while
    collector, agent = watched.both()
    began = time.monotonic()
    agent.wait_output(r"(probing .* for what it sends[^~]*){2}", 30)
    print(f"both are probed {time.monotonic() - began:.2f} s after the agent was ready")
    operations = [[1 << 17, 1 << 17, 1 << 10, n] for n in range(1, 26)]
    receiver.ask("operate", 0, 2, operations, receives)
    for sender in senders:
        sender.ask("operate", 0, 2, operations, [0, 1])
    sent = [sender.hear() for sender in senders]
    received = receiver.hear()
    assert sent == [received[:2], received[2:]]
    until = time.monotonic() + 60
    while len(watched.table("transfers")) < 4 * len(operations) and time.monotonic() < until:  # it is stored
        time.sleep(0.2)
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    rows = watched.table("transfers")
    assert len(rows) == 4 * len(operations)
    for name, value in (("job", "job"), ("host", "right"), ("collective", ALL_GATHER), ("missed", 0), ("sends", 1)):
        assert set(rows[name]) == {value}
    for number, own in enumerate(sent, 1):
        of_rank = rows[rows["rank"] == number]
        assert of_rank["bytes"].sum() == sum(bytes_ for bytes_, _ in own)
        assert of_rank["transfers"].sum() == sum(transfers for _, transfers in own)
        assert of_rank["communicator"].nunique() == 2
        assert set(of_rank["group_rank"]) == {number, 9 - number}
        for _, of_one in of_rank.groupby("communicator"):
            assert of_one["bytes"].sum() == own[0][0]
            assert of_one[["group_rank", "peer", "channel"]].nunique().tolist() == [1, 1, 1]
    flows = watched.table("flows")
    connections = flows[(flows["dst_port"] == 7777) & (flows["direction"] == "tx")]
    buckets = watched.table("buckets")
    of_ranks = buckets[(buckets["direction"] == "tx") & buckets["flow_id"].isin(connections["flow_id"])]
    again = watched.table("transport")["retransmitted_bytes"].sum()
    assert of_ranks["payload_bytes"].sum() - again == rows["bytes"].sum()


def test_what_was_going_on_when_it_was_probed_says_what_was_missed(
    tmp_path: Path, cleanup: ExitStack, seen: Seen
) -> None:
    rank = a_rank(cleanup, build(tmp_path, Version()))
    end = rank.call("end", -1, 1, 0, 1, 0)
    rank.ask("operate", 0, 4, [[10] * 100_000] * 5, [end])
    seen.probe(tmp_path / "libnccl.so.2")
    bytes_, transfers = rank.hear()[0]
    rows = seen.told(rank.process.pid)
    assert (rows["transfers"] + rows["missed"] == 100_000).all()
    assert (rows["bytes"] == 10 * rows["transfers"].astype(np.uint64)).all()
    assert not rows["missed"][1:].any()
    assert bytes_ == 10 * transfers


def test_more_operations_than_may_be_told_become_one_row(tmp_path: Path, cleanup: ExitStack, seen: Seen) -> None:
    rank = a_rank(cleanup, build(tmp_path, Version(total=True)))
    seen.probe(tmp_path / "libnccl.so.2")
    end = rank.call("end", -1, 1, 0, 1, 0)
    bytes_, transfers = rank.call("repeat", end, 200_000, [64])
    rows = seen.told(rank.process.pid)
    assert len(rows) < 20_000
    assert rows["bytes"].sum() + seen.count(TRANSFER_UNREPORTED_BYTES) == bytes_ == 200_000 * 64
    assert rows["operations"].sum() + seen.count(TRANSFER_UNREPORTED) == transfers == 200_000


def test_a_governor_lets_transfers_go_and_says_so(tmp_path: Path, cleanup: ExitStack, seen: Seen) -> None:
    """400,000 transfers a second, as fast as they come."""
    rank = a_rank(cleanup, build(tmp_path, Version()))
    seen.probe(tmp_path / "libnccl.so.2")
    seen.nccl._most_traps = 1000.0
    end = rank.call("end", -1, 1, 0, 1, 0)
    rank.ask("repeat", end, 4_000, [64] * 1_000)
    said, until = list[str](), time.monotonic() + 20
    while not said and time.monotonic() < until:
        time.sleep(0.1)
        seen.follow()
        said += seen.nccl.warnings()
    assert "operations are reported without their bytes" in said[0]
    traps = seen.count(0)
    bytes_, transfers = rank.hear()
    assert seen.count(0) - traps < 1000  # those that were under way
    rows = seen.told(rank.process.pid)
    assert rows["transfers"].sum() + rows["missed"].sum() == transfers
    assert 0 < rows["bytes"].sum() < bytes_
    assert rows["missed"][-1]
    assert not rows["transfers"][-1]


def test_a_library_without_its_debug_information_is_one_that_is_known(
    tmp_path: Path, cleanup: ExitStack, seen: Seen
) -> None:
    built = build(tmp_path / "whole", Version(turned=True))
    without, stripped = tmp_path / "libnccl.so.2", tmp_path / "stripped" / "libnccl.so.2"
    stripped.parent.mkdir()
    subprocess.run(["strip", "-g", "-o", without, built], check=True)
    subprocess.run(["strip", "-o", stripped, built], check=True)
    (said,) = seen.probe(without)
    assert "no debug information" in said
    assert seen.probe(built) == []
    seen.files.pop(0)
    assert seen.probe(without) == []
    (said,) = seen.probe(stripped)
    assert "it is stripped" in said
    rank = a_rank(cleanup, without)
    own = rank.call("operate", 0, 4, [[5, 6]], [rank.call("end", -1, 1, 0, 1, 0)])
    assert seen.told(rank.process.pid)["bytes"].sum() == own[0][0] == 11


@pytest.mark.parametrize(
    ("reason", "replaced"),
    [
        ("transSize has 4 bytes and not 8", ("size_t transSize", "int transSize")),
        ("do not begin with their subs", ("struct ncclProxyArgs {", "struct ncclProxyArgs {\n\tlong before;")),
        ("do not begin with their subs", ("subs[64]", "subs[300]")),
        ("has 2097", ("char map[1400]", "char map[2097152]")),
        ("sliceSteps is a part of a byte", ("int sliceSteps", "int sliceSteps : 31")),
    ],
)
def test_nonsense_is_unknown(tmp_path: Path, seen: Seen, reason: str, replaced: tuple[str, str]) -> None:
    (said,) = seen.probe(build(tmp_path, Version(replaced=replaced)))
    assert "unknown" in said
    assert reason in said


def test_garbage_for_debug_information_is_unknown(tmp_path: Path, seen: Seen) -> None:
    built = build(tmp_path / "whole", Version())
    sections = subprocess.run(["readelf", "-SW", built], capture_output=True, text=True, check=True).stdout
    (line,) = (line.split("]")[1].split() for line in sections.splitlines() if " .debug_info" in line)
    offset, size = int(line[3], 16), int(line[4], 16)
    image = built.read_bytes()
    noise = np.random.default_rng(1)
    for number in range(5):
        broken = tmp_path / str(number) / "libnccl.so.2"
        broken.parent.mkdir()
        part = np.frombuffer(image[offset : offset + size], np.uint8).copy()
        at = noise.integers(12, size, size // 8)
        part[at] = noise.integers(0, 256, len(at))
        broken.write_bytes(image[:offset] + part.tobytes() + image[offset + size :])
        assert all("unknown" in said for said in seen.probe(broken))


def test_arguments_that_are_no_operation_are_counted(tmp_path: Path, cleanup: ExitStack, seen: Seen) -> None:
    library = build(tmp_path, Version())
    rank = a_rank(cleanup, library)
    seen.probe(library)
    (probed,) = seen.nccl._probed.values()
    nonsense = np.zeros(1, TRANSFER_LAYOUT)  # no operation has a sub
    bpf_calls.set_array_entry(seen._loaded["layouts"], probed.number, nonsense.tobytes())
    rank.call("operate", 0, 4, [[5, 6]], [rank.call("end", -1, 1, 0, 1, 0)])
    assert seen.count(TRANSFER_IMPLAUSIBLE)
    assert not len(seen.told(rank.process.pid))
