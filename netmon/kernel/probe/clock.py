# SPDX-License-Identifier: Apache-2.0
"""How good this host's clocks are: how fast the kernel reads them, and how far from UTC they may be."""

from pathlib import Path

from netmon.kernel.probe.check import Check, Status
from netmon.kernel.timekeeping import clock_state, ptp_daemons, ptp_devices
from netmon.units import format_duration

_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SLOW_SOURCES = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}  # a read leaves the CPU: a microsecond or more


def clock_checks() -> list[Check]:
    """The clock source, its synchronisation, and PTP where there is any of it."""
    return [_source_check(), _synchronisation_check(), *_ptp_checks()]


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
        by = f"by {state.discipline}, " if state.discipline else ""
        tai = f"; TAI is {state.tai_offset_s} s ahead" if state.tai_offset_s else ""
        detail = f"{by}within {format_duration(state.error_ns)} of UTC, says {state.told_by}{tai}"
        return Check("clock synchronisation", Status.OK, detail)
    # The collector measures the hosts' clocks against its own, so their comparison does not hang on UTC.
    detail = f"not synchronised, says {state.told_by}; hosts are compared by the collector's clock"
    advice = "run chrony, ntpd or ptp4l where the dataset's times are to agree with other logs"
    return Check("clock synchronisation", Status.NOTE, detail, advice)


def _ptp_checks() -> list[Check]:
    devices, daemons = ptp_devices(), ptp_daemons()
    if not (devices or daemons):
        return []
    detail = f"{', '.join(devices) or 'no device'}; {' and '.join(daemons) or 'no daemon'} running"
    return [Check("PTP", Status.NOTE, detail)]
