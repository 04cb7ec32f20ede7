# SPDX-License-Identifier: Apache-2.0
"""A local user without privilege against a real agent.

Whatever it does, the traffic of the host is counted to the byte, and every step of another user's rank is told.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pair import Watched
from waiting import wait_for

from netmon.lab.network import Host
from netmon.lab.process import Process

pytestmark = pytest.mark.kernel

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
ATTACKS = Path(__file__).with_name("attacks.py")
SHORT = ("rank_beyond_32_bits", "many_ranks", "hostile_names", "marks", "calls_of_ranks", "broken_libraries")
LONG = (
    *("rendezvous", "calls", "steps", "large_environment", "joins", "connections", "many_libraries", "fifo"),
    "timelines",
)
SAID = {
    "fifo": "its functions are not where its code is",
    "broken_libraries": "it is no library of this machine",
    "connections": "is one connection too many",
    "joins": "that it joins, which its user has done too often",
}
STEPS, LAYERS = 25, 5
SETTLING_S, MEASURED_S = 12, 10
HONEST = f"""
import ctypes, pathlib, sys, time
nccl = ctypes.CDLL(sys.argv[1])
print("mapped", flush=True)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.02)
for step in range({STEPS}):
    time.sleep(0.1)
    for layer in range({LAYERS}):
        nccl.ncclAllReduce(None, None, ctypes.c_size_t(1024 << layer), 7, 0, None, None)
print("trained", flush=True)
time.sleep(600)
"""
NCCL = """
#include <stddef.h>
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, void *group, void *stream)
{
	return 4;
}
"""
HOROVOD = """
#include <string>
#include <vector>
namespace horovod { namespace common {
struct Status { std::string reason; };
using Things = std::vector<void *>;
__attribute__((noinline)) Status
EnqueueTensorAllreduces(Things &, Things &, Things &, Things &, std::vector<std::string> &names) { return {}; }
__attribute__((noinline)) Status
Rendezvous(const std::string &prefix, const char *address, int port, unsigned rank, unsigned size) { return {}; }
} }
extern "C" void set_up(unsigned rank, unsigned size) { horovod::common::Rendezvous("global", "", 1, rank, size); }
extern "C" void call(long count)
{
	horovod::common::Things things;
	while (count--) {
		std::vector<std::string> names{std::to_string(count)};
		horovod::common::EnqueueTensorAllreduces(things, things, things, things, names);
	}
}
extern "C" void step(long count)
{
	horovod::common::Things things;
	while (count--) {
		std::vector<std::string> names{std::to_string(count % 5)};
		horovod::common::EnqueueTensorAllreduces(things, things, things, things, names);
	}
}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of the honest rank, one that the attacks call."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "nccl.c").write_text(NCCL)
    (folder / "horovod.cc").write_text(HOROVOD)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnccl.so.2", folder / "nccl.c"], check=True)
    command = ["g++", "-O1", "-shared", "-fPIC", "-o", folder / "mpi_lib_v2.so", folder / "horovod.cc"]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def watched(namespaces: Callable) -> Iterator[Watched]:
    """In a folder that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="netmon-hostile-") as folder, ExitStack() as cleanup:
        os.chmod(folder, 0o755)
        yield Watched(*namespaces(), Path(folder), cleanup)


class Scene:
    """An agent, a rank of root's, and somebody who means no good."""

    def __init__(self, watched: Watched, libraries: Path, cleanup: ExitStack) -> None:
        self.watched, self._cleanup = watched, cleanup
        self.host = Host("right", watched.right.namespace.name, watched.right.address)
        self.folder = watched.folder / "attacker"
        self.folder.mkdir()
        for source in (ATTACKS, libraries / "mpi_lib_v2.so"):
            os.chmod(shutil.copy(source, self.folder), 0o755)
        os.chown(self.folder, NOBODY, NOBODY)
        self.collector, self.agent = watched.both()
        rank = {"RANK": "0", "WORLD_SIZE": "2", "NETMON_JOB": "honest"}
        command = [sys.executable, "-c", HONEST, str(libraries / "libnccl.so.2"), str(watched.folder / "go")]
        self.honest = self.start("honest", command, rank)
        self.honest.wait_output("mapped", 60)
        self.agent.wait_output("probing .*libnccl", 60)

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> Process:
        started = Process(name, command, self.watched.folder, host=self.host, environment=environment)
        return self._cleanup.enter_context(started)

    def attack(self, name: str) -> Process:
        """Under way when this returns."""
        where = [str(self.folder / ATTACKS.name), name, f"{self.watched.folder}/agent.sock", str(self.folder)]
        attacker = self.start("attacker", [*AS_NOBODY, "/usr/bin/python3", *where], {"HOME": "/nonexistent"})
        attacker.wait_output("ready", 120)
        return attacker

    def children(self) -> list[int]:
        """The privileged part, and what it has started."""
        return [int(pid) for pid in Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children").read_text().split()]

    def resident_bytes(self) -> int:
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in (self.agent.pid, *self.children())]
        return sum(int(re.search(r"VmRSS:\s+(\d+)", text)[1]) * 1024 for text in texts)

    def cpu_seconds(self) -> float:
        texts = [Path(f"/proc/{pid}/stat").read_text() for pid in (self.agent.pid, *self.children())]
        ticks = sum(sum(map(int, text.rpartition(")")[2].split()[11:15])) for text in texts)
        return ticks / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def scene(watched: Watched, libraries: Path) -> Iterator[Scene]:
    with ExitStack() as cleanup:
        yield Scene(watched, libraries, cleanup)


