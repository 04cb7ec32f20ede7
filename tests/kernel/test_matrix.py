# SPDX-License-Identifier: Apache-2.0
"""What has to hold on every kernel: `make test-kernels` boots others and runs these there, without gRPC and collector.

On a kernel without tcx the programs are filters of clsact: they do not vanish with the process, and others' are beside.
"""

import ctypes
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_for

from netmon.dl.sharing.advice import Culprit, PairEnds, culprit_row
from netmon.dl.verdict.incidents import incidents
from netmon.kernel import bpf_calls, loader
from netmon.kernel.meter.memory import choose_geometry
from netmon.records import Direction
from netmon.views import Cause, Verdict

pytestmark = [pytest.mark.kernel, pytest.mark.matrix]

PROGRAM_INFO_BYTES, VERIFIED_INSTRUCTIONS = 232, 216  # struct bpf_prog_info, and where verified_insns is in it

# The kernel side of an agent on one interface, as a process of its own in that interface's namespace. Counts what is
# on UDP port 9 and says so when its input says "count"; detaches and ends when its input ends.
AGENT = """
import json, sys, time
from netmon.kernel import bpf_calls, interfaces, loader, watching
from netmon.kernel.meter.memory import choose_geometry, map_memory
from netmon.kernel.meter.meter import STALE_NS, Meter
from netmon.kernel.watching import WatchedInterface
watching.call_by_name = lambda name, *arguments: interfaces.choose_for(*arguments)  # with what stands in the next line
if sys.argv[3] == "clsact":
    bpf_calls.has_tcx = lambda: False
interface = WatchedInterface(1, sys.argv[1], sys.argv[2])
geometry = choose_geometry(10_000)
programs = loader.load(geometry)
meter = Meter(map_memory(programs, geometry), geometry)
interface.attach(programs)
print(json.dumps(interface.hooks), flush=True)
keys = {}
for line in sys.stdin:
    time.sleep(2 * STALE_NS / 1e9)
    drained = meter.drain(time.monotonic_ns())
    keys |= dict(zip(drained.new.ids.tolist(), drained.new.keys))
    packets = [0, 0]
    for row in drained.buckets:
        key = keys[int(row["flow_id"])]
        if key["dst_port"] == 9:
            packets[int(key["link_protocol"]) >> 8 & 1] += int(row["packets"])
    meter.rows.shrink(0)
    print(json.dumps(packets), flush=True)
interface.detach()
"""
# A process is stopped twice, another one, which nobody watches, too.
STOPS = """
import os, signal, subprocess, time
from netmon.kernel import bpf_calls, loader, stops
from netmon.kernel.meter.memory import choose_geometry, map_memory
programs = loader.load(choose_geometry(10_000))
link = bpf_calls.raw_tracepoint_open(programs[stops.PROGRAM], stops.TRACEPOINT)
told = stops.RankStops(programs[stops.MAP])
one, other = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
told.watch(one.pid)
told.watch(one.pid)
start = time.monotonic_ns()
for process, number in ((one, signal.SIGCONT), (other, signal.SIGSTOP), (other, signal.SIGCONT)):
    process.send_signal(number)
assert told.since(one.pid, start, time.monotonic_ns()) == (None, 0)
assert told.since(other.pid, start, time.monotonic_ns()) == (None, 0)
spans = []
for _ in range(2):
    before = time.monotonic_ns()
    one.send_signal(signal.SIGSTOP)
    begun = time.monotonic_ns()
    time.sleep(0.02)
    now = time.monotonic_ns()
    (begin, end), earlier = told.since(one.pid, start, now)
    assert before <= begin <= begun and end == now and not earlier, (before, begin, begun, end, now, earlier)
    ending = time.monotonic_ns()
    one.send_signal(signal.SIGCONT)
    after = time.monotonic_ns()
    last, earlier = told.since(one.pid, now, after)
    assert last[0] == now and ending <= last[1] <= after and not earlier
    spans.append(last[1] - begin)
    one.send_signal(signal.SIGCONT)
    start = after
assert told.since(one.pid, start, time.monotonic_ns()) == (None, 0)
for process in (one, other):
    process.kill()
    process.wait()
"""
SEND = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(100):
    sender.sendto(b"x" * 100, (sys.argv[1], 9))
