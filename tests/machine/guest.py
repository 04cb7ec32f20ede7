# SPDX-License-Identifier: Apache-2.0
"""An emulated machine: it boots, does what it is told through QEMU's agent in it, loses its power, and boots again.

No virtualisation is used (a CPU of it is 10 to 20 times slower), and its network ends on this machine's loopback:
10.0.2.2 in it is 127.0.0.1 here, and chosen ports of it are ports here.
"""

import base64
import json
import shlex
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from machine_image import Image
from waiting import DIES_WITH_US, free_port, wait_for

BOOTS_S = 1200
METRICS, COLLECTOR = 9465, 9400  # in the guest
CPU = "max,avx2=off"
"""With QEMU 7.2's AVX2, numpy's argsort of 64-bit numbers gives another order than the ascending one."""
OLD_CPU = "Nehalem"
"""The least that today's wheels run on. Of `max`, apt is told of instructions that QEMU 7.2 does not have."""

_MEMORY = "3G"
_KERNEL = (
    "root=/dev/vda rw console=ttyS0 panic=-1 quiet systemd.show_status=0 no_timer_check clearcpuid=141 mitigations=off"
)
"""As tests/kernels/run.py says of QEMU 7.2; without mitigations, which cost much under emulation; the rest is Debian's.
Not q35: there the kernel's clock (acpi_pm) stood still after a suspend."""


