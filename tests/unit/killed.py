# SPDX-License-Identifier: Apache-2.0
"""Collectors and agents as processes that are killed at any moment, and what of all that they have sent is stored."""

import itertools
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from dataset_rows import stored_rows
from waiting import DIES_WITH_US, wait_for

ROWS, PAYLOAD = 200, 1000  # of a batch; of a row
FLOWS = 2  # that share the rows of a batch
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
HOSTS = ("h0", "h1")
LATEST_S = 240.0


class Processes:
    """The collectors and the agents, one generation after the other."""

    def __init__(self, directory: Path, where: str, collectors: dict[str, Sequence[str]]) -> None:
        """where: agents send; collectors: by name, their own options."""
        self.directory, self.where, self._collectors = directory, where, collectors
        self.data, self.records = directory / "data", directory / "records"
        self.records.mkdir()
        self._numbers = itertools.count(1)
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in self._collectors:
            self.start_worker(name)
        for host in HOSTS:
            self.start_agent(host)

    def start_worker(self, name: str) -> None:
        command = [*DIES_WITH_US, sys.executable, "-m", "netmon", "collector", *self._collectors[name]]
        with open(self.directory / f"{name}.log", "a") as log:
            more = ["--data", self.data, "--flush", "200ms"]
            self.workers[name] = subprocess.Popen([*command, *more], stderr=log)

    def start_agent(self, host: str) -> None:
        number = next(self._numbers)
        session = f"{host}-{number:03}"
        arguments = (self.directory / f"spool-{host}", self.where, host, session, number, self.records / session)
        with open(self.directory / f"agent-{host}.log", "a") as log:
            program = [*DIES_WITH_US, sys.executable, HERE / "agent_run.py", *map(str, arguments)]
            self.agents[host] = subprocess.Popen(program, stderr=log, cwd=HERE)
        wait_for((self.records / session).exists, LATEST_S)

    def kill(self, what: str) -> None:
        """And start it again."""
        if what in self.workers:
            self._kill(self.workers[what], what)
            self.start_worker(what)
        else:
            self._kill(self.agents[what], what)
            self.start_agent(what)

    @staticmethod
    def _kill(process: "subprocess.Popen[bytes]", what: str) -> None:
        assert process.poll() is None, f"{what} has ended by itself"
        process.kill()
        process.wait()

    def sent(self) -> dict[str, int]:
        """Batches by session, at least: the last one of a killed agent may not be written down."""
        return {path.name: int(path.read_text() or 0) for path in self.records.glob("h*")}

    def stored(self) -> "pd.Series[int]":
        """Payload bytes by session and flow; no row is there twice."""
        rows = stored_rows(self.data, columns=["session", "flow_id", "bucket_start_ns", "payload_bytes"])
        rows["session"] = rows["session"].astype(str)
        rows["ms"] = (rows["bucket_start_ns"] + 500_000) // 1_000_000
        assert not rows.duplicated(["session", "flow_id", "ms"]).any()
        return rows.groupby(["session", "flow_id"])["payload_bytes"].sum()

    def whole(self) -> bool:
        """Whether every batch that was sent is stored, as far as can be told now."""
        rows = self.stored()
        return all(
            rows.get((session, flow), 0) >= count * ROWS // FLOWS * PAYLOAD
            for session, count in self.sent().items()
            for flow in range(1, FLOWS + 1)
        )

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


def check(processes: Processes) -> str:
    """What was sent is stored, to the byte, in each flow, and nothing is said of losses; how much it was."""
    sent, stored = processes.sent(), processes.stored()
    for session, batches in sent.items():
        own = [int(stored[session, flow]) for flow in range(1, FLOWS + 1)]
        assert own[0] == own[1] in [b * ROWS // FLOWS * PAYLOAD for b in (batches, batches + 1)], (session, own)
    assert {session for session, _ in stored.index} == set(sent)
    assert "never arrived" not in processes.said()
    assert "is lost" not in processes.said()
    ours = [f'File "{ROOT}/{room}/' for room in ("collector", "netmon")]  # nats-py says of itself what it fails at
    assert not [line for line in processes.said().splitlines() if any(file in line for file in ours)]
    return f"{stored.sum()} bytes in {len(sent)} sessions"


def kill_at_random(
    processes: Processes, kills: int, seed: int, more: dict[str, Any], tell: Callable[[str], None] = lambda line: None
) -> None:
    """Then let them come to their end. more: others to kill, by name, that `kill` and `start`."""
    chance, killed = random.Random(seed), Counter[str]()
    try:
        processes.start()
        wait_for(lambda: len(processes.stored()) > 0, LATEST_S)
        while killed.total() < kills:
            time.sleep(chance.uniform(0.1, 1.0))
            what = chance.choice([*processes.workers, *processes.agents, *more])
            if what in more:
                more[what].kill()
                more[what].start()
            else:
                processes.kill(what)
            killed[what] += 1
            tell(f"{killed.total()} killed, the last one was {what}")
        processes.send_the_rest()
        wait_for(processes.whole, LATEST_S)
        processes.end_workers()
    finally:
        processes.end()
    tell(f"killed {dict(killed)}")
