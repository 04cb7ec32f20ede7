# SPDX-License-Identifier: Apache-2.0
"""The page that a collector serves by a process of its own."""

import asyncio
import contextlib
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from authorities import security
from collector_thread import FAST, collecting
from test_web_access import Asked, trusting
from waiting import free_port, wait_for

from collector.server import serve
from collector.settings import ListenConfig
from netmon.errors import UnsupportedError
from netmon.wire.security import Role

VIEWER = security(Role.JOBS, "wall")


def status(at: str) -> int:
    with contextlib.suppress(OSError):
        return Asked(f"https://{at}", "/api/state", trusting(VIEWER)).status
    return 0


def serving(at: str) -> list[int]:
    """Processes that serve a page there."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (place / "cmdline").read_bytes()
            if b"netmon.web.server" in command and at.encode() in command:
                found.append(int(place.name))
    return found


def test_the_page_shows_who_may_look_and_ends_with_the_collector(tmp_path: Path) -> None:
    at = f"localhost:{free_port()}"
    listen_config = ListenConfig(security(Role.COLLECTOR, "c"))
    with collecting(f"unix:{tmp_path}/s", tmp_path / "data", listen_config=listen_config, http=at):
        wait_for(lambda: status(at) == 200)
        assert Asked(f"https://{at}", "/api/state", trusting()).status == 401
        (pid,) = serving(at)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: bool(serving(at)) and serving(at) != [pid] and status(at) == 200)
    wait_for(lambda: not serving(at))


def test_an_address_that_is_taken_is_named_with_its_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnsupportedError, match=f"cannot listen on {at}: .*choose another --http"):
            asyncio.run(serve(replace(FAST, listen=f"unix:{tmp_path}/s", data=tmp_path / "data", http=at)))