class Guest:
    """One machine with disks of its own; off at first."""

    def __init__(
        self,
        image: Image,
        folder: Path,
        disks: tuple[int, ...] = (),
        in_place: bool = False,
        more: tuple[Path, ...] = (),
        cpu: str = CPU,
    ) -> None:
        """disks: bytes of further ones, empty, /dev/vdb and on; more: the files of those after them. in_place: changes
        the image itself.
        """
        self._image, self.folder, self._cpu = image, folder, cpu
        self._disks = [image.disk if in_place else folder / "root.img"]
        if not in_place:
            subprocess.run(["cp", "--reflink=auto", "--sparse=always", image.disk, self._disks[0]], check=True)
        for number, size in enumerate(disks):
            self._disks.append(folder / f"disk{number}.img")
            with self._disks[-1].open("wb") as file:
                file.truncate(size)
        self._disks += more
        self._kept = (image.disk, *more)
        first = free_port(2)
        self.ports = {METRICS: first, COLLECTOR: first + 1}
        """On this machine's loopback, by those in the guest."""
        self._process: subprocess.Popen[bytes] | None = None
        self._agent: socket.socket | None = None
        self._read = b""
        self._number = int(time.time())
        self.boots = 0

    def start(self) -> None:
        """Until it answers and systemd has nothing more to do."""
        listen_config = self.folder / "agent.sock"
        listen_config.unlink(missing_ok=True)
        forwards = "".join(f",hostfwd=tcp:127.0.0.1:{here}-:{there}" for there, here in self.ports.items())
        command = [
            *(*DIES_WITH_US, "qemu-system-x86_64", "-nodefaults", "-machine", "pc,accel=tcg,hpet=off"),
            *("-cpu", self._cpu, "-smp", "2", "-m", _MEMORY, "-display", "none", "-no-reboot", "-rtc", "base=utc"),
            *("-kernel", self._image.kernel, "-initrd", self._image.initrd, "-append", _KERNEL),
            *("-nic", f"user,model=virtio-net-pci{forwards}", "-serial", f"file:{self.folder}/console.{self.boots}"),
            *("-device", "virtio-serial", "-chardev", f"socket,path={listen_config},server=on,wait=off,id=agent"),
            *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
            *("-qmp", f"unix:{self.folder}/monitor.sock,server=on,wait=off"),
        ]
        for disk in self._disks:
            command += ["-drive", f"file={disk},if=virtio,format=raw,cache=writeback,discard=unmap"]
        with (self.folder / "qemu.log").open("ab") as log:
            self._process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.boots += 1
        wait_for(lambda: listen_config.exists() or self._ended(), 60)
        self._agent = socket.socket(socket.AF_UNIX)
        self._agent.connect(str(listen_config))
        self._read = b""
        self._synchronise(time.monotonic() + BOOTS_S)
        self.wait_for("systemctl is-system-running | grep -Eq 'running|degraded'", BOOTS_S)

    def kill(self) -> None:
        """The power is cut: what the guest has not given to its disk is lost."""
        if self._process:
            self._process.kill()
            self._process.wait()
        if self._agent:
            self._agent.close()
        self._process = self._agent = None

    def command(self, *commands: str) -> None:
        """What its own hardware does: QMP commands without arguments."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(60)
            monitor.connect(f"{self.folder}/monitor.sock")
            answers = monitor.makefile()
            answers.readline()  # the greeting
            for command in ("qmp_capabilities", *commands):
                monitor.sendall(json.dumps({"execute": command}).encode() + b"\n")
                while "return" not in (said := json.loads(answers.readline())):  # events come between
                    assert "error" not in said, said

    def away(self, script: str, seconds: float, wakes: str = "") -> None:
        """A script in the guest that makes it stop for so long; until it answers again. wakes: by this QMP command."""
        self.begin(f"sleep 1; {script}")
        time.sleep(seconds)
        if wakes:
            self.command(wakes)
        self._synchronise(time.monotonic() + BOOTS_S)

    def off(self) -> None:
        """Switched off as one should."""
        assert self._process
        self._tell("guest-exec", path="/bin/systemctl", arg=["poweroff"])
        self._process.wait(BOOTS_S)
        self.kill()

    def run(self, script: str, limit_s: float = 900, check: bool = True) -> str:
        """What a shell script in the guest prints on stdout; fails with stderr where it does. Blocks."""
        said = self._tell("guest-exec", path="/bin/sh", arg=["-c", f"set -e\n{script}"], **{"capture-output": True})
        pid, deadline = said["pid"], time.monotonic() + limit_s
        while not (done := self._tell("guest-exec-status", pid=pid))["exited"]:
            assert time.monotonic() < deadline, f"not over after {limit_s:.0f} s: {script}"
            time.sleep(0.2)
        out, err = (base64.b64decode(done.get(name, "")).decode(errors="replace") for name in ("out-data", "err-data"))
        assert not check or done.get("exitcode", -1) == 0, f"{script}\n{out[-8000:]}{err[-8000:]}"
        return out

    def begin(self, script: str) -> None:
        """Starts a script in the guest that goes on by itself."""
        self._tell("guest-exec", path="/bin/sh", arg=["-c", script])

    def wait_for(self, condition: str, limit_s: float = 900) -> None:
        """Until a shell command in the guest succeeds."""
        deadline = time.monotonic() + limit_s
        while self.run(f"if {condition}; then echo yes; fi") != "yes\n":
            assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {condition}\n{self.journal()}"
            time.sleep(1)

    def write(self, path: str, text: str) -> None:
        """A file in the guest, with its folders."""
        quoted = shlex.quote(path)
        self.run(f"mkdir -p $(dirname {quoted}); printf %s {shlex.quote(text)} >{quoted}")

    def fetch(self, path: str, into: Path) -> None:
        """A folder of the guest, of a few megabytes, onto this machine."""
        said = self._tell(
            "guest-exec", path="/bin/tar", arg=["-cz", "-C", f"{path}/.", "."], **{"capture-output": True}
        )
        while not (done := self._tell("guest-exec-status", pid=said["pid"]))["exited"]:
            time.sleep(0.2)
        assert not done.get("out-truncated")
        into.mkdir()
        packed = base64.b64decode(done["out-data"])
        subprocess.run(["tar", "-xz", "-C", into], input=packed, check=True)

    def journal(self, unit: str = "netmon-*") -> str:
        """What a unit has said since the guest has booted."""
        return self.run(f"journalctl --no-pager -b -q -o cat -u '{unit}'", check=False)

    def metrics(self) -> dict[str, float]:
        """What the agent in it says of itself, names with labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[METRICS]}/metrics", timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def _ended(self) -> bool:
        assert self._process
        return self._process.poll() is not None

    def _synchronise(self, deadline: float) -> None:
        """What was said before nobody waits for."""
        while True:
            self._number += 1
            self._write("guest-sync-delimited", id=self._number)
            try:
                while self._answer(30) != self._number:
                    pass
                return
            except TimeoutError:
                assert time.monotonic() < deadline, f"it does not answer: see {self.folder}/console.{self.boots - 1}"
                assert not self._ended(), f"it has ended: see {self.folder}/qemu.log"

    def _tell(self, command: str, **arguments: Any) -> Any:
        self._write(command, **arguments)
        return self._answer(600)

    def _write(self, command: str, **arguments: Any) -> None:
        assert self._agent
        self._agent.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")

    def _answer(self, limit_s: float) -> Any:
        assert self._agent
        self._agent.settimeout(limit_s)
        while b"\n" not in self._read:
            read = self._agent.recv(1 << 20)
            assert read, f"the machine has ended: see {self.folder}/console.{self.boots - 1}"
            self._read += read
        line, _, self._read = self._read.partition(b"\n")
        said = json.loads(line.lstrip(b"\xff"))
        assert "return" in said, said
        return said["return"]

    def close(self) -> None:
        """Nothing of it is left but what it has said."""
        self.kill()
        for disk in self._disks:
            if disk not in self._kept:
                disk.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "data", ignore_errors=True)
