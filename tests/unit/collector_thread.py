# SPDX-License-Identifier: Apache-2.0
"""A real collector in a thread, for tests of what talks to it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from collector.server import serve
from collector.settings import Settings

FAST = Settings(flush_ns=50_000_000)


@contextlib.contextmanager
def collecting(
    address: str, data: Path, worker: Any = None, spans: Any = None, stored: Any = None, **options: Any
) -> Iterator[None]:
    """Until the context ends; then everything that it has received is stored. options: of `Settings`."""
    settings = replace(FAST, listen=address, data=data, **options)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            loop.run_until_complete(serve(settings, stop, worker=worker, spans=spans, stored=stored))
        except BaseException as error:
            failed.append(error)
        finally:
            loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)
        thread.join()
    if failed:
        raise failed[0]
