# SPDX-License-Identifier: Apache-2.0
"""Options of what protects a command's connections."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netmon.wire.security import Security


def declare_security(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare --tls and --insecure."""
    parser.add_argument(
        "--tls",
        type=Path,
        metavar="DIR",
        help="folder with ca.crt, tls.crt and tls.key, to encrypt and to authenticate (see `netmon certificates`). "
        "Without it, connections stay on this machine",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="allow plaintext to other machines: only in a network where nobody else can listen or send",
    )


def security(args: argparse.Namespace) -> "Security":
    """What --tls and --insecure say. Raises UsageError if they contradict each other."""
    from netmon.errors import UsageError
    from netmon.wire.security import Security

    if args.tls and args.insecure:
        raise UsageError("--tls and --insecure contradict each other: give one of them")
    return Security(args.tls, args.insecure)
