# SPDX-License-Identifier: Apache-2.0
"""The page's server: what stands on the disk, and what a source knows, for those who may see it."""

import asyncio
import contextlib
import json
import math
import os
import secrets
import signal
import ssl
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from aiohttp import web

from netmon.dl.verdict import path_of
from netmon.dl.verdict.incidents import step_parts
from netmon.dl.verdict.verdict_text import arithmetic, columns, sentence
from netmon.errors import NetmonError, UnsupportedError, UsageError
from netmon.history.groups import groups_lately
from netmon.records import CLASS_COLOURS, CLASS_NAMES, STACK
from netmon.version import __version__
from netmon.views import CAUSES, NOT_UNDERSTOOD, Cause, GroupLine, Verdict
from netmon.web.answers import (
    BINS,
    FINEST_NS,
    MOST_LEVEL,
    Answers,
    by_process,
    encode,
    of_span,
    origin,
    processes,
    tile,
)
from netmon.web.live import MOMENT_NS, Live
from netmon.web.source import BLOCK, DIRECTIONS, JOB, PHASES, SHOWN, Catalogue, Source
from netmon.wire.http_listener import HttpListener, open_sockets, split_address
from netmon.wire.mapping import incident_without_names, verdict_without_names
from netmon.wire.secure import http_contexts
from netmon.wire.security import PLAIN, Identity, Role, Security, is_local, read_identity
from netmon.wire.tls_files import Tokens
from netmon.wire.watch import VIEWERS

# --- Who may look: a certificate of a viewer, or a viewer's token that is given once and stands in a cookie from then
# on.
#
# Without TLS the page is for this machine only, unless it was set otherwise; a name that is not this machine's is
# then refused, so that no page of somebody else's can have a browser send requests here.

COOKIE = "netmon-viewer"
_MOST_COOKIES = 4_096
_LONGEST_TOKEN = 512

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Access:
    """Of one server; lives on its event loop."""

    def __init__(self, listen: str, security: Security, tokens: Path | None) -> None:
        """listen: HOST:PORT. Raises UsageError, CertificateError."""
        self._folder = security.folder(listen, "serve a page on")
        if tokens and not self._folder:
            raise UsageError("cannot take tokens without encryption: give --listen-tls DIR with --tokens")
        self._tokens = Tokens(tokens) if tokens else None
        self._local_only = self._folder is None and is_local(listen)
        self._cookies: dict[str, str] = {}  # to the token
        self.contexts = http_contexts(self._folder, Role.COLLECTOR, ssl.CERT_OPTIONAL) if self._folder else None
        """For connections; a browser may show a certificate. None: plaintext."""

    @property
    def protected(self) -> bool:
        """TLS is spoken, and everybody has to be somebody."""
        return self._folder is not None

    def right_host(self, request: web.Request) -> bool:
        """Whether the browser asks by a name of ours, as far as that can be known."""
        if not self._local_only:
            return True
        host = request.host if ":" in request.host.rpartition("]")[2] else f"{request.host}:80"
        return is_local(host)

    def role(self, request: web.Request) -> Role | None:
        """What the browser may see: Role.FULL or Role.JOBS; None: it has to show who it is first."""
        if not self.protected:
            return Role.FULL
        identity = self._by_certificate(request) or self._by_token(request)
        return identity.role if identity and identity.role in VIEWERS else None

    def enter(self, token: str) -> str | None:
        """A cookie for a viewer's token; None: it is none."""
        if self._tokens is None or len(token) > _LONGEST_TOKEN or self._tokens.find(token) is None:
            return None
        while len(self._cookies) >= _MOST_COOKIES:
            del self._cookies[next(iter(self._cookies))]
        cookie = secrets.token_urlsafe(32)
        self._cookies[cookie] = token
        return cookie

    def leave(self, request: web.Request) -> None:
        self._cookies.pop(request.cookies.get(COOKIE, ""), None)

    def _by_certificate(self, request: web.Request) -> Identity | None:
        certificate = (request.transport.get_extra_info("peercert") if request.transport else None) or {}
        if not certificate or ssl.cert_time_to_seconds(certificate["notAfter"]) <= time.time():
            return None  # it may have expired since the handshake
        names = certificate.get("subjectAltName", ())
        return read_identity(name for kind, name in names if kind == "URI")

    def _by_token(self, request: web.Request) -> Identity | None:
        if self._tokens is None:
            return None
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        given = text.strip() if kind.lower() == "bearer" else self._cookies.get(request.cookies.get(COOKIE, ""), "")
        token = self._tokens.find(given[:_LONGEST_TOKEN]) if given else None  # also whether it still is one
        return token.identity if token else None


