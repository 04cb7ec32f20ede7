# SPDX-License-Identifier: Apache-2.0
"""Who keeps this host's UTC, and how far from the truth it may be: the kernel's, chrony's and PTP's own words."""

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_TIME_ERROR = 5  # adjtimex(2): not synchronised
_PTP = {"ptp4l", "phc2sys", "ts2phc"}
_CHRONY_LOCAL = "7F7F0101"  # 127.127.1.1, chrony's own clock: it serves others a time that nobody keeps
_NTP = {"chronyd", "ntpd", "systemd-timesyn", "openntpd"}  # comm holds 15 characters


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2); errors in µs."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("constant", "precision", "tolerance", "time_s", "time_us", "tick")),
        *((name, ctypes.c_long) for name in ("ppsfreq", "jitter")),
        ("shift", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("stabil", "jitcnt", "calcnt", "errcnt", "stbcnt")),
        ("tai", ctypes.c_int),
        ("spare", ctypes.c_int * 11),
    ]


@dataclass(frozen=True)
class ClockState:
    """How far the system clock may be from UTC. error_ns is a bound, meaningless where not synchronised."""

    synchronised: bool
    error_ns: int
    source: str
    tai_offset_s: int = 0  # TAI minus UTC, as set in the kernel; 0: not set
    discipline: str = ""  # "ptp", "ntp"; empty: nobody keeps it


def clock_state() -> ClockState:
    """What chrony says where it runs, else what the kernel's adjtimex(2) says. Blocks for at most two seconds."""
    return _chrony() or kernel_state(discipline())


def kernel_state(kept_by: str) -> ClockState:
    """What adjtimex(2) says; takes a microsecond. kept_by: as `discipline` gives it."""
    timex = _Timex()
    state = _libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        return ClockState(False, 0, f"adjtimex: {os.strerror(ctypes.get_errno())}")
    synchronised = state != _TIME_ERROR
    kept_by = (kept_by or "ntp") if synchronised else ""
    return ClockState(synchronised, timex.maxerror * 1_000, "the kernel", timex.tai, kept_by)


def discipline() -> str:
    """Which protocol the running daemons keep the clock by: "ptp", "ntp" or nothing. Reads a file per process."""
    running = _processes()
    # ptp4l alone may keep only the NIC's clock: it is phc2sys, or ptp4l with software time stamps, that keeps UTC.
    if "phc2sys" in running or ("ptp4l" in running and not ptp_devices()):
        return "ptp"
    return "ntp" if running & _NTP else ""


def ptp_devices() -> tuple[str, ...]:
    """The PTP hardware clocks of this host, as "ptp0 (name of the clock)"."""
    found = []
    for folder in sorted(Path("/sys/class/ptp").glob("ptp*")):
        try:
            found.append(f"{folder.name} ({(folder / 'clock_name').read_text().strip()})")
        except OSError:
            found.append(folder.name)
    return tuple(found)


def ptp_daemons() -> tuple[str, ...]:
    """Those of linuxptp's daemons that run, by name."""
    return tuple(sorted(_processes() & _PTP))


def _processes() -> set[str]:
    names = set()
    for entry in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.add(entry.read_text().rstrip("\n"))
        except OSError:
            continue  # it has ended meanwhile
    return names


def _chrony() -> ClockState | None:
    # chrony disciplines the clock without telling the kernel unless it is set up to, so it is queried first.
    if not shutil.which("chronyc"):
        return None
    try:
        answer = subprocess.run(["chronyc", "-c", "tracking"], capture_output=True, text=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_tracking(answer.stdout)


def parse_tracking(line: str) -> ClockState | None:
    """One line of `chronyc -c tracking`; None where it is nothing of the kind."""
    try:
        fields = line.strip().split(",")
        offset, delay, dispersion = (abs(float(fields[i])) for i in (4, 10, 11))
        reference = fields[1]
        synchronised = fields[0] != _CHRONY_LOCAL and fields[13] != "Not synchronised"
    except (ValueError, IndexError):
        return None
    kept_by = ("ptp" if reference.startswith(("PHC", "PTP")) else "ntp") if synchronised else ""
    # chrony(1): the clock's error is at most |system time offset| + root dispersion + root delay / 2.
    bound = round((offset + dispersion + delay / 2) * 1e9)
    return ClockState(synchronised, bound, "chrony", discipline=kept_by)


_libc = ctypes.CDLL(None, use_errno=True)
