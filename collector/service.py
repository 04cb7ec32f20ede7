# SPDX-License-Identifier: Apache-2.0
"""The calls of proto/netmon.proto, and who is let in, to do what, and how often at a time.

Messages come as bytes, and are decoded once it is known who sends them.

With TLS everybody is somebody: by the certificate, or where none is requested by a token. Without it nobody is, and
whoever can reach the collector may do everything; it listens to this machine only then, unless it was set otherwise.
A call ends when its certificate expires, when the authority is replaced by another one, and when its token is removed.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError, Message

from collector.settings import ListenConfig
from netmon.errors import NetmonError, UnsupportedError, UsageError
from netmon.service import give_socket
from netmon.wire import netmon_pb2
from netmon.wire.secure import Watched, server_credentials
from netmon.wire.security import Identity, Role, read_identity
from netmon.wire.tls_files import Tokens, trusted_until_s

Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)
_SAY_EVERY_S = 60.0
_MOST_SAID = 1_000  # different refusals in that time
_CHECK_EVERY_S = 10.0  # whether those who were admitted would be admitted now

_NAMES, _CERTIFICATE, _BETWEEN = "x509_subject_alternative_name", "x509_pem_cert", "x509_pem_cert_chain"
"""Of gRPC's auth context: on the server's side the chain is without the certificate itself."""

AGENTS, VIEWERS, ALL = (Role.AGENT,), (Role.FULL, Role.JOBS), (Role.FULL,)

MOST_AT_A_TIME = {"stream": 32, "clock": 32, "view": 64, "window": 4}
"""Calls of one identity. An agent has one stream, one more for what was left behind, and those that are breaking."""

MOST_OF_ALL = {"stream": 8_192, "clock": 8_192, "view": 2_048, "window": 16}
"""Calls of all."""


class NotAdmittedError(NetmonError):
    """A call is refused; code: of gRPC."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(eq=False)
class Call:
    """One that was admitted. identity: who calls; None: anybody, without TLS."""

    identity: Identity | None = None
    authority: bytes = b""  # that the certificate was checked against
    until_s: float = 0.0  # when the certificate ends, s since 1970; 0: it is a token
    end: NotAdmittedError | None = None  # why it is admitted no longer


