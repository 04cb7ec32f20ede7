# SPDX-License-Identifier: Apache-2.0
"""Tokens: what viewers show who have no certificate. The collector's file has their hashes only."""

import hashlib
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from netmon.certificates.authority import Authority, write_public, write_secret
from netmon.errors import CertificateError
from netmon.wire.identity import Identity
from netmon.wire.tls_files import AUTHORITY, TOKEN, Token, read_tokens

TOKENS = "tokens"


def make_token(authority: Authority, identity: Identity, days: float) -> tuple[Path, datetime]:
    """A folder with a new token, which replaces that of the same name, and its end. Raises CertificateError."""
    if identity.name.split() != [identity.name]:
        raise CertificateError(f"a token cannot be called {identity.name!r}: there is a space in it")
    text, ends = secrets.token_urlsafe(32), datetime.now(timezone.utc) + timedelta(days=days)
    digest = hashlib.sha256(text.encode()).hexdigest()
    kept = [one for one in tokens(authority) if one.identity.name != identity.name]
    made = Token(digest, identity, int(ends.timestamp()))
    folder = authority.directory / f"token-{authority.folder(identity).name.partition('-')[2]}"
    write_secret(folder / TOKEN, f"{text}\n")
    write_public(folder / AUTHORITY, (authority.directory / AUTHORITY).read_bytes())
    write_secret(authority.directory / TOKENS, "".join(one.line for one in (*kept, made)))
    return folder, ends


def tokens(authority: Authority) -> Iterable[Token]:
    """All that there are. Raises CertificateError."""
    path = authority.directory / TOKENS
    return read_tokens(path).values() if path.exists() else ()
