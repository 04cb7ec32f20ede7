# SPDX-License-Identifier: Apache-2.0
"""A real NATS server with JetStream, for tests: it keeps its storage over a restart, and syncs every write."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import DIES_WITH_US, free_port

from netmon.wire.bus import BusSettings

PROGRAM = Path(sys.executable).with_name("nats-server")


class NatsServer:
    """One server on the loopback. `start` waits until it answers."""

    def __init__(self, directory: Path, port: int = 0, cluster: str = "", **bounds: int) -> None:
        """cluster: a part of the configuration, of one of several. bounds: of BusSettings."""
        self.port, self._storage = port or free_port(), directory / "nats"
        self.settings = BusSettings((f"nats://127.0.0.1:{self.port}",), **{"most_bytes": 1 << 30, **bounds})
        self._config = directory / "nats.conf"
        self._config.write_text(
            f"listen: 127.0.0.1:{self.port}\nmax_payload: 20MB\nwrite_deadline: 10s\n"
            f'jetstream {{ store_dir: "{self._storage}", sync_interval: always, max_file_store: 4GB }}\n'
            f"{cluster}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*DIES_WITH_US, PROGRAM, "-c", self._config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None  # somebody else has the port
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as one:
                if one.recv(4) == b"INFO":
                    return
            time.sleep(0.02)
        raise AssertionError

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def wipe(self) -> None:
        """Of a server that does not run."""
        shutil.rmtree(self._storage)


@contextlib.contextmanager
def running(directory: Path, **bounds: int) -> Iterator[NatsServer]:
    if not PROGRAM.exists():
        pytest.skip("nats-server is not there: make setup-dev")
    server = NatsServer(directory, **bounds)
    server.start()
    try:
        yield server
    finally:
        server.kill()


SERVERS = 3


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[list[NatsServer]]:
    """Three servers, of which a stream may be on all."""
    if not PROGRAM.exists():
        pytest.skip("nats-server is not there: make setup-dev")
    first = free_port(2 * SERVERS)
    routes = ", ".join(f'"nats://127.0.0.1:{first + SERVERS + number}"' for number in range(SERVERS))
    servers = []
    for number in range(SERVERS):
        folder = directory / f"server{number}"
        folder.mkdir()
        listen = f"listen: 127.0.0.1:{first + SERVERS + number}"
        part = f"server_name: n{number}\ncluster {{ name: netmon-test, {listen}, routes: [{routes}] }}"
        servers.append(NatsServer(folder, port=first + number, cluster=part))
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()
