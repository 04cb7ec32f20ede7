# SPDX-License-Identifier: Apache-2.0
"""The page of a collector that has started this process: JSON says what of, and standard input ends with the collector.

The first line of standard output is JSON, too: the page's address, or the trouble.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from netmon.errors import NetmonError
from netmon.web.access import Access
from netmon.web.live import Live
from netmon.web.server import serve
from netmon.wire.security import PLAIN, Security


async def _serve(request: dict[str, Any]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, for the collector: we end with it
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), _read_stop, stop)
    tls, tokens = (Path(text) if text else None for text in (request["tls"], request["tokens"]))
    access = Access(request["listen"], Security(tls, request["insecure"] and not tls), tokens if tls else None)
    source = Live(request["collector"], PLAIN, title=request["listen"])
    try:
        await serve(source, access, request["listen"], lambda address: _say(address=address), stop)
    finally:
        source.close()


def _read_stop(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        stop.set()


def _say(**answer: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


def main() -> None:
    """Serve until standard input ends."""
    try:
        asyncio.run(_serve(json.loads(sys.argv[1])))
    except NetmonError as error:
        _say(trouble=str(error).replace("--listen-tls", "--tls").replace("--listen", "--http"))
        sys.exit(1)


if __name__ == "__main__":
    main()
