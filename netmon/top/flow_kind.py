# SPDX-License-Identifier: Apache-2.0
"""Flows as rows, by themselves and in groups."""

import ipaddress
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from rich.text import Text

from netmon.records import CLASS_NAMES, PROTOCOL_NON_IP, Direction
from netmon.top.filters import Values, exactly
from netmon.top.flow_key import flow_key
from netmon.top.flows import PROTOCOLS, five_tuple, job_and_rank, loss_share, owner, round_trip
from netmon.top.glyphs import STACK, bar, class_style, rate_unit, short_rate, swatch
from netmon.top.links import ARROWS
from netmon.top.rows import Ink, Kind, Part
from netmon.units import format_bytes
from netmon.views import FlowView


class FlowRow(NamedTuple):
    """A flow, and who is at its other end."""

    view: FlowView
    peer: str  # a host where its address is known to be one, else the address


def flow_rows(flows: Sequence[FlowView]) -> list[FlowRow]:
    """Rows in the same order; hosts are known by the local addresses of the flows."""
    local = {_ends(view)[0]: view.host for view in flows if not view.flow.members}
    return [FlowRow(view, local.get(_ends(view)[1], _ends(view)[1])) for view in flows]


def _ends(view: FlowView) -> tuple[str, str]:
    """(local, remote) address."""
    flow = view.flow
    return (flow.src, flow.dst) if flow.direction == Direction.TX else (flow.dst, flow.src)


def _values(row: FlowRow) -> Values:
    view, flow, who = row.view, row.view.flow, row.view.flow.owner
    return {
        "host": (view.host,),
        "if": (view.interface,),
        "dir": (flow.direction.name.lower(),),
        "class": (CLASS_NAMES[view.class_],),
        "proc": (who.process,),
        "pid": (who.pid,) if who.pid else (),
        "container": (who.container,),
        "user": (who.user,),
        "job": (who.job,),
        "rank": (who.rank,) if who.job else (),
        "addr": (flow.src, flow.dst),
        "peer": (row.peer,),
        "prefix": (_prefix(row),),
        "port": tuple(port for port in (flow.src_port, flow.dst_port) if port and flow.protocol != PROTOCOL_NON_IP),
        "proto": (PROTOCOLS.get(flow.protocol, "other"),),
        "rate": (view.wire_bps,),
        "bytes": (view.wire_bytes,),
        "rtt": (view.rtt_ns,),
    }


def _term(row: FlowRow) -> str:
    view, flow = row.view, row.view.flow
    terms = [exactly("host", view.host), exactly("dir", flow.direction.name.lower())]
    if flow.owner.process:
        terms.append(exactly("proc", flow.owner.process))
    terms += [exactly("addr", address) for address in (flow.src, flow.dst)]
    terms += [exactly("port", port) for port in (flow.src_port, flow.dst_port) if port]
    return " ".join(terms)


def _class(row: FlowRow, ink: Ink, width: int) -> Text:
    return swatch(row.view.class_, ink.colour).append(f" {CLASS_NAMES[row.view.class_]}")


def _owner(row: FlowRow, ink: Ink, width: int) -> Text:
    known = owner(row.view.flow.owner)
    return Text(known, "dim" if known == "unknown" else "")


def _rank(row: FlowRow, ink: Ink, width: int) -> str:
    return job_and_rank(row.view, ink.job(row.view.flow.owner.job))


def _rate(row: FlowRow, ink: Ink, width: int) -> Text:
    return Text(short_rate(row.view.wire_bps, ink.bytes_), class_style(row.view.class_))


FLOWS = Kind(
    "flows",
    (
        Part("flow", lambda row, *_: five_tuple(row.view.flow, False), lambda row: row.view.flow.src, 30, 60, worth=99),
        Part("host", lambda row, *_: row.view.host, lambda row: row.view.host, 5, 20, worth=8),
        Part(
            "at",
            lambda row, *_: f"{row.view.interface} {ARROWS[row.view.flow.direction]}",
            lambda row: (row.view.interface, row.view.flow.direction),
            *(6, 14, False, 4),
        ),
        Part("class", _class, lambda row: STACK.index(row.view.class_), 11, 14, worth=7),
        Part("process", _owner, lambda row: row.view.flow.owner.process or None, 9, 40, worth=9),
        Part(
            "job/rank",
            _rank,
            lambda row: (row.view.flow.owner.job, row.view.flow.owner.rank) if row.view.flow.owner.job else None,
            *(8, 36, False, 6),
        ),
        Part(
            "rate",
            _rate,
            lambda row: row.view.wire_bps,
            6,
            8,
            True,
            10,
            falling=True,
            unit=lambda i: rate_unit(i.bytes_),
        ),
        Part("rtt", lambda row, *_: round_trip(row.view), lambda row: row.view.rtt_ns, 6, 7, True, 3, falling=True),
        Part("loss", lambda row, *_: loss_share(row.view), lambda row: row.view.loss, 5, 6, True, 2, falling=True),
        Part(
            "bytes",
            lambda row, *_: format_bytes(row.view.wire_bytes),
            lambda row: row.view.wire_bytes,
            *(7, 9, True, 5),
            falling=True,
        ),
    ),
    key=lambda row: flow_key(row.view),
    values=_values,
    term=_term,
    gone=lambda row: row._replace(view=replace(row.view, wire_bps=math.nan)),
)


