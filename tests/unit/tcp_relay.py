# SPDX-License-Identifier: Apache-2.0
"""A network that can be cut, for tests: a relay in user space between an agent and a collector."""

import contextlib
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from types import TracebackType


class TcpRelay:
    """Passes connections on to `target`; `cut` and `stall` do to them what a network does."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.accepted = 0
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._far: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # connections to the target
        self._mode, self._ended = "pass", False
        self.answers_after_s = 0.0
        """What comes from the target is passed on so much later, in its order."""
        self._late: deque[tuple[float, socket.socket, bytes]] = deque()  # until when, to whom
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> "TcpRelay":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended = True
        self._thread.join()
        self._close_all()
        self._server.close()

    def cut(self) -> None:
        """Every connection is reset, now and from now on."""
        with self._lock:
            self._mode = "cut"
            self._close_all()

    def reset(self) -> None:
        """Every connection there is, once."""
        with self._lock:
            self._close_all()

    def stall(self) -> None:
        """Connections are accepted and stay, but nothing is read or passed on: a black hole, or a hung collector."""
        with self._lock:
            self._mode = "stall"

    def heal(self) -> None:
        """Passes everything on again; what was stalled is reset, as by a host that has forgotten it."""
        with self._lock:
            self._close_all()
            self._mode = "pass"

    def _close_all(self) -> None:
        for one in list(self._pairs):
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            one.close()
        self._pairs.clear()

    def _work(self) -> None:
        while not self._ended:
            with self._lock:
                readable = [self._server] if self._mode == "stall" else [self._server, *self._pairs]
                with selectors.DefaultSelector() as selector:
                    for one in readable:
                        selector.register(one, selectors.EVENT_READ)
                    for key, _ in selector.select(0.02):
                        self._accept() if key.fileobj is self._server else self._pass(key.fileobj)
                self._pass_late()

    def _pass_late(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            _, to, data = self._late.popleft()
            if to in self._pairs:
                try:
                    to.sendall(data)
                except OSError:
                    self._drop(to)

    def _accept(self) -> None:
        near, _ = self._server.accept()
        self.accepted += 1
        far = socket.socket()
        self._pairs[near], self._pairs[far] = far, near
        self._far.add(far)
        try:
            if self._mode == "cut":
                raise ConnectionError
            if self._mode == "pass":
                far.connect(self._target)
        except OSError:
            self._drop(near)

    def _pass(self, source: socket.socket) -> None:
        if source not in self._pairs:
            return
        try:
            data = source.recv(1 << 16)
            if not data:
                raise ConnectionError
            if self.answers_after_s and source in self._far:
                self._late.append((time.monotonic() + self.answers_after_s, self._pairs[source], data))
            else:
                self._pairs[source].sendall(data)
        except OSError:
            self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        other = self._pairs.pop(one)
        self._pairs.pop(other, None)
        one.close()
        other.close()
