# SPDX-License-Identifier: Apache-2.0
"""Compiles and loads the BPF programs with bcc, hands their descriptors over, keeps what was compiled, and ends.

Run as a program of its own (`python -m netmon.kernel.compiler`), because libclang costs more than a hundred megabytes
that a monitor should not keep. Standard input is a socket: a JSON line with the geometry comes in, the descriptors go
out (SCM_RIGHTS) alongside a JSON document with their names. Standard error carries what the compiler or the verifier
has to say.
"""

import contextlib
import ctypes
import functools
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from netmon.errors import NetmonError, UnsupportedError
from netmon.kernel import bpf_calls, loader, stops, verbs
from netmon.kernel.btf import KernelTypes
from netmon.kernel.loader import (
    COLLECTIVE_MAPS,
    COLLECTIVE_PROGRAMS,
    METER_MAPS,
    METER_PROGRAMS,
    STEP_MAPS,
    STEP_PROGRAMS,
    XDP_FRAGS,
    Program,
    cache_folder,
    collectives_key,
    compiler_flags,
    image_key,
    image_of,
    lift_memory_limit,
    source_text,
    sources,
    write_image,
)
from netmon.kernel.meter.memory import Geometry
from netmon.kernel.owners import socket_events

_INSTRUCTION_BYTES = 8


class _Compiled:
    """Everything of this process: bcc closes a module's descriptors when it is collected."""

    def __init__(self, geometry: Geometry) -> None:
        self._flags = compiler_flags(geometry)
        self._modules: list[Any] = []
        self._programs: list[Program] = []
        self._maps: dict[str, int] = {}
        self._descriptors: dict[str, int] = {}
        self.remarks: list[str] = []
        """On each part that had to be left out."""

    @property
    def descriptors(self) -> dict[str, int]:
        """Of programs, and of the maps that user space opens."""
        return self._descriptors | self._maps

    def build(self) -> None:
        """Compiles and loads all that there is. Raises what bcc raises, UnsupportedError without it."""
        meter = self._module("meter.c", loader.METER)
        for name in METER_PROGRAMS:
            self._load(meter, name, bpf_calls.PROGRAM_XDP if name == "meter_xdp" else bpf_calls.PROGRAM_SCHED_CLS)
        with contextlib.suppress(OSError):  # an older kernel: small frames only
            self._load_frags(meter)
        steps = self._module("steps.c", loader.STEPS)
        self._keep_maps(meter, METER_MAPS)
        self._keep_maps(steps, STEP_MAPS)
        parts: tuple[tuple[str, Callable[[], None]], ...] = (
            ("iterations are not seen without a hook in the training script", lambda: self._load_steps(steps)),
            ("whose a connection of a few milliseconds is, may stay unknown", self._load_socket_events),
            ("that a rank was stopped for less than a tenth of a second is not seen", self._load_stops),
            ("what is posted to RDMA devices is not seen", self._load_verbs),
        )
        for missed, load_part in parts:
            try:
                load_part()
            except Exception as error:  # bcc raises bare ones
                self.remarks.append(f"{missed}: {' '.join(str(error).split())}")

    def store(self, geometry: Geometry, key: str) -> None:
        """For the next start, if everything is there. key: of what was to be compiled, when that began."""
        if self.remarks or not key or image_key(geometry) != key:
            return
        try:
            write_image(cache_folder(), key, image_of(self._programs, self._maps))
        except (OSError, NetmonError) as error:
            self.remarks.append(f"the next start compiles again: cannot keep the BPF programs: {error}")
            return
        if bpf_calls.has_uprobe_links():
            separate = _Compiled(geometry)
            try:
                separate.build_collectives()
                write_image(cache_folder(), collectives_key(key), image_of(separate._programs, separate._maps))
            except Exception as error:  # bcc raises bare ones
                self.remarks.append(f"what NCCL sends is not seen: {' '.join(str(error).split())}")

    def build_collectives(self) -> None:
        """Compiles and loads what only a machine with NCCL needs. Raises as `build`, and OSError."""
        module = self._module("collectives.c", loader.COLLECTIVES)
        self._keep_maps(module, COLLECTIVE_MAPS)
        for name in COLLECTIVE_PROGRAMS:
            self._load_as_kept(_program(module, name, bpf_calls.PROGRAM_KPROBE))

    def _module(self, source: str, structures: "dict[str, Any]", defines: tuple[str, ...] = ()) -> Any:
        """A compiled source, with the proof that we mean the same by its structures; its maps are made."""
        from bcc import BPF

        module: Any = BPF(text=source_text(source, structures).encode(), cflags=[*self._flags, *defines])
        self._modules.append(module)
        return module

    def _keep_maps(self, module: Any, names: tuple[str, ...]) -> None:
        from bcc import lib

        self._maps |= {name: lib.bpf_table_fd(module.module, name.encode()) for name in names}

    def _load(self, module: Any, name: str, kind: int) -> None:
        self._descriptors[name] = module.load_func(name.encode(), kind).fd
        self._programs.append(_program(module, name, kind))

    def _load_steps(self, module: Any) -> None:
        for name in STEP_PROGRAMS:
            self._load_probe(module, name)

    def _load_probe(self, module: Any, name: str) -> None:
        try:
            self._load_as_kept(_program(module, name, bpf_calls.PROGRAM_KPROBE))
        except OSError:  # bcc says why
            self._load(module, name, bpf_calls.PROGRAM_KPROBE)

    def _load_socket_events(self) -> None:
        """The program that reports connections being made, and its rings."""
        module = self._module("sockets.c", loader.SOCKET_EVENTS, _defines(socket_events.definitions(self._types)))
        self._load(module, socket_events.PROGRAM, bpf_calls.PROGRAM_RAW_TRACEPOINT)
        self._keep_maps(module, socket_events.MAPS)

    def _load_stops(self) -> None:
        module = self._module("stops.c", loader.STOPS, _defines(stops.definitions(self._types)))
        self._load(module, stops.PROGRAM, bpf_calls.PROGRAM_RAW_TRACEPOINT)
        self._keep_maps(module, (stops.MAP,))

    def _load_verbs(self) -> None:
        """Where there is a device."""
        if not verbs.wanted():
            return
        module = self._module("verbs.c", loader.VERBS)
        for name in verbs.PROGRAMS:
            self._load_probe(module, name)
        self._keep_maps(module, verbs.MAPS)

    @functools.cached_property
    def _types(self) -> KernelTypes:
        return KernelTypes()

    def _load_frags(self, module: Any) -> None:
        """bcc knows no flags of programs, and no attach types."""
        self._load_as_kept(_program(module, XDP_FRAGS, bpf_calls.PROGRAM_XDP, bpf_calls.XDP_HAS_FRAGS))

    def _load_as_kept(self, program: Program) -> None:
        code = ctypes.create_string_buffer(program.instructions, len(program.instructions))
        index, count = ctypes.addressof(code), len(program.instructions) // _INSTRUCTION_BYTES
        self._descriptors[program.name] = bpf_calls.program_load(
            program.kind, program.name[:15], program.license.encode(), index, count, program.flags
        )
        self._programs.append(program)


