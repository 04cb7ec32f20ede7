# SPDX-License-Identifier: Apache-2.0
"""Who slowed training, as advice: how far to limit whom and where, and the commands that do it and take it back."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import numpy as np

from netmon.dl.sharing.compatibility import Demand
from netmon.dl.verdict import incidents
from netmon.units import format_duration, format_moment, format_rate
from netmon.views import Cause, Incident

_PROTOCOLS = {6: "tcp", 17: "udp"}
_UNIT = re.compile(r"[\w@:.-]+\.(service|scope)")
_INTERFACE = re.compile(r"[\w@:.-]{1,15}")
_PREFERENCE = 7000  # of the filter, by which it is found again
_LEAST = 0.01  # of a link's capacity: a limit below it is none
_QUIET = 0.05  # of the busiest bin: less than this is no transfer


@dataclass(frozen=True)
class Ends:
    """Where a culprit's packets can be told from others: on a host's interface, by one end of its flows."""

    host: str = ""  # empty: nowhere
    interface: str = ""
    sends: bool = True  # whether they leave there, else they enter
    protocol: int = 0
    source: str = ""
    target: str = ""
    port: int = 0  # 0: none that all have in common
    of_source: bool = False  # whose port that is
    unit: str = ""  # container or systemd unit of the process there


@dataclass(frozen=True)
class Culprit:
    """One incident that is somebody's doing."""

    incident: Incident
    room_bps: float  # what training leaves of the link that it fills while it transfers; 0: not known, or nothing
    ends: Ends

    @property
    def saves(self) -> float:
        """Share of a step's time that would be saved at most."""
        took = self.incident.usual_ns + self.incident.lost_per_step_ns
        return max(0.0, 1 - self.incident.without_ns / took)


def worth_advising(incident: Incident) -> bool:
    """Whether it is a process' doing, and how long steps would have taken without is known."""
    return incident.cause == Cause.CROSS and bool(incident.culprit) and incident.without_ns >= 0


def room(demands: Sequence[Demand], link: int, capacity_bps: float) -> float:
    """What jobs leave of a link while they transfer, where nobody else was there (bit/s); 0: not known, or nothing."""
    if not capacity_bps or not all(one.alone for one in demands if link in one.links):
        return 0.0
    needed = 0.0
    for one in (one for one in demands if link in one.links):
        rates = one.at(link)
        busy = np.flatnonzero(rates > _QUIET * rates.max(initial=0.0))
        needed += rates[busy[0] : busy[-1] + 1].mean() if len(busy) else 0.0
    left = capacity_bps - needed
    return float(left) if left >= _LEAST * capacity_bps else 0.0


def document(found: Culprit) -> dict[str, Any]:
    """As JSON: the incident's columns, cap_bps (null: none is advised), saves, and commands with how to undo them."""
    cap = _floor(found.room_bps)
    return {
        **incidents.columns(found.incident),
        "cap_bps": cap or None,
        "saves": round(found.saves, 4),
        "at": found.ends.host,
        "commands": _commands(found.ends, cap),
    }


def sentence(culprit: Mapping[str, Any]) -> str:
    """culprit: as document() gives it, the job as people call it."""
    whose = ", ".join(filter(None, (culprit["culprit_user"], culprit["sender"] or culprit["host"])))
    who = f"{culprit['culprit']} ({whose})"
    since, until = format_moment(culprit["since_ns"]), format_moment(culprit["until_ns"])
    when = f"(it goes on since {since})" if culprit["ongoing"] else f"from {since} to {until}"
    what = f"limit {who} to {format_rate(culprit['cap_bps'])}, or move it" if culprit["cap_bps"] else f"move {who}"
    took = culprit["usual_ns"] + culprit["lost_ns"] // culprit["steps"]
    return (
        f"{what} {when}: saves up to {culprit['saves']:.0%} of a step of {culprit['job']}, "
        f"{format_duration(took)} → {format_duration(culprit['without_ns'])}"
    )


def _floor(bps: float) -> int:
    """Two digits of it."""
    unit: int = 10 ** max(0, len(str(int(bps))) - 2)
    return int(bps) // unit * unit


def _commands(ends: Ends, cap_bps: int) -> list[dict[str, str]]:
    """With what each does. Nothing that a dataset says gets into a shell but addresses, numbers and plain names."""
    found = []
    if cap_bps and (match := _flower(ends)) and _INTERFACE.fullmatch(ends.interface):
        way = "egress" if ends.sends else "ingress"
        at, one = f"dev {ends.interface} {way}", f"pref {_PREFERENCE}"
        # Without mtu it drops every packet above 2 KB: all of them on a link with jumbo frames.
        action = f"action police rate {max(1, cap_bps // 1000)}kbit burst 256k mtu 65535 conform-exceed drop"
        clsact = f"tc qdisc add dev {ends.interface} clsact 2>/dev/null"
        found.append(
            {
                "does": "limit",
                "run": f"{clsact}; tc filter add {at} {one} {match} {action}",
                "undo": f"tc filter del {at} {one}",
            }
        )
    if _UNIT.fullmatch(ends.unit) and not ends.unit.startswith("-"):
        found.append({"does": "pause", "run": f"systemctl freeze {ends.unit}", "undo": f"systemctl thaw {ends.unit}"})
    return found


def _flower(ends: Ends) -> str:
    """tc's description of the packets; empty: there is none that only they fit."""
    try:
        source, target = ip_address(ends.source), ip_address(ends.target)
    except ValueError:
        return ""
    protocol = _PROTOCOLS.get(ends.protocol)
    if not ends.port or not protocol or "%" in f"{source}{target}":
        return ""
    family = "ip" if target.version == 4 else "ipv6"
    port = f"{'src' if ends.of_source else 'dst'}_port {int(ends.port)}"
    return f"protocol {family} flower ip_proto {protocol} src_ip {source} dst_ip {target} {port}"