"""

# Sends a megabyte to each of two ports.
FLOOD = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(1000):
    for port in (5201, 5202):
        sender.sendto(bytes(1000), (sys.argv[1], port))
"""
TAKE = """
import socket, sys
doors = []
for port in (5201, 5202):
    door = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    door.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
    door.bind(("", port))
    door.setblocking(False)
    doors.append(door)
print("ready", flush=True)
for line in sys.stdin:
    taken = [0, 0]
    for which, door in enumerate(doors):
        try:
            while True:
                taken[which] += len(door.recv(1 << 16))
        except BlockingIOError:
            pass
    print(*taken, flush=True)
"""
FLOOD_BYTES, CAP_BPS, BURST_BYTES = 1_000_000, 80_000, 256 << 10


@pytest.fixture(params=["tcx", "clsact"])
def tc(request: pytest.FixtureRequest) -> str:
    """Both ways to attach to tc, where the kernel has both."""
    if request.param == "tcx" and not bpf_calls.has_tcx():
        pytest.skip("this kernel has no tcx")
    return request.param


@contextmanager
def agent(end, tc: str, hook: str = "auto") -> Iterator[subprocess.Popen]:
    command = end.namespace.inside(sys.executable, "-c", AGENT, end.interface, hook, tc)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait()


def hundred_each_way(left, right) -> None:
    for here, there in ((left, right), (right, left)):
        here.namespace.run(sys.executable, "-c", SEND, there.address)


def answer(process: subprocess.Popen) -> list:
    return json.loads(process.stdout.readline())


def counted(process: subprocess.Popen) -> list[int]:
    print("count", file=process.stdin, flush=True)
    return answer(process)


def filters(end, direction: str) -> str:
    return end.namespace.run("tc", "filter", "show", "dev", end.interface, direction)


def qdisc(end) -> str:
    return end.namespace.run("tc", "qdisc", "show", "dev", end.interface)


@pytest.mark.parametrize("wanted", ["auto", "xdp"])
def test_hundred_packets_each_way_are_counted_and_nothing_stays(namespaces: Callable, tc: str, wanted: str) -> None:
    left, right = namespaces()
    before = qdisc(right)
    with agent(right, tc, wanted) as process:
        hooks = answer(process)
        assert hooks == ["xdp" if wanted == "xdp" else tc, tc]
        hundred_each_way(left, right)
        assert counted(process) == [100, 100]
    assert process.returncode == 0
    assert qdisc(right) == before
    assert "xdp" not in right.namespace.run("ip", "link", "show", "dev", right.interface)


def test_what_a_killed_agent_leaves_is_gone_after_the_next(namespaces: Callable, tc: str) -> None:
    left, right = namespaces()
    before = qdisc(right)
    with agent(right, tc) as process:
        answer(process)
        process.kill()
    stays = tc == "clsact"
    assert all(("netmon" in filters(right, way)) is stays for way in ("ingress", "egress"))
    with agent(right, tc) as process:
        answer(process)
        for way in ("ingress", "egress"):
            assert filters(right, way).count("netmon") == stays
        hundred_each_way(left, right)
        assert counted(process) == [100, 100]
    assert qdisc(right) == before
    assert filters(right, "ingress") + filters(right, "egress") == ""


