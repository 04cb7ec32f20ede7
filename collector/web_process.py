# SPDX-License-Identifier: Apache-2.0
"""The page for browsers alongside a collector: `netmon web` in a process of its own, which cannot hold the collector
up.

It sees the collector as any viewer does, by a socket in a folder that only this user can open.
"""

import asyncio
import contextlib
import json
import logging
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

import grpc

from collector.answers import Answers
from collector.service import Admission, CollectorService
from collector.settings import ListenConfig
from netmon.errors import UnsupportedError
from netmon.own_module import own_module
from netmon.wire.limits import COLLECTOR_OPTIONS

_log = logging.getLogger(__name__)
_BEGIN_S, _END_S, _AGAIN_S = 60.0, 5.0, 1.0


class WebProcess:
    """Between `start` and `close`; lives on one event loop. A process that dies is started again."""

    def __init__(self, answers: Answers, listen: str, listen_config: ListenConfig) -> None:
        """listen: HOST:PORT for browsers. door: whose certificate the page shows, and which tokens it takes."""
        self._folder = Path(tempfile.mkdtemp(prefix="netmon-"))
        at = f"unix:{self._folder}/page"
        self._server = grpc.aio.server(options=COLLECTOR_OPTIONS)
        self._server.add_generic_rpc_handlers((CollectorService(Admission(), None, answers.answer),))
        self._server.add_insecure_port(at)
        tls, tokens = (path and str(path.resolve()) for path in (listen_config.security.tls, listen_config.tokens))
        request = {
            "collector": at,
            "listen": listen,
            "tls": tls,
            "tokens": tokens,
            "insecure": listen_config.security.insecure,
        }
        self._request = json.dumps(request)
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the process; 0: none runs."""
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Serve. Raises UnsupportedError where it cannot."""
        await self._server.start()
        self._process = await self._started()
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """The process ends, and the folder is removed."""
        if self._watching:
            self._watching.cancel()
        if self._process:
            await _ended(self._process)
        await self._server.stop(None)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _started(self) -> Process:
        program = own_module("netmon.web.server", self._request)
        # It ends when its standard input does: with this process, however that ends.
        process = await asyncio.create_subprocess_exec(
            *program["args"], cwd=program["cwd"], env=program["env"], stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(asyncio.TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), _BEGIN_S)
        answer = json.loads(line) if line else {"trouble": "the page's process has ended, or does not answer"}
        if trouble := answer.get("trouble"):
            await _ended(process)
            raise UnsupportedError(str(trouble))
        _log.info("page for browsers: %s", answer["address"])
        return process

    async def _watch(self) -> None:
        while True:
            assert self._process is not None
            status = await self._process.wait()
            _log.warning("the page's process has ended (status %s); it is started again", status)
            self._process = None
            while self._process is None:
                await asyncio.sleep(_AGAIN_S)
                try:
                    self._process = await self._started()
                except (UnsupportedError, OSError) as error:
                    _log.warning("%s", error)


async def _ended(process: Process) -> None:
    if process.stdin:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
