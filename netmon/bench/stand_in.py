# SPDX-License-Identifier: Apache-2.0
"""A small C program in place of what is probed, and how long the kernel says that the programs on it have run."""

import contextlib
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from netmon.errors import UnsupportedError
from netmon.kernel import bpf_calls

_ENABLE_STATS = 32  # BPF_ENABLE_STATS: for as long as its descriptor is open


class StandIn:
    """It answers a line with a line. greeting: its first line, which nobody has asked for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid, self.greeting = self._child.pid, self._line()

    def answer(self, *numbers: int) -> str:
        assert self._child.stdin
        self._child.stdin.write(f"{' '.join(map(str, numbers))}\n")
        self._child.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._child.stdout
        return self._child.stdout.readline()

    def end(self) -> None:
        """The end of its standard input ends it."""
        self._child.communicate()


@contextlib.contextmanager
def stand_in(what: str, source: str, *flags: str) -> Iterator[StandIn]:
    """Compiled and started. what: is measured, for the error. Raises UnsupportedError without a compiler."""
    with tempfile.TemporaryDirectory(prefix="netmon-bench-") as folder:
        path = f"{folder}/{what}"
        command = ["cc", *flags, "-x", "c", "-o", path, "-"]
        try:
            subprocess.run(command, input=source, text=True, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UnsupportedError(f"cannot measure {what}: it takes a C compiler ({error})") from error
        program = StandIn(path)
        try:
            yield program
        finally:
            program.end()


@contextlib.contextmanager
def counted_run_times() -> Iterator[None]:
    """The kernel measures every run of every program: some 20 ns more each."""
    descriptor = bpf_calls.call(_ENABLE_STATS, struct.pack("=I", 0))[0]
    try:
        yield
    finally:
        os.close(descriptor)


def run_times(programs: Iterable[int]) -> tuple[int, int]:
    """ns that these programs (descriptors) have run for, and how often; where the kernel keeps that."""
    texts = [Path(f"/proc/self/fdinfo/{program}").read_text() for program in programs]
    found = [dict(re.findall(r"(run_time_ns|run_cnt):\s*(\d+)", text)) for text in texts]
    return sum(int(each.get("run_time_ns", 0)) for each in found), sum(int(each.get("run_cnt", 0)) for each in found)
