# SPDX-License-Identifier: Apache-2.0
"""The largest flows: from where to where, whose, of which class, how fast; in a frame, as rows, and in groups."""

import ipaddress
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from netmon.dl.classify import TRAFFIC_NAMES, Traffic
from netmon.records import CLASS_NAMES, PROTOCOL_NON_IP, STACK, Direction, Flow, Owner
from netmon.top.filters import Values, exactly
from netmon.top.glyphs import bar, class_style, longest, rate_unit, room, short_rate, swatch
from netmon.top.links import ARROWS, WIDE
from netmon.top.options import Options, short_names
from netmon.top.rows import Kind, Part, Printed, numeric, printed, printed_row
from netmon.units import format_bytes, format_endpoint
from netmon.views import FlowView


class FlowKey(NamedTuple):
    """What makes a flow the same flow in two snapshots."""

    host: str
    interface: str
    direction: int
    src: str
    src_port: int
    dst: str
    dst_port: int
    protocol: int


def flow_key(view: FlowView) -> FlowKey:
    """The 5-tuple on its link."""
    flow = view.flow
    source = f"{flow.src}/{flow.prefix_bits}" if flow.members else flow.src  # a /8 may begin as a /24 of its does
    end = (source, flow.src_port, flow.dst, flow.dst_port, flow.protocol)
    return FlowKey(view.host, view.interface, flow.direction, *end)


PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}
_CLASS = max(map(len, CLASS_NAMES)) + 2
_RATE, _BYTES = 5, 7
_RTT, _LOSS = 6, 5
_TUPLE, _WIDE_TUPLE = 36, 49  # IPv4 fits: with typical addresses, and with any and the protocol
_MOST_JOB, _RANK = 36, 14  # `…/1048575 control`: what is left of the column is the job's name
_LEAST_PROCESS, _MOST_PROCESS = 12, 48


def draw(flows: Sequence[FlowView], options: Options, width: int, lines: int) -> RenderableType:
    """A heading and at most `lines` - 1 flows, in the order given."""
    shown = flows[: max(lines - 1, 0)]
    ink = replace(options, jobs=short_names({view.flow.owner.job for view in shown}, _MOST_JOB - _RANK))
    columns = _columns(shown, ink, width)
    return printed(FLOWS, columns, (printed_row(FLOWS, columns, FlowRow(view, ""), ink) for view in shown))


def five_tuple(flow: Flow, wide: bool = True) -> str:
    """`10.0.0.1:40000 → 10.0.0.2:5000 tcp`; without ports where the protocol has none, without `tcp` if not wide."""
    if flow.members:
        return _aggregate(flow)
    if flow.protocol == PROTOCOL_NON_IP:
        return f"EtherType 0x{flow.dst_port:04x}"
    protocol = PROTOCOLS.get(flow.protocol, f"protocol {flow.protocol}")
    ends = f"{format_endpoint(flow.src, flow.src_port)} → {format_endpoint(flow.dst, flow.dst_port)}"
    return f"{ends} {protocol}" if wide or protocol != "tcp" else ends


def _aggregate(flow: Flow) -> str:
    """`198.18.3.0/24 → any udp (1,204 flows)`, `any → any:53 udp (…)`, or `any → 198.18.3.4:53 udp (…)`."""
    protocol = "not IP" if flow.protocol == PROTOCOL_NON_IP else PROTOCOLS.get(flow.protocol, str(flow.protocol))
    source, destination = (_any(flow, address, port) for address, port in _ends(flow))
    return f"{source} → {destination} {protocol} ({flow.members:,} flows)"


def _ends(flow: Flow) -> tuple[tuple[str, int], tuple[str, int]]:
    return (flow.src, flow.src_port), (flow.dst, flow.dst_port)


def _any(flow: Flow, address: str, port: int) -> str:
    if port and flow.prefix_bits:
        return format_endpoint(address, port)
    if flow.prefix_bits and address not in ("0.0.0.0", "::"):
        return f"{address}/{flow.prefix_bits}"
    return f"any:{port}" if port else "any"


def owner(who: Owner) -> str:
    """`python3[4711] (container)`; what is known instead where no process owns the flow's socket."""
    if not (who.source or who.process):
        return "unknown"
    if not who.pid:
        return who.process or f"({who.source})"
    return f"{who.process}[{who.pid}]" + (f" ({who.container})" if who.container else "")


def rank(who: Owner, job: str) -> str:
    """`job/2`; empty where the flow is no rank's. job: its name as it is shown."""
    return f"{job}/{who.rank}" if job and who.rank >= 0 else job