def _defines(values: dict[str, int]) -> tuple[str, ...]:
    return tuple(f"-D{name}={value}" for name, value in values.items())


def _program(module: Any, name: str, kind: int, flags: int = 0) -> Program:
    """What bcc has compiled, with the descriptors of its maps in place."""
    from bcc import lib

    index, size = (one(module.module, name.encode()) for one in (lib.bpf_function_start, lib.bpf_function_size))
    terms: bytes = lib.bpf_module_license(module.module)
    return Program(name, kind, flags, terms.decode(), ctypes.string_at(index, size))


def _require_bcc() -> None:
    os.environ["BCC_KERNEL_SOURCE"] = str(sources() / "headers")
    try:
        import bcc  # noqa: F401
    except Exception as error:  # a broken installation fails in its own ways: ImportError, OSError, AttributeError
        raise UnsupportedError(
            f"cannot load BPF programs: this Python ({sys.executable}) cannot import bcc ({error}); "
            "install python3-bpfcc and use the distribution's Python"
        ) from error


def main() -> int:
    """The child: geometry and key in, descriptors out."""
    parent = socket.socket(fileno=os.dup(0))
    order = json.loads(parent.makefile().readline())
    geometry = Geometry(**order["geometry"])
    try:
        _require_bcc()
        lift_memory_limit()
        compiled = _Compiled(geometry)
        compiled.build()
    except NetmonError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # bcc raises bare exceptions; its own output stands before this line
        print(f"{error}", file=sys.stderr)
        return 1
    compiled.store(geometry, order["key"])
    descriptors = compiled.descriptors
    reply = {"names": list(descriptors), "remarks": compiled.remarks}
    socket.send_fds(parent, [json.dumps(reply).encode()], list(descriptors.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