# --- The page's server: what stands on the disk, and what a source knows, for those who may see it.

# --- The columns of a page's figures: what all hosts sent by class, and how long iterations took, in a time.

_BINS = 240
_PROCESS_BINS = 600
_FINEST_NS = 1_000_000
_MOST_STEPS = 3_000  # of a job: of more, every so many-th is sent
_MOST_JOBS = 6
_MOST_NS = 8 * 3_600_000_000_000


def figures(source: Source, catalogue: Catalogue, begin_ns: int, end_ns: int) -> bytes:
    """The message. Blocks. Raises UsageError for a time that is no page's."""
    if not 0 < end_ns - begin_ns <= _MOST_NS:
        raise UsageError("figures are of eight hours at most")
    width = max(_FINEST_NS, -(-(end_ns - begin_ns) // _BINS))
    bins = -(-(end_ns - begin_ns) // width)
    hosts = sorted({lane.host for lane in catalogue.lanes} - {""})
    sent = source.totals(hosts, begin_ns, width, bins).reshape(len(DIRECTIONS), len(CLASS_NAMES), bins)[1]
    known, _ = source.steps(begin_ns, end_ns)
    job, starts, took, stalled = [], [], [], []
    names: list[str] = []
    for at, lane in enumerate(catalogue.lanes):
        if lane.kind != JOB or len(names) == _MOST_JOBS:
            continue
        for steps in known:
            rows = steps.of(at, begin_ns, end_ns)
            every = slice(rows.start, rows.stop, max(1, -(-(rows.stop - rows.start) // _MOST_STEPS)))
            bounds, end = steps.bounds[every], steps.end_ns[every]
            job.append(np.full(len(end), len(names)))
            starts.append(bounds[:, 0] / 1e9)
            took.append(end - bounds[:, 0])
            stalled.append((bounds[:, 4] > bounds[:, 3]) & steps.known[every])
        names.append(catalogue.job_names.get(lane.job, lane.job))
    none = [np.empty(0)]
    return encode(
        {"jobs": names, "width_ns": width},
        {
            "rate_s": (begin_ns + width * np.arange(bins)) / 1e9,
            "rate_bps": (sent * (8e9 / width)).astype(np.float32).ravel(),
            "step_job": np.concatenate(job or none).astype(np.uint8),
            "step_s": np.concatenate(starts or none).astype(np.float64),
            "step_ns": np.concatenate(took or none).astype(np.float64),
            "step_stalled": np.concatenate(stalled or none).astype(np.uint8),
        },
    )


# --- server


STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_OPEN = ("/login", "/static/")  # before one has shown who one is
_MOST_KEPT = 128 << 20  # bytes of tiles
_ADVICE_S = 15.0
_MOST_TEXT, _MOST_DIGITS, _MOST_FOUND = 100, 18, 20  # of a search
_MOST_VERDICTS = 2_000  # the newest
_T = TypeVar("_T")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Page:
    """One source behind one address."""

    def __init__(self, source: Source, access: Access) -> None:
        """Made on the event loop that serves it."""
        self._source, self._access = source, access
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="page")
        self._tiles: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._kept = 0
        self._making: dict[tuple[Any, ...], asyncio.Future[tuple[bytes, bool]]] = {}
        self._advice: tuple[float, Any] = (-math.inf, None)
        self._processes: tuple[float, list[tuple[str, str, str]]] = (-math.inf, [])
        self._answers = Answers(source)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=1 << 14)
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/static/{name}", self._static),
                web.get("/login", self._login_page),
                web.post("/login", self._login),
                web.post("/logout", self._logout),
                web.get("/api/state", self._state),
                web.get("/api/catalogue", self._catalogue),
                web.get("/api/tile", self._tile),
                web.get("/api/verdicts", self._verdicts),
                web.get("/api/incidents", self._incidents),
                web.get("/api/steps", self._steps),
                web.get("/api/explain", self._explain),
                web.get("/api/advice", self._advised),
                web.get("/api/span", self._span),
                web.get("/api/processes", self._by_process),
                web.get("/api/find", self._find),
                web.get("/api/figures", self._figures),
            ]
        )
        return app

    def close(self) -> None:
        """Ends its threads; waits for what they do."""
        self._pool.shutdown(cancel_futures=True)

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        response = await self._answer(request, handler)
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not self._access.right_host(request):
            return _refusal(421, "this page is for this machine only, by the name localhost")
        if request.method == "POST" and not _same_origin(request):
            return _refusal(403, "another page sent that request")
        role = self._access.role(request)
        if role is None and not request.path.startswith(_OPEN):
            if request.path.startswith("/api/"):
                return _refusal(401, "show who you are: give a viewer's token")
            return web.Response(status=303, headers={"Location": "/login"})
        try:
            return await handler(request)
        except UsageError as error:
            return _refusal(400, str(error))
        except NetmonError as error:
            return _refusal(404, str(error))
        except web.HTTPException as error:
            return _refusal(error.status, error.reason)

    def _full(self, request: web.Request) -> bool:
        return self._access.role(request) is Role.FULL

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return _file("index.html")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        return _file(request.match_info["name"])

    async def _login_page(self, request: web.Request) -> web.StreamResponse:
        return _file("login.html")

    async def _login(self, request: web.Request) -> web.StreamResponse:
        given = (await request.post()).get("token", "")
        cookie = self._access.enter(given.strip()) if isinstance(given, str) else None
        if cookie is None:
            await asyncio.sleep(0.5)
            return web.Response(status=303, headers={"Location": "/login?again"})
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(COOKIE, cookie, httponly=True, secure=True, samesite="Strict", path="/")
        return response

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        self._access.leave(request)
        response = web.Response(status=303, headers={"Location": "/login"})
        response.del_cookie(COOKIE, path="/")
        return response

    async def _state(self, request: web.Request) -> web.StreamResponse:
        state = self._source.state()
        document = asdict(state) | {"end_ns": str(state.end_ns), **await self._run(self._answers.jobs)}
        if not self._full(request):
            document["warnings"] = []
        return _json(document)

    async def _catalogue(self, request: web.Request) -> web.StreamResponse:
        known = self._source.catalogue()
        hosts = sorted({lane.host for lane in known.lanes} - {""})
        jobs = list(dict.fromkeys(lane.job for lane in known.lanes if lane.kind == JOB))
        host_place, job_place = ({name: n for n, name in enumerate(names)} for names in (hosts, jobs))
        return _json(
            {
                "version": __version__,
                "title": self._source.title if self._full(request) else "",
                "synthetic": self._source.synthetic,
                "full": self._full(request),
                "login": self._access.protected,
                "generation": known.generation,
                "origin_ns": str(origin(known)),
                "begin_ns": str(known.begin_ns),
                "end_ns": str(known.end_ns),
                "unheard_ns": [[str(begin), str(end)] for begin, end in known.unheard_ns],
                "moment_ns": MOMENT_NS,
                "tile": {"bins": BINS, "finest_ns": FINEST_NS, "most_level": MOST_LEVEL, "block": BLOCK},
                "classes": CLASS_NAMES,
                "colours": CLASS_COLOURS,
                "stack": STACK,
                "phases": PHASES,
                "causes": [{"name": _cause(cause), "group": _group(cause)} for cause in Cause],
                "hosts": hosts,
                "capacity_bps": [known.capacity_bps.get(host, 0.0) for host in hosts],
                "jobs": [
                    {"job": job, "name": known.job_names.get(job, job), **_theory(known.theory.get(job))}
                    for job in jobs
                ],
                "not_understood": [f"job {name}: {NOT_UNDERSTOOD}" for name in known.not_understood],
                "lanes": {
                    "kind": [lane.kind for lane in known.lanes],
                    "job": [job_place.get(lane.job, -1) for lane in known.lanes],
                    "rank": [lane.rank for lane in known.lanes],
                    "host": [host_place.get(lane.host, -1) for lane in known.lanes],
                },
            }
        )

    async def _tile(self, request: web.Request) -> web.StreamResponse:
        known = self._source.catalogue()
        if _number(request, "generation") != known.generation:
            return _refusal(409, "hosts or jobs have come: request the catalogue again")
        full = self._full(request)  # else agents are not queried
        index = _number(request, "level"), _number(request, "index"), _number(request, "block")
        key = known.generation, origin(known), *index, full
        if key in self._tiles:
            self._tiles.move_to_end(key)
            data = self._tiles[key]
        else:
            if key not in self._making:  # once for all who request it meanwhile
                self._making[key] = asyncio.ensure_future(self._run(tile, self._source, known, index, full))
            try:
                data, final = await asyncio.shield(self._making[key])
            finally:
                self._making.pop(key, None)
            if final:
                self._keep(key, data)
        response = web.Response(body=data, content_type="application/octet-stream")
        response.enable_compression()
        return response

    def _keep(self, key: tuple[Any, ...], data: bytes) -> None:
        if key not in self._tiles:
            self._tiles[key] = data
            self._kept += len(data)
        while self._kept > _MOST_KEPT:
            self._kept -= len(self._tiles.popitem(last=False)[1])

    async def _verdicts(self, request: web.Request) -> web.StreamResponse:
        found = self._source.verdicts()[-_MOST_VERDICTS:]
        if not self._full(request):
            found = [verdict_without_names(verdict) for verdict in found]
        return _json({"verdicts": [_verdict(verdict) for verdict in found]})

    async def _incidents(self, request: web.Request) -> web.StreamResponse:
        full = self._full(request)
        return _json(await self._run(self._answers.incidents, (lambda one: one) if full else incident_without_names))

    async def _steps(self, request: web.Request) -> web.StreamResponse:
        begin, end = _number(request, "begin_ns"), _number(request, "end_ns")
        if not 0 < end - begin <= _MOST_NS:
            raise UsageError("steps are of eight hours at most")
        head, columns = await self._run(self._answers.bars, request.query.get("job", ""), begin, end)
        return web.Response(body=encode(head, columns), content_type="application/octet-stream")

    async def _explain(self, request: web.Request) -> web.StreamResponse:
        job, iteration = request.query.get("job", ""), _number(request, "iteration")
        if not self._full(request):
            return _refusal(403, "this viewer sees jobs, classes and rates only")
        end_ns = _number(request, "end_ns")
        verdict, ranks = await self._run(self._source.explain, job, iteration, end_ns)
        path = path_of(ranks, verdict) if ranks else ""
        groups: list[GroupLine] = []
        with suppress(NetmonError):  # an older collector tells of none
            groups = await self._run(groups_lately, self._source.rows(), job, end_ns + 1)
        lines = {"ranks": [asdict(one) for one in ranks], "groups": [asdict(one) for one in groups]}
        return _json({"verdict": _verdict(verdict), "path": path, **lines})

    async def _advised(self, request: web.Request) -> web.StreamResponse:
        now = asyncio.get_running_loop().time()
        if now - self._advice[0] > _ADVICE_S:
            self._advice = now, await self._run(self._source.advice)
        return _json(self._advice[1])

    async def _span(self, request: web.Request) -> web.StreamResponse:
        if not self._full(request):
            return _refusal(403, "this viewer sees jobs, classes and rates only")
        begin, end = _number(request, "begin_ns"), _number(request, "end_ns")
        if end <= begin:
            raise UsageError("a time has to end after it begins")
        hosts = request.query.getall("host", [])[:1]
        return _json({"counts": SHOWN, **await self._run(of_span, self._source.rows(), hosts, begin, end)})

    async def _by_process(self, request: web.Request) -> web.StreamResponse:
        if not self._full(request):
            return _refusal(403, "this viewer sees jobs, classes and rates only")
        host, begin, end = request.query.get("host", ""), _number(request, "begin_ns"), _number(request, "end_ns")
        head, columns = await self._run(by_process, self._source.rows(), host, begin, end, _PROCESS_BINS)
        return web.Response(body=encode(head, columns), content_type="application/octet-stream")

    async def _find(self, request: web.Request) -> web.StreamResponse:
        text, full = request.query.get("text", "")[:_MOST_TEXT], self._full(request)
        found = {"steps": await self._run(self._answers.steps, int(text))} if _is_number(text) else {}
        return _json({"steps": [], "processes": await self._named(text) if full else [], **found})

    async def _named(self, text: str) -> list[tuple[str, str, str]]:
        now = asyncio.get_running_loop().time()
        if now - self._processes[0] > _ADVICE_S:
            self._processes = now, await self._run(processes, self._source.rows())
        return [one for one in self._processes[1] if text.lower() in one[0].lower()][:_MOST_FOUND]

    async def _figures(self, request: web.Request) -> web.StreamResponse:
        known, begin, end = self._source.catalogue(), _number(request, "begin_ns"), _number(request, "end_ns")
        data = await self._run(figures, self._source, known, begin, end)
        return web.Response(body=data, content_type="application/octet-stream")

    async def _run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)


def _file(name: str) -> web.Response:
    path = STATIC / name
    if path.parent != STATIC or path.suffix not in _TYPES or not path.is_file():
        return _refusal(404, "there is no such file")
    return web.Response(
        body=path.read_bytes(), content_type=_TYPES[path.suffix], charset="utf-8", headers={"Cache-Control": "no-cache"}
    )


def _refusal(status: int, reason: str) -> web.Response:
    return _json({"error": reason}, status)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(_plain(value), allow_nan=False), status=status, content_type="application/json")


