# SPDX-License-Identifier: Apache-2.0
"""A process of the testbed: started in a host's namespace, its output in a log file, its readiness waited for."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from netmon.errors import LabError
from netmon.lab.network import INTERFACE, Host

PRIORITY = ("nice", "-n", "-15")
"""For what a server's own cores would do: here all hosts share a few, so trainers, senders and receivers go first."""

_POLL_SECONDS = 0.02


class Process(AbstractContextManager["Process"]):
    """A running process; leaving its context ends it. It gets SIGTERM when the lab dies, however the lab dies."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_folder: Path,
        *,
        host: Host | None = None,
        environment: Mapping[str, str] | None = None,
        notify: Path | None = None,
    ) -> None:
        """Start it, on `host` or, without one, outside all of them. `notify`: path for a readiness socket."""
        self.name = name
        self.host = host
        self.command = tuple(command)
        self.log = log_folder / f"{name}.log"
        self._stop_requested = False
        self._ready = _readiness_socket(notify) if notify else None
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        if notify:
            variables["NOTIFY_SOCKET"] = str(notify)
        inside = ["ip", "netns", "exec", host.namespace] if host else []
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C reaches the lab alone, which then ends everything in order.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *inside, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id (setpriv and ip replace themselves with the command)."""
        return self._process.pid

    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raise LabError if it has ended with anything but success."""
        if self.status():
            raise LabError(f"{self._who()} ended with status {self.status()}: {self._last_words()}")

    def check_running(self) -> None:
        """Raise LabError if it has ended at all."""
        if self.status() is not None:
            raise LabError(f"{self._who()} ended with status {self.status()}, too early: {self._last_words()}")

    def wait_ready(self, seconds: float) -> None:
        """Block until it says READY=1 (systemd's notify protocol). Raises LabError when it ends or time is up."""
        assert self._ready, "started without a readiness socket"
        deadline = time.monotonic() + seconds
        self._ready.settimeout(_POLL_SECONDS)
        while True:
            try:
                if "READY=1" in self._ready.recv(4096).decode().splitlines():
                    return
            except TimeoutError:
                self._expect_alive(deadline, seconds, "to be ready")

    def wait_output(self, pattern: str, seconds: float) -> re.Match[str]:
        """Block until its output matches a regular expression. Raises LabError when it ends or time is up."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.output())):
            self._expect_alive(deadline, seconds, f"to say {pattern!r}")
            time.sleep(_POLL_SECONDS)
        return match

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def request_stop(self) -> None:
        """Send SIGTERM, once, and return at once: a second one may end what is being put in order."""
        if not self._stop_requested:
            self._stop_requested = True
            self._process.terminate()

    def end(self, *, seconds: float = 10) -> int:
        """Request it to end and block until it has; SIGKILL after `seconds`. Returns its exit status."""
        self.request_stop()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._ready:
            self._ready.close()
        return self._process.wait()

    def end_in_order(self, *, seconds: float) -> None:
        """End it and raise LabError unless it took the signal as the end of its work (status 0)."""
        if self.end(seconds=seconds):
            self.check()

    def __exit__(self, *exception: object) -> None:
        self.end()

    def _expect_alive(self, deadline: float, seconds: float, what: str) -> None:
        if self.status() is not None:
            raise LabError(f"cannot start {self._who()}: it ended with status {self.status()}: {self._last_words()}")
        if time.monotonic() > deadline:
            raise LabError(f"waited {seconds:g} s in vain for {self._who()} {what}: {self._last_words()}")

    def _who(self) -> str:
        return f"{self.name} on {self.host.name}" if self.host else self.name

    def _last_words(self) -> str:
        lines = self.output().split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"{last} (all of it in {self.log})"


def _readiness_socket(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ready.bind(str(path))
    return ready


def collector_command(address: str, data: Path, *more: str) -> list[str]:
    """A collector that listens there."""
    return [sys.executable, "-m", "netmon", "collector", "--listen", address, "--data", str(data), *more]


def agent_command(host: Host, folder: Path, *more: str) -> list[str]:
    """An agent of a host, with what it keeps in a folder. more: at least where it sends to."""
    kept = ("--socket", str(folder / f"{host.name}.sock"), "--spool", str(folder / f"spool-{host.name}"))
    return [sys.executable, "-m", "netmon", "agent", "--interface", INTERFACE, "--host", host.name, *kept, *more]


# --- CPU time used so far, by the whole machine and by single processes, and the memory of processes.


_PRECISE = Path("/proc/self/schedstat").exists()
_KB = 1024
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """Of all CPUs together, in seconds: user, nice, system, interrupts. Not idle, not stolen by a hypervisor."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) * _TICK_S


def process_seconds(pids: Iterable[int]) -> float:
    """Of these processes and all their threads, in seconds. A process that has ended counts for nothing.

    From the scheduler's account, in ns, where the kernel keeps one (it leaves threads out that have ended); else from
    /proc/PID/stat, in steps of 10 ms.
    """
    return sum(_scheduled(pid) if _PRECISE else _ticks(pid) * _TICK_S for pid in pids)


def memory_bytes(pids: Iterable[int], name: str) -> int:
    """name: "Rss", in which pages that are shared or mapped twice count each time, or "Pss", in which they are shared.

    A process that has ended counts for nothing.
    """
    return sum(_memory_of(pid, name) for pid in pids)


def children(pid: int) -> list[int]:
    """The processes that this one has started and that run."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _parent(entry) == pid]


def command_line(pid: int) -> list[str]:
    """What a process was started with; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _scheduled(pid: int) -> float:
    spent_ns = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            spent_ns += int(file.read_text().split()[0])
    return spent_ns / 1e9


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _memory_of(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * _KB for line in lines if line.startswith(f"{name}:"))
