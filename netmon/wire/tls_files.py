# SPDX-License-Identifier: Apache-2.0
"""A folder with what one end of a connection needs for TLS, read and checked.

    ca.crt     the authority's certificate: who is trusted
    tls.crt    our own certificate, and after it those between it and the authority
    tls.key    its key, for nobody else to read
    token      instead of the last two: a viewer's

The names are those of Kubernetes' secrets. What reads certificates is imported where one is read: most commands on one
machine need none, and it takes a tenth of the time in which they begin.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import CertificateError, WireError
from netmon.wire.security import Identity, Role, checked, read_identity

if TYPE_CHECKING:
    from cryptography import x509

AUTHORITY, CERTIFICATE, KEY, TOKEN = "ca.crt", "tls.crt", "tls.key", "token"

SOON = timedelta(days=30)
"""A certificate that expires within it is worth a line; of a short one, a third of its time."""

_MOST_BYTES = 1 << 20
_OTHERS = stat.S_IWGRP | stat.S_IRWXO
_RENEW = "renew it with `netmon certificates DIR renew` where the authority is, and copy it here"

_log = logging.getLogger(__name__)
_said: set[tuple[Path, datetime]] = set()


@dataclass(frozen=True)
class TlsFiles:
    """What a folder holds; PEM. Without a certificate there is a token."""

    folder: Path
    authority: bytes
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    identity: Identity | None = None  # None: of a token it is the collector's to know


def read_tls(folder: Path, *roles: Role, now: datetime | None = None) -> TlsFiles:
    """Read and check a folder. roles: one of which the certificate has to be; a token is for viewers only.

    Raises CertificateError in one line: what is wrong with which file, and what to do.
    """
    now = now or datetime.now(timezone.utc)
    authority = _read(folder / AUTHORITY)
    issuers = _certificates(folder / AUTHORITY, authority)
    if not (folder / CERTIFICATE).exists() and (folder / TOKEN).exists() and Role.FULL in roles:
        _check_mode(folder / TOKEN)
        token = _read(folder / TOKEN).decode("ascii", "replace").strip()
        if not token or not token.isprintable() or " " in token:
            raise CertificateError(f"{folder / TOKEN} holds no token")
        return TlsFiles(folder, authority, token=token)
    path = folder / CERTIFICATE
    certificate, key = _read(path), _read(folder / KEY)
    _check_mode(folder / KEY)
    chain = _certificates(path, certificate)
    identity = identity_of(chain[0])
    for one in chain:
        check_time(path, one, now)
    _check_key(folder, chain[0], key)
    _check_issuer(folder, chain[-1], issuers)
    if identity is None or identity.role not in roles:
        wanted = " or ".join(role.value for role in roles)
        whose = f"{identity}'s" if identity else "nobody's: it has no netmon:// name"
        raise CertificateError(f"{path} is {whose}; a certificate of {wanted} is needed here")
    return TlsFiles(folder, authority, certificate, key, identity=identity)


def identity_of(certificate: x509.Certificate) -> Identity | None:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    return read_identity(names.get_values_for_type(x509.UniformResourceIdentifier))


def check_time(path: Path, certificate: x509.Certificate, now: datetime) -> None:
    """Raise CertificateError where a certificate is not valid now; a line in the log, once, where it soon is not."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    whose = identity_of(certificate) or certificate.subject.rfc4514_string()
    if now >= ends:
        raise CertificateError(f"{path} of {whose} has expired on {ends:%Y-%m-%d %H:%M} UTC: {_RENEW}")
    if now < begins:
        raise CertificateError(
            f"{path} of {whose} is valid from {begins:%Y-%m-%d %H:%M} UTC on: is this machine's clock right?"
        )
    if ends - now < min(SOON, (ends - begins) / 3) and (path, ends) not in _said:
        _said.add((path, ends))
        _log.warning("%s of %s expires on %s UTC: %s", path, whose, f"{ends:%Y-%m-%d %H:%M}", _RENEW)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CertificateError(
            f"cannot read {path}: {error.strerror}; `netmon certificates` makes such a folder"
        ) from None
    if len(data) > _MOST_BYTES:
        raise CertificateError(f"{path} is no certificate: it is too large")
    return data