def job_and_rank(view: FlowView, job: str) -> str:
    """The rank, and that a flow of its is none of the gradients. job: its name as it is shown."""
    control = view.traffic == TRAFFIC_NAMES[Traffic.CONTROL]
    return rank(view.flow.owner, job) + (" control" if control else "")


def _job(view: FlowView, ink: Options) -> str:
    return job_and_rank(view, ink.job(view.flow.owner.job))


def round_trip(view: FlowView) -> str:
    """`85us`, `1.2ms`; empty where TCP has not said it."""
    if not view.rtt_ns > 0:
        return ""
    ms = view.rtt_ns / 1e6
    return f"{ms * 1000:.0f}us" if ms < 1 else f"{ms:.1f}ms" if ms < 100 else f"{ms:.0f}ms"


def loss_share(view: FlowView) -> str:
    """`0%`, `.05%`, `1.2%`; empty where it is not known."""
    if not view.rtt_ns > 0 or math.isnan(view.loss):
        return ""
    percent = view.loss * 100
    if percent == 0:
        return "0%"
    return "<.01%" if percent < 0.01 else f"{percent:.2f}%"[1:] if percent < 0.995 else f"{percent:.1f}%"


def _columns(flows: Sequence[FlowView], ink: Options, width: int) -> list[Printed]:
    wide = width >= WIDE
    host = longest((view.host for view in flows), 5, 16 if wide else 10)
    name = longest((f"{view.interface} ↑" for view in flows), 4, 16 if wide else 8)
    class_ = _CLASS if wide else 1
    job = longest((_job(view, ink) for view in flows), 8, _MOST_JOB) if wide else 0
    rtt, loss = (_RTT, _LOSS) if any(view.rtt_ns > 0 for view in flows) else (0, 0)
    rest = room(width, [host, name, class_, job, _RATE, rtt, loss, _BYTES], 2)
    tuple_column = _WIDE_TUPLE if wide else _TUPLE
    wanted = longest(
        (five_tuple(view.flow, wide) for view in flows), tuple_column, max(tuple_column, rest - _LEAST_PROCESS)
    )
    process = min(rest - wanted, _MOST_PROCESS)
    ends = wanted if process >= _LEAST_PROCESS else max(rest + 1, 1)
    return [
        Printed("host", host, Text("FLOWS", "bold")),
        Printed("at", name, ""),
        Printed("class", class_, "class" if wide else ""),
        Printed("flow", ends, "by rate, all classes", lambda row, *_: five_tuple(row.view.flow, wide)),
        Printed("process", process if process >= _LEAST_PROCESS else 0),
        Printed("job/rank", job),
        Printed("rate", _RATE, rate_unit(ink.bytes_)),
        Printed("rtt", rtt),
        Printed("loss", loss),
        Printed("bytes", _BYTES),
    ]


class FlowRow(NamedTuple):
    """A flow, and who is at its other end."""

    view: FlowView
    peer: str  # a host where its address is known to be one, else the address


def flow_rows(flows: Sequence[FlowView]) -> list[FlowRow]:
    """Rows in the same order; hosts are known by the local addresses of the flows."""
    local = {_local_and_remote(view)[0]: view.host for view in flows if not view.flow.members}
    return [FlowRow(view, local.get(_local_and_remote(view)[1], _local_and_remote(view)[1])) for view in flows]


def _local_and_remote(view: FlowView) -> tuple[str, str]:
    """(local, remote) address."""
    flow = view.flow
    return (flow.src, flow.dst) if flow.direction == Direction.TX else (flow.dst, flow.src)


def _flow_values(row: FlowRow) -> Values:
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


def _flow_term(row: FlowRow) -> str:
    view, flow = row.view, row.view.flow
    terms = [exactly("host", view.host), exactly("dir", flow.direction.name.lower())]
    if flow.owner.process:
        terms.append(exactly("proc", flow.owner.process))
    terms += [exactly("addr", address) for address in (flow.src, flow.dst)]
    terms += [exactly("port", port) for port in (flow.src_port, flow.dst_port) if port]
    return " ".join(terms)


def _class(row: FlowRow, ink: Options, width: int) -> Text:
    class_ = swatch(row.view.class_, ink.colour)
    return class_.append(f" {CLASS_NAMES[row.view.class_]}") if width > 1 else class_


def _owner(row: FlowRow, ink: Options, width: int) -> Text:
    known = owner(row.view.flow.owner)
    return Text(known, "dim" if known == "unknown" else "")


def _rank(row: FlowRow, ink: Options, width: int) -> str:
    return _job(row.view, ink)


