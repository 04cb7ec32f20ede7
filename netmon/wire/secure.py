# SPDX-License-Identifier: Apache-2.0
"""Connections with TLS: channels of gRPC, the collector's port, the bus; and why one has failed, in words.

Whoever connects reads the files anew each time, whoever listens as soon as they have changed: a certificate is renewed
by putting another one in its place. What is connected stays so until its own certificate is good no longer. gRPC is
imported where it is used: an agent does without it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netmon.errors import CertificateError, NetmonError
from netmon.wire.security import Identity, Role, Security, is_unix
from netmon.wire.tls_files import AUTHORITY, CERTIFICATE, KEY, TlsFiles, identity_of, read_tls

if TYPE_CHECKING:
    import grpc

Options = Sequence[tuple[str, Any]]

_log = logging.getLogger(__name__)
_COPY = "copy both folders from one `netmon certificates DIR`"
_OTHER_NAME = (
    "its certificate is for other addresses: issue it with this one (netmon certificates DIR collector NAME "
    "--address ADDR …)"
)
_SAID = (  # by BoringSSL, OpenSSL and gRPC; lower case
    (
        "certificate has expired",
        "the other end's certificate has expired: renew it with `netmon certificates DIR renew`",
    ),
    ("certificate is not yet valid", "the other end's certificate is not valid yet: is this machine's clock right?"),
    ("certificate_expired", "our certificate has expired for the other end: is its clock right?"),
    ("self signed certificate", f"the other end's certificate is of another authority than our ca.crt: {_COPY}"),
    ("self-signed certificate", f"the other end's certificate is of another authority than our ca.crt: {_COPY}"),
    ("unable to get", f"the other end's certificate is of another authority than our ca.crt: {_COPY}"),
    ("signature failure", f"the other end's certificate is of another authority than our ca.crt: {_COPY}"),
    ("unknown_ca", f"our certificate is of another authority than the other end's ca.crt: {_COPY}"),
    ("certificate_required", "the other end wants a certificate: give --tls DIR with tls.crt and tls.key"),
    ("hostname verification check failed", _OTHER_NAME),
    ("certificate is not valid for", _OTHER_NAME),
    ("certificate_unknown", f"the other end does not trust our certificate: {_COPY}"),
    ("wrong_version_number", "it speaks no TLS there: give no --tls, or start the collector with it"),
    ("certificate_verify_failed", "the other end's certificate is not trusted: is it of the authority in our ca.crt?"),
)

_OF_TIME = ("certificate has expired", "certificate is not yet valid")


def open_channel(address: str, security: Security, options: Options, *roles: Role) -> grpc.Channel:
    """A channel to HOST:PORT or unix:PATH, as one of these roles. Raises UsageError, CertificateError."""
    import grpc

    folder = security.folder(address, "connect to")
    if folder is None:
        return grpc.insecure_channel(address, options=options)
    files = read_tls(folder, *roles)
    credentials = grpc.ssl_channel_credentials(files.authority, files.key or None, files.certificate or None)
    if files.token:
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(files.token))
    return grpc.secure_channel(address, credentials, options=options)


def server_credentials(files: Watched, certificates: bool = True) -> grpc.ServerCredentials:
    """For a collector's port; the files are looked at for every connection.

    certificates: whoever connects needs one; else the collector asks for a token.
    """
    import grpc

    used = [files.now()]

    def fetch() -> Any:  # None: as before
        now, before = files.now(), used[0]
        used[0] = now
        return None if now is before else _configuration(now)

    return grpc.dynamic_ssl_server_credentials(_configuration(used[0]), fetch, certificates)


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    import grpc

    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.authority)


class Watched:
    """A folder of whoever listens, read again when it has changed. May be used in any thread."""

    def __init__(self, folder: Path, role: Role = Role.COLLECTOR) -> None:
        """Read it. Raises CertificateError."""
        self._folder, self._role, self._seen = folder, role, _stamp(folder)
        self._lock = threading.Lock()
        self._now = read_tls(folder, role)

    def now(self) -> TlsFiles:
        """The same object until the files change. What cannot be used is said, once, and changes nothing."""
        with self._lock:
            seen = _stamp(self._folder)
            if seen != self._seen:
                self._seen = seen
                try:
                    self._now = read_tls(self._folder, self._role)
                    _log.info("the certificate in %s has been renewed", self._folder)
                except CertificateError as error:
                    _log.warning("%s; what was read before is used", error)
            return self._now


def _stamp(folder: Path) -> tuple[tuple[int, int], ...]:
    """Of its files: another one for any change."""
    found = []
    for name in (AUTHORITY, CERTIFICATE, KEY):
        try:
            status = (folder / name).stat()
            found.append((status.st_ino, status.st_mtime_ns))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def client_context(folder: Path, *roles: Role) -> ssl.SSLContext:
    """For a connection to a collector or a bus. Raises CertificateError."""
    read_tls(folder, *roles)
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / AUTHORITY))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    except OSError as error:  # another file is put there this very moment
        raise CertificateError(f"cannot use the files in {folder}: {error}") from None
    return context


def http_contexts(folder: Path, role: Role, verify: ssl.VerifyMode = ssl.CERT_REQUIRED) -> Callable[[], ssl.SSLContext]:
    """For a port that is queried by HTTPS, with a certificate of the same authority: a new one when files have changed.

    A session of an earlier one cannot be resumed. Raises CertificateError, here only: later what cannot be used changes
    nothing.
    """
    files = Watched(folder, role)
    used, made = files.now(), _http_context(folder, verify)

    def context() -> ssl.SSLContext:
        nonlocal used, made
        if (now := files.now()) is not used:
            with contextlib.suppress(OSError, ssl.SSLError):  # another file is put there this very moment
                used, made = now, _http_context(folder, verify)
        return made

    return context


def _http_context(folder: Path, verify: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / AUTHORITY))
    context.minimum_version, context.verify_mode = ssl.TLSVersion.TLSv1_2, verify
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context


def in_words(details: str, security: Security, address: str = "") -> str:
    """Why a connection failed, of what gRPC or OpenSSL says; empty: it has nothing to do with TLS.

    address: HOST:PORT, which is requested its certificate where that has expired; blocks for two seconds at most then.
    A collector that wants TLS hangs up on plaintext without a word.
    """
    low = details.lower()
    if (
        security.tls is None and "certificate" in low
    ):  # a client that is reported nothing tries the system's authorities
        return "it wants TLS: give --tls DIR"
    for said, meant in _SAID:
        if said in low:
            expired = said in _OF_TIME and address and not is_unix(address)
            return (why_expired(address) if expired else "") or meant
    hangs_up = any(said in low for said in ("socket closed", "connection reset", "broken pipe"))
    if security.tls is None and hangs_up:
        return "it hangs up: does it want TLS? give --tls DIR"
    if security.tls and hangs_up:
        return "it hangs up: is our certificate unknown there, of another authority than its ca.crt, or expired?"
    if security.tls and ("ssl" in low or "handshake" in low):
        return f"TLS fails: {details[-200:]}"
    return ""


# --- Whose certificate a server shows, and until when: also where it cannot be trusted any more.
#
# gRPC says only that a handshake has failed. What is found here is not believed, only named.

_RENEW = "renew it with `netmon certificates DIR renew` where the authority is, and copy it there"


@dataclass(frozen=True)
class ServerCertificate:
    """As it was shown."""

    identity: Identity | None  # None: it names nobody of ours
    begins: datetime
    ends: datetime


def server_certificate(address: str, folder: Path | None, timeout_s: float) -> ServerCertificate:
    """Of the server at HOST:PORT; blocks for so long at most. folder: with our own certificate, if we have one.

    Raises NetmonError where nobody answers, or without TLS.
    """
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is only looked at
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(OSError, ssl.SSLError):
        if folder:
            context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    try:
        index = host.removeprefix("[").removesuffix("]"), int(port)
        with (
            socket.create_connection(index, timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=index[0]) as protected,
        ):
            shown = protected.getpeercert(binary_form=True)
    except ssl.SSLError as error:
        raise NetmonError(f"no TLS at {address}: {error.reason or error}") from None
    except (OSError, ValueError) as error:
        raise NetmonError(f"nobody answers at {address}: {getattr(error, 'strerror', None) or error}") from None
    if not shown:
        raise NetmonError(f"no certificate is shown at {address}")
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(shown)
    return ServerCertificate(
        identity_of(certificate), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    )


def why_expired(address: str) -> str:
    """Which certificate of a server is not valid now, since when, and what to do; empty: it is not that."""
    try:
        found = server_certificate(address, None, 2.0)
    except NetmonError:
        return ""
    now, whose = datetime.now(timezone.utc), found.identity or "the other end"
    if now >= found.ends:
        return f"the certificate of {whose} has expired on {found.ends:%Y-%m-%d %H:%M} UTC: {_RENEW}"
    if now < found.begins:
        return f"the certificate of {whose} is valid from {found.begins:%Y-%m-%d %H:%M} UTC on: is this clock right?"
    return ""
