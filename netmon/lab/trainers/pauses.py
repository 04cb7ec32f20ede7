# SPDX-License-Identifier: Apache-2.0
"""What all ranks do after a step now and then: evaluate, or write a checkpoint. Standard library only.

The work is a wait, as the trainers' computing is. An evaluation ends with its metrics averaged over the ranks: small
all-reduces, as scripts have them.
"""

import time
from collections.abc import Callable

METRICS = 4


class Pauses:
    """When a script pauses: AFTER:SECONDS:KIND,…, AFTER being a number of finished iterations."""

    def __init__(self, text: str = "") -> None:
        """text: as the option has it; empty: never."""
        self._after: dict[int, list[tuple[float, str]]] = {}
        for pause in text.split(",") if text else ():
            after, seconds, kind = pause.split(":")
            self._after.setdefault(int(after), []).append((float(seconds), kind))

    def keep(self, finished: int, average_metric: Callable[[], object]) -> bool:
        """Pause if it is due after so many iterations, and say whether it was; blocks.

        Prints both moments, CLOCK_MONOTONIC in ns.
        """
        due = self._after.get(finished, [])
        for seconds, kind in due:
            begun = time.monotonic_ns()
            time.sleep(seconds)
            if kind == "evaluate":
                for _ in range(METRICS):
                    average_metric()
            print(f"paused {kind} {finished} {begun} {time.monotonic_ns()}", flush=True)
        return bool(due)
