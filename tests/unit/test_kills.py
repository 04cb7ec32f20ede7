# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of servers, workers and agents at any moment, while batches come: what was sent is stored, and nothing twice.

Three servers that keep everything three times, two workers, two hosts with an agent and a job each; or one collector
to which the agents connect.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from killed import Processes, check, kill_at_random
from nats_server import cluster

WORKERS = ("w1", "w2")
SEED = int(os.environ.get("NETMON_SEED", "7"))


def on_a_bus(directory: Path, kills: int, seed: int, tell: Callable[[str], None] = lambda line: None) -> None:
    with cluster(directory) as servers:
        urls = ",".join(server.settings.servers[0] for server in servers)
        options = {name: ("--listen", f"unix:{directory}/{name}.sock", "--bus", urls) for name in WORKERS}
        more = ("--bus-bytes", "1GB", "--bus-replicas", "3")
        workers = {name: (*own, *more, "--worker", name) for name, own in options.items()}
        processes = Processes(directory, urls, workers)
        others = {str(number): server for number, server in enumerate(servers)}
        kill_at_random(processes, kills, seed, others, tell)
    tell(check(processes))


def on_one_collector(directory: Path, kills: int, seed: int, tell: Callable[[str], None] = lambda line: None) -> None:
    where = f"unix:{directory}/c.sock"
    processes = Processes(directory, where, {"collector": ("--listen", where)})
    kill_at_random(processes, kills, seed, {}, tell)
    tell(check(processes))


def test_eight_kills(tmp_path: Path) -> None:
    on_a_bus(tmp_path, 8, seed=7)


def test_three_kills_on_one_collector(tmp_path: Path) -> None:
    on_one_collector(tmp_path, 3, seed=7)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_three_hundred_kills_on_a_bus(tmp_path: Path) -> None:
    on_a_bus(tmp_path, 300, SEED, tell=print)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_three_hundred_kills_on_one_collector(tmp_path: Path) -> None:
    on_one_collector(tmp_path, 300, SEED, tell=print)