@dataclass(frozen=True)
class FlowGroup:
    """Flows that have something in common."""

    by: str
    name: str  # empty: nobody knows
    flows: int
    hosts: tuple[str, ...]
    class_bps: tuple[float, ...]
    wire_bytes: int
    largest_bps: float  # rate of the largest group, which a full bar stands for

    @property
    def wire_bps(self) -> float:
        """Of all classes."""
        return float(np.nansum(self.class_bps))


def _prefix(row: FlowRow) -> str:
    remote = _ends(row.view)[1]
    if row.view.flow.members and row.view.flow.prefix_bits:
        return f"{remote}/{row.view.flow.prefix_bits}"
    try:
        bits = 24 if ipaddress.ip_address(remote).version == 4 else 64
        return str(ipaddress.ip_network(f"{remote}/{bits}", strict=False))
    except ValueError:
        return ""


GROUPINGS: Mapping[str, Callable[[FlowRow], str]] = {
    "process": lambda row: row.view.flow.owner.process,
    "container": lambda row: row.view.flow.owner.container,
    "user": lambda row: row.view.flow.owner.user,
    "job": lambda row: row.view.flow.owner.job,
    "peer host": lambda row: row.peer,
    "prefix": _prefix,
    "host": lambda row: row.view.host,
}
"""What flows can be grouped by."""
_FIELDS = {
    "process": "proc",
    "container": "container",
    "user": "user",
    "job": "job",
    "peer host": "peer",
    "prefix": "prefix",
    "host": "host",
}


def grouped(rows: Iterable[FlowRow], by: str) -> list[FlowGroup]:
    """One group for each value, the largest first."""
    of: dict[str, list[FlowView]] = defaultdict(list)
    for row in rows:
        of[GROUPINGS[by](row)].append(row.view)
    rates = {name: _rates(views) for name, views in of.items()}
    largest = max((sum(rate) for rate in rates.values()), default=0.0)
    groups = [
        FlowGroup(
            *(by, name, len(views), tuple(sorted({view.host for view in views})), rates[name]),
            *(sum(view.wire_bytes for view in views), largest),
        )
        for name, views in of.items()
    ]
    return sorted(groups, key=lambda group: (-group.wire_bps, group.name))


def _rates(views: Sequence[FlowView]) -> tuple[float, ...]:
    sums = [0.0] * len(CLASS_NAMES)
    for view in views:
        if not math.isnan(view.wire_bps):
            sums[view.class_] += view.wire_bps
    return tuple(sums)


def group_term(group: FlowGroup) -> str:
    """The filter for its flows."""
    if not group.name:
        return f"{_FIELDS[group.by]}:^$"
    return exactly(_FIELDS[group.by], group.name)


def _group_hosts(group: FlowGroup, ink: Ink, width: int) -> str:
    few = ", ".join(group.hosts[:3])
    return few if len(group.hosts) <= 3 else f"{len(group.hosts)} hosts"


GROUPS = Kind(
    "groups",
    (
        Part(
            "group", lambda group, *_: Text(group.name or "unknown", "bold"), lambda g: g.name or None, 20, 60, worth=99
        ),
        Part("flows", lambda group, *_: f"{group.flows:,}", lambda g: g.flows, 5, 8, True, 8, falling=True),
        Part("hosts", _group_hosts, lambda group: len(group.hosts), 6, 30, worth=4, falling=True),
        Part(
            "by class",
            lambda group, ink, width: bar(np.array(group.class_bps), group.largest_bps, width, ink.colour),
            lambda group: group.wire_bps,
            *(10, 40, False, 6),
            grows=True,
            falling=True,
        ),
        Part(
            "rate",
            lambda group, ink, _: short_rate(group.wire_bps, ink.bytes_),
            lambda group: group.wire_bps,
            *(6, 8, True, 9),
            falling=True,
            unit=lambda ink: rate_unit(ink.bytes_),
        ),
        Part(
            "bytes",
            lambda group, *_: format_bytes(group.wire_bytes),
            lambda group: group.wire_bytes,
            *(7, 9, True, 7),
            falling=True,
        ),
    ),
    key=lambda group: (group.by, group.name),
    values=lambda group: {},
    term=group_term,
)
