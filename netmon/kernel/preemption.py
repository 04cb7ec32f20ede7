# SPDX-License-Identifier: Apache-2.0
"""Whether packet programs of one CPU run one after the other, which bpf/meter.c relies on.

They do wherever bottom halves are not preempted. On a kernel with PREEMPT_RT they are, and a lock per CPU keeps them
apart; a kernel that can be built without that lock names it in its configuration. No version is compared.
"""

import gzip
import logging
from enum import Enum
from pathlib import Path

from netmon.errors import UnsupportedError

ROOT = Path("/")
_LOCK = "CONFIG_PREEMPT_RT_NEEDS_BH_LOCK"
_MOST_BYTES = 4 << 20

log = logging.getLogger(__name__)


class BottomHalves(Enum):
    """How those of one CPU run; the value says it to people."""

    SERIAL = "one at a time on each CPU"
    LOCKED = "PREEMPT_RT; one at a time on each CPU, by its lock"
    PREEMPTED = f"PREEMPT_RT without {_LOCK}: packet programs interrupt each other, and counts would be wrong"
    UNKNOWN = f"PREEMPT_RT, whose configuration cannot be read: without {_LOCK} counts are wrong"


ADVICE = f"boot a kernel with {_LOCK}=y, or one without PREEMPT_RT"


def bottom_halves() -> BottomHalves:
    if _read("sys/kernel/realtime").strip() != "1" and "PREEMPT_RT" not in _read("proc/sys/kernel/version").split():
        return BottomHalves.SERIAL
    lines = _configuration().splitlines()
    if not lines:
        return BottomHalves.UNKNOWN
    # A kernel that does not know the option always has the lock.
    return BottomHalves.PREEMPTED if f"# {_LOCK} is not set" in lines else BottomHalves.LOCKED


def require_serial_bottom_halves() -> None:
    """Raises UnsupportedError where counts would be wrong; warns where that is unknown."""
    found = bottom_halves()
    if found is BottomHalves.PREEMPTED:
        raise UnsupportedError(f"cannot count on this kernel: {found.value}; {ADVICE}")
    if found is BottomHalves.UNKNOWN:
        log.warning("%s", found.value)


def _configuration() -> str:
    """Of the running kernel; empty where it cannot be read."""
    try:
        with gzip.open(ROOT / "proc/config.gz") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except (OSError, EOFError):
        release = _read("proc/sys/kernel/osrelease").strip()
        return _read(f"boot/config-{release}") or _read(f"lib/modules/{release}/config")


def _read(path: str) -> str:
    try:
        with open(ROOT / path, errors="replace") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return ""