def check_traffic(watched: Watched, before: dict[str, int], after: dict[str, int]) -> None:
    """Every byte has its flow."""
    ledger = watched.table("ledger").groupby("direction", observed=True).sum(numeric_only=True)
    buckets = watched.table("buckets").groupby("direction", observed=True)["wire_bytes"].sum()
    for way in ("rx", "tx"):
        assert ledger.loc[way, "nic_counter_bytes"] == after[way] - before[way]
        assert ledger.loc[way, "attributed_bytes"] == ledger.loc[way, "nic_bytes"] == buckets[way]


def ends_whole(scene: Scene, attacker: Process, before: dict[str, int], after: dict[str, int], job: str) -> None:
    """End the attack and all else: every byte has its flow, and every step of the job its iteration."""
    os.kill(attacker.pid, signal.SIGKILL)
    scene.agent.end_in_order(seconds=120)
    scene.collector.end_in_order(seconds=120)
    check_traffic(scene.watched, before, after)
    iterations = scene.watched.table("iterations")
    honest = iterations[iterations["job"] == job]
    # Nothing tells when the last one was over. A rank that the agent of a busy machine has found late may have taken
    # steps before, so its first one is left out: it may have been seen in part.
    late = int(honest["relative"].any())
    assert sorted(honest["iteration"]) == list(range(STEPS - 1 - late))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize(
    "attack",
    [*SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in ("nothing", *LONG))],
)
def test_traffic_and_steps_are_whole(scene: Scene, attack: str) -> None:
    watched = scene.watched
    before, memory, cpu, began = watched.counters(), scene.resident_bytes(), scene.cpu_seconds(), os.times().elapsed
    attacker = scene.attack(attack)
    (watched.folder / "go").touch()
    watched.transfer(5)
    scene.honest.wait_output("trained", 120)
    watched.transfer(5)
    after = watched.settled()
    seconds = os.times().elapsed - began
    more = scene.resident_bytes() - memory
    print(f"{attack}: {(scene.cpu_seconds() - cpu) / seconds:.1%} of a core, {more / 1e6:+.0f} MB")
    assert scene.agent.status() is None
    assert more < 100e6
    assert SAID.get(attack, "") in scene.agent.output()
    ends_whole(scene, attacker, before, after, "honest")
    flows = watched.table("flows")
    for name in ("process", "job", "container"):
        assert all(text.isprintable() for text in flows[name].dropna().astype(str))
    assert all(job.isprintable() and len(job.encode()) <= 255 for job in watched.table("iterations")["job"].astype(str))


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize("attack", [*SHORT, *LONG])
def test_an_attack_costs_little(scene: Scene, attack: str) -> None:
    """Processor time and memory of the agent's processes before it and in it, with the same load: none but a rank."""
    (scene.watched.folder / "go").touch()
    scene.honest.wait_output("trained", 120)
    time.sleep(SETTLING_S)
    before, memory = share_of_a_core(scene), scene.resident_bytes()
    scene.attack(attack)
    time.sleep(SETTLING_S)  # what everybody may have at once is spent
    during, more = share_of_a_core(scene), scene.resident_bytes() - memory
    print(f"{attack}: {before:.1%} of a core before it, {during:.1%} in it, {more / 1e6:+.1f} MB")
    assert during - before < 0.05
    assert more < 20e6


