# SPDX-License-Identifier: Apache-2.0
"""Who may look: a certificate of a viewer, or a viewer's token that is given once and stands in a cookie from then on.

Without TLS the page is for this machine only, unless it was set otherwise; a name that is not this machine's is then
refused, so that no page of somebody else's can have a browser ask here.
"""

import secrets
import ssl
import time
from pathlib import Path

from aiohttp import web

from netmon.errors import UsageError
from netmon.wire.secure import http_contexts
from netmon.wire.security import Identity, Role, Security, is_local, read_identity
from netmon.wire.tls_files import Tokens
from netmon.wire.watch import VIEWERS

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
            raise UsageError("cannot take tokens without encryption: give --listen-tls DIR beside --tokens")
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
