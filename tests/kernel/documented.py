# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a page of the guide as its reader would, on a machine that the reader could have.

`run_page` makes it of namespaces: its own processes, network with an `eth0`, names such as head.example, and folders
/etc and /var that are put over this machine's. A collector and an agent run there whenever a command asks one. A
service of the page itself is ended when it serves, a program for a terminal gets one and is left by `q`.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from netmon.training import Steps

BIN = Path(sys.executable).parent
PATIENCE_S = 300
NAMES = "head.example head1 head2 collector.example"
_DATE = re.compile(r"2026-01-31T09:0(\d)(:(\d\d))?|2026-01-31T10:00")
_NAMESPACES = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--propagation"]
_MACHINE = """
set -e
mkdir -p over && mount -t tmpfs tmpfs over
mount -t tmpfs tmpfs /run
for folder in etc var; do
  mkdir -p over/$folder/up over/$folder/work
  mount -t overlay overlay -o lowerdir=/$folder,upperdir=over/$folder/up,workdir=over/$folder/work /$folder
done
hostname node1
echo '127.0.0.1 node1 NAMES' >>/etc/hosts
ip link set lo up
ip link add eth0 type veth peer name far0
ip address add 198.18.200.1/24 dev eth0
ip link set eth0 up && ip link set far0 up
ip neighbour add 198.18.200.2 lladdr 02:00:00:00:00:02 dev eth0
"""