class Admission:
    """Of one collector; lives on one event loop."""

    def __init__(self, files: Watched | None = None, tokens: Tokens | None = None) -> None:
        """files: of the collector's port; None: no TLS is spoken."""
        self.files, self._tokens = files, tokens
        self._calls: Counter[tuple[str, str]] = Counter()
        self._all: Counter[str] = Counter()
        self._open: dict[Call, tuple[Context, asyncio.Task[Any] | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._said: dict[str, float] = {}
        self.refused = 0

    @contextlib.contextmanager
    def admit(self, context: Context, what: str, roles: tuple[Role, ...]) -> Iterator[Call]:
        """For as long as the call lasts. Raises NotAdmittedError.

        what: kind of call, as in MOST_AT_A_TIME.
        """
        call = self._identify(context)
        identity = call.identity
        if self.files and (identity is None or identity.role not in roles):
            raise self._refusal(context, identity, roles)
        key = identity.uri if identity else ""
        if identity and self._calls[key, what] >= MOST_AT_A_TIME[what]:
            reason = f"{identity} has {MOST_AT_A_TIME[what]} calls of this kind already: end some"
            raise self._say(NotAdmittedError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
        if self._all[what] >= MOST_OF_ALL[what]:
            reason = f"there are {MOST_OF_ALL[what]} calls of this kind already"
            raise self._say(NotAdmittedError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
        self._calls[key, what] += 1
        self._all[what] += 1
        try:
            yield call
        finally:
            self._all[what] -= 1
            self._calls[key, what] -= 1
            if not self._calls[key, what]:
                del self._calls[key, what]

    @contextlib.asynccontextmanager
    async def admitted(self, context: Context, what: str, roles: tuple[Role, ...]) -> AsyncIterator[Identity | None]:
        """Who calls; None: anybody, without TLS. Who is not admitted, or no longer, or sends what is no message
        (DecodeError), gets the reason, and the call ends."""
        with contextlib.ExitStack() as stack:
            try:
                call = stack.enter_context(self.admit(context, what, roles))
            except NotAdmittedError as error:
                await context.abort(error.code, str(error))
            if self.files:
                self._open[call] = context, asyncio.current_task()
                stack.callback(self._open.pop, call, None)
                self._timer = self._timer or asyncio.get_running_loop().call_later(_CHECK_EVERY_S, self._check)
            try:
                yield call.identity
            except asyncio.CancelledError:
                if call.end is None:
                    raise
            except DecodeError:
                who = str(call.identity) if call.identity else _peer_address(context)
                reason = f"what {who} sends cannot be read: it is no message of netmon's"
                call.end = self._say(NotAdmittedError(grpc.StatusCode.INVALID_ARGUMENT, reason))
            if call.end:
                self._open.pop(call, None)
                await context.abort(call.end.code, str(call.end))

    def _check(self) -> None:
        """End the calls that would not be admitted now."""
        authority, now_s = self.files.now().authority if self.files else b"", time.time()
        for call, (context, task) in self._open.items():
            if call.end is None and (call.authority != authority or now_s >= call.until_s):
                now = self._identify(context)
                call.authority, call.until_s = now.authority, now.until_s
                if now.identity != call.identity:
                    reason = (
                        f"{call.identity} is admitted no longer: its certificate or token has ended or was replaced"
                    )
                    call.end = self._say(NotAdmittedError(grpc.StatusCode.UNAUTHENTICATED, reason))
            if call.end and task:
                task.cancel()  # again each time: before Python 3.12 asyncio.wait_for may swallow it
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_CHECK_EVERY_S, self._check) if self._open else None

    def _identify(self, context: Context) -> Call:
        if self.files is None:
            return Call()
        known, authority = context.auth_context(), self.files.now().authority
        identity = read_identity(name.decode("utf-8", "replace") for name in known.get(_NAMES, ()))
        if identity:
            until_s = trusted_until_s(b"".join(known[_CERTIFICATE]), b"".join(known.get(_BETWEEN, ())), authority)
            return Call(identity if time.time() < until_s else None, authority, until_s)
        if self._tokens is None:
            return Call()
        for key, value in context.invocation_metadata() or ():
            if key == "authorization" and isinstance(value, str):
                kind, _, text = value.partition(" ")
                token = self._tokens.find(text.strip()) if kind.lower() == "bearer" else None
                return Call(token.identity if token else None)
        return Call()

    def _refusal(self, context: Context, identity: Identity | None, roles: tuple[Role, ...]) -> NotAdmittedError:
        wanted = " or ".join(role.value for role in roles)
        if identity is None:
            peer = _peer_address(context)
            reason = f"nobody is known by that certificate or token (from {peer}); one of {wanted} is needed"
            return self._say(NotAdmittedError(grpc.StatusCode.UNAUTHENTICATED, reason))
        reason = f"{identity} ({identity.role.value}) may not do that: it takes {wanted}"
        return self._say(NotAdmittedError(grpc.StatusCode.PERMISSION_DENIED, reason))

    def _say(self, error: NotAdmittedError) -> NotAdmittedError:
        """In the log, each once a minute: somebody may try again and again."""
        self.refused += 1
        now, line = time.monotonic(), str(error)
        if now - self._said.get(line, -_SAY_EVERY_S) >= _SAY_EVERY_S:
            self._said = {said: at for said, at in self._said.items() if now - at < _SAY_EVERY_S}
            if len(self._said) < _MOST_SAID:
                self._said[line] = now
                _log.warning("refused: %s (%d calls are refused so far)", line, self.refused)
        return error


def _peer_address(context: Context) -> str:
    """Without the port."""
    return context.peer().rpartition(":")[0]


# --- The calls.

ServeStream = Callable[[Context, Identity | None], Awaitable[None]]
Answer = Callable[[str, bytes, Identity | None, Context], Awaitable[None]]

_SERVICE = netmon_pb2.DESCRIPTOR.services_by_name["Collector"].full_name
_CALLS: dict[str, tuple[str, tuple[Role, ...], type[Message]]] = {
    "Watch": ("view", VIEWERS, netmon_pb2.WatchRequest),
    "Advise": ("view", VIEWERS, netmon_pb2.AdviceQuery),
    "Full": ("window", ALL, netmon_pb2.FullQuery),
    "Past": ("window", ALL, netmon_pb2.PastQuery),
}
"""What is answered: kind of call, for whom, what is requested."""


class CollectorService(grpc.GenericRpcHandler):
    """Handlers for a gRPC server."""

    def __init__(self, admission: Admission, serve_stream: ServeStream | None, answer: Answer) -> None:
        """serve_stream: one agent's; raises DecodeError. None: agents come by the bus.

        answer(method, request, …): the request can be decoded.
        """
        self._admission, self._serve_stream, self._answer = admission, serve_stream, answer
        self._handlers: dict[str, Any] = {
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream, response_serializer=_serialised),
            "Clock": grpc.stream_stream_rpc_method_handler(self._clock, response_serializer=_serialised),
        }
        for method in _CALLS:

            async def answered(request: bytes, context: Context, method: str = method) -> None:
                await self._call(method, request, context)

            self._handlers[method] = grpc.unary_stream_rpc_method_handler(answered, response_serializer=_serialised)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        service, _, method = details.method.strip("/").partition("/")
        return self._handlers.get(method) if service == _SERVICE else None

    async def _stream(self, _: Any, context: Context) -> None:
        if self._serve_stream is None:
            line = "this collector takes agents in by the bus: use --bus instead of --collector"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, line)
        async with self._admission.admitted(context, "stream", AGENTS) as identity:
            await self._serve_stream(context, identity)

    async def _clock(self, _: Any, context: Context) -> None:
        """Send the time to an agent, as often as it requests it."""
        async with self._admission.admitted(context, "clock", AGENTS):
            while (data := await context.read()) is not grpc.aio.EOF:
                received = time.time_ns()
                echo = netmon_pb2.ClockEcho(received_ns=received)
                echo.number = netmon_pb2.ClockProbe.FromString(data).number
                echo.sent_ns = time.time_ns()
                await context.write(echo)

    async def _call(self, method: str, request: bytes, context: Context) -> None:
        what, roles, kind = _CALLS[method]
        async with self._admission.admitted(context, what, roles) as identity:
            kind.FromString(request)
            await self._answer(method, request, identity, context)


def _serialised(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


# --- The collector's ports: with certificates, with tokens, or in the clear where only this machine can connect.

_SOCKET_PATH_BYTES = 107  # unix(7)

_CALL = "_schedule_rpc_coro"  # the name that gRPC gives to the work on a call
_OVER_WITHIN_S = 1.0
_PEER_HAS_GONE = "ExecuteBatchError raised in core by servicer method"


def admission_to(listen: str, listen_config: ListenConfig) -> Admission:
    """Of a collector that listens there. Raises UsageError, CertificateError."""
    if (listen_config.tokens is None) != (not listen_config.token_listen):
        raise UsageError("--tokens FILE and --token-listen HOST:PORT belong together")
    folder = listen_config.security.folder(listen, "listen on")
    return Admission(
        Watched(folder) if folder else None, Tokens(listen_config.tokens) if listen_config.tokens else None
    )


def listen_at(server: grpc.aio.Server, address: str, listen_config: ListenConfig, admission: Admission) -> None:
    """Open the ports. admission: of that door and address. Raises UsageError, UnsupportedError."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_worth_reporting)
    files = admission.files
    if address.startswith("unix:"):
        _clear_socket(address)
    _bind(server, address, server_credentials(files) if files else None)
    if listen_config.token_listen:
        if files is None:
            raise UsageError("cannot take tokens without encryption: give --tls DIR with --token-listen")
        _bind(server, listen_config.token_listen, server_credentials(files, certificates=False))


async def stop_listening(server: grpc.aio.Server, grace_s: float) -> None:
    """Close the ports; who is still connected is cut off after so long.

    gRPC says that it has stopped a moment before its calls have: those that the end of the event loop finds are called
    off, and gRPC writes a traceback for each.
    """
    await server.stop(grace_s)
    calls = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == _CALL]
    if calls:
        await asyncio.wait(calls, timeout=_OVER_WITHIN_S)


def _worth_reporting(record: logging.LogRecord) -> bool:
    """False: somebody has gone while they were sent something; gRPC has not noticed it yet, and prints a traceback."""
    return not record.getMessage().startswith(_PEER_HAS_GONE)


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> None:
    try:
        bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        raise UnsupportedError(
            f"cannot listen on {address}: the address is in use or not this machine's; choose another --listen"
        )
    if address.startswith("unix:"):
        give_socket(Path(address.removeprefix("unix:")))


def _clear_socket(address: str) -> None:
    """Remove a socket that nobody listens on any more; gRPC would take over a live one without a word."""
    path = Path(address.removeprefix("unix:"))
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        raise UnsupportedError(
            f"cannot listen on {address}: the path of a UNIX socket has at most {_SOCKET_PATH_BYTES} bytes; "
            "choose a shorter one"
        )
    if not path.parent.is_dir():
        raise UnsupportedError(f"cannot listen on {address}: {path.parent} is not a directory; create it")
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise UnsupportedError(
            f"cannot listen on {address}: a file that is no socket is there; choose another --listen"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise UnsupportedError(f"cannot listen on {address}: another process does; stop it or choose another --listen")


# --- Whether the collector lives, and whether it takes rows now: gRPC's health service, for probes and load
# balancers.
#
# Two names: "" serves as long as the collector does, "netmon.Collector" as long as it takes in what agents send.

SERVICE = "netmon.Collector"
"""As in netmon.proto."""

_EVERY_S = 1.0
_MOST_WATCHERS = 32


class Health(Protocol):
    """One collector's."""

    async def follow(self, why_not: Callable[[], str]) -> None:
        """Until it is cancelled. why_not(): why it takes nothing in now; empty: it does."""

    async def leave(self) -> None:
        """It takes nothing in any more."""


class NoHealth:
    """Without the library."""

    async def follow(self, why_not: Callable[[], str]) -> None:
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """Does nothing."""


def add_health(server: grpc.aio.Server) -> Health:
    """Added to the other services of a server that has not started; without the library nobody answers."""
    try:
        from grpc_health.v1 import health, health_pb2
    except ImportError:
        return NoHealth()
    response = health_pb2.HealthCheckResponse

    class Servicer(health.aio.HealthServicer):  # type: ignore[misc]
        """The library's, with a bound: who watches holds a call open."""

        watchers = 0

        async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 (the contract's name)
            if self.watchers >= _MOST_WATCHERS:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watch already: poll now and then")
            self.watchers += 1
            try:
                await super().Watch(request, context)
            finally:
                self.watchers -= 1

    def read(data: bytes) -> Any:
        """What cannot be read asks for a service that nobody has."""
        try:
            return health_pb2.HealthCheckRequest.FromString(data)
        except DecodeError:
            return health_pb2.HealthCheckRequest(service="?")

    servicer = Servicer()
    check = grpc.unary_unary_rpc_method_handler(servicer.Check, read, response.SerializeToString)
    watch = grpc.unary_stream_rpc_method_handler(servicer.Watch, read, response.SerializeToString)
    handlers = grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check, "Watch": watch})
    server.add_generic_rpc_handlers((handlers,))

    class HealthService:
        async def follow(self, why_not: Callable[[], str]) -> None:
            serves = None
            while True:
                if serves is not (now := not why_not()):
                    serves = now
                    await servicer.set(SERVICE, response.SERVING if now else response.NOT_SERVING)
                await asyncio.sleep(_EVERY_S)

        async def leave(self) -> None:
            await servicer.enter_graceful_shutdown()

    return HealthService()
