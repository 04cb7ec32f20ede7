# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of servers, workers and agents at any moment, while batches come: what was sent is stored, and nothing twice.

Three servers that keep everything three times, two workers, two hosts with an agent and a job each.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from nats_server import NatsServer, cluster
from waiting import DIES_WITH_US, wait_for

ROWS = 200  # of a batch
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
WORKERS, HOSTS = ("w1", "w2"), ("h0", "h1")
LATEST_S = 240.0


class Processes:
    """The workers and the agents, one generation after the other."""

    def __init__(self, directory: Path, servers: list[NatsServer]) -> None:
        self.directory, self.servers = directory, servers
        self.urls = ",".join(server.settings.servers[0] for server in servers)
        self.data, self.records = directory / "data", directory / "records"
        self.records.mkdir()
        self._numbers = itertools.count(1)
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in WORKERS:
            self.start_worker(name)
        for host in HOSTS:
            self.start_agent(host)

    def start_worker(self, name: str) -> None:
        program = [*DIES_WITH_US, sys.executable, "-m", "netmon", "collector"]
        command = [*program, "--listen", f"unix:{self.directory}/{name}.sock"]
        more = ["--bus", self.urls, "--bus-bytes", "1GB", "--bus-replicas", "3", "--worker", name]
        with open(self.directory / f"{name}.log", "a") as log:
            self.workers[name] = subprocess.Popen(
                [*command, *more, "--data", self.data, "--flush", "200ms"], stderr=log
            )

    def start_agent(self, host: str) -> None:
        number = next(self._numbers)
        session = f"{host}-{number:03}"
        arguments = (self.directory / f"spool-{host}", self.urls, host, session, number, self.records / session)
        with open(self.directory / f"agent-{host}.log", "a") as log:
            program = [*DIES_WITH_US, sys.executable, HERE / "bus_agent_run.py", *map(str, arguments)]
            self.agents[host] = subprocess.Popen(program, stderr=log, cwd=HERE)
        wait_for((self.records / session).exists, LATEST_S)

    def kill(self, what: str) -> None:
        """And start it again."""
        if what in self.workers:
            self._kill(self.workers[what], what)
            self.start_worker(what)
        elif what in self.agents:
            self._kill(self.agents[what], what)
            self.start_agent(what)
        else:
            server = self.servers[int(what)]
            server.kill()
            server.start()

    @staticmethod
    def _kill(process: "subprocess.Popen[bytes]", what: str) -> None:
        assert process.poll() is None, f"{what} has ended by itself"
        process.kill()
        process.wait()

    def sent(self) -> dict[str, int]:
        """Batches by session, at least: the last one of a killed agent may not be written down."""
        return {path.name: int(path.read_text() or 0) for path in self.records.glob("h*")}

    def stored(self) -> pd.Series:
        """Rows by session; none is there twice."""
        files = sorted((self.data / "buckets").rglob("*.parquet"))
        columns = ["session", "flow_id", "bucket_start_ns", "payload_bytes"]
        rows = pd.concat([pd.read_parquet(file, columns=columns) for file in files])
        rows["session"] = rows["session"].astype(str)
        rows["ms"] = (rows["bucket_start_ns"] + 500_000) // 1_000_000
        assert not rows.duplicated(["session", "flow_id", "ms"]).any()
        assert (rows["payload_bytes"] == 1000).all()
        return rows.groupby("session").size()

    def whole(self) -> bool:
        """Whether every batch that was sent is stored, as far as can be told now."""
        try:
            rows = self.stored()
        except (FileNotFoundError, ValueError):  # merged meanwhile, or none yet
            return False
        return all(rows.get(session, 0) >= count * ROWS for session, count in self.sent().items())

    def send_the_rest(self) -> None:
        """What killed agents have left behind, too."""
        for again in (True, False):
            for host in HOSTS:
                self.agents[host].send_signal(signal.SIGTERM)
            for host in HOSTS:
                self.agents[host].wait(LATEST_S)
            if again:
                for host in HOSTS:
                    self.start_agent(host)
                wait_for(lambda: all(self._spools(host) <= 1 for host in HOSTS), LATEST_S)

    def _spools(self, host: str) -> int:
        return len(list((self.directory / f"spool-{host}").glob("*.spool")))

    def end_workers(self) -> None:
        for worker in self.workers.values():
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers.values():
            assert worker.wait(LATEST_S) == 0

    def end(self) -> None:
        for process in (*self.agents.values(), *self.workers.values()):
            process.kill()
            process.wait()

    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self.directory.glob("*.log")))


def campaign(directory: Path, kills: int, seed: int, tell: Callable[[str], None] = lambda line: None) -> None:
    chance = random.Random(seed)
    victims = [*WORKERS, *HOSTS, "0", "1", "2"]
    killed: Counter[str] = Counter()
    with cluster(directory) as servers:
        processes = Processes(directory, servers)
        try:
            processes.start()
            wait_for(lambda: (processes.data / "buckets").is_dir(), LATEST_S)
            while killed.total() < kills:
                time.sleep(chance.uniform(0.1, 1.0))
                what = chance.choice(victims)
                processes.kill(what)
                killed[what] += 1
                tell(f"{killed.total()} killed, the last one was {what}")
            processes.send_the_rest()
            wait_for(processes.whole, LATEST_S)
            processes.end_workers()
        finally:
            processes.end()
        sent, stored = processes.sent(), processes.stored()
    for session, batches in sent.items():
        assert stored[session] in (batches * ROWS, (batches + 1) * ROWS), session
    assert set(stored.index) == set(sent)
    assert "never arrived" not in processes.said()
    ours = [f'File "{ROOT}/{room}/' for room in ("collector", "netmon")]  # nats-py says of itself what it fails at
    assert not [line for line in processes.said().splitlines() if any(file in line for file in ours)]
    tell(f"killed {dict(killed)}: {stored.sum()} rows in {len(stored)} sessions")


def test_twelve_kills(tmp_path):
    campaign(tmp_path, 12, seed=7)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_kills(tmp_path):
    campaign(tmp_path, 200, seed=int(os.environ.get("NETMON_SEED", "7")), tell=print)
