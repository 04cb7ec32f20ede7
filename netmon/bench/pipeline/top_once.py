# SPDX-License-Identifier: Apache-2.0
"""How long somebody waits for `netmon top --once --json` while agents send."""

import statistics
import subprocess
import sys
import threading
import time
from types import TracebackType

_EVERY_S = 2.0
_PATIENCE_S = 60.0


class TopOnce:
    """A thread that runs the command every two seconds of its context, from `begin` on."""

    def __init__(self, address: str) -> None:
        """address: the collector's."""
        self._command = [sys.executable, "-m", "netmon", "top", "--once", "--json", "--collector", address]
        self._took: list[float] = []
        self._begun, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def begin(self) -> None:
        """From now on; may be called again."""
        self._begun.set()

    def median_s(self) -> float | None:
        """From its start to its end; None: none has answered."""
        return statistics.median(self._took) if self._took else None

    def __enter__(self) -> "TopOnce":
        """Wait to begin."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wait for the last one."""
        self._over.set()
        self._begun.set()
        self._thread.join()

    def _run(self) -> None:
        self._begun.wait()
        while not self._over.wait(_EVERY_S):
            began = time.monotonic()
            try:
                done = subprocess.run(
                    self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_PATIENCE_S
                )
            except subprocess.TimeoutExpired:
                continue
            if done.returncode == 0:
                self._took.append(time.monotonic() - began)
