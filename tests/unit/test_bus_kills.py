# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of server, worker and agent in turn, while batches come: what was sent is stored, and nothing twice."""

import itertools
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from nats_server import NatsServer, running
from waiting import wait_for

ROWS = 200  # of a batch
HERE = Path(__file__).parent


class Processes:
    """The worker and the agents, one generation after the other; all of one host."""

    def __init__(self, directory: Path, server: NatsServer) -> None:
        self.directory, self.server = directory, server
        self.data, self.records = directory / "data", directory / "records"
        self.records.mkdir()
        self._numbers = itertools.count(1)
        self.start_worker()
        self.start_agent()

    def start_worker(self) -> None:
        command = [sys.executable, "-m", "netmon", "collector", "--listen", f"unix:{self.directory}/socket"]
        more = ["--bus", self.server.settings.servers[0], "--bus-bytes", "1GB", "--worker", "w1"]
        with open(self.directory / "worker.log", "a") as log:
            self.worker = subprocess.Popen([*command, *more, "--data", self.data, "--flush", "200ms"], stderr=log)

    def start_agent(self) -> None:
        number = next(self._numbers)
        session = f"s{number:03}"
        arguments = (self.directory / "spool", self.server.settings.servers[0], session, number, self.records / session)
        with open(self.directory / "agent.log", "a") as log:
            program = [sys.executable, HERE / "bus_agent_run.py", *map(str, arguments)]
            self.agent = subprocess.Popen(program, stderr=log, cwd=HERE)
        wait_for((self.records / session).exists)

    def kill(self, what: str) -> None:
        if what == "server":
            self.server.kill()
            self.server.start()
        elif what == "worker":
            self.worker.kill()
            self.worker.wait()
            self.start_worker()
        else:
            self.agent.kill()
            self.agent.wait()
            self.start_agent()

    def sent(self) -> dict[str, int]:
        """Batches by session, at least: the last one of a killed agent may not be written down."""
        return {path.name: int(path.read_text() or 0) for path in self.records.glob("s*")}

    def stored(self) -> pd.Series:
        """Rows by session."""
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

    def end(self) -> None:
        for process in (self.agent, self.worker):
            process.kill()
            process.wait()


def campaign(directory: Path, kills: int) -> None:
    chance = random.Random(7)
    with running(directory) as server:
        processes = Processes(directory, server)
        try:
            for what in itertools.islice(itertools.cycle(("server", "worker", "agent")), kills):
                time.sleep(chance.uniform(0.1, 1.0))
                processes.kill(what)
            processes.agent.send_signal(signal.SIGTERM)
            processes.agent.wait(60)
            processes.start_agent()  # which sends what the others have left behind
            wait_for(lambda: not len(list((directory / "spool").glob("*.spool"))) > 1, 120)
            processes.agent.send_signal(signal.SIGTERM)
            processes.agent.wait(60)
            wait_for(processes.whole, 120)
            processes.worker.send_signal(signal.SIGTERM)
            assert processes.worker.wait(60) == 0
        finally:
            processes.end()
        sent, stored = processes.sent(), processes.stored()
    for session, batches in sent.items():
        assert stored[session] in (batches * ROWS, (batches + 1) * ROWS), session
    assert set(stored.index) == set(sent)
    lines = (directory / "worker.log").read_text() + (directory / "agent.log").read_text()
    assert "never arrived" not in lines
    assert "Traceback" not in lines


def test_twelve_kills(tmp_path):
    campaign(tmp_path, 12)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_hundred_kills(tmp_path):
    campaign(tmp_path, 200)
