# SPDX-License-Identifier: Apache-2.0
"""What this machine can do: features are tried, kernel versions are never compared.

Probing leaves nothing behind: programs and maps that it loads are closed at once, and nothing is attached.
"""

import errno
import os
import platform
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from netmon.kernel import bpf_calls, verbs
from netmon.kernel.loader import SERIAL_ADVICE, BottomHalves, bottom_halves, lift_memory_limit
from netmon.kernel.privilege import effective_capabilities, missing_capabilities
from netmon.kernel.processes import PARTIAL_VIEW, pid_namespace
from netmon.kernel.timekeeping import clock_state, ptp_daemons, ptp_devices
from netmon.kernel.training import ras
from netmon.units import format_duration


class Status(str, Enum):
    """How a probe ended."""

    OK = "ok"
    NOTE = "note"  # worth knowing; nothing to be done
    LIMITED = "limited"  # netmon runs, but shows less or less exactly
    UNKNOWN = "unknown"  # could not be tried
    MISSING = "missing"  # the agent cannot run without it


@dataclass(frozen=True)
class Check:
    """One thing that was probed. advice is empty where nothing needs to be done."""

    name: str
    status: Status
    detail: str
    advice: str = ""


# --- How good this host's clocks are: how fast the kernel reads them, and how far from UTC they may be.

_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SLOW_SOURCES = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}  # a read leaves the CPU: a microsecond or more


def clock_checks() -> list[Check]:
    """The clock source, its synchronisation, and PTP where there is any of it."""
    return [_source_check(), _synchronisation_check(), *_ptp_checks()]


def _source_check() -> Check:
    try:
        name = _SOURCE.read_text().strip()
    except OSError:
        return Check("clock source", Status.UNKNOWN, "not reported by /sys")
    if name in _SLOW_SOURCES:
        advice = "find out why the kernel distrusts the CPU's own counter (dmesg | grep -i clocksource)"
        return Check("clock source", Status.LIMITED, f"{name}: one slow read per packet", advice)
    return Check("clock source", Status.OK, name)


def _synchronisation_check() -> Check:
    state = clock_state()
    if state.synchronised:
        by = f"by {state.discipline}, " if state.discipline else ""
        tai = f"; TAI is {state.tai_offset_s} s ahead" if state.tai_offset_s else ""
        detail = f"{by}within {format_duration(state.error_ns)} of UTC, says {state.source}{tai}"
        return Check("clock synchronisation", Status.OK, detail)
    # The collector measures the hosts' clocks against its own, so their comparison does not hang on UTC.
    detail = f"not synchronised, says {state.source}; hosts are compared by the collector's clock"
    advice = "run chrony, ntpd or ptp4l where the dataset's times are to agree with other logs"
    return Check("clock synchronisation", Status.NOTE, detail, advice)


def _ptp_checks() -> list[Check]:
    devices, daemons = ptp_devices(), ptp_daemons()
    if not (devices or daemons):
        return []
    detail = f"{', '.join(devices) or 'no device'}; {' and '.join(daemons) or 'no daemon'} running"
    return [Check("PTP", Status.NOTE, detail)]


# --- machine


_USEFUL_CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19}  # whose socket it is, and which rank
_MOST_SHOWN = 16  # processes
_DIRECT = ("libmlx5", "libefa", "libhns", "libmlx4")  # providers that programs can post by without libibverbs
_HEADERS = ("linux/types.h", "linux/if_ether.h", "linux/if_packet.h", "linux/ptrace.h", "asm/types.h")


def machine_checks() -> list[Check]:
    """All of them, in the order in which they are worth reading. Takes about half a second: bcc is imported."""
    lift_memory_limit()
    privileged = _capabilities()
    return [
        Check("kernel", Status.NOTE, f"{platform.system()} {platform.release()} {platform.machine()}"),
        privileged,
        *(_feature(*probe, privileged=privileged.status is not Status.MISSING) for probe in _BPF_PROBES),
        _probe_programs(privileged=privileged.status is not Status.MISSING),
        _tcx(),
        _bottom_halves(),
        _uprobes(),
        _pid_namespace(),
        _jit(),
        _btf(),
        _bcc(),
        _headers(),
        _tracefs(),
        *clock_checks(),
        _rdma(),
        *nccl_checks(ras.query()),
    ]


