# SPDX-License-Identifier: Apache-2.0
"""What netmon knows of this rank's last steps, for the script that trains: standard library only.

`netmon steps` asks the collector, in a process of its own; what it prints waits in a pipe until the script looks. The
script never waits, nothing grows without bound, and whatever fails is counted and reported in `error`.
"""

import json
import os
import sys
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from netmon.training.steps import Steps

if TYPE_CHECKING:
    import subprocess

_MOST_STEPS = 1000
_MOST_BYTES = 1 << 18  # at a look; what is left waits in the pipe
_LONGEST_LINE = 1 << 16
_AGAIN_S = 30.0
PYTHON_VARIABLE = "NETMON_PYTHON"


class Known:
    """Of one rank. `take` gives what is new."""

    def __init__(self, steps: Steps, collector: str = "", tls: str = "", command: list[str] | None = None) -> None:
        """collector: HOST:PORT or unix:PATH. tls: a folder with certificates (netmon certificates); "": plaintext.

        command: instead of `netmon steps`, run by this interpreter, or the one that NETMON_PYTHON names where the
        script's own lacks grpc.
        """
        self.failures = 0
        self.error = ""  # why nothing comes; empty: nothing is known to be wrong
        self._steps = steps
        self._command = command or _command(steps, collector, tls)
        self._process: subprocess.Popen[bytes] | None = None
        self._again_s = 0.0
        self._rest = b""
        self._pid = os.getpid()
        self._known: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what is read from a file, knows nothing."""
        return Known, (self._steps, "", "", [])

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The last ones of which something is known, oldest first, at most 1,000: see `take`."""
        return list(self._known.values())

    def take(self) -> list[dict[str, Any]]:
        """Steps of which something new is known, oldest first; never waits, never raises.

        Each has `iteration` and, once known: duration_ns, communication_ns, exposed_ns (waited for gradients),
        sent_bytes, others_bytes (payload of others on the host's links meanwhile), theory_bytes, usual_ns; cause,
        culprit, excess_ns and verdict (a sentence) where it stood out.
        """
        try:
            return self._take()
        except Exception as error:
            self.failures += 1
            self.error = f"{type(error).__name__}: {error}"
            return []

    def close(self) -> None:
        """Ends the process that asks."""
        process, self._process = self._process, None
        if process is not None and os.getpid() == self._pid:
            try:
                process.kill()
                process.wait()
                if process.stdout:
                    process.stdout.close()
            except Exception:
                self.failures += 1

    def _take(self) -> list[dict[str, Any]]:
        if os.getpid() != self._pid or not self._command:  # in a child, such as a data loader
            return []
        self._begin()
        process = self._process
        if process is None or process.stdout is None:
            return []
        try:
            data = os.read(process.stdout.fileno(), _MOST_BYTES)
        except BlockingIOError:
            return []
        if not data:
            self.error = f"netmon steps has ended with status {process.wait()}; it is tried again"
            self.close()
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        new = OrderedDict[int, None]()
        for line in lines:
            fact = json.loads(line)
            number = int(fact["iteration"])
            self._known.setdefault(number, {}).update(fact)
            new[number] = None
        found = [self._known[number] for number in new]
        while len(self._known) > _MOST_STEPS:
            self._known.popitem(last=False)
        return found

    def _begin(self) -> None:
        import subprocess

        now = time.monotonic()
        if self._process is not None or now < self._again_s:
            return
        self._again_s = now + _AGAIN_S
        self._rest = b""
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            self._command, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
        )
        if self._process.stdout:
            os.set_blocking(self._process.stdout.fileno(), False)


def _command(steps: Steps, collector: str, tls: str) -> list[str]:
    if not collector:
        return []
    python = os.environ.get(PYTHON_VARIABLE) or sys.executable
    where = ["--collector", collector, *(["--tls", tls] if tls else [])]
    return [python, "-m", "netmon", "steps", steps.job, "--rank", str(steps.rank), *where, "--json"]
