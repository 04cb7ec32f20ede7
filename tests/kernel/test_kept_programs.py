# SPDX-License-Identifier: Apache-2.0
"""The second start loads what the first one compiled: the same programs and maps, without a compiler."""

import ctypes
import os
import struct
from pathlib import Path

import pytest

from netmon.kernel import bpf_calls, loader, verbs
from netmon.kernel.meter.memory import choose_geometry

pytestmark = [pytest.mark.kernel, pytest.mark.matrix]


def program_tag(descriptor: int) -> bytes:
    """The kernel's checksum of a loaded program's instructions, whatever descriptors its maps have."""
    info = ctypes.create_string_buffer(16)  # struct bpf_prog_info up to and including `tag`
    bpf_calls.call(bpf_calls.OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", descriptor, len(info), ctypes.addressof(info)))
    return info.raw[8:16]


def loaded() -> dict[str, bytes | bpf_calls.MapShape]:
    """What there is by its name: of programs the kernel's checksum of their instructions, of maps their shape."""
    told: dict[str, bytes | bpf_calls.MapShape] = {}
    for name, descriptor in loader.load(choose_geometry(20_000)).items():
        is_map = "map_type" in Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        told[name] = bpf_calls.map_shape(descriptor) if is_map else program_tag(descriptor)
        os.close(descriptor)
    return told


def test_a_second_start_needs_no_compiler_and_loads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        pytest.skip("this kernel has no BTF: what is compiled is not kept")
    monkeypatch.setenv("NETMON_CACHE", str(tmp_path / "bpf"))
    monkeypatch.setenv(verbs.EVERYWHERE, "1")
    compiled = loaded()
    kept, *apart = sorted((tmp_path / "bpf").iterdir())  # nothing was left out
    assert len(apart) == bpf_calls.has_uprobe_links()
    if apart:
        for_nccl = loader.load_collectives(choose_geometry(20_000))
        assert for_nccl.keys() == {*loader.COLLECTIVE_PROGRAMS, *loader.COLLECTIVE_MAPS}
        assert not for_nccl.keys() & compiled.keys()
        for descriptor in for_nccl.values():
            os.close(descriptor)
    all_of_it = {
        *loader.PROGRAMS,
        *loader.MAPS,
        "socket_state",
        "socket_events",
        "socket_history",
        "signal_sent",
        "stops",
    }
    all_of_it |= {*verbs.PROGRAMS, *verbs.MAPS}
    assert all_of_it <= compiled.keys()
    with monkeypatch.context() as without:
        without.setattr(loader, "_compiled_by_child", lambda *_: pytest.fail("the compiler was called"))
        assert loaded() == compiled
    kept.write_bytes(kept.read_bytes()[:-1])
    assert loaded() == compiled
    with monkeypatch.context() as without:
        without.setattr(loader, "_compiled_by_child", lambda *_: pytest.fail("the damaged file was not written anew"))
        assert loaded() == compiled