def share_of_a_core(scene: Scene) -> float:
    used, began = scene.cpu_seconds(), time.monotonic()
    time.sleep(MEASURED_S)
    return (scene.cpu_seconds() - used) / (time.monotonic() - began)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize("attack", ["calls_of_ranks", "steps", "marks", "joins", "many_libraries", "broken_libraries"])
def test_an_honest_rank_of_the_same_user_is_whole(scene: Scene, libraries: Path, attack: str) -> None:
    watched, folder = scene.watched, scene.watched.folder / "same"
    folder.mkdir()
    nccl = shutil.copy(libraries / "libnccl.so.2", folder)
    before = watched.counters()
    command = [*AS_NOBODY, "/usr/bin/python3", "-c", HONEST, str(nccl), str(folder / "go")]
    rank = scene.start("same", command, {"RANK": "0", "WORLD_SIZE": "2", "NETMON_JOB": "same"})
    scene.agent.wait_output("probing .*same/libnccl", 60)
    attacker = scene.attack(attack)
    (folder / "go").touch()
    rank.wait_output("trained", 120)
    watched.transfer(5)
    ends_whole(scene, attacker, before, watched.settled(), "same")


HUNG = f"""
import ctypes, os, sys, time
library, folder = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
mapped, fuse = open(library, "rb"), os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % fuse
if libc.mount(b"hung", folder.encode(), b"fuse", 6, options):
    sys.exit(os.strerror(ctypes.get_errno()))
time.sleep(1)  # it is seen as root's at first
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
libc.prctl(4, 1)  # it can be looked at all the same
libc.mmap(None, ctypes.c_size_t(4096), 5, 2, mapped.fileno(), ctypes.c_long(0))
print("hung", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no FUSE here")
@pytest.mark.parametrize("what", ["library", "timeline"])
def test_a_file_system_that_does_not_answer_holds_nobody_up(scene: Scene, libraries: Path, what: str) -> None:
    """Such as a network file system whose server is gone. What others do is seen and counted meanwhile."""
    watched, folder = scene.watched, scene.watched.folder
    before = watched.counters()
    hung = folder / "hung"
    hung.mkdir()
    library = shutil.copy(libraries / "mpi_lib_v2.so", hung if what == "library" else folder)
    rank = {"RANK": "0", "WORLD_SIZE": "2", "NETMON_JOB": "hung", "HOROVOD_TIMELINE": str(hung / "timeline")}
    command = ["unshare", "--mount", sys.executable, "-c", HUNG, str(library), str(hung)]
    attacker = scene.start("hung", command, rank)
    attacker.wait_output("hung", 60)
    if what == "library":
        scene.agent.wait_output("it has not answered", 60)
    (folder / "late").mkdir()
    nccl = shutil.copy(libraries / "libnccl.so.2", folder / "late")
    go = folder / "go-late"
    command = [sys.executable, "-c", HONEST, str(nccl), str(go)]
    late = scene.start("late", command, {"RANK": "0", "WORLD_SIZE": "2", "NETMON_JOB": "late"})
    scene.agent.wait_output("probing .*late/libnccl", 60)
    go.touch()
    watched.transfer(5)
    late.wait_output("trained", 120)
    watched.transfer(5)
    ends_whole(scene, attacker, before, watched.settled(), "late")


def test_what_is_privileged_dies_with_the_other_part(scene: Scene) -> None:
    scene.attack("fifo")
    (privileged,) = scene.children()
    os.kill(scene.agent.pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{privileged}/maps").exists() or not Path(f"/proc/{privileged}/maps").read_bytes())
    wait_for(lambda: scene.watched.attached() == (0, 0, 0))