@pytest.mark.parametrize("which", ["prio 1", "prio 7", "prio 1 protocol ip"])
def test_filters_of_others_stay_as_they_are(namespaces: Callable, tc: str, which: str) -> None:
    left, right = namespaces()
    right.namespace.run("tc", "qdisc", "add", "dev", right.interface, "clsact")
    add = ("tc", "filter", "add", "dev", right.interface, "ingress", *which.split())
    right.namespace.run(*add, "bpf", "da", "bytecode", "1,6 0 0 4294967295")
    before = filters(right, "ingress"), qdisc(right)
    assert "bytecode" in before[0]
    with agent(right, tc) as process:
        answer(process)
        assert "bytecode" in filters(right, "ingress")
        hundred_each_way(left, right)
        assert counted(process) == [100, 100]
    assert (filters(right, "ingress"), qdisc(right)) == before


def test_a_filter_that_ends_the_chain_does_not_blind_the_meter(namespaces: Callable, tc: str) -> None:
    left, right = namespaces()
    right.namespace.run("tc", "qdisc", "add", "dev", right.interface, "clsact")
    add = ("tc", "filter", "add", "dev", right.interface, "ingress", "prio", "1")
    right.namespace.run(*add, "bpf", "da", "bytecode", "1,6 0 0 0")  # TC_ACT_OK: who comes later is not asked
    with agent(right, tc) as process:
        answer(process)
        hundred_each_way(left, right)
        assert counted(process) == [100, 100]


def test_a_filter_that_others_replace_by_number_is_not_ours(namespaces: Callable) -> None:
    left, right = namespaces()
    with agent(right, "clsact") as process:
        answer(process)
        replace = ("tc", "filter", "replace", "dev", right.interface, "ingress", "prio", "1", "handle", "1")
        right.namespace.run(*replace, "bpf", "da", "bytecode", "1,6 0 0 4294967295")
        hundred_each_way(left, right)
        assert counted(process) == [100, 100]
    assert "bytecode" in filters(right, "ingress")
    assert "netmon" not in filters(right, "ingress")


def test_doctor_finds_everything_that_is_needed(namespaces: Callable) -> None:
    left, _ = namespaces()
    code = (
        "import sys; from netmon.cli import make_parser; from netmon.commands import doctor; "
        "sys.exit(doctor.run(make_parser(['doctor'])[0].parse_args(['doctor', '--json'])))"
    )
    document = json.loads(left.namespace.run(sys.executable, "-c", code))
    assert document["ok"], document
    hooks = {facts["name"]: facts["hook"]["rx"] for facts in document["interfaces"]}
    assert hooks[left.interface] == ("tcx" if bpf_calls.has_tcx() else "clsact")


def test_the_verifier_has_little_to_do() -> None:
    """It gives up at a million instructions, counted along every path; older kernels take more paths for the same."""
    programs = loader.load(choose_geometry(10_000))
    for name in loader.METER_PROGRAMS:
        info = ctypes.create_string_buffer(PROGRAM_INFO_BYTES)
        place = struct.pack("=IIQ", programs[name], len(info), ctypes.addressof(info))
        bpf_calls.call(bpf_calls.OBJ_GET_INFO_BY_FD, place)
        (verified,) = struct.unpack_from("=I", info, VERIFIED_INSTRUCTIONS)
        print(f"{name}: {verified} instructions verified")  # 0: a kernel before 5.16
        assert verified < 300_000


def test_a_probe_reads_the_arguments_of_a_call() -> None:
    """Which register holds which argument is the architecture's: NCCL's count is the third."""
    from netmon.kernel.meter.memory import RingBuffer
    from netmon.kernel.training.symbols import function_offsets
    from netmon.kernel.training.uprobes import attach_probe
    from netmon.records import STEP

    geometry = choose_geometry(10_000)
    programs = loader.load(geometry)
    maps = Path("/proc/self/maps").read_text().splitlines()
    libc = next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-" in line)
    with open(libc, "rb") as file:
        (offset, *_) = function_offsets(file.fileno(), ["swab"])["swab"]
    link = attach_probe(programs["nccl_enqueue"], libc, offset)
    ring = RingBuffer(programs["steps"], geometry.step_ring_bytes, STEP)
    one, other = ctypes.create_string_buffer(1 << 20), ctypes.create_string_buffer(1 << 20)
    for count in (1 << 20, 1 << 19, 1 << 20):
        ctypes.CDLL(None).swab(one, other, ctypes.c_ssize_t(count))
    steps = ring.take()
    ours = steps[steps["pid"] == os.getpid()]
    os.close(link)
    assert len(ours) == 3
    first, second, third = ours["name_hash"].tolist()
    assert first == third != second


