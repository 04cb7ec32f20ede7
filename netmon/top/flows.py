# SPDX-License-Identifier: Apache-2.0
"""The largest flows: from where to where, whose, of which class, how fast."""

import math
from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from netmon.dl.traffic import TRAFFIC_NAMES, Traffic
from netmon.records import CLASS_NAMES, PROTOCOL_NON_IP, Flow, Owner
from netmon.top.columns import Column, longest, room, table
from netmon.top.glyphs import class_style, rate_unit, short_rate, swatch
from netmon.top.links import ARROWS, WIDE
from netmon.top.names import short_names
from netmon.top.options import Options
from netmon.units import format_bytes, format_endpoint
from netmon.views import FlowView

PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}
_CLASS = max(map(len, CLASS_NAMES)) + 2
_RATE, _BYTES = 5, 7
_RTT, _LOSS = 6, 5
_TUPLE, _WIDE_TUPLE = 36, 49  # IPv4 fits: with usual addresses, and with any and the protocol
_MOST_JOB, _RANK = 36, 14  # `…/1048575 control`: what is left of the column is the job's name
_LEAST_PROCESS, _MOST_PROCESS = 12, 48


def draw(flows: Sequence[FlowView], options: Options, width: int, lines: int) -> RenderableType:
    """A heading and at most `lines` - 1 flows, in the order given."""
    shown = flows[: max(lines - 1, 0)]
    names = short_names({view.flow.owner.job for view in shown}, _MOST_JOB - _RANK)
    return table(_columns(shown, names, options, width), (_row(view, names, options, width) for view in shown))


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
    if not who.source:
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


def _job(view: FlowView, names: Mapping[str, str]) -> str:
    return job_and_rank(view, names[view.flow.owner.job])


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


def _columns(flows: Sequence[FlowView], names: Mapping[str, str], options: Options, width: int) -> list[Column]:
    wide = width >= WIDE
    host = longest((view.host for view in flows), 5, 16 if wide else 10)
    name = longest((f"{view.interface} ↑" for view in flows), 4, 16 if wide else 8)
    class_ = _CLASS if wide else 1
    job = longest((_job(view, names) for view in flows), 8, _MOST_JOB) if wide else 0
    rtt, loss = (_RTT, _LOSS) if any(view.rtt_ns > 0 for view in flows) else (0, 0)
    rest = room(width, [host, name, class_, job, _RATE, rtt, loss, _BYTES], 2)
    tuple_column = _WIDE_TUPLE if wide else _TUPLE
    wanted = longest(
        (five_tuple(view.flow, wide) for view in flows), tuple_column, max(tuple_column, rest - _LEAST_PROCESS)
    )
    process = min(rest - wanted, _MOST_PROCESS)
    return [
        Column(Text("FLOWS", "bold"), host),
        Column("", name),
        Column("class" if wide else "", class_),
        Column("by rate, all classes", wanted if process >= _LEAST_PROCESS else max(rest + 1, 1)),
        Column("process", process if process >= _LEAST_PROCESS else 0),
        Column("job/rank", job),
        Column(rate_unit(options.bytes_), _RATE, right=True),
        Column("rtt", rtt, right=True),
        Column("loss", loss, right=True),
        Column("bytes", _BYTES, right=True),
    ]


def _row(view: FlowView, names: Mapping[str, str], options: Options, width: int) -> list[str | Text]:
    class_ = swatch(view.class_, options.colour)
    if width >= WIDE:
        class_.append(f" {CLASS_NAMES[view.class_]}")
    known = owner(view.flow.owner)
    return [
        view.host,
        f"{view.interface} {ARROWS[view.flow.direction]}",
        class_,
        five_tuple(view.flow, width >= WIDE),
        Text(known, "dim" if known == "unknown" else ""),
        _job(view, names),
        Text(short_rate(view.wire_bps, options.bytes_), class_style(view.class_)),
        round_trip(view),
        loss_share(view),
        format_bytes(view.wire_bytes),
    ]
