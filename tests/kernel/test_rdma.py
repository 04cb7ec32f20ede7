# SPDX-License-Identifier: Apache-2.0
"""What is posted to a real RDMA device: RDMA over Ethernet in software (rxe), between two namespaces.

`make test-rdma` boots a kernel that has it. Who counts: perftest, which posts lists of requests, and a program that
builds them one after the other, which both know what they have posted; netmon's table of queue pairs; the device; and
the meter, since rxe's packets are UDP datagrams. All of them have to agree, to the packet.
"""

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import End, Network

from netmon.kernel import loader, verbs
from netmon.kernel.meter.memory import choose_geometry
from netmon.kernel.processes import ProcessTable

pytestmark = [pytest.mark.kernel, pytest.mark.rdma]

PORT = 4791  # of RoCEv2 (InfiniBand Architecture Specification, annex 17)
MTU = 1024  # of RDMA, on Ethernet with 1,500 bytes
BTH, RETH, AETH, ICRC = 12, 16, 4, 4  # headers in bytes: of every packet, of a request, of a response; checksum
IP_AND_UDP = 20 + 8
PATIENCE_S = 120

# One end of a queue pair, at a device and the place of its address, which says what the other end has to know and reads
# what it says. After another line it posts so many lists of requests, each as BUILT has it, one after the other.
BUILDER = """
import json, sys
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.libibverbs_enums import (
    ibv_access_flags, ibv_mtu, ibv_qp_create_send_ops_flags, ibv_qp_init_attr_mask, ibv_qp_type, ibv_send_flags,
    ibv_wc_status,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR
device, index, lists, requests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
context = Context(name=device)
domain, queue = PD(context), CQ(context, 512)
access = ibv_access_flags.IBV_ACCESS_LOCAL_WRITE | ibv_access_flags.IBV_ACCESS_REMOTE_WRITE
memory = MR(domain, 1 << 16, access | ibv_access_flags.IBV_ACCESS_REMOTE_READ)
wanted = ibv_qp_create_send_ops_flags
pair = QPEx(context, QPInitAttrEx(
    qp_type=ibv_qp_type.IBV_QPT_RC, scq=queue, rcq=queue, pd=domain,
    cap=QPCap(max_send_wr=64, max_recv_wr=256, max_send_sge=2, max_recv_sge=1, max_inline_data=64),
    comp_mask=ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD | ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    send_ops_flags=wanted.IBV_QP_EX_WITH_SEND | wanted.IBV_QP_EX_WITH_RDMA_WRITE | wanted.IBV_QP_EX_WITH_RDMA_READ,
))
gid = str(context.query_gid(1, index))
print(json.dumps([pair.qp_num, gid, memory.rkey, memory.buf]), flush=True)
number, gid, key, address = json.loads(sys.stdin.readline())
attributes = QPAttr(port_num=1)
attributes.qp_access_flags = access | ibv_access_flags.IBV_ACCESS_REMOTE_READ
attributes.path_mtu = ibv_mtu.IBV_MTU_1024
attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = number, 0, 0
attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
attributes.min_rnr_timer, attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 12, 14, 7, 7
attributes.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=GID(gid), sgid_index=index))
pair.to_rts(attributes)
def part(length):
    return SGE(memory.buf, length, memory.lkey)
for _ in range(lists):
    pair.post_recv(RecvWR(sg=[part(1 << 16)], num_sge=1))
print("ready", flush=True)
posts = sys.stdin.readline().strip() == "post"
for _ in range(lists if posts else 0):
    pair.wr_start()
    for kind, length, inline in requests:
        pair.wr_flags = ibv_send_flags.IBV_SEND_SIGNALED | (ibv_send_flags.IBV_SEND_INLINE if inline else 0)
        if kind == "send":
            pair.wr_send()
        else:
            {"write": pair.wr_rdma_write, "read": pair.wr_rdma_read}[kind](key, address)
        if inline:
            pair.wr_set_inline_data(memory.buf, length)
        else:
            pair.wr_set_sge(part(length))
    pair.wr_complete()
    left = len(requests)
    while left:
        done, completions = queue.poll(left)
        assert all(one.status == ibv_wc_status.IBV_WC_SUCCESS for one in completions), completions
        left -= done
print("posted", flush=True)
sys.stdin.readline()
"""
BUILT = [("write", 4096, False), ("send", 3000, False), ("write", 64, True), ("read", 10_000, False)]

# The kernel side of an agent in the namespace of an interface. For each line on its input it prints what has passed
# since the last one: {"rx" or "tx": [datagrams, bytes in them]} of RDMA.
METER = """
import json, sys, time
from netmon.kernel import interfaces, loader, watching
from netmon.kernel.meter.memory import choose_geometry, map_memory
from netmon.kernel.meter.meter import STALE_NS, Meter
from netmon.kernel.watching import WatchedInterface
watching.call_by_name = lambda name, *arguments: interfaces.choose_for(*arguments)
interface = WatchedInterface(1, sys.argv[1], "auto")
geometry = choose_geometry(10_000)
programs = loader.load(geometry)
meter = Meter(map_memory(programs, geometry), geometry)
interface.attach(programs)
print("ready", flush=True)
keys = {}
for line in sys.stdin:
    passed = {"rx": [0, 0], "tx": [0, 0]}
    time.sleep(2 * STALE_NS / 1e9)
    drained = meter.drain(time.monotonic_ns())
    keys |= dict(zip(drained.new.ids.tolist(), drained.new.keys))
    for row in drained.buckets:
        key = keys[int(row["flow_id"])]
        if key["dst_port"] == int(sys.argv[2]):
            of_way = passed["tx" if int(key["link_protocol"]) >> 8 & 1 else "rx"]
            of_way[0] += int(row["packets"])
            of_way[1] += int(row["payload_bytes"])
    meter.rows.shrink(0)
    print(json.dumps(passed), flush=True)
interface.detach()
"""


@dataclass(frozen=True)
class Device:
    """An rxe device on one end of a pair."""

    name: str
    end: End

    @property
    def _port(self) -> Path:
        return verbs.DEVICES / self.name / "ports/1"

    def address_index(self) -> int:
        """Of its IPv4 address among its GIDs."""
        mapped = "".join(f"{int(part):02x}" for part in self.end.address.split("."))
        return next(int(gid.name) for gid in (self._port / "gids").iterdir() if _digits(gid).endswith(f"ffff{mapped}"))

    def counters(self) -> dict[str, int]:
        return {file.name: int(file.read_text()) for file in (self._port / "hw_counters").iterdir()}


def _digits(gid: Path) -> str:
    try:
        return gid.read_text().strip().replace(":", "")
    except OSError:  # a place without an address
        return ""


