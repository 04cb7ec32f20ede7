# SPDX-License-Identifier: Apache-2.0
"""`netmon doctor`: what this machine can do, and which hook netmon would choose; or how an installation does."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netmon.options import declare, read_options
from netmon.wire.security import Security

if TYPE_CHECKING:
    from netmon.kernel.interfaces import HookChoice, Interfaces
    from netmon.kernel.machine import Check
    from netmon.terminal import FittingTable

HELP = "say what this machine can do and which hook netmon would choose, or how a running installation is doing"
EXAMPLES = """\
  netmon doctor           a table for people
  netmon doctor --tls /etc/netmon/tls    and whether agent, collector or viewer can connect with what is in it
  netmon doctor --collector head:9400 --tls ~/.netmon    how that installation is doing, and what to do
  netmon doctor --json    the same for programs; exit status 0 when the agent can run here, or the installation works
"""

_COLOURS = {"ok": "green", "note": "default", "limited": "yellow", "unknown": "yellow", "missing": "bold red"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.add_argument(
        "--collector",
        metavar="ADDR",
        default="",
        help="look at a running installation instead of this machine: HOST:PORT or unix:PATH; of multiple workers all, "
        "with commas",
    )
    declare(parser, Security)


def run(args: argparse.Namespace) -> int:
    """Probes and prints. 0: the agent can run here; 1: it cannot, and one line on stderr says what is missing.

    With a collector: 0: the installation works, maybe with less than it could; 1: a part of it does not.
    """
    if args.collector:
        return _installation(args)
    from netmon.kernel.interfaces import interface_facts
    from netmon.kernel.machine import machine_checks

    certificate = certificate_in(args.tls) if args.tls else None
    checks, interfaces = machine_checks(), interface_facts()
    if args.json:
        extra = {"certificate": certificate} if certificate else {}
        print(json.dumps(document(checks, interfaces) | extra, indent=2))
    else:
        draw(checks, interfaces)
        if certificate:
            print(f"\ncertificate of {certificate['of']}, until {certificate['until']} UTC")
    if line := what_is_missing(checks):
        print(line, file=sys.stderr)
        return 1
    return 0


def _installation(args: argparse.Namespace) -> int:
    from netmon.commands.doctor_installation import check_installation

    checks = check_installation(args.collector, read_options(Security, args))
    missing = [f"{check.name}: {check.detail}" for check in checks if check.status == "missing"]
    if args.json:
        print(json.dumps({"ok": not missing, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        from netmon.terminal import console

        console().print(checks_table(checks, f"the installation at {args.collector}"))
    if missing:
        print(f"netmon: the installation at {args.collector} does not work: {' · '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def certificate_in(folder: Path) -> dict[str, str]:
    """Identity and expiry of the certificate in a folder, in words. Raises CertificateError if it is of no use."""
    from cryptography import x509

    from netmon.wire.security import Role
    from netmon.wire.tls_files import read_tls

    files = read_tls(folder, *Role)
    if not files.certificate:
        return {"of": "a viewer with a token", "until": "the collector knows"}
    ends = x509.load_pem_x509_certificate(files.certificate).not_valid_after_utc
    return {"of": str(files.identity), "until": f"{ends:%Y-%m-%d %H:%M}"}


def what_is_missing(checks: "Sequence[Check]") -> str:
    """One line that names what is missing; empty if the agent can run."""
    missing = [f"{check.name}: {check.detail}; {check.advice}" for check in checks if check.status == "missing"]
    return f"netmon agent cannot run on this machine: {' · '.join(missing)}" if missing else ""


def document(checks: "Sequence[Check]", interfaces: "Interfaces") -> dict[str, Any]:
    """What --json prints."""
    from netmon.kernel.interfaces import remarks

    return {
        "ok": not what_is_missing(checks),
        "checks": [dataclasses.asdict(check) for check in checks],
        "interfaces": [
            dataclasses.asdict(facts) | {"hook": choice and choice._asdict(), "remarks": remarks(facts)}
            for facts, choice in zip(interfaces.watchable, _chosen(checks, interfaces), strict=True)
        ],
        "refused": list(interfaces.refused),
    }


def draw(checks: "Sequence[Check]", interfaces: "Interfaces") -> None:
    """Prints both tables, why the hooks were chosen, and which interfaces cannot be watched."""
    from netmon.terminal import console as standard_output

    console = standard_output()
    choices = _chosen(checks, interfaces)
    console.print(checks_table(checks))
    console.print()
    console.print(interfaces_table(interfaces, choices))
    reasons = dict.fromkeys(f"{choice.rx}: {choice.reason}" for choice in choices if choice)
    for line in [*reasons, *interfaces.refused]:
        console.print(line, style="dim", markup=False)


def checks_table(checks: "Sequence[Check]", title: str = "this machine") -> "FittingTable":
    """What was looked at, a row per check; what to do stands below what is wrong."""
    from rich.text import Text

    from netmon.terminal import FittingTable, labels

    table = FittingTable([*labels(title, ""), *labels("", prose=True)])
    for check in checks:
        detail = Text(check.detail)
        if check.advice:
            detail.append(f"\n→ {check.advice}", style="italic")
        table.add_row(check.name, Text(check.status.value, style=_COLOURS[check.status.value]), detail)
    return table


def interfaces_table(interfaces: "Interfaces", choices: "Sequence[HookChoice | None]") -> "FittingTable":
    """The interfaces, a row each, with the hook that was chosen for it."""
    from netmon.kernel.interfaces import remarks
    from netmon.terminal import FittingTable, labels
    from netmon.units import format_rate

    headings = ("interface", "driver", "MTU", "speed", "GRO", "TSO", "hook")
    table = FittingTable([*labels(*headings), *labels("remarks", prose=True)])
    for facts, choice in zip(interfaces.watchable, choices, strict=True):
        speed = format_rate(facts.capacity_bps) if facts.capacity_bps else "unknown"
        offloads = ({True: "on", False: "off", None: "?"}[state] for state in (facts.gro, facts.tso))
        driver = facts.driver or facts.kind or "unknown"
        hook = choice.rx if choice else "?"
        style = "" if facts.up else "dim"
        notes = "\n".join(remarks(facts))
        table.add_row(facts.name, driver, str(facts.mtu), speed, *offloads, hook, notes, style=style)
    return table


def _chosen(checks: "Sequence[Check]", interfaces: "Interfaces") -> "list[HookChoice | None]":
    """What `--hook auto` would choose, per watchable interface; None where tcx could not be tried."""
    from netmon.kernel.interfaces import choose_hook
    from netmon.kernel.machine import Status

    tcx = next(check.status for check in checks if check.name == "tcx")
    if tcx is Status.UNKNOWN:
        return [None] * len(interfaces.watchable)
    return [choose_hook(facts, tcx=tcx is Status.OK) for facts in interfaces.watchable]
