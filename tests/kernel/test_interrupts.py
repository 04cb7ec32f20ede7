# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM end every command, though both were ignored and blocked when it was started.

So a shell starts what a script puts into its background. Nothing that the command has started is left.
"""

import os
import pty
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pair import Watched
from waiting import DIES_WITH_US

from netmon.lab.network import PREFIX, RUNS, all_runs, namespaces

pytestmark = pytest.mark.kernel

NETMON = [sys.executable, "-m", "netmon"]
BOTH = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 60
ENDS_S = 10
MEMORY = Path("/dev/shm")
TOKEN = "NETMON_TEST_TOKEN"
SLOW_BUILD = "#!/bin/sh\nsleep 300 &\nsleep 300\n"


def deaf() -> None:
    """In the child: as a background job, and as some launchers start theirs."""
    for number in BOTH:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, BOTH)


class Command:
    """A command of netmon that was told to ignore the signals which it is sent."""

    def __init__(self, folder: Path, command: list[str], **popen: object) -> None:
        self._token = secrets.token_hex(8)
        self._log = folder / "command.log"
        environment = os.environ | {TOKEN: self._token} | popen.pop("env", {})
        with self._log.open("wb") as log:
            popen = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log} | popen
            program = [*DIES_WITH_US, *command]
            self.process = subprocess.Popen(program, env=environment, preexec_fn=deaf, start_new_session=True, **popen)

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)

    def runs(self) -> list[str]:
        """Names under which it has namespaces, sockets and files."""
        return [run for run in all_runs() if holder(run) == self.process.pid]

    def processes(self) -> list[str]:
        """What runs of all that it has started, and itself."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if f"{TOKEN}={self._token}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
        return found

    def interrupt(self, number: signal.Signals) -> int:
        """Its exit status, once it is gone."""
        os.kill(self.process.pid, number)
        return self.process.wait(PATIENCE_S)

    def wait_for_end(self) -> None:
        """Until nothing is left of what it has started: a child may yet have to see that its pipe is closed."""
        deadline = time.monotonic() + ENDS_S
        while left := self.processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.02)

    def remove(self) -> None:
        self.process.kill()
        self.process.wait()


def holder(run: str) -> int | None:
    """The process that holds the lock of a testbed."""
    try:
        inode = (RUNS / run / "lock").stat().st_ino
    except OSError:
        return None
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    with ExitStack() as cleanup:

        def started(*arguments: object, inside: tuple[str, ...] = (), **popen: object) -> Command:
            command = Command(tmp_path, [*inside, *NETMON, *map(str, arguments)], **popen)
            cleanup.callback(command.remove)
            return command

        yield started


@pytest.fixture(params=BOTH, ids=lambda number: number.name)
def number(request: pytest.FixtureRequest) -> signal.Signals:
    return request.param


def ends(command: Command, number: signal.Signals, status: int = 130) -> None:
    runs = command.runs()
    assert command.interrupt(number) == status, command.output()
    command.wait_for_end()
    assert [name for run in runs for name in namespaces(f"{PREFIX}{run}-")] == []
    assert [run for run in runs if run in all_runs()] == []


def test_a_measurement(start: Callable[..., Command], number: signal.Signals) -> None:
    before = set(MEMORY.glob("netmon-bench-*"))
    command = start("bench", "overhead", "--seconds", "60", "--rounds", "1")
    command.wait_for(lambda: any("iperf3" in line for line in command.processes()))
    assert command.runs()
    ends(command, number)
    assert set(MEMORY.glob("netmon-bench-*")) <= before


def test_a_measurement_without_root(start: Callable[..., Command], number: signal.Signals) -> None:
    command = start("bench", "hook", "--rounds", "1000")
    command.wait_for(lambda: len(command.processes()) == 2)
    ends(command, number)


