# SPDX-License-Identifier: Apache-2.0
"""`netmon certificates`: a private authority, and who may connect."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import UsageError
from netmon.options import DIR

if TYPE_CHECKING:
    from datetime import datetime

    from netmon.certificates import Authority, Issued
    from netmon.terminal import FittingTable
    from netmon.wire.security import Identity, Role

HELP = "make a private authority and the certificates that agents, collectors and viewers connect with"
EXAMPLES = """\
  netmon certificates pki collector head --address head.example 10.0.0.1   the first one makes the authority, too
  netmon certificates pki agent node1 node2 node3      an agent speaks for the host in its certificate, and no other
  netmon certificates pki viewer ann                   sees everything
  netmon certificates pki viewer wall --role jobs      sees jobs, classes and rates: no addresses, no processes
  netmon certificates pki token grafana --role jobs    instead of a certificate; pki/tokens is for --tokens
  netmon certificates pki show                         every certificate, and until when it is valid
  netmon certificates pki renew                        those that expire within a month, or those named
  netmon certificates pki bus nats1 --address nats1.example   a NATS server's
  netmon certificates pki nats                         the servers' users and what each may publish and receive

Each makes a folder such as pki/agent-node1: copy it to where it is used, and name it there by --tls. Files may be
replaced while everything runs. Keep pki/ca.key where it is.
"""
_ACTIONS = ("init", "agent", "collector", "viewer", "bus", "token", "renew", "show", "nats")
_HERE = ("localhost", "127.0.0.1", "::1")
_LONGEST_DAYS = 3650


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", **DIR, help="the authority's directory")
    parser.add_argument("action", choices=_ACTIONS, metavar="ACTION", help=", ".join(_ACTIONS))
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="of an agent its host's name (as its --host says), of others any name"
    )
    parser.add_argument(
        "--address",
        nargs="+",
        default=[],
        metavar="ADDR",
        help="names and IP addresses at which others connect: collector, bus (its NAME, and this machine's own), "
        "agent (for its --metrics; none)",
    )
    parser.add_argument(
        "--role", choices=("full", "jobs"), default="full", help="viewer, token: what it may see (%(default)s)"
    )
    parser.add_argument("--days", type=float, default=365, metavar="N", help="days until it expires (%(default)s)")
    parser.add_argument("--folder", **DIR, help="nats: the servers' folder with their certificate (/etc/nats/tls)")


def run(args: argparse.Namespace) -> int:
    """Make, renew or show certificates, and print what was made."""
    from netmon.certificates import Authority

    if not 0 < args.days <= _LONGEST_DAYS:
        raise UsageError(f"--days is more than 0 and at most {_LONGEST_DAYS}, not {args.days:g}")
    if args.address and args.action not in ("agent", "collector", "bus"):
        raise UsageError("--address is for agent, collector and bus: nobody connects to a viewer or a token")
    makes = args.action in ("agent", "collector", "viewer", "bus", "token")
    if makes and not args.names:
        raise UsageError(f"no name given: netmon certificates {args.directory} {args.action} NAME")
    if args.action == "init" or (makes and not (args.directory / "ca.crt").exists()):
        authority = Authority.make(args.directory)
        print(f"made an authority in {args.directory}; keep {args.directory}/ca.key to yourself")
    else:
        authority = Authority.open(args.directory)
    if args.action != "init":
        _DO[args.action](authority, args)
    return 0


def _role(args: argparse.Namespace) -> "Role":
    from netmon.wire.security import Role

    viewers = {"full": Role.FULL, "jobs": Role.JOBS}
    return viewers[args.role] if args.action in ("viewer", "token") else Role(args.action)


def _identities(args: argparse.Namespace) -> "list[Identity]":
    from netmon.wire.security import checked

    return [checked(_role(args), name) for name in args.names]


def _issue(authority: "Authority", args: argparse.Namespace) -> None:
    for identity in _identities(args):
        listens = [*(args.address or [identity.name]), *_HERE] if identity.role.listens else args.address
        addresses = list(dict.fromkeys(listens))
        _say(authority.issue(identity, addresses, args.days))


def _say(issued: "Issued") -> None:
    where = f" at {', '.join(issued.addresses)}" if issued.addresses else ""
    print(f"{issued.folder}: {issued.identity}{where}, until {issued.ends:%Y-%m-%d}")


def _token(authority: "Authority", args: argparse.Namespace) -> None:
    from netmon.certificates import make_token

    for identity in _identities(args):
        folder, ends = make_token(authority, identity, args.days)
        print(f"{folder}: {identity}, by a token, until {ends:%Y-%m-%d}; {authority.directory}/tokens is for --tokens")


def _renew(authority: "Authority", args: argparse.Namespace) -> None:
    from datetime import datetime, timezone

    now, all_of_them = datetime.now(timezone.utc), list(authority.issued())
    if unknown := set(args.names) - {one.identity.name for one in all_of_them}:
        raise UsageError(f"cannot renew {', '.join(sorted(unknown))}: {authority.directory} has no such certificate")
    due = [one for one in all_of_them if (one.identity.name in args.names if args.names else one.due(now))]
    for one in due:
        _say(authority.renew(one, args.days))
    if not due:
        print("none expires within a month; to renew one all the same, give its name")


def _show(authority: "Authority", args: argparse.Namespace) -> None:
    from datetime import datetime, timezone

    from netmon.certificates import tokens
    from netmon.terminal import console

    now = datetime.now(timezone.utc)
    rows = [("authority", "", authority.certificate.not_valid_after_utc)]
    rows += [(one.identity.role.value, one.identity.name, one.ends) for one in authority.issued()]
    rows += [
        (f"{one.identity.role.value} (token)", one.identity.name, datetime.fromtimestamp(one.ends_s, timezone.utc))
        for one in tokens(authority)
    ]
    console().print(certificates_table(rows, now))


def certificates_table(rows: "Iterable[tuple[str, str, datetime]]", now: "datetime") -> "FittingTable":
    """A row per certificate. rows: its kind, its name, and when it expires (UTC); now: UTC."""
    from netmon.terminal import FittingTable, labels

    table = FittingTable(labels("certificate", "name", "until", ""))
    for kind, name, ends in rows:
        state = f"{(ends - now).days} days" if ends > now else "EXPIRED: renew"
        table.add_row(kind, name, f"{ends:%Y-%m-%d}", state)
    return table


def _nats(authority: "Authority", args: argparse.Namespace) -> None:
    from netmon.certificates import nats_configuration

    identities = [one.identity for one in authority.issued()]
    print(nats_configuration(identities, args.folder or Path("/etc/nats/tls")), end="")


_DO: "dict[str, Callable[[Authority, argparse.Namespace], None]]" = {
    "agent": _issue,
    "collector": _issue,
    "viewer": _issue,
    "bus": _issue,
    "token": _token,
    "renew": _renew,
    "show": _show,
    "nats": _nats,
}