def run_page(lines: Sequence[str], folder: Path) -> None:
    """Run these commands one after the other in the folder; fails with what the first wrong one said."""
    inside = [sys.executable, str(Path(__file__)), *lines]
    script = f"{_MACHINE.replace('NAMES', NAMES)}\nexec {shlex.join(inside)}"
    environment = os.environ | {"COLUMNS": "120", "TERM": "xterm-256color", "HOME": str(folder)}
    environment["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # Horovod is there
    environment["PATH"] = f"{folder / 'stand-ins'}:{BIN}:{os.environ['PATH']}"
    stand_ins(folder / "stand-ins")
    command = ["unshare", *_NAMESPACES, "private", "bash", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def stand_ins(folder: Path) -> None:
    """What the machine may lack: root needs no sudo, and the other host is a folder."""
    folder.mkdir(exist_ok=True)
    other = 'to="other/${@: -1}"; mkdir -p "$(dirname "$to")"; cp "${@:1:$#-1}" "$to"'
    for name, text in (("sudo", 'exec "$@"'), ("scp", other)):
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)


class Installation:
    """A collector and an agent, plain or with certificates; one of the two at a time."""

    def __init__(self) -> None:
        """Nothing runs."""
        self._kind = ""
        self._running: list[subprocess.Popen[bytes]] = []

    def be(self, kind: str) -> None:
        """kind: plain, tls, or empty: nothing is to run."""
        if kind == self._kind:
            return
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
        self._running, self._kind = [], kind
        if not kind:
            return
        tls = ["--tls", "/etc/netmon/pki/collector-head"] if kind == "tls" else []
        agents = ["--tls", "/etc/netmon/pki/agent-node1"] if kind == "tls" else []
        where = "head.example:9400" if kind == "tls" else "localhost:9400"
        self._start("collector", "--listen", "0.0.0.0:9400" if tls else where, "--data", "/var/lib/netmon", *tls)
        self._start("agent", "--interface", "eth0", "--capacity", "1gbit", "--collector", where, *agents)
        time.sleep(8)  # for rows to be of the last seconds

    def _start(self, *arguments: str) -> None:
        self._running.append(started([str(BIN / "netmon"), *arguments]))


def started(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    """A service, when it says that it is ready."""
    path = f"/run/ready-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(path)
        told.settimeout(1)
        process = subprocess.Popen(command, env=os.environ | {"NOTIFY_SOCKET": path})
        while process.poll() is None:
            with contextlib.suppress(TimeoutError):
                if b"READY=1" in told.recv(1 << 12):
                    return process
    raise SystemExit(f"{shlex.join(command)}: status {process.returncode}")


def moments(line: str) -> str:
    """The page's dates as some of the last seconds and hours, of which there are rows."""
    now = datetime.now(timezone.utc)

    def of(match: "re.Match[str]") -> str:
        if match[3] is not None:
            return f"{now - timedelta(seconds=6 - int(match[3])):%Y-%m-%dT%H:%M:%S}"
        hours = 1 if match[0].endswith(("T10:00", "T09:01")) else -1
        return f"{now + timedelta(hours=hours):%Y-%m-%dT%H:%M}"

    return _DATE.sub(of, line)


def kind_of(words: Sequence[str]) -> str:
    """Which installation a netmon command asks."""
    if words[1] in ("agent", "collector", "lab", "certificates", "bench", "report", "replay") or "--data" in words:
        return ""
    asks = words[1] in ("top", "web", "steps") or any(":9400" in word or word == "--collector" for word in words)
    return ("tls" if "--tls" in words else "plain") if asks else ""


def run_line(line: str, installation: Installation) -> None:
    """One line of the page."""
    words = shlex.split(line, comments=True)
    words = [os.path.expanduser(word) for word in (words[1:] if words[0] == "sudo" else words)]
    if words[0] != "netmon":
        return shell(line)
    if (kind := kind_of(words)) or words[1] in ("agent", "collector"):
        installation.be(kind)
    if words[1] == "web":
        return browse(words)
    if words[1] == "top" and "--once" not in words:
        return sit_before(words)
    if words[1] in ("agent", "collector") and not {"--print-config", "--prepare"} & set(words):
        return serve(words)
    return shell(line)


def shell(line: str) -> None:
    """To its end."""
    subprocess.run(["bash", "-c", moments(line)], check=True, timeout=1200)


def serve(words: Sequence[str]) -> None:
    """A service, until it serves."""
    process = started(words)
    process.send_signal(signal.SIGTERM)
    if process.wait(PATIENCE_S):
        raise SystemExit(f"{shlex.join(words)}: status {process.returncode}")


def browse(words: Sequence[str]) -> None:
    """The page's server, until it has given its first page."""
    secure = "--listen-tls" in words
    process = subprocess.Popen(words)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            address = f"http{'s' * secure}://localhost:9480/"
            with contextlib.suppress(OSError):
                if secure:
                    subprocess.run(["bash", "-c", "</dev/tcp/localhost/9480"], check=True, stderr=subprocess.DEVNULL)
                else:
                    assert b"netmon" in urllib.request.urlopen(address, timeout=30).read()
                break
            assert time.monotonic() < deadline
            time.sleep(0.3)
    except subprocess.CalledProcessError:
        raise SystemExit(f"{shlex.join(words)}: nobody listens") from None
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(PATIENCE_S)
    if status not in (0, 130):
        raise SystemExit(f"{shlex.join(words)}: status {status}")


def sit_before(words: Sequence[str]) -> None:
    """A program for a terminal, until it has drawn, and is left by `q`."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(words, stdin=there, stdout=there, stderr=there, start_new_session=True)
    os.close(there)
    drawn, begun, pressed = b"", time.monotonic(), time.monotonic() + 3
    while process.poll() is None and time.monotonic() < begun + PATIENCE_S:
        if select.select([here], [], [], 0.3)[0]:
            with contextlib.suppress(OSError):
                drawn += os.read(here, 1 << 16)
        if len(drawn) > 1_000 and time.monotonic() > pressed:
            pressed = time.monotonic() + 3
            os.write(here, b"q")
    if process.poll() is None:
        process.kill()
    if process.wait():
        raise SystemExit(f"{shlex.join(words)}: status {process.returncode}\n{drawn[-2000:].decode(errors='replace')}")


def traffic() -> None:
    """Something to count, for ever."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        while True:
            sending.sendto(b"x" * 1000, ("198.18.200.2", 9))
            time.sleep(0.01)


def training() -> None:
    """A job of one rank that tells its steps, for ever."""
    steps = Steps("resnet", 0, 1)
    while True:
        with steps.step():
            time.sleep(0.3)


def main(lines: Sequence[str]) -> None:
    """Inside."""
    for work in (traffic, training):
        threading.Thread(target=work, daemon=True).start()
    installation = Installation()
    for line in lines:
        print(f"$ {line}", flush=True)
        run_line(line, installation)
    installation.be("")


if __name__ == "__main__":
    main(sys.argv[1:])