def test_a_connection_is_given_to_its_process_when_it_is_made() -> None:
    from netmon.kernel.owners.socket_events import MAP, PROGRAM, SocketEvents

    programs = loader.load(choose_geometry(10_000))
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        assert PROGRAM not in programs
        pytest.skip("this kernel has no BTF")
    socket_watch = SocketEvents(programs[PROGRAM], programs[MAP])
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        told = []

        def ours() -> bool:
            told.extend(socket_watch.take())
            return any(socket_event.pid == os.getpid() and socket_event.source == "connect" for socket_event in told)

        wait_for(ours)
    socket_watch.close()


@pytest.mark.parametrize("place", ["machine", "PID namespace"])
def test_a_stop_is_told_as_long_as_it_was(place: str) -> None:
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        pytest.skip("this kernel has no BTF")
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"] if place != "machine" else []
    done = subprocess.run([*alone, sys.executable, "-c", STOPS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_ledger_has_every_frame(namespaces: Callable) -> None:
    """Mapped memory and ring positions, whatever the size of a page."""
    from dry_meter import load

    loaded = load()
    frame = bytes(12) + b"\x88\xb5" + bytes(86)
    for program in ("meter_tc_ingress", "meter_xdp"):
        loaded.run(program, frame, repeat=5000)
    time.sleep(0.1)
    assert sum(packets for packets, _, _ in loaded.counted().values()) == 10_000
    assert Direction.RX in {Direction(link & 1) for link in loaded.meter.ledger()}


@pytest.mark.long  # it takes flower and police, which few kernels of small machines have
@pytest.mark.parametrize("sends", [True, False])
def test_the_limit_that_is_advised_holds_what_it_is_for_and_goes_again(namespaces: Callable, sends: bool) -> None:
    sender, receiver = namespaces()
    at = sender if sends else receiver
    incident = incidents([Verdict("train", 1, 1, 3, 2, 1, 1, Cause.CROSS, "backup", counterfactual_ns=1)])[0]
    ends = PairEnds("h0", at.interface, sends, 17, sender.address, receiver.address, 5201)
    (limit,) = culprit_row(Culprit(incident, CAP_BPS, ends))["commands"]
    tc = shutil.which("tc")  # busybox's shell has one of its own
    give, undo = (limit[name].replace("tc ", f"{tc} ") for name in ("run", "undo"))
    process = subprocess.Popen(
        receiver.namespace.inside(sys.executable, "-c", TAKE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def flood() -> tuple[list[int], float]:
        begun = time.monotonic()
        sender.namespace.run(sys.executable, "-c", FLOOD, receiver.address)
        lasted = time.monotonic() - begun
        print("count", file=process.stdin, flush=True)
        return [*map(int, process.stdout.readline().split())], lasted

    with process:
        assert process.stdout.readline() == "ready\n"
        given = subprocess.run(at.namespace.inside("sh", "-c", give), capture_output=True, text=True)
        if given.returncode and "not found" in given.stderr + given.stdout:
            process.stdin.close()
            pytest.skip(f"this kernel has no flower or no police: {given.stderr.strip()}")
        assert given.returncode == 0, given.stderr
        (limited, other), lasted = flood()
        assert other == FLOOD_BYTES
        assert 0.9 * BURST_BYTES < limited < 1.1 * (BURST_BYTES + CAP_BPS / 8 * lasted)
        at.namespace.run("sh", "-c", undo)
        assert filters(at, "egress") + filters(at, "ingress") == ""
        assert flood()[0] == [FLOOD_BYTES, FLOOD_BYTES]
        process.stdin.close()