def _certificates(path: Path, data: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise CertificateError(f"{path} holds no certificate in PEM") from None


def _check_mode(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        raise CertificateError(
            f"{path} can be read or changed by others (mode {mode:04o}): chmod 600 {path}, or 640 for a group"
        )


def _check_key(folder: Path, certificate: x509.Certificate, key: bytes) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        public = load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError):
        raise CertificateError(f"{folder / KEY} holds no private key in PEM without a password") from None
    as_bytes = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if public.public_bytes(*as_bytes) != certificate.public_key().public_bytes(*as_bytes):
        raise CertificateError(f"{folder / KEY} is not the key of {folder / CERTIFICATE}: copy both together")


def _check_issuer(folder: Path, last: x509.Certificate, issuers: list[x509.Certificate]) -> None:
    if _issuer(last, issuers) is None:
        raise CertificateError(
            f"{folder / CERTIFICATE} is of another authority than {folder / AUTHORITY}: copy the whole folder that "
            "`netmon certificates` has made"
        )


def _issuer(certificate: x509.Certificate, among: Iterable[x509.Certificate]) -> x509.Certificate | None:
    from cryptography.exceptions import InvalidSignature

    for issuer in among:
        with contextlib.suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(issuer)
            return issuer
    return None


def trusted_until_s(certificate: bytes, between: bytes, authority: bytes) -> float:
    """Until when a peer's certificate is good, s since 1970; 0: it is not of this authority.

    Of a peer whose handshake has succeeded, maybe under another authority. between: those from the certificate to its
    authority, in any order. All are PEM.
    """
    from cryptography import x509

    try:
        issuers = x509.load_pem_x509_certificates(authority)
        chain = [x509.load_pem_x509_certificate(certificate)]
        others = x509.load_pem_x509_certificates(between) if between else []
    except ValueError:
        return 0.0
    while (trusted := _issuer(chain[-1], issuers)) is None:
        step = _issuer(chain[-1], (one for one in others if one not in chain and _is_authority(one)))
        if step is None:
            return 0.0
        chain.append(step)
    return min(one.not_valid_after_utc for one in (*chain, trusted)).timestamp()


def _is_authority(certificate: x509.Certificate) -> bool:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


# --- Viewers' tokens as a collector keeps them: a file with a line for each, which does not hold the token itself.
#
# SHA-256 in hex full|jobs NAME the end, in seconds since 1970

_ROLES = {"full": Role.FULL, "jobs": Role.JOBS}


@dataclass(frozen=True)
class Token:
    """What a token stands for, until when (seconds since 1970)."""

    digest: str
    identity: Identity
    ends_s: int

    @property
    def line(self) -> str:
        return f"{self.digest} {self.identity.role.value.rpartition('/')[2]} {self.identity.name} {self.ends_s}\n"


def read_tokens(path: Path) -> dict[str, Token]:
    """Those of a file, by digest. Raises CertificateError, which names the line."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise CertificateError(f"cannot read the tokens in {path}: {error.strerror}") from None
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            digest, role, name, ends = line.split()
            if len(bytes.fromhex(digest)) != 32:
                raise ValueError
            found[digest.lower()] = Token(digest.lower(), checked(_ROLES[role], name), int(ends))
        except (ValueError, KeyError, WireError):
            raise CertificateError(f"{path}, line {number}, is not a token: write HASH full|jobs NAME END") from None
    return found


class Tokens:
    """The tokens that are good now: a file, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises CertificateError."""
        self._path = path
        self._seen = self._stamp()
        self._known = read_tokens(path)

    def find(self, text: str) -> Token | None:
        """What a token stands for; None: nothing."""
        if (seen := self._stamp()) != self._seen:
            self._seen = seen
            try:
                self._known = read_tokens(self._path)
            except CertificateError as error:
                _log.warning("%s; what was read before is used", error)
        # What is compared is a hash of what was sent: how long that takes tells nothing of a token.
        found = self._known.get(hashlib.sha256(text.encode()).hexdigest())
        return found if found and found.ends_s > time.time() else None

    def _stamp(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0
        return status.st_ino, status.st_mtime_ns