_BPF_PROBES: tuple[tuple[str, Callable[[], None], str], ...] = (
    (
        "BPF packet programs",
        bpf_calls.load_packet_program,
        "needs a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF",
    ),
    ("mappable arrays", bpf_calls.create_mapped_array, "needs a newer kernel (Linux 5.5 brought them)"),
    ("ring buffer", bpf_calls.create_ring_buffer, "needs a newer kernel (Linux 5.8 brought it)"),
)


def _feature(name: str, probe: Callable[[], None], advice: str, *, privileged: bool) -> Check:
    try:
        probe()
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            if not privileged:
                return Check(name, Status.UNKNOWN, "not permitted to try")
            advice = "run outside the container, or let its seccomp profile pass bpf(2)"
        return Check(name, Status.MISSING, str(error.strerror), advice)
    return Check(name, Status.OK, "works")


def _probe_programs(*, privileged: bool) -> Check:
    """The agent runs without them."""
    check = _feature(
        "BPF probe programs",
        bpf_calls.load_probe_program,
        "needs a kernel with CONFIG_BPF_EVENTS",
        privileged=privileged,
    )
    if check.status is not Status.MISSING:
        return check
    detail = f"{check.detail}: no iterations without changes to the training script"
    return Check(check.name, Status.LIMITED, detail, check.advice)


def _capabilities() -> Check:
    if missing := missing_capabilities():
        return Check("privilege", Status.MISSING, f"without {', '.join(missing)}", "run as root")
    effective = effective_capabilities()
    if useful := [name for name, bit in _USEFUL_CAPABILITIES.items() if not effective >> bit & 1]:
        detail = f"without {', '.join(useful)}: flows of other users' processes stay unclassified"
        return Check("privilege", Status.LIMITED, detail, "run as root")
    return Check("privilege", Status.OK, "root" if os.geteuid() == 0 else "capabilities")


def _tcx() -> Check:
    try:
        present = bpf_calls.has_tcx()
    except OSError:
        return Check("tcx", Status.UNKNOWN, "not permitted to try")
    if present:
        return Check("tcx", Status.OK, "works")
    return Check("tcx", Status.NOTE, "not there (Linux 6.6 brought it); clsact is used")


def _bottom_halves() -> Check:
    found = bottom_halves()
    if found is BottomHalves.PREEMPTED:
        return Check("bottom halves", Status.MISSING, found.value, SERIAL_ADVICE)
    if found is BottomHalves.UNKNOWN:
        return Check("bottom halves", Status.UNKNOWN, found.value, "look for it in the kernel's configuration")
    return Check("bottom halves", Status.OK, found.value)


def _uprobes() -> Check:
    if Path("/sys/bus/event_source/devices/uprobe/type").exists():
        return Check("uprobes", Status.OK, "iterations are seen without changes to the training script")
    advice = "needs a kernel with CONFIG_UPROBE_EVENTS, or the two lines of netmon.horovod in the training script"
    return Check("uprobes", Status.LIMITED, "not there: no iterations without changes to the training script", advice)


def _pid_namespace() -> Check:
    if pid_namespace() is None:
        return Check("PID namespace", Status.OK, "the machine's own")
    return Check("PID namespace", Status.LIMITED, PARTIAL_VIEW, "run in the host's (hostPID: true, --pid=host)")


def _jit() -> Check:
    try:
        enabled = Path("/proc/sys/net/core/bpf_jit_enable").read_text().strip() != "0"
    except OSError:
        return Check("BPF JIT", Status.UNKNOWN, "not visible from this network namespace")
    if enabled:
        return Check("BPF JIT", Status.OK, "on")
    return Check(
        "BPF JIT", Status.LIMITED, "off: every packet costs many times more", "sysctl net.core.bpf_jit_enable=1"
    )


