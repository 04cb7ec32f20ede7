# SPDX-License-Identifier: Apache-2.0
"""Calls of `ip` and `tc`: a testbed is easiest to read, and to repeat by hand, in their own words."""

import subprocess
from collections.abc import Sequence

from netmon.errors import LabError, UnsupportedError


def call(command: Sequence[str], text: str = "") -> str:
    """Run a command with `text` on its standard input; blocks; returns what it printed. Raises LabError."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UnsupportedError(f"cannot run {command[0]}: it is not installed; install iproute2") from None
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise LabError(f"cannot build the testbed: `{' '.join(command)}` failed: {reason}")
    return done.stdout


def batch(program: str, namespace: str, lines: Sequence[str]) -> None:
    """Run lines of `ip` or `tc` inside a namespace, in one process. Raises LabError naming the line."""
    try:
        call([program, "-netns", namespace, "-batch", "-"], "\n".join(lines) + "\n")
    except LabError as error:
        at = str(error).rpartition("Command failed -:")[2]
        line = lines[int(at) - 1] if at.isdigit() else ""
        raise LabError(f"{error}" + (f" ({program} {line})" if line else "")) from None


def namespaces(prefix: str) -> list[str]:
    """Names of the network namespaces that begin with `prefix`."""
    names = [line.split()[0] for line in call(["ip", "netns", "list"]).splitlines() if line]
    return sorted(name for name in names if name.startswith(prefix))


def processes(namespace: str) -> list[int]:
    """Process ids of everything that runs in a namespace."""
    return [int(pid) for pid in call(["ip", "netns", "pids", namespace]).split()]