class Bench:
    """Two devices, the meter on the second one's interface, and netmon's counts of what is posted on this machine."""

    def __init__(self, ends: tuple[End, End], cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self.server, self.client = (Device(f"rxe{n}", end) for n, end in enumerate(ends))
        for device in (self.server, self.client):
            device.end.namespace.run("rdma", "link", "add", device.name, "type", "rxe", "netdev", device.end.interface)
            cleanup.callback(
                subprocess.run, device.end.namespace.inside("rdma", "link", "delete", device.name), check=False
            )
        end = self.client.end
        command = end.namespace.inside(sys.executable, "-c", METER, end.interface, str(PORT))
        self._meter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cleanup.enter_context(self._meter)
        assert self._meter.stdin
        assert self._meter.stdout
        cleanup.callback(self._meter.stdin.close)
        assert self._meter.stdout.readline().strip() == "ready"
        programs = loader.load(choose_geometry(10_000, 1, 0))
        for descriptor in programs.values():
            cleanup.callback(os.close, descriptor)
        self._processes = ProcessTable()
        self._verbs = verbs.Verbs(programs, self._processes)
        cleanup.callback(self._verbs.close)
        self.warnings: list[str] = []

    def run(self, tool: str, *options: str) -> tuple[int, str]:
        """One of perftest's programs at both devices: the client's pid, and what it said."""
        children = []
        for device, more in ((self.server, ()), (self.client, (self.server.end.address,))):
            where = ("-d", device.name, "-x", str(device.address_index()), "-F")
            command = [*device.end.namespace.inside(tool), *where, *options, *more]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self._cleanup.callback(_ended, child)
            children.append(child)
            if not more:
                self._listens(child)
        deadline = time.monotonic() + PATIENCE_S
        while any(child.poll() is None for child in children):
            assert time.monotonic() < deadline
            self._look()
            time.sleep(0.05)
        said = [child.communicate()[0] for child in children]
        assert [child.returncode for child in children] == [0, 0], said
        self._look()
        return children[1].pid, said[1]

    def build(self, lists: int) -> int:
        """BUILDER at both devices: the client's pid."""
        children = []
        for device in (self.server, self.client):
            where = (device.name, str(device.address_index()), str(lists), json.dumps(BUILT))
            command = device.end.namespace.inside(sys.executable, "-c", BUILDER, *where)
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._cleanup.callback(_ended, child)
            children.append(child)
        ends = [self._line(child) for child in children]
        for child, other in zip(children, reversed(ends), strict=True):
            print(other, file=child.stdin, flush=True)
        assert [self._line(child) for child in children] == ["ready", "ready"]
        print("post", file=children[1].stdin, flush=True)
        assert self._line(children[1]) == "posted"
        self._look()
        for child in children:
            child.communicate("\n\n")
        return children[1].pid

    def _line(self, child: subprocess.Popen[str]) -> str:
        """What it says next; the processes are looked at meanwhile."""
        assert child.stdout
        deadline = time.monotonic() + PATIENCE_S
        while not select.select([child.stdout], [], [], 0.05)[0]:
            assert time.monotonic() < deadline
            self._look()
        return child.stdout.readline().strip()

    def _listens(self, server: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while ":18515" not in self.server.end.namespace.run("ss", "-Hltn"):
            assert time.monotonic() < deadline
            assert server.poll() is None
            time.sleep(0.1)

    def _look(self) -> None:
        self._processes.scan(time.monotonic_ns())
        self._verbs.follow(())
        self.warnings += self._verbs.warnings()

    def knows(self, way: str) -> bool:
        """Whether functions by which programs post in this way are counted."""
        return any(verbs.WAYS[of_function] == way for *_, of_function in self._verbs._functions)

    def posted(self) -> list[verbs.Posted]:
        """Since the last time."""
        rows, more = list[verbs.Posted](), True
        while more:
            found, _, more = self._verbs.read()
            rows += found
        self.warnings += self._verbs.warnings()
        return rows

    def passed(self) -> dict[str, list[int]]:
        """Since the last time: {"rx" or "tx": [datagrams, bytes in them]} at the client's interface."""
        assert self._meter.stdin
        assert self._meter.stdout
        print("count", file=self._meter.stdin, flush=True)
        return dict(json.loads(self._meter.stdout.readline()))


def _ended(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with ExitStack() as cleanup:
        network = Network(cleanup)
        found = Bench(network.veth(network.namespace(), network.namespace()), cleanup)
        for way, run in (  # once it is known where such processes post, all that follow are seen whole
            ("verbs_post", lambda: found.run("ib_write_bw", "-n", "5", "--use_old_post_send")),
            ("verbs_build", lambda: found.build(1)),
        ):
            for _ in range(5):
                run()
                if found.knows(way):
                    break
            assert found.knows(way), found.warnings
        yield found


# Of `count` messages of `size` bytes in `packets` packets: the headers beside those of every packet, of what the client
# sends and of what it receives. Data goes one way; the other way has acknowledgements, as many as the device likes.
HEADERS = {
    "write": lambda count, packets: count * RETH,
    "send": lambda count, packets: 0,
    "read": lambda count, packets: count * AETH * (2 if packets > 1 else 1),
}


@pytest.mark.parametrize("size", [64, 4096, 65536])
@pytest.mark.parametrize("kind", ["write", "send", "read"])
def test_what_a_program_posts_is_what_the_device_sends_and_the_meter_sees(bench: Bench, kind: str, size: int) -> None:
    count, queues = 100, 2
    bench.posted()
    bench.passed()
    before = [device.counters() for device in (bench.client, bench.server)]
    options = ("-n", str(count), "-s", str(size), "-q", str(queues), "-m", str(MTU), "--use_old_post_send")
    pid, said = bench.run(f"ib_{kind}_bw", *options)
    rows, passed = [row for row in bench.posted() if row.pid == pid], bench.passed()
    after = [device.counters() for device in (bench.client, bench.server)]
    client, server = ({name: end[name] - begin[name] for name in end} for begin, end in zip(before, after, strict=True))

    of_kind = [row for row in rows if verbs.KINDS[row.kind] == kind]
    assert len({row.queue for row in of_kind}) == queues
    assert sum(row.requests for row in of_kind) == count * queues
    assert sum(row.bytes for row in of_kind) == count * queues * size
    assert all(row.whole and not row.unread and row.device == "rxe1" for row in of_kind)
    assert {row.peer for row in of_kind} == {bench.server.end.address}
    numbers = (
        re.findall(r"local address:.*QPN (0x[0-9a-f]+)", said),
        re.findall(r"remote address:.*QPN (0x[0-9a-f]+)", said),
    )
    ends = {(row.queue, row.peer_queue) for row in of_kind}
    assert ends == set(zip(*([int(number, 16) for number in of_end] for of_end in numbers), strict=True))

    # The meter has each of the device's packets, once.
    for way, end in (("tx", client), ("rx", server)):
        assert passed[way] == [end["sent_pkts"], end["sent_bytes"] - end["sent_pkts"] * IP_AND_UDP]
    again = sum(client[name] + server[name] for name in ("duplicate_request", "out_of_seq_request", "rcvd_rnr_err"))
    packets = -(-size // MTU)
    data, answers = ("rx", "tx") if kind == "read" else ("tx", "rx")
    expected = count * queues * (size + packets * (BTH + ICRC)) + HEADERS[kind](count * queues, packets)
    if not again:
        assert passed[data][0] == count * queues * packets
        assert passed[data][1] == expected
        assert passed[answers][1] == passed[answers][0] * (BTH + ICRC + (RETH if kind == "read" else AETH))
    assert passed[data][1] >= expected


def test_what_a_program_builds_is_what_the_device_sends_and_the_meter_sees(bench: Bench) -> None:
    lists = 50
    bench.posted()
    bench.passed()
    before = [device.counters() for device in (bench.client, bench.server)]
    pid = bench.build(lists)
    rows, passed = [row for row in bench.posted() if row.pid == pid], bench.passed()
    after = [device.counters() for device in (bench.client, bench.server)]
    client, server = ({name: end[name] - begin[name] for name in end} for begin, end in zip(before, after, strict=True))

    posted = dict.fromkeys(verbs.KINDS, (0, 0))
    for row in rows:
        requests, count = posted[verbs.KINDS[row.kind]]
        posted[verbs.KINDS[row.kind]] = requests + row.requests, count + row.bytes
    of_kinds = {kind: [length for each, length, _ in BUILT if each == kind] for kind in verbs.KINDS}
    assert posted == {kind: (lists * len(lengths), lists * sum(lengths)) for kind, lengths in of_kinds.items()}
    assert all(row.whole and not row.unread and row.device == "rxe1" for row in rows)
    assert {row.peer for row in rows} == {bench.server.end.address}

    for way, end in (("tx", client), ("rx", server)):
        assert passed[way] == [end["sent_pkts"], end["sent_bytes"] - end["sent_pkts"] * IP_AND_UDP]
    sent = [length for kind, length, _ in BUILT if kind != "read"]
    packets = sum(-(-length // MTU) for length in sent) + len(of_kinds["read"])  # a read is asked for in one
    headers = (len(of_kinds["write"]) + len(of_kinds["read"])) * RETH
    expected = [lists * packets, lists * (sum(sent) + packets * (BTH + ICRC) + headers)]
    if not sum(client[name] + server[name] for name in ("duplicate_request", "out_of_seq_request", "rcvd_rnr_err")):
        assert passed["tx"] == expected
    assert passed["tx"][1] >= expected[1]
