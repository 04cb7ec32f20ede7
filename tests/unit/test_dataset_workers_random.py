# SPDX-License-Identifier: Apache-2.0
"""Workers that take hosts from each other, write, come and are killed: what is acknowledged is there once."""

import os
import random
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from collector_stream import hello
from test_dataset_workers import KilledError, flush, stored

from collector.dataset import sink as module
from collector.dataset.files import Staging
from collector.dataset.manifest import Manifest, OtherManifest
from collector.dataset.sink import ParquetSink

WORKERS, HOSTS = ("w1", "w2", "w3"), ("a", "b", "c", "d")
HELLOS = {host: hello(session=f"s-{host}", host=host) for host in HOSTS}
STEPS = 60


class Kill:
    """In how many steps of a worker it is killed; a step is what makes a difference to the others."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.dead = False
        patched.setattr(module, "take_over", self._step(module.take_over))
        for owner, name in ((OtherManifest, "move"), (Staging, "publish"), (Manifest, "commit"), (Manifest, "placed")):
            patched.setattr(owner, name, self._step(getattr(owner, name)))
        discard = Staging.discard
        patched.setattr(Staging, "discard", lambda *given: None if self.dead else discard(*given))

    def _step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*given: Any, **named: Any) -> Any:
            self._count()
            found = function(*given, **named)
            self._count()
            return found

        return run

    def _count(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                self.dead = True
                raise KilledError


class Cluster:
    """What is true of it: whose each host is, and what has been acknowledged of it."""

    def __init__(self, directory: Path, kill: Kill, chance: random.Random) -> None:
        self.directory, self.kill, self.chance = directory, kill, chance
        self.there: dict[str, ParquetSink] = {}
        self.epoch = 0
        self.own: dict[str, set[str]] = {}  # hosts that a worker has resumed
        self.acknowledged = dict.fromkeys(HOSTS, 0)
        self.maybe = dict.fromkeys(HOSTS, 0)  # was written by somebody who was killed

    def step(self) -> None:
        name = self.chance.choice(WORKERS)
        if name not in self.there:
            self.there[name], self.own[name] = ParquetSink(self.directory, name), set()
            return
        self.kill.left = self.chance.choice((0, 0, 0, *range(1, 9)))
        try:
            self.chance.choice((self.take, self.take, self.flush, self.flush, self.flush, self.tidy))(name)
        except KilledError:
            self.end(name)
        self.kill.left, self.kill.dead = 0, False
        if self.chance.random() < 0.05 and name in self.there:
            self.end(name)

    def end(self, name: str) -> None:
        """As its process does when it is killed: nothing but its locks are let go of."""
        sink = self.there.pop(name)
        sink._manifest.close()
        sink._sharing.close()
        del self.own[name]

    def take(self, name: str) -> None:
        hosts = self.chance.sample(HOSTS, self.chance.randint(1, 3))
        if self.chance.random() < 0.5:
            for other in self.there.keys() - {name}:
                self.there[other].settle_changes()
        self.epoch += 1
        self.own[name] -= set(hosts)
        assert not self.there[name].take(dict.fromkeys(hosts, self.epoch))
        for host in hosts:
            self.resume(name, host)

    def resume(self, name: str, host: str) -> None:
        found = self.there[name].resume(HELLOS[host])
        assert self.acknowledged[host] <= found.last_sequence <= max(self.acknowledged[host], self.maybe[host])
        self.acknowledged[host] = found.last_sequence
        numbers = [1, *range(11, 11 + found.last_sequence)] if found.last_sequence else []
        assert sorted(stored.flow.flow_id for stored in found.flows) == numbers
        self.own[name].add(host)

    def flush(self, name: str) -> None:
        for host in sorted(self.own[name]):
            number = self.acknowledged[host] + 1
            self.maybe[host] = number
            if flush(self.there[name], number, host, process=name):
                self.own[name].discard(host)
            else:
                self.acknowledged[host] = number

    def tidy(self, name: str) -> None:
        sink = self.there[name]
        sink.take_absent()
        sink.merge_some(lambda: True, at_once=True)

    def over(self) -> None:
        """One of them has all in the end."""
        for sink in self.there.values():
            sink.close()
        sink, self.own["w1"] = ParquetSink(self.directory, "w1"), set()
        self.there = {"w1": sink}
        sink.take(dict.fromkeys(HOSTS, self.epoch + 1))
        for host in HOSTS:
            self.resume("w1", host)
        sink.close()
        there = {host: [1, *range(11, 11 + last)] for host, last in self.acknowledged.items() if last}
        assert stored(self.directory) == there


@pytest.mark.parametrize("seed", range(int(os.environ.get("NETMON_SEEDS", "6"))))
def test_what_is_acknowledged_is_there_once(tmp_path, monkeypatch, seed):
    cluster = Cluster(tmp_path, Kill(monkeypatch), random.Random(seed))
    try:
        for _ in range(STEPS):
            cluster.step()
        cluster.over()
    finally:
        for sink in cluster.there.values():
            sink.close()
