# SPDX-License-Identifier: Apache-2.0
"""Does to a training what its spec says, at the moments that it says, and writes down what was done when.

DATA/lab/injections.json holds the truth: a list of what was begun, in order, each with
```
kind, cause       as asked for; the cause in a verdict's words, "" for nothing
start_ns, end_ns  UTC; end_ns null where the training ended first
host, hosts       names: of the rank or link that was hurt; of all that took part
rank              that was stopped or had no CPU, or that transferred something itself, else null
processes         programs of cross traffic
job               the other job's name, else ""
far               address and port of the file server that a rank transferred to or from; of no other kind
strength, at, duration_ns, direction
```
"""

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from netmon.errors import LabError
from netmon.lab.injections.actions import Action, RunContext, action
from netmon.lab.injections.quota import own_group
from netmon.lab.injections.spec import Injection
from netmon.lab.network import Network
from netmon.lab.record import INJECTIONS, Record, utc_minus_mono_ns
from netmon.lab.spec import RunSpec
from netmon.lab.training import Training

_LOOK_SECONDS = 0.01
_UNDONE_SECONDS = 5.0
_TOOK = re.compile(r"^iteration \d+ took ([\d.]+) s$", re.MULTILINE)


@dataclass
class _Injected:
    number: int
    injection: Injection
    action: Action
    began_ns: int = 0
    ended_ns: int = 0


class Injector:
    """The injections of one run; leaving the context undoes what is not undone, and writes the truth."""

    def __init__(self, spec: RunSpec, network: Network, record: Record) -> None:
        """Get ready what takes CPU time to start; blocks. Raises LabError."""
        self._where = RunContext(spec, network, record)
        self._all: list[_Injected] = []
        self._moved = threading.Condition()
        self._done, self._baseline_s = 0, 0.0
        self._over = False
        self._failure: Exception | None = None
        try:
            for number, each in enumerate(spec.injections):
                self._all.append(_Injected(number, each, action(number, each, self._where)))
        except BaseException:
            self._close()
            raise

    @contextlib.contextmanager
    def during(self, training: Training) -> Iterator[None]:
        """Inject while the context is open. Raises LabError where a rank cannot be given a control group."""
        for rank in {each.injection.rank for each in self._all if each.injection.kind == "quota"}:
            own_group(self._where.network.lease.run, training.ranks[rank].pid)
        threads = [threading.Thread(target=self._inject, args=(each, training), daemon=True) for each in self._all]
        if threads:
            threads.append(threading.Thread(target=self._follow, args=(training,), daemon=True))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            with self._moved:
                self._over = True
                self._moved.notify_all()
            for thread in threads:  # they undo what they did: a stopped rank could not end
                thread.join(_UNDONE_SECONDS)

    def check(self) -> None:
        """Raise what an injection failed with."""
        if self._failure:
            raise self._failure

    def __enter__(self) -> "Injector":
        """Nothing: all are ready."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Undo, end and write."""
        self._close()
        if self._all:
            (self._where.record.folder / INJECTIONS).write_text(json.dumps(self._truth(), indent=2) + "\n")

    def _follow(self, training: Training) -> None:
        """Tell the threads how far rank 0 is."""
        took: list[float] = []
        with training.ranks[0].log.open(errors="replace") as log:
            rest = ""
            while not self._over:
                rest += log.read()
                lines, _, rest = rest.rpartition("\n")
                took += [float(seconds) for seconds in _TOOK.findall(lines)]
                if len(took) > self._done:
                    with self._moved:
                        self._done, self._baseline_s = len(took), sorted(took)[len(took) // 2]
                        self._moved.notify_all()
                time.sleep(_LOOK_SECONDS)

    def _inject(self, each: _Injected, training: Training) -> None:
        try:
            if not self._wait(each.injection.at):
                return
            each.began_ns = each.action.begin(training)
            self._rest(each.injection.duration_ns / 1e9)
            each.ended_ns = each.action.end()
        except LabError as error:
            if not self._over:
                self._failure = error

    def _wait(self, at: float) -> bool:
        """Whether the moment has come; False: the training has ended before."""
        with self._moved:
            self._moved.wait_for(lambda: self._over or self._done >= int(at))
        return not self._over and not self._rest((at - int(at)) * self._baseline_s)

    def _rest(self, seconds: float) -> bool:
        """Whether the training has ended meanwhile."""
        with self._moved:
            return self._moved.wait_for(lambda: self._over, seconds)

    def _close(self) -> None:
        for each in self._all:
            each.action.close()

    def _truth(self) -> list[dict[str, Any]]:
        to_utc = utc_minus_mono_ns()
        begun = sorted((each for each in self._all if each.began_ns), key=lambda each: each.began_ns)
        return [self._described(each, to_utc) for each in begun]

    def _described(self, each: _Injected, to_utc: int) -> dict[str, Any]:
        injection, truth = each.injection, each.action.truth()
        known = {"processes": [], "job": "", **truth}
        return {
            "number": each.number,
            "kind": injection.kind,
            "cause": injection.cause,
            "start_ns": each.began_ns + to_utc,
            "end_ns": each.ended_ns + to_utc if each.ended_ns else None,
            "host": known["hosts"][0] if len(known["hosts"]) == 1 else "",
            "rank": injection.rank if injection.rank >= 0 else None,
            "strength": injection.effective_strength,
            "at": injection.at,
            "duration_ns": injection.duration_ns,
            "direction": injection.way if injection.host >= 0 else "",
            **known,
        }
