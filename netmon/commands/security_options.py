# SPDX-License-Identifier: Apache-2.0
"""How commands are told what protects their connections."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netmon.wire.security import Security


def declare_security(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """--tls and --insecure."""
    parser.add_argument(
        "--tls",
        type=Path,
        metavar="DIR",
        help="encrypt, and show who we are: a folder with ca.crt, tls.crt and tls.key (see `netmon certificates`). "
        "Without it only this machine can be at the other end",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="plaintext to other machines, where nobody else can listen or send"
    )


def security(args: argparse.Namespace) -> "Security":
    """What they say. Raises UsageError where they contradict each other."""
    from netmon.errors import UsageError
    from netmon.wire.security import Security

    if args.tls and args.insecure:
        raise UsageError("--tls and --insecure contradict each other: give one of them")
    return Security(args.tls, args.insecure)