def _btf() -> Check:
    if Path("/sys/kernel/btf/vmlinux").exists():
        return Check("BTF", Status.OK, "there: connections are given to their process when they are made")
    return Check("BTF", Status.NOTE, "not there: whose a connection of a few milliseconds is, may stay unknown")


def _bcc() -> Check:
    try:
        import bcc
    except Exception as error:  # a broken installation fails in its own ways: ImportError, OSError, AttributeError
        advice = "install python3-bpfcc and use the interpreter that it is for (make setup does both)"
        return Check("bcc", Status.MISSING, f"cannot be imported: {error}", advice)
    return Check("bcc", Status.OK, str(getattr(bcc, "__version__", "of unknown version")))


def _headers() -> Check:
    folders = [Path("/usr/include"), Path("/usr/include") / str(sysconfig.get_config_var("MULTIARCH"))]
    lacking = [header for header in _HEADERS if not any((folder / header).exists() for folder in folders)]
    if lacking:
        detail = f"/usr/include lacks {', '.join(lacking)}"
        return Check("C headers", Status.MISSING, detail, "install linux-libc-dev (kernel headers are not needed)")
    return Check("C headers", Status.OK, "linux-libc-dev; kernel headers are not needed")


def _tracefs() -> Check:
    if any(Path(index, "uprobe_events").exists() for index in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")):
        return Check("tracefs", Status.OK, "mounted")
    return Check("tracefs", Status.NOTE, "not mounted; netmon does not need it")


def _rdma() -> Check:
    devices = sorted(entry.name for entry in verbs.DEVICES.iterdir()) if verbs.DEVICES.exists() else []
    if not devices and not verbs.wanted():
        return Check("RDMA", Status.OK, "no devices")
    detail = (
        f"{', '.join(devices) or 'no devices'}: RDMA traffic bypasses the hooks; what processes post by libibverbs is "
        "counted, exactly on queue pairs made while an agent was there; the rest is in the ports' counters only"
    )
    return Check("RDMA", Status.LIMITED, " · ".join([detail, *map(_rdma_user, verbs.users()[:_MOST_SHOWN])]))


def _rdma_user(user: "verbs.User") -> str:
    who = f"{user.process} ({user.pid})" + (f", {user.queues} queue pairs" if user.queues else "")
    if not user.has_library:
        return f"{who}: not counted, as it does not use libibverbs as a library"
    if not user.providers:
        return f"{who}: not counted, as no provider that is known is loaded"
    direct = any(name.startswith(_DIRECT) for name in user.providers)
    return f"{who}: counted, by {', '.join(user.providers)}{', unless it posts directly' if direct else ''}"


_RANKS_SHOWN = 8  # of a communicator


def nccl_checks(said: "Sequence[ras.Said]") -> list[Check]:
    """Of each network namespace in which NCCL is used: where its ranks are."""
    return [Check("NCCL", Status.NOTE, f"{_nccl_users(one)}: {_communicators(one)}") for one in said]


def _nccl_users(said: "ras.Said") -> str:
    more = f" and {len(said.pids) - _MOST_SHOWN} more" if len(said.pids) > _MOST_SHOWN else ""
    return f"used by {', '.join(map(str, said.pids[:_MOST_SHOWN]))}{more}"


def _communicators(said: "ras.Said") -> str:
    if said.reason:
        return f"where the ranks are is not known: {said.reason}"
    shown = " · ".join(map(_communicator, said.communicators[:_MOST_SHOWN])) or "no communicators"
    return f"{said.version}, says its RAS: {shown}"


def _communicator(of: "ras.Communicator") -> str:
    ranks = ", ".join(f"{one.rank} on {one.host} ({one.pid}, GPU {one.gpu})" for one in of.ranks[:_RANKS_SHOWN])
    more = f" and {len(of.ranks) - _RANKS_SHOWN} more" if len(of.ranks) > _RANKS_SHOWN else ""
    lost = f"; {of.missing} not reached" if of.missing else ""
    return f"of {of.size}: rank {ranks}{more}{lost}"