def _plain(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy's
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _verdict(verdict: Verdict) -> dict[str, Any]:
    document = columns(verdict)
    times = {name: str(document[name]) for name in ("start_ns", "end_ns")}
    shown = {"letter": CAUSES[verdict.cause].letter, "network": verdict.network, "parts": step_parts(verdict)}
    return {**document, **times, **shown, "sentence": sentence(verdict), "arithmetic": list(arithmetic(verdict))}


def _cause(cause: Cause) -> str:
    return CAUSES[cause].short


def _group(cause: Cause) -> str:
    """By which steps have their colour: whether the network is to blame, or the job or its hosts."""
    return "network" if CAUSES[cause].network else "unknown" if cause == Cause.UNKNOWN else "own"


def _theory(bounds: tuple[float, float] | None) -> dict[str, float | None]:
    measured, theory = bounds or (math.nan, math.nan)
    return {"measured_bytes": measured, "theory_bytes": theory}


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < _MOST_DIGITS


def _number(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    if not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise UsageError(f"{name} has to be a whole number")
    return int(text)


def _same_origin(request: web.Request) -> bool:
    """Browsers say from which page a form comes."""
    given = request.headers.get("Origin")
    return given is None or given.rpartition("://")[2] == request.host


_RENEW_S = 10.0
_MOST_CONNECTIONS = 512


async def serve(
    source: Source, access: Access, listen: str, ready: Callable[[str], None], stop: asyncio.Event | None = None
) -> None:
    """Until SIGTERM or SIGINT (or `stop`). ready: called with the page's address. Raises UsageError,
    UnsupportedError."""
    host, port = split_address(listen, "serve a page on", 9480)
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


# --- The page of a collector that has started this process.
#
# JSON says what of, and standard input ends with the collector. The first line of standard output is JSON, too: the
# page's address, or the trouble.


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
