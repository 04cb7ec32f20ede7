# SPDX-License-Identifier: Apache-2.0
"""On a kernel whose packet programs may interrupt each other, nothing is counted, and doctor says why."""

import gzip
from pathlib import Path

import pytest

from netmon.errors import UnsupportedError
from netmon.kernel import loader
from netmon.kernel.loader import BottomHalves, bottom_halves
from netmon.kernel.machine import Status, machine_checks
from netmon.kernel.meter.memory import choose_geometry

NOT_SET, SET = "# CONFIG_PREEMPT_RT_NEEDS_BH_LOCK is not set\n", "CONFIG_PREEMPT_RT_NEEDS_BH_LOCK=y\n"
RT, OTHERS = "#1 SMP PREEMPT_RT Debian 7.1-1", "#1 SMP PREEMPT_DYNAMIC Debian 7.1-1"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A root with what a kernel says of itself."""

    def make(version: str, configuration: str | None = None, place: str = "proc/config.gz", realtime: str = "") -> None:
        told = {"proc/sys/kernel/version": version, "proc/sys/kernel/osrelease": "7.1-rt\n"}
        if realtime:
            told["sys/kernel/realtime"] = realtime
        if configuration is not None:
            told[place] = f"CONFIG_PREEMPT=y\n{configuration}CONFIG_PREEMPT_COUNT=y\n"
        for name, text in told.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        monkeypatch.setattr(loader, "ROOT", tmp_path)

    return make


@pytest.mark.parametrize("place", ["proc/config.gz", "boot/config-7.1-rt", "lib/modules/7.1-rt/config"])
@pytest.mark.parametrize(
    ("version", "configuration", "found"),
    [
        (OTHERS, NOT_SET, BottomHalves.SERIAL),
        (OTHERS, None, BottomHalves.SERIAL),
        (RT, NOT_SET, BottomHalves.PREEMPTED),
        (RT, SET, BottomHalves.LOCKED),
        (RT, "", BottomHalves.LOCKED),  # it does not know the option
        (RT, None, BottomHalves.UNKNOWN),
    ],
)
def test_a_kernel_says_how_its_packet_programs_run(machine, version, configuration, found, place) -> None:
    machine(version, configuration, place)
    assert bottom_halves() is found


def test_sysfs_says_it_too(machine) -> None:
    machine(OTHERS, NOT_SET, realtime="1\n")
    assert bottom_halves() is BottomHalves.PREEMPTED
    machine(OTHERS, NOT_SET, realtime="0\n")
    assert bottom_halves() is BottomHalves.SERIAL


def test_nothing_is_loaded_where_counts_would_be_wrong(machine) -> None:
    machine(RT, NOT_SET)
    with pytest.raises(UnsupportedError, match=r"cannot count on this kernel: PREEMPT_RT without .*; boot a kernel"):
        loader.load(choose_geometry(10_000))


def test_what_is_unknown_is_said(machine, caplog: pytest.LogCaptureFixture) -> None:
    machine(RT)
    loader.require_serial_bottom_halves()
    assert "configuration cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("version", "configuration", "status"),
    [
        (OTHERS, None, Status.OK),
        (RT, SET, Status.OK),
        (RT, None, Status.UNKNOWN),
        (RT, NOT_SET, Status.MISSING),
    ],
)
def test_doctor_says_so(machine, version, configuration, status) -> None:
    machine(version, configuration)
    (check,) = (check for check in machine_checks() if check.name == "bottom halves")
    assert check.status is status
    assert bool(check.advice) == (status in (Status.UNKNOWN, Status.MISSING))
