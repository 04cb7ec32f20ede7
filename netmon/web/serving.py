# SPDX-License-Identifier: Apache-2.0
"""Listening for browsers until a signal."""

import asyncio
import contextlib
import signal
from collections.abc import Callable

from aiohttp import web

from netmon.errors import UnsupportedError, UsageError
from netmon.web.access import Access
from netmon.web.server import Page
from netmon.web.source import Source
from netmon.wire.http_listener import HttpListener, open_sockets

_RENEW_S = 10.0
_MOST_CONNECTIONS = 512


async def serve(
    source: Source, access: Access, listen: str, ready: Callable[[str], None], stop: asyncio.Event | None = None
) -> None:
    """Until SIGTERM or SIGINT (or `stop`). ready: called with the page's address. Raises UsageError,
    UnsupportedError."""
    host, port = _split(listen)
    stop = stop or _stop_on_signals()
    page = Page(source, access)
    runner = web.AppRunner(page.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            sockets = open_sockets(host, port)
        except OSError as error:
            raise UnsupportedError(
                f"cannot listen on {listen}: {error.strerror or error}; choose another --listen"
            ) from None
        assert runner.server is not None
        listener = HttpListener(runner.server, sockets, access.contexts, _MOST_CONNECTIONS)
        listener.start()
        try:
            bound = sockets[0].getsockname()[1]
            ready(f"{'https' if access.contexts else 'http'}://{f'[{host}]' if ':' in host else host}:{bound}/")
            while not stop.is_set():
                listener.renew()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stop.wait(), _RENEW_S if access.contexts else None)
        finally:
            await listener.close()
    finally:
        await runner.cleanup()
        page.close()


def _stop_on_signals() -> asyncio.Event:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"cannot serve a page on {address}: give HOST:PORT, such as localhost:9480")
    return host.removeprefix("[").removesuffix("]"), int(port)
