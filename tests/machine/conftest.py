# SPDX-License-Identifier: Apache-2.0
"""The machine of these tests, with both services installed and neither running."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import machine_image
import pytest
from guest import BOOTS_S, Guest
from guest_services import Here, configure

DISK_BYTES = 64 << 20
AS_INSTALLED = """
systemctl disable --now netmon-agent netmon-collector
rm -rf /etc/systemd/system/netmon-*.service.d/test.conf /var/lib/private/netmon* /var/lib/netmon*
systemctl daemon-reload
systemctl reset-failed
journalctl --rotate; sleep 2; journalctl --vacuum-time=1s
"""


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> machine_image.Image:
    """Booted once, so that the BPF programs are compiled."""
    missing = [name for name in ("qemu-system-x86_64", "mmdebstrap", "mke2fs", "dh") if not shutil.which(name)]
    if missing or os.geteuid():
        pytest.skip(f"make test-machine installs what is needed, as root: {', '.join(missing)}")
    with machine_image.alone():
        made = machine_image.make()
        if not (made.folder / "prepared").exists():
            guest = Guest(made, tmp_path_factory.mktemp("first"), in_place=True)
            try:
                guest.start()
                configure(guest, 9)
                guest.run("netmon agent --config /etc/netmon/agent.toml --prepare", BOOTS_S)
                guest.off()
            finally:
                guest.close()
            (made.folder / "prepared").touch()
    return made


@pytest.fixture(scope="session")
def machine(image: machine_image.Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """It boots once: that takes a minute at least."""
    emulated = Guest(image, tmp_path_factory.mktemp("guest"), (DISK_BYTES, DISK_BYTES))
    try:
        emulated.start()
        yield emulated
    finally:
        emulated.close()


@pytest.fixture
def guest(machine: Guest) -> Iterator[Guest]:
    """Before each test its services are as they are installed, with nothing stored and nothing said."""
    yield machine
    said = machine.journal()
    machine.run(AS_INSTALLED, BOOTS_S, check=False)
    assert "Traceback" not in said, said


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    collector = Here(tmp_path)
    collector.start()
    try:
        yield collector
    finally:
        collector.end()
