# SPDX-License-Identifier: Apache-2.0
"""GET /metrics, /health and /ready, on an event loop in a thread of its own, which sleeps until somebody asks.

A client has a few seconds for its whole request, whatever it sends. An answer is made once for all that request it
meanwhile. Families of metrics for prometheus_client, and what a process uses, are made here, too.
"""

import asyncio
import contextlib
import logging
import os
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast

from aiohttp import web
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder

from netmon.errors import UnsupportedError
from netmon.version import __version__
from netmon.wire.http_listener import HttpListener, open_sockets, split_address
from netmon.wire.secure import http_contexts
from netmon.wire.security import Role, Security, read_identity

_AGAIN_S = 0.5  # an answer serves again for so long, however often it is requested
_MOST_CONNECTIONS = 64
_WITHIN_S = 10.0  # from a connection's beginning to its end; it is for one request
_HEADERS = {"Cache-Control": "no-store"}
_OPENMETRICS = "application/openmetrics-text"

_silent = logging.getLogger("netmon.telemetry.requests")  # who asks, and what, is not our users' business
_silent.disabled = True

Look = Callable[[], Iterable[Metric]]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Condition:
    """How somebody does; each a line, empty where nothing is wrong."""

    unwell: str = ""  # it does not work any more: start it again
    unready: str = ""  # it works, and cannot do now what it is for

    @property
    def ready(self) -> bool:
        """Whether it does what it is for."""
        return not (self.unwell or self.unready)


class _Shared(Generic[_T]):
    """What a function returns, which may block: called once for all that request it at the same time."""

    def __init__(self, make: Callable[[], _T], pool: ThreadPoolExecutor) -> None:
        self._make, self._pool = make, pool
        self._made: asyncio.Future[_T] | None = None
        self._began_s = 0.0

    async def get(self) -> _T:
        loop = asyncio.get_running_loop()
        if self._made is None or (self._made.done() and loop.time() - self._began_s > _AGAIN_S):
            self._began_s, self._made = loop.time(), loop.run_in_executor(self._pool, self._make)
        return await asyncio.shield(self._made)


class _Scraped:
    """As much of a registry as its encoders use."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        return iter(self._look())


class Endpoint:
    """An HTTP server at HOST:PORT. From other machines it requires a certificate of the same authority."""

    def __init__(
        self, address: str, security: Security, look: Look, condition: Callable[[], Condition], role: Role
    ) -> None:
        """look, condition: called in threads of its own. role: whose the certificate is.

        Raises UsageError, UnsupportedError, CertificateError.
        """
        host, port = split_address(address)
        folder = security.folder(address, "serve metrics on")
        self._contexts = http_contexts(Path(folder), role) if folder else None
        self._pool = ThreadPoolExecutor(3, thread_name_prefix="metrics")  # one for each of these:
        self._condition = _Shared(lambda: _condition(condition), self._pool)
        self._metrics = {kind: _Shared(_encoder(look, kind), self._pool) for kind in ("", _OPENMETRICS)}
        try:
            self._sockets = open_sockets(host, port)
        except OSError as error:
            raise UnsupportedError(f"cannot serve metrics on {address}: {error.strerror or error}") from error
        self.port = int(self._sockets[0].getsockname()[1])
        """That it listens on."""
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening; does not wait for requests that are in progress."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = web.Server(
            self._answer, handler_cancellation=True, access_log=None, logger=_silent, keepalive_timeout=_WITHIN_S
        )
        listener = HttpListener(server, self._sockets, self._contexts, _MOST_CONNECTIONS, _WITHIN_S)
        listener.start()
        await self._stop.wait()
        await listener.close()
        for connection in server.connections:
            connection.force_close()
        await server.shutdown(0)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/metrics" and _sees_no_names(request):
            response = _said(403, "its role is jobs, which sees no processes: use another certificate")
        elif request.path == "/metrics":
            kind = _OPENMETRICS if _OPENMETRICS in request.headers.get("Accept", "") else ""
            response = await self._scraped(kind)
        elif request.path in ("/health", "/ready"):
            now = await self._condition.get()
            wrong = now.unwell if request.path == "/health" else now.unwell or now.unready
            response = _said(503 if wrong else 200, wrong or request.path[1:])
        else:
            response = _said(404, "/metrics, /health and /ready are here")
        response.force_close()
        return response

    async def _scraped(self, kind: str) -> web.Response:
        body = await self._metrics[kind].get()
        if body is None:
            return _said(503, "no answer now; try again")
        response = web.Response(body=body, headers=_HEADERS | {"Content-Type": choose_encoder(kind)[1]})
        response.enable_compression()
        return response


def _encoder(look: Look, kind: str) -> Callable[[], bytes | None]:
    encode, scraped = choose_encoder(kind)[0], cast(CollectorRegistry, _Scraped(look))

    def make() -> bytes | None:
        with contextlib.suppress(Exception):  # what is queried is too busy, or fails
            return encode(scraped)
        return None

    return make


def _condition(check: Callable[[], Condition]) -> Condition:
    try:
        return check()
    except Exception as error:
        return Condition(unwell=f"it does not answer: {type(error).__name__}")


def _sees_no_names(request: web.BaseRequest) -> bool:
    """Whether the certificate is of a viewer who may not see addresses and processes, which are labels."""
    certificate = (request.transport.get_extra_info("peercert") if request.transport else None) or {}
    names = certificate.get("subjectAltName", ())
    identity = read_identity(name for kind, name in names if kind == "URI")
    return identity is not None and identity.role == Role.JOBS


def _said(status: int, line: str) -> web.Response:
    return web.Response(status=status, text=f"{line}\n", headers=_HEADERS)


# --- Families of metrics, and what a process uses.

Values = Iterable[tuple[Sequence[str], float]]
"""(the labels' values, the sample's) each."""


def gauge(name: str, help_: str, labels: Sequence[str], values: Values) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=[*labels])
    for own, value in values:
        family.add_metric([*own], value)
    return family


def counter(name: str, help_: str, labels: Sequence[str], values: Values) -> Metric:
    """A family of counters with these labels; name without `_total`."""
    family = CounterMetricFamily(name, help_, labels=[*labels])
    for own, value in values:
        family.add_metric([*own], value)
    return family


@dataclass(frozen=True)
class Used:
    """By this process, and in CPU time by its children that have ended."""

    cpu_s: float
    rss_bytes: int
    descriptors: int
    threads: int


def used() -> Used:
    """As it is now; reads /proc/self."""
    cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    counts = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
    return Used(cpu, pages * resource.getpagesize(), *counts)


def used_by(pid: int) -> tuple[float, int] | None:
    """CPU time (s) and memory (bytes, RSS) of another process; None: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK"), pages * resource.getpagesize()


def own_families(part: str, now: Used) -> Iterator[Metric]:
    """part: "agent" or "collector"."""
    yield InfoMetricFamily("netmon_build", f"Version of the {part}", {"version": __version__, "part": part})
    name = f"netmon_{part}_process"
    yield CounterMetricFamily(f"{name}_cpu_seconds", "CPU time of its process that is scraped", now.cpu_s)
    yield GaugeMetricFamily(f"{name}_resident_bytes", "Memory of the same", now.rss_bytes)
    yield GaugeMetricFamily(f"{name}_descriptors", "Open file descriptors of the same", now.descriptors)
    yield GaugeMetricFamily(f"{name}_threads", "Threads of the same", now.threads)
