# SPDX-License-Identifier: Apache-2.0
"""Who is let in, to do what, and how often at a time.

With TLS everybody is somebody: by the certificate, or where none is asked for by a token. Without it nobody is, and
whoever can reach the collector may do everything; it listens to this machine only then, unless it was told otherwise.
"""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from netmon.errors import NetmonError
from netmon.wire.identity import Identity, Role, read_identity
from netmon.wire.tokens import Tokens

Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)
_SAY_EVERY_S = 60.0
_MOST_SAID = 1_000  # different refusals in that time

AGENTS, VIEWERS, ALL = (Role.AGENT,), (Role.FULL, Role.JOBS), (Role.FULL,)

MOST_AT_A_TIME = {"stream": 32, "clock": 32, "view": 64, "window": 4}
"""Calls of one identity. An agent has one stream, one more for what was left behind, and those that are breaking."""

MOST_OF_ALL = {"stream": 8_192, "clock": 8_192, "view": 2_048, "window": 16}
"""Calls of all."""


class NotAdmittedError(NetmonError):
    """A call is refused; code: of gRPC."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        """Say why, in one line."""
        super().__init__(reason)
        self.code = code


class Admission:
    """Of one collector; lives on one event loop."""

    def __init__(self, protected: bool = False, tokens: Tokens | None = None) -> None:
        """protected: TLS is spoken."""
        self._protected, self._tokens = protected, tokens
        self._calls: Counter[tuple[str, str]] = Counter()
        self._all: Counter[str] = Counter()
        self._said: dict[str, float] = {}
        self.refused = 0

    @contextlib.contextmanager
    def admit(self, context: Context, what: str, roles: tuple[Role, ...]) -> Iterator[Identity | None]:
        """Who calls, for as long as the call lasts; None: anybody, without TLS. Raises NotAdmittedError.

        what: kind of call, as in MOST_AT_A_TIME.
        """
        identity = self._identify(context)
        if self._protected and (identity is None or identity.role not in roles):
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
            yield identity
        finally:
            self._all[what] -= 1
            self._calls[key, what] -= 1
            if not self._calls[key, what]:
                del self._calls[key, what]

    @contextlib.asynccontextmanager
    async def admitted(self, context: Context, what: str, roles: tuple[Role, ...]) -> AsyncIterator[Identity | None]:
        """The same; who is not admitted, or sends what is no message (DecodeError), is told so, and the call ends."""
        with contextlib.ExitStack() as stack:
            try:
                identity = stack.enter_context(self.admit(context, what, roles))
            except NotAdmittedError as error:
                await context.abort(error.code, str(error))
            try:
                yield identity
            except DecodeError:
                who = str(identity) if identity else _place(context)
                reason = f"what {who} sends cannot be read: it is no message of netmon's"
                refused = self._say(NotAdmittedError(grpc.StatusCode.INVALID_ARGUMENT, reason))
                await context.abort(refused.code, reason)

    def _identify(self, context: Context) -> Identity | None:
        if not self._protected:
            return None
        names = context.auth_context().get("x509_subject_alternative_name", ())
        identity = read_identity(name.decode("utf-8", "replace") for name in names)
        if identity or self._tokens is None:
            return identity
        for key, value in context.invocation_metadata() or ():
            if key == "authorization" and isinstance(value, str):
                kind, _, text = value.partition(" ")
                token = self._tokens.find(text.strip()) if kind.lower() == "bearer" else None
                return token.identity if token else None
        return None

    def _refusal(self, context: Context, identity: Identity | None, roles: tuple[Role, ...]) -> NotAdmittedError:
        wanted = " or ".join(role.value for role in roles)
        if identity is None:
            reason = f"nobody is known by that certificate or token (from {_place(context)}); one of {wanted} is needed"
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


def _place(context: Context) -> str:
    """Without the port."""
    return context.peer().rpartition(":")[0]
