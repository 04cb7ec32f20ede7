# SPDX-License-Identifier: Apache-2.0
"""Viewers' tokens as a collector keeps them: a file with a line for each, which does not hold the token itself.

SHA-256 in hex   full|jobs   NAME   the end, in seconds since 1970
"""

import hashlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import CertificateError, WireError
from netmon.wire.identity import Identity, Role, checked

_log = logging.getLogger(__name__)
_ROLES = {"full": Role.FULL, "jobs": Role.JOBS}
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Token:
    """What a token stands for, until when (seconds since 1970)."""

    digest: str
    identity: Identity
    ends_s: int

    @property
    def line(self) -> str:
        """As it stands in the file."""
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
