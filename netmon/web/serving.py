# SPDX-License-Identifier: Apache-2.0
"""Listening for browsers until a signal."""

import asyncio
import signal
from collections.abc import Callable

from aiohttp import web

from netmon.errors import UnsupportedError, UsageError
from netmon.web.access import Access
from netmon.web.server import Page
from netmon.web.source import Source

_RENEW_S = 10.0


async def serve(
    source: Source, access: Access, listen: str, ready: Callable[[str], None], stop: asyncio.Event | None = None
) -> None:
    """Until SIGTERM or SIGINT (or `stop`). ready: told the page's address. Raises UsageError, UnsupportedError."""
    host, port = _split(listen)
    stop = stop or _stop_on_signals()
    page = Page(source, access)
    runner = web.AppRunner(page.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        context = access.context()
        site = web.TCPSite(runner, host, port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            raise UnsupportedError(
                f"cannot listen on {listen}: {error.strerror or error}; choose another --listen"
            ) from None
        bound = runner.addresses[0][1] if runner.addresses else port
        ready(f"{'https' if context else 'http'}://{f'[{host}]' if ':' in host else host}:{bound}/")
        while not stop.is_set():
            if context:
                access.renew(context)
            try:
                await asyncio.wait_for(stop.wait(), _RENEW_S)
            except asyncio.TimeoutError:
                continue
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
