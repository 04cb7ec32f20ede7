# SPDX-License-Identifier: Apache-2.0
"""What the kernel refuses, and interfaces that change their name meanwhile: one line each, never a traceback."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from conftest import run
from pyroute2 import NetNS

pytestmark = pytest.mark.kernel

# Refuses bpf(2) to this process by a seccomp filter, as a container's profile does, and runs a command.
REFUSE_BPF = """
import ctypes, os, struct, sys
from netmon.kernel.bpf_calls import _NUMBERS
number = _NUMBERS[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7fff0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
header = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, header, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
LOAD = """
import sys
from netmon.errors import NetmonError
from netmon.kernel import loader
from netmon.kernel.meter.memory import choose_geometry
try:
    loader.load(choose_geometry(10_000))
except NetmonError as error:
    print(error)
"""
# Attaches and detaches again and again, by the index.
ATTACH = """
import sys
from netmon.errors import NetmonError
from netmon.kernel import loader
from netmon.kernel.meter.memory import choose_geometry
from netmon.kernel.watching import WatchedInterface
programs = loader.load(choose_geometry(10_000))
attached = 0
for _ in range(30):
    interface = WatchedInterface(1, sys.argv[1], "auto", int(sys.argv[2]))
    try:
        interface.attach(programs)
    except NetmonError as error:
        assert "\\n" not in str(error)
        continue
    interface.follow(programs)
    assert interface.index == int(sys.argv[2]) and interface.name in ("first", "second")
    attached += 1
    interface.detach()
print(attached)
"""


def output(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_seccomp_filter_is_named() -> None:
    (line,) = output("-c", REFUSE_BPF, "-c", LOAD).splitlines()
    assert line.startswith("cannot load the BPF programs: the kernel refuses a ring buffer (Linux 5.8): Operation not ")
    assert "a seccomp filter is in force: let the container's profile pass bpf and perf_event_open" in line


def test_missing_capabilities_are_named() -> None:
    command = ["setpriv", "--bounding-set=-bpf,-sys_admin", "--inh-caps=-all", sys.executable, "-c", LOAD]
    (line,) = run(*command).splitlines()
    assert "this process lacks CAP_BPF: run as root, or add them to the container or unit" in line


def test_an_interface_is_attached_whatever_its_name_is_just_now(namespaces: Callable) -> None:
    left, _ = namespaces()
    stop = threading.Event()

    def rename() -> None:
        with NetNS(left.namespace.name) as route:
            for name in itertools.cycle(("first", "second")):
                if stop.wait(0.002):
                    return
                route.link("set", index=left.index, ifname=name)

    thread = threading.Thread(target=rename)
    thread.start()
    try:
        command = left.namespace.inside(sys.executable, "-c", ATTACH, left.interface, str(left.index))
        attached = int(run(*command))
    finally:
        stop.set()
        thread.join()
    assert attached > 0
    assert "clsact" not in left.namespace.run("tc", "qdisc", "show")


def test_a_kernel_without_btf_loads_all_but_socket_events_and_stops() -> None:
    code = LOAD.replace("loader.load(", "print({'socket_events', 'stops'} & {*loader.load(").replace(
        "10_000))", "10_000))})"
    )
    hide = 'mount -t tmpfs tmpfs /sys/kernel/btf && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
    socket_watch, stops = done.stderr.splitlines()
    reason = ": cannot read /sys/kernel/btf/vmlinux: No such file or directory; the kernel was built without BTF"
    assert socket_watch == f"whose a connection of a few milliseconds is, may stay unknown{reason}"
    assert stops == f"that a rank was stopped for less than a tenth of a second is not seen{reason}"
