# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a connection, and what it may do: a URI among a certificate's alternative names.

    netmon://agent/HOST            sends what belongs to this host, and nothing else
    netmon://collector/NAME        takes it in; on a bus it takes in every host's
    netmon://bus/NAME              a NATS server
    netmon://viewer/full/NAME      sees everything, and may ask for full resolution
    netmon://viewer/jobs/NAME      sees jobs, classes and rates: no addresses, no processes

HOST and NAME are percent-encoded.
"""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote

from netmon.errors import WireError
from netmon.wire.limits import MAX_HOST

_PROVEN = "k"  # how the names of sessions begin that are made of a secret; older agents' do not
_DIGEST_BYTES = 12
MAX_PROOF = 64
_SCHEME = "netmon://"


class Role(Enum):
    """What an identity is for; the value is the way to its name in the URI."""

    AGENT = "agent"
    COLLECTOR = "collector"
    BUS = "bus"
    FULL = "viewer/full"
    JOBS = "viewer/jobs"

    @property
    def listens(self) -> bool:
        return self in (Role.COLLECTOR, Role.BUS)


@dataclass(frozen=True)
class Identity:
    """One who may connect. name: of an agent, its host."""

    role: Role
    name: str

    @property
    def uri(self) -> str:
        return f"{_SCHEME}{self.role.value}/{quote(self.name, safe='')}"

    def __str__(self) -> str:
        """For a sentence: agent h0."""
        words = {Role.FULL: "viewer", Role.JOBS: "viewer"}
        return f"{words.get(self.role, self.role.value)} {self.name}"


def checked(role: Role, name: str) -> Identity:
    """An identity of that name. Raises WireError where nobody can be called so."""
    if not name.isprintable() or name in ("", ".", "..") or "/" in name or len(quote(name, safe="")) > MAX_HOST:
        raise WireError(f"{name[:MAX_HOST]!r} cannot name {role.value}")
    return Identity(role, name)


def read_identity(names: Iterable[str]) -> Identity | None:
    """The identity among a certificate's alternative names; None: there is none, or more than one. Does not raise."""
    found = {identity for name in names if (identity := _read(name))}
    return found.pop() if len(found) == 1 else None


def _read(uri: str) -> Identity | None:
    for role in Role:
        start = f"{_SCHEME}{role.value}/"
        if uri.startswith(start):
            try:
                identity = checked(role, unquote(uri.removeprefix(start), errors="strict"))
            except (WireError, UnicodeDecodeError):
                return None
            return identity if identity.uri == uri else None
    return None


def new_session() -> tuple[str, str]:
    """A session's name, and what proves that it is ours."""
    proof = secrets.token_hex(16)
    return _name_of(proof), proof


def proves(session: str, proof: str) -> bool:
    """Whether it is the session's own agent that says so, as far as its name can tell."""
    return not _is_proven(session) or secrets.compare_digest(_name_of(proof[:MAX_PROOF]), session)


def _is_proven(session: str) -> bool:
    return len(session) == 1 + 2 * _DIGEST_BYTES and session.startswith(_PROVEN)


def _name_of(proof: str) -> str:
    digest = hashlib.blake2b(proof.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES)
    return _PROVEN + digest.hexdigest()
