# SPDX-License-Identifier: Apache-2.0
"""How good this host's clocks are: how fast the kernel reads them, and how far from UTC they may be."""

import ctypes
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from netmon.kernel.probe.check import Check, Status
from netmon.units import format_duration

_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SLOW_SOURCES = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}  # a read leaves the CPU: a microsecond or more
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """The head of struct timex; the tail holds what netmon does not read."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("tail", ctypes.c_byte * 256),
    ]


@dataclass(frozen=True)
class ClockState:
    """How far the system clock may be from UTC. error_ns is a bound, meaningless where not synchronised."""

    synchronised: bool
    error_ns: int
    told_by: str


def clock_state() -> ClockState:
    """What chrony says where it runs, else what the kernel's adjtimex(2) says. Blocks for at most two seconds."""
    return _chrony() or _kernel()


def clock_checks() -> list[Check]:
    """The clock source and its synchronisation."""
    return [_source_check(), _synchronisation_check()]


def _kernel() -> ClockState:
    timex = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        return ClockState(False, 0, f"adjtimex: {os.strerror(ctypes.get_errno())}")
    return ClockState(state != _TIME_ERROR, timex.maxerror * 1_000, "the kernel")


def _chrony() -> ClockState | None:
    # chrony disciplines the clock without telling the kernel unless it is set up to, so it is asked first.
    try:
        answer = subprocess.run(["chronyc", "-c", "tracking"], capture_output=True, text=True, timeout=2, check=True)
        fields = answer.stdout.strip().split(",")
        offset, delay, dispersion = (abs(float(fields[i])) for i in (4, 10, 11))
        synchronised = fields[13] != "Not synchronised"
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    # chrony(1): the clock's error is at most |system time offset| + root dispersion + root delay / 2.
    return ClockState(synchronised, round((offset + dispersion + delay / 2) * 1e9), "chrony")


def _source_check() -> Check:
    try:
        name = _SOURCE.read_text().strip()
    except OSError:
        return Check("clock source", Status.UNKNOWN, "not told by /sys")
    if name in _SLOW_SOURCES:
        advice = "find out why the kernel distrusts the CPU's own counter (dmesg | grep -i clocksource)"
        return Check("clock source", Status.LIMITED, f"{name}: one slow read per packet", advice)
    return Check("clock source", Status.OK, name)


def _synchronisation_check() -> Check:
    state = clock_state()
    if state.synchronised:
        detail = f"within {format_duration(state.error_ns)} of UTC, says {state.told_by}"
        return Check("clock synchronisation", Status.OK, detail)
    advice = "run chrony, ntpd or ptp4l when several hosts are to be compared; within one host nothing is lost"
    return Check("clock synchronisation", Status.LIMITED, f"not synchronised, says {state.told_by}", advice)