def _rate(row: FlowRow, ink: Options, width: int) -> Text:
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
            6,
            14,
            worth=4,
        ),
        Part("class", _class, lambda row: STACK.index(row.view.class_), 11, 14, worth=7),
        Part("process", _owner, lambda row: row.view.flow.owner.process or None, 9, 40, worth=9),
        Part(
            "job/rank",
            _rank,
            lambda row: (row.view.flow.owner.job, row.view.flow.owner.rank) if row.view.flow.owner.job else None,
            8,
            36,
            worth=6,
        ),
        numeric("rate", _rate, lambda row: row.view.wire_bps, 6, 8, 10, lambda i: rate_unit(i.bytes_)),
        numeric("rtt", lambda row, *_: round_trip(row.view), lambda row: row.view.rtt_ns, 6, 7, 3),
        numeric("loss", lambda row, *_: loss_share(row.view), lambda row: row.view.loss, 5, 6, 2),
        numeric("bytes", lambda row, *_: format_bytes(row.view.wire_bytes), lambda row: row.view.wire_bytes, 7, 9, 5),
    ),
    key=lambda row: flow_key(row.view),
    values=_flow_values,
    term=_flow_term,
    gone=lambda row: row._replace(view=replace(row.view, wire_bps=math.nan)),
    by="rate",
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
        return float(np.nansum(self.class_bps))


def _prefix(row: FlowRow) -> str:
    remote = _local_and_remote(row.view)[1]
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
    """One group for each value, the largest first. A flow that is seen at both of its ends is one flow."""
    found: dict[str, list[FlowRow]] = defaultdict(list)
    for row in rows:
        found[GROUPINGS[by](row)].append(row)
    of = {name: [row.view for row in _once(own)] for name, own in found.items()}
    rates = {name: _rates(views) for name, views in of.items()}
    largest = max((sum(rate) for rate in rates.values()), default=0.0)
    groups = [
        FlowGroup(
            *(by, name, len(views), tuple(sorted({row.view.host for row in found[name]})), rates[name]),
            *(sum(view.wire_bytes for view in views), largest),
        )
        for name, views in of.items()
    ]
    return sorted(groups, key=lambda group: (-group.wire_bps, group.name))


def _once(rows: Iterable[FlowRow]) -> Iterable[FlowRow]:
    """Of each flow the end at which more of it was seen; sums of flows are nobody's other end."""
    larger: dict[Hashable, FlowRow] = {}
    for row in rows:
        key = flow_key(row.view)
        flow = key if row.view.flow.members else key[3:]
        before = larger.get(flow)
        if before is None or not row.view.wire_bps <= before.view.wire_bps:
            larger[flow] = row
    return larger.values()


def _rates(views: Sequence[FlowView]) -> tuple[float, ...]:
    sums = [0.0] * len(CLASS_NAMES)
    for view in views:
        if not math.isnan(view.wire_bps):
            sums[view.class_] += view.wire_bps
    return tuple(sums)


def group_term(group: FlowGroup) -> str:
    if not group.name:
        return f"{_FIELDS[group.by]}:^$"
    return exactly(_FIELDS[group.by], group.name)


def _group_hosts(group: FlowGroup, ink: Options, width: int) -> str:
    few = ", ".join(group.hosts[:3])
    return few if len(group.hosts) <= 3 else f"{len(group.hosts)} hosts"


GROUPS = Kind(
    "groups",
    (
        Part(
            "group", lambda group, *_: Text(group.name or "unknown", "bold"), lambda g: g.name or None, 20, 60, worth=99
        ),
        numeric("flows", lambda group, *_: f"{group.flows:,}", lambda g: g.flows, 5, 8, 8),
        Part("hosts", _group_hosts, lambda group: len(group.hosts), 6, 30, worth=4, falling=True),
        Part(
            "by class",
            lambda group, ink, width: bar(np.array(group.class_bps), group.largest_bps, width, ink.colour),
            lambda group: group.wire_bps,
            10,
            40,
            worth=6,
            grows=True,
            falling=True,
        ),
        numeric(
            "rate",
            lambda group, ink, _: short_rate(group.wire_bps, ink.bytes_),
            lambda group: group.wire_bps,
            6,
            8,
            9,
            lambda ink: rate_unit(ink.bytes_),
        ),
        numeric("bytes", lambda group, *_: format_bytes(group.wire_bytes), lambda group: group.wire_bytes, 7, 9, 7),
    ),
    key=lambda group: (group.by, group.name),
    values=lambda group: {},
    term=group_term,
    by="rate",
)
