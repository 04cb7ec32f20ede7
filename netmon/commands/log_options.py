# SPDX-License-Identifier: Apache-2.0
"""How commands that run for long are told how to write their log."""

import argparse

from netmon.telemetry.logs import AUTO, KINDS


def declare_log(parser: argparse.ArgumentParser) -> None:
    """--log."""
    parser.add_argument(
        "--log",
        choices=KINDS,
        default=AUTO,
        help="lines for people (text), one JSON object a line, or fields in systemd's journal "
        "(auto: the journal where systemd has started it, else text)",
    )
