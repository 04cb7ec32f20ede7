# SPDX-License-Identifier: Apache-2.0
"""Who is let in, to do what, and how often at a time.

With TLS everybody is somebody: by the certificate, or where none is requested by a token. Without it nobody is, and
whoever can reach the collector may do everything; it listens to this machine only then, unless it was set otherwise.
A call ends when its certificate expires, when the authority is replaced by another one, and when its token is removed.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from netmon.errors import NetmonError
from netmon.wire.identity import Identity, Role, read_identity
from netmon.wire.secure import Watched
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
