# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on the disk are used only where nobody else can have written them, and only whole."""

import os
from pathlib import Path

import numpy as np
import pytest

from netmon.errors import KernelError
from netmon.kernel import loader
from netmon.kernel.bpf_calls import MapShape
from netmon.kernel.loader import INSTRUCTION, Image, Program, decode, image_of, read_image, write_image

ME = os.geteuid()
SHAPE = MapShape("flows", 2, 4, 8, 16, 1024)
IMAGE = Image((SHAPE,), {"flows": 0}, (Program("meter", 3, 0, "GPL", bytes(16)),))


def load_64(source: int, immediate: int) -> bytes:
    """`rX = value` in two instructions; source: what the value is."""
    code = np.zeros(2, INSTRUCTION)
    code[0] = (0x18, source << 4 | 1, 0, immediate)
    return code.tobytes()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_image(tmp_path / "bpf", "key", IMAGE, ME)
    assert read_image(tmp_path / "bpf", "key", ME) == IMAGE
    assert read_image(tmp_path / "bpf", "other", ME) is None
    assert (tmp_path / "bpf").stat().st_mode & 0o777 == 0o700
    assert os.listdir(tmp_path / "bpf") == ["key"]


def test_nothing_there_is_nothing_found_and_nothing_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_image(tmp_path / "none", "key", ME) is None
    assert not caplog.records


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b.replace(b"flows", b"slots"), lambda b: b"", bytes.upper]
)
def test_what_is_not_whole_is_not_used(tmp_path: Path, damage, caplog: pytest.LogCaptureFixture) -> None:
    write_image(tmp_path, "key", IMAGE, ME)
    (tmp_path / "key").write_bytes(damage((tmp_path / "key").read_bytes()))
    assert read_image(tmp_path, "key", ME) is None
    assert "compiling the BPF programs anew" in caplog.text


def test_of_another_version_is_not_used() -> None:
    import hashlib

    body = b'{"maps": [], "programs": [{"name": "x"}], "named": {}}'
    with pytest.raises(ValueError, match="another version"):
        decode(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def test_what_another_user_owns_or_may_write_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "bpf"
    write_image(folder, "key", IMAGE, ME)
    assert read_image(folder, "key", ME + 1) is None
    assert f"it belongs to uid {ME}, not to {ME + 1}" in caplog.text
    (folder / "key").chmod(0o620)
    assert read_image(folder, "key", ME) is None
    (folder / "key").chmod(0o600)
    folder.chmod(0o702)
    assert read_image(folder, "key", ME) is None
    with pytest.raises(PermissionError):
        write_image(folder, "key", IMAGE, ME)
    folder.chmod(0o700)
    assert read_image(folder, "key", ME) == IMAGE


def test_links_and_devices_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "bpf"
    write_image(folder, "real", IMAGE, ME)
    (folder / "key").symlink_to("real")
    assert read_image(folder, "key", ME) is None
    os.mkfifo(folder / "pipe", 0o600)
    assert read_image(folder, "pipe", ME) is None
    (tmp_path / "link").symlink_to(folder)
    assert read_image(tmp_path / "link", "real", ME) is None


def test_who_is_not_its_owner_writes_nothing(tmp_path: Path) -> None:
    write_image(tmp_path / "bpf", "key", IMAGE, ME + 1)
    assert not (tmp_path / "bpf").exists()


def test_the_number_of_files_is_bounded_and_what_is_used_stays(tmp_path: Path) -> None:
    folder = tmp_path / "bpf"
    for number in range(40):
        write_image(folder, f"{number:02}", IMAGE, ME)
        os.utime(folder / f"{number:02}", (number, number))
        assert read_image(folder, "00", ME)
    names = set(os.listdir(folder))
    assert len(names) == 32
    assert {"00", "39"} < names


def test_maps_are_named_by_their_place_and_get_their_descriptors_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {7: MapShape("flows", 2, 4, 8, 16, 1024), 9: MapShape("walks", 6, 4, 16, 1, 0)}
    monkeypatch.setattr(loader.bpf_calls, "map_shape", shapes.__getitem__)
    program = Program("meter", 3, 0, "GPL", load_64(1, 9) + load_64(0, 9) + load_64(1, 7))
    image = image_of([program], {"flows": 7})
    assert image.maps == (shapes[7], shapes[9])
    assert image.named == {"flows": 0}
    assert image.programs[0].instructions == load_64(1, 1) + load_64(0, 9) + load_64(1, 0)
    assert decode(image.encode()) == image


def test_an_instruction_that_names_something_else_is_not_kept() -> None:
    with pytest.raises(KernelError, match="refers to more than maps"):
        image_of([Program("meter", 3, 0, "GPL", load_64(2, 1))], {})
