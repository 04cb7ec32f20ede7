# SPDX-License-Identifier: Apache-2.0
"""The receiving process, as the collector starts, hears and ends it."""

import asyncio
import contextlib
import socket
import subprocess
from typing import Any

from collector.receiving.frames import Listen, Listening, Stop
from collector.receiving.pipe import Pipe
from netmon.errors import CertificateError, NetmonError, UnsupportedError, UsageError
from netmon.own_module import own_module
from netmon.wire.channel import FEW_THREADS

_KINDS: dict[str, type[NetmonError]] = {
    kind.__name__: kind for kind in (UsageError, CertificateError, UnsupportedError)
}
_OWN = {"OPENBLAS_NUM_THREADS": "1"}
_LATER_S = 1.0  # than the grace of those who are still connected


class ReceivingProcess:
    """It ends with this one, however that ends: it sees that the pipe is closed."""

    def __init__(self, process: "subprocess.Popen[bytes]", pipe: Pipe) -> None:
        """`start` makes one."""
        self._process, self._pipe = process, pipe

    @classmethod
    async def start(cls, listen: Listen) -> "ReceivingProcess":
        """Start one that listens. Raises UsageError, CertificateError, UnsupportedError where it cannot."""
        ours, theirs = socket.socketpair()
        with theirs:
            program = own_module("collector.receiving.receiver", theirs.fileno())
            program["env"] = {"GRPC_EXPERIMENTS": FEW_THREADS, **program["env"], **_OWN}
            process = subprocess.Popen(**program, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        started = cls(process, await Pipe.open(ours))
        started.send(listen)
        try:
            answer: Listening = await started.receive()
        except BaseException as error:
            started.kill()
            if isinstance(error, EOFError):
                raise UnsupportedError(f"cannot listen on {listen.address}: the receiving process has ended") from None
            raise
        if answer.trouble:
            started.kill()
            raise _KINDS.get(answer.kind, UnsupportedError)(answer.trouble)
        return started

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, frame: object) -> None:
        """Does not block."""
        self._pipe.send(frame)

    async def drained(self) -> None:
        """As Pipe.drained; does not raise."""
        with contextlib.suppress(OSError):
            await self._pipe.drained()

    async def receive(self) -> Any:
        """The next frame. Raises EOFError where the process has ended."""
        return await self._pipe.receive()

    async def stop(self, grace_s: float) -> None:
        """End it; who is still connected is cut off after so long."""
        self.send(Stop(grace_s))
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, grace_s + _LATER_S)
        self.kill()

    def kill(self) -> int:
        """End it now; its status."""
        self._pipe.close()
        self._process.kill()
        return self._process.wait()