def test_a_training_in_the_lab(start: Callable[..., Command], number: signal.Signals, tmp_path: Path) -> None:
    few = ("--hosts", "2", "--ring", "0,1", "--cross", "1:0")
    command = start("lab", "run", "--data", tmp_path / "data", "--iterations", "10000", *few)
    command.wait_for(lambda: "iteration 1 " in ranks_say(tmp_path / "data"))
    assert command.runs()
    ends(command, number)


def ranks_say(data: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in data.glob("lab/log/rank-*.log"))


def test_building_the_libraries(start: Callable[..., Command], number: signal.Signals, tmp_path: Path) -> None:
    build = tmp_path / "python"
    build.write_text(SLOW_BUILD)
    build.chmod(0o755)
    environment = {"NETMON_PYTHON": str(build), "NETMON_HOROVOD_ENV": str(tmp_path / "environment")}
    command = start("lab", "run", "--data", tmp_path / "data", "--trainer", "horovod", env=environment)
    command.wait_for(lambda: sum("sleep 300" in line for line in command.processes()) == 2)
    ends(command, number)


def test_a_receiver(start: Callable[..., Command], number: signal.Signals) -> None:
    command = start("lab", "load", "receive", "127.0.0.1:0")
    command.wait_for(lambda: catches(command.process.pid))
    ends(command, number)


def catches(pid: int) -> bool:
    """Whether it has come to its own handlers."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")]
    return all(int(line.split()[1], 16) >> number - 1 & 1 for number in BOTH)


def test_the_services(
    start: Callable[..., Command], number: signal.Signals, tmp_path: Path, namespaces: Callable
) -> None:
    left, right = namespaces()
    with ExitStack() as cleanup:
        watched = Watched(left, right, tmp_path, cleanup)
        listen = ("--listen", watched.address, "--data", tmp_path / "data")
        collector = start("collector", *listen)
        collector.wait_for((tmp_path / "collector.sock").exists)
        own = watched.agent_command()[len(NETMON) :]
        (folder := tmp_path / "of-agent").mkdir()
        agent = Command(folder, [*right.namespace.inside(), *NETMON, *own])
        cleanup.callback(agent.remove)
        agent.wait_for(lambda: "watching" in agent.output() and watched.attached() == (0, 1, 1))
        ends(agent, number, 0)
        assert watched.attached() == (0, 0, 0)
        ends(collector, number, 0)


def test_the_live_view(start: Callable[..., Command], number: signal.Signals, tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        collector = start("collector", "--listen", f"unix:{tmp_path}/it.sock", "--data", tmp_path / "data")
        collector.wait_for((tmp_path / "it.sock").exists)
        screen, terminal = pty.openpty()
        cleanup.callback(os.close, screen)
        (folder := tmp_path / "view").mkdir()
        pipes = {"stdin": terminal, "stdout": terminal}
        view = Command(folder, [*NETMON, "top", "--collector", f"unix:{tmp_path}/it.sock"], **pipes)
        os.close(terminal)
        cleanup.callback(view.remove)
        drawn = bytearray()

        def shown() -> bool:
            drawn.extend(os.read(screen, 65536))
            return b"netmon" in drawn or b"snapshot" in drawn

        view.wait_for(shown)
        ends(view, number, 0 if number is signal.SIGINT else 128 + number)


def test_a_replay(start: Callable[..., Command], number: signal.Signals, tmp_path: Path) -> None:
    capture = tmp_path / "long.pcap"
    head = b"\xd4\xc3\xb2\xa1\x02\0\x04\0" + bytes(8) + (65535).to_bytes(4, "little") + (1).to_bytes(4, "little")
    with capture.open("wb") as file:
        file.write(head)
        for second in range(1, 31):
            record = second.to_bytes(4, "little") + bytes(4) + (60).to_bytes(4, "little") * 2 + bytes(60)
            file.write(record * 50_000)
    command = start("replay", capture, "--data", tmp_path / "data")
    command.wait_for(lambda: catches(command.process.pid) and (tmp_path / "data").exists())
    ends(command, number)
