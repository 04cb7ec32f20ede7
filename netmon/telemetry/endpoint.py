# SPDX-License-Identifier: Apache-2.0
"""GET /metrics, /health and /ready, in threads of their own. Strangers cost it a few of them for a few seconds."""

import contextlib
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Metric, make_wsgi_app
from prometheus_client.registry import Collector

from netmon.errors import UnsupportedError, UsageError
from netmon.wire.identity import Role
from netmon.wire.secure import http_contexts
from netmon.wire.security import Security

_AGAIN_S = 0.5  # an answer serves again for so long, however often it is asked for
_MOST_AT_A_TIME = 8
_WITHIN_S = 10.0  # a request, from its connection to its last byte read
_TEXT = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")]

Look = Callable[[], Iterable[Metric]]


@dataclass(frozen=True)
class Condition:
    """How somebody does; each a line, empty where nothing is wrong."""

    unwell: str = ""  # it does not work any more: start it again
    unready: str = ""  # it works, and cannot do now what it is for

    @property
    def ready(self) -> bool:
        """Whether it does what it is for."""
        return not (self.unwell or self.unready)


class _Scraped(Collector):
    def __init__(self, look: Look) -> None:
        self._look = look
        self._one_at_a_time = threading.Lock()
        self._seen: list[Metric] = []
        self._seen_s = 0.0

    def describe(self) -> Iterator[Metric]:
        return iter(())  # else it would be asked now, maybe by whoever it asks

    def collect(self) -> Iterator[Metric]:
        with self._one_at_a_time:
            if not self._seen or time.monotonic() - self._seen_s > _AGAIN_S:
                self._seen, self._seen_s = list(self._look()), time.monotonic()
            return iter(self._seen)


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Who asks is not our users' business."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, place: tuple[str, int], family: int, contexts: Callable[[], ssl.SSLContext] | None) -> None:
        self.address_family = family
        self._contexts = contexts
        self._room = threading.BoundedSemaphore(_MOST_AT_A_TIME)
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        """As HTTPServer, but for asking a name server who we are."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Whoever is one too many is hung up on."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One request, and the handshake before it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The handshake here: a stranger who says nothing keeps nobody else waiting."""
        request.settimeout(_WITHIN_S)
        if self._contexts is None:
            super().finish_request(request, client_address)
            return
        with self._contexts().wrap_socket(request, server_side=True) as protected:
            super().finish_request(protected, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up, or has no certificate, has read nothing."""


class Endpoint:
    """An HTTP server at HOST:PORT. Beyond this machine it is asked with a certificate of the same authority."""

    def __init__(
        self, address: str, security: Security, look: Look, condition: Callable[[], Condition], role: Role
    ) -> None:
        """look, condition: called in threads of its own. role: whose the certificate is.

        Raises UsageError, UnsupportedError, CertificateError.
        """
        host, port = split_address(address)
        folder = security.folder(address, "serve metrics on")
        registry = CollectorRegistry()
        registry.register(_Scraped(look))
        contexts = http_contexts(Path(folder), role) if folder else None
        try:
            family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._server = _Server((str(place[0]), port), family, contexts)
        except OSError as error:
            raise UnsupportedError(f"cannot serve metrics on {address}: {error.strerror or error}") from error
        self._server.set_app(_app(registry, condition))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """That it listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stops listening; blocks for half a second at most. Whoever is asked may not be waiting for it meanwhile."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _app(registry: CollectorRegistry, condition: Callable[[], Condition]) -> Any:
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            with contextlib.suppress(Exception):  # whoever is asked is too busy, or fails at it
                answer: Iterable[bytes] = metrics(environ, start)
                return answer
            return _said(start, "503 Service Unavailable", "no answer now; try again")
        if path not in ("/health", "/ready"):
            return _said(start, "404 Not Found", "/metrics, /health and /ready are here")
        try:
            now = condition()
        except Exception as error:
            now = Condition(unwell=f"it does not answer: {type(error).__name__}")
        wrong = now.unwell if path == "/health" else now.unwell or now.unready
        return _said(start, "503 Service Unavailable" if wrong else "200 OK", wrong or path[1:])

    return app


def _said(start: Any, status: str, line: str) -> Iterable[bytes]:
    start(status, [*_TEXT])
    return [f"{line}\n".encode()]


def split_address(address: str) -> tuple[str, int]:
    """HOST and PORT. Raises UsageError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"cannot serve metrics on {address}: give HOST:PORT, such as localhost:9464")
    return host.removeprefix("[").removesuffix("]"), int(port)
