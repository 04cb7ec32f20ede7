# SPDX-License-Identifier: Apache-2.0
"""Connections for an aiohttp server: bounded in number and, where it is wanted, in time; TLS as the files are now."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial

from aiohttp import web

from netmon.errors import UsageError

_HANDSHAKE_S = 10.0
_AGAIN_S = 1.0  # after a connection could not be accepted: there are no descriptors left
_BACKLOG = 128
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class HttpListener:
    """Between `start` and `close`; lives on one event loop.

    A new client is always accepted: where there are `most` connections, the oldest one is closed.
    """

    def __init__(
        self,
        server: web.Server,
        sockets: list[socket.socket],
        contexts: Callable[[], ssl.SSLContext] | None,
        most: int,
        within_s: float | None = None,
    ) -> None:
        """contexts: another one where certificate or authority have changed; None: plaintext.

        within_s: from a connection's beginning to its end; None: it may last.
        """
        self._server, self._sockets, self._contexts = server, sockets, contexts
        self._most, self._within_s = most, within_s
        self._context = contexts() if contexts else None
        self._arriving: dict[asyncio.Task[None], None] = {}  # their handshake is not over
        self._accepting: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(one)) for one in self._sockets]

    async def close(self) -> None:
        """Accept no more; what is connected stays so."""
        tasks = [*self._accepting, *self._arriving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()

    def renew(self) -> None:
        """Use files that have changed; connections that began with others end."""
        if self._contexts and (context := self._contexts()) is not self._context:
            self._context = context
            for connection in self._server.connections:
                connection.force_close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_AGAIN_S)
                continue
            self.renew()
            if len(self._arriving) + len(self._server.connections) >= self._most:
                self._close_oldest()
            task = loop.create_task(self._begin(connection))
            self._arriving[task] = None
            task.add_done_callback(partial(self._arrived, connection))

    def _arrived(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._arriving.pop(task, None)
        if task.cancelled():  # maybe before it has begun
            connection.close()

    async def _begin(self, connection: socket.socket) -> None:
        loop, context = asyncio.get_running_loop(), self._context
        with contextlib.suppress(OSError):  # of a stranger's handshake
            transport, _ = await loop.connect_accepted_socket(
                self._server, connection, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S if context else None
            )
            if context is not self._context:
                transport.abort()
            elif self._within_s is not None:
                loop.call_later(self._within_s, transport.abort)

    def _close_oldest(self) -> None:
        if 2 * len(self._arriving) > self._most:
            task = next(iter(self._arriving))
            del self._arriving[task]
            task.cancel()
        elif (connections := self._server.connections) and (transport := connections[0].transport):
            transport.abort()


def split_address(address: str, action: str = "serve metrics on", port: int = 9464) -> tuple[str, int]:
    """HOST and PORT. action: what is attempted; port: such as one would choose. Raises UsageError."""
    host, _, given = address.rpartition(":")
    if not host or not given.isdecimal() or int(given) > 65_535:
        raise UsageError(f"cannot {action} {address}: give HOST:PORT, such as localhost:{port}")
    return host.removeprefix("[").removesuffix("]"), int(given)


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """That listen at all addresses of a name that are this machine's; port 0: the same free one. Raises OSError."""
    sockets: list[socket.socket] = []
    missing = OSError(errno.EADDRNOTAVAIL, "no such address here")
    try:
        for family, _, _, _, index in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            one = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(one)
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((index[0], port or sockets[0].getsockname()[1], *index[2:]))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error  # as ::1 of localhost, where there is no IPv6
                sockets.pop().close()
                continue
            one.listen(_BACKLOG)
            one.setblocking(False)
        if not sockets:
            raise missing
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets
