# SPDX-License-Identifier: Apache-2.0
"""Whose certificate a server shows, and until when: also where it cannot be trusted any more.

gRPC says only that a handshake has failed. What is found here is not believed, only named.
"""

import contextlib
import socket
import ssl
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from netmon.errors import NetmonError
from netmon.wire.identity import Identity
from netmon.wire.tls_files import CERTIFICATE, KEY, identity_of

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


def why_expired(address: str, timeout_s: float = 2.0) -> str:
    """Which certificate of a server is not valid now, since when, and what to do; empty: it is not that."""
    try:
        found = server_certificate(address, None, timeout_s)
    except NetmonError:
        return ""
    now, whose = datetime.now(timezone.utc), found.identity or "the other end"
    if now >= found.ends:
        return f"the certificate of {whose} has expired on {found.ends:%Y-%m-%d %H:%M} UTC: {_RENEW}"
    if now < found.begins:
        return f"the certificate of {whose} is valid from {found.begins:%Y-%m-%d %H:%M} UTC on: is this clock right?"
    return ""
