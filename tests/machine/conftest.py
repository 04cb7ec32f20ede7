# SPDX-License-Identifier: Apache-2.0
"""The machine of these tests: one for each file, with both services installed and neither running."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import machine_image
import pytest
from guest import BOOTS_S, Guest
from guest_services import Here, configure


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


@pytest.fixture(scope="module")
def disks() -> tuple[int, ...]:
    """Bytes of the machine's further disks; a file of tests may say others."""
    return ()


@pytest.fixture(scope="module")
def guest(
    image: machine_image.Image, disks: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guest]:
    machine = Guest(image, tmp_path_factory.mktemp("guest"), disks)
    try:
        machine.start()
        yield machine
    finally:
        machine.close()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    collector = Here(tmp_path)
    collector.start()
    try:
        yield collector
    finally:
        collector.end()
