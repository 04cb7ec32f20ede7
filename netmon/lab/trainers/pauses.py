# SPDX-License-Identifier: Apache-2.0
"""What a script does now and then besides training. Standard library only.

All ranks evaluate, write a checkpoint, or go on with another batch size, after a step: the work is a wait, as the
trainers' computing is, and an evaluation ends with its metrics averaged over the ranks: small all-reduces, as scripts
have them. One rank is late within a step: it waits for its data, or computes, for longer than the others; or its
garbage is collected in the middle of its backward pass, in which nothing else of that Python runs.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator

METRICS = 4
_NEVER_S = 1e6
_OF_ALL_RANKS = ("evaluate", "checkpoint", "batch")


class Pauses:
    """When a script pauses: AFTER:SECONDS:KIND:RANK:STRENGTH,…, AFTER being a number of finished iterations.

    STRENGTH: the share of the time in which a late rank computes; of a batch, times as long as at first that a step
    computes from then on. A rank that is not RANK is neither late nor collects.
    """

    def __init__(self, text: str = "", rank: int = 0) -> None:
        """text: as the option has it; empty: never. rank: whose pauses they are."""
        self._after: dict[tuple[int, str], list[tuple[float, float]]] = {}
        for pause in text.split(",") if text else ():
            after, seconds, kind, whose, strength = pause.split(":")
            if kind in _OF_ALL_RANKS or int(whose) == rank:
                self._after.setdefault((int(after), kind), []).append((float(seconds), float(strength)))

    def keep(self, finished: int, average_metric: Callable[[], object]) -> bool:
        """Evaluate or write a checkpoint if it is due after so many iterations, and say whether it was; blocks."""
        due = False
        for kind in _OF_ALL_RANKS:
            for seconds, _ in self._due(finished, kind):
                due = True
                time.sleep(seconds if kind != "batch" else 0.0)
                for _ in range(METRICS if kind == "evaluate" else 0):
                    average_metric()
        return due

    def be_late(self, finished: int) -> None:
        """Wait, or compute, before the first gradient is there, if it is due; blocks."""
        for seconds, busy in self._due(finished, "late"):
            computed = time.monotonic() + seconds * busy
            while time.monotonic() < computed:
                pass
            time.sleep(seconds * (1 - busy))

    def collect(self, finished: int) -> None:
        """Collect garbage if it is due; blocks every thread that runs Python."""
        for seconds, _ in self._due(finished, "gc"):
            until, interval_s = time.monotonic() + seconds, sys.getswitchinterval()
            sys.setswitchinterval(_NEVER_S)
            while time.monotonic() < until:
                gc.collect(0)
            sys.setswitchinterval(interval_s)

    def _due(self, finished: int, kind: str) -> Iterator[tuple[float, float]]:
        """Seconds and share of those that are due; both moments of each are printed, CLOCK_MONOTONIC in ns."""
        for pause in self._after.get((finished, kind), []):
            begun = time.monotonic_ns()
            yield pause
            print(f"paused {kind} {finished} {begun} {time.monotonic_ns()}", flush=True)

    def computing(self, finished: int) -> float:
        """Times as long as at first that a step computes after so many iterations."""
        changed = [after for after, kind in self._after if kind == "batch" and after <= finished]
        return self._after[max(changed), "batch"][-1][1] if changed else 1.0
