# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests: real ones, made once."""

import tempfile
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path

from netmon import certificates
from netmon.certificates import Authority
from netmon.wire.security import Identity, Role, Security

HERE = ("localhost", "127.0.0.1")
_made: list[tempfile.TemporaryDirectory[str]] = []


@cache
def pki(name: str) -> Authority:
    """An authority with a collector, two agents, viewers and a NATS server."""
    _made.append(tempfile.TemporaryDirectory(prefix="netmon-pki-"))
    made = Authority.make(Path(_made[-1].name) / name)
    for role, names in {
        Role.AGENT: ("h0", "h1"),
        Role.FULL: ("ann",),
        Role.JOBS: ("wall",),
        Role.COLLECTOR: ("c",),
        Role.BUS: ("n",),
    }.items():
        for one in names:
            made.issue(Identity(role, one), HERE if role.listens else ())
    return made


def security(role: Role, name: str, of: str = "ours") -> Security:
    return Security(pki(of).folder(Identity(role, name)))


def expired(made: Authority, identity: Identity, days_ago: float) -> Path:
    """Its folder; the certificate was good for a day."""

    class Earlier(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(timezone.utc) - timedelta(days=days_ago + 1)

    certificates.datetime, now = Earlier, certificates.datetime
    try:
        return made.issue(identity, HERE if identity.role.listens else (), days=1).folder
    finally:
        certificates.datetime = now
