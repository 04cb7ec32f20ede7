# SPDX-License-Identifier: Apache-2.0
"""The top of the frame: when, who is watching, at what cost, how exactly and in which bytes."""

from collections.abc import Iterator
from datetime import datetime, timezone

from rich.text import Text

from netmon.records import CLASS_NAMES
from netmon.top import overview
from netmon.top.glyphs import STACK, rate_unit, swatch, wrapped
from netmon.top.options import Options
from netmon.top.staleness import silent
from netmon.units import format_bytes, format_duration
from netmon.views import HostView, Snapshot

_LARGE_OFFSET_NS, _LARGE_SKEW_PPM = 1_000_000, 50
"""A host's own clock is usually no further from the collector's where NTP keeps both."""

_LARGE_SPOOL = 16_000_000
"""What an agent holds until the collector has written it is not worth a word below this."""

_LEAST_FACTS, _FACTS_SHARE = 5, 6  # lines; of the height
_MOST_ABOUT_HOSTS = 4
"""Facts about single hosts, where there are many hosts."""


def draw(snapshot: Snapshot, options: Options, width: int, height: int) -> list[Text]:
    """Title, then the facts that hold for the whole frame, then the legend; of an overview a part of the height."""
    about = facts(snapshot, options, width)
    if overview.wanted(snapshot):
        about = about[: max(_LEAST_FACTS, height // _FACTS_SHARE)]
    return [title(snapshot, width), *about, *legend(options.colour, options.bytes_, width)]


def title(snapshot: Snapshot, width: int) -> Text:
    """Who, when, and whether anybody can listen."""
    moment = datetime.fromtimestamp(snapshot.time_ns // 1_000_000_000, timezone.utc)
    text = Text.assemble(("netmon", "bold"), f"  {moment:%Y-%m-%d %H:%M:%S} UTC", no_wrap=True)
    if snapshot.insecure:
        text.append("  ").append("not encrypted", "bold yellow")
    text.truncate(width, overflow="ellipsis")
    return text


def facts(snapshot: Snapshot, options: Options, width: int) -> list[Text]:
    """What holds for the whole frame, in lines."""
    return wrapped(_facts(snapshot, options), width)


def legend(colour: bool, bytes_: bool, width: int) -> list[Text]:
    """What colours and numbers mean."""
    classes = [swatch(class_, colour).append(f" {CLASS_NAMES[class_]}", "default") for class_ in STACK]
    return wrapped([*classes, Text(f"rates in {rate_unit(bytes_)}", "dim")], width)


def _facts(snapshot: Snapshot, options: Options) -> Iterator[Text]:
    totals = snapshot.totals
    if totals.hosts > snapshot.page.hosts or overview.wanted(snapshot) or snapshot.page.unknown:
        yield from overview.facts(snapshot, options)
        yield from _a_few([fact for host in snapshot.hosts for fact in _about(host)])
        yield Text(
            f"agents: each ≤ {totals.cpu_fraction:.1%} of a core, {format_bytes(totals.rss_bytes)}".replace("%", " %")
        )
        by = f" by {', '.join(totals.clock_sources)}" if totals.clock_sources else ""
        yield Text(f"clocks ± {format_duration(totals.clock_error_ns)}{by}")
        hooks = list(totals.hooks)
    else:
        yield from _few_hosts(snapshot.hosts)
        hooks = sorted({link.hook for link in snapshot.links if link.hook})
    yield Text("wire bytes, " + (", ".join(hooks) or "hook unknown"))
    threshold = f"{snapshot.share_threshold * 100:g} %"
    yield Text(f"DL-shared: cross payload ≥ {threshold} of the link in {format_duration(snapshot.share_window_ns)}")


def _a_few(facts: list[Text]) -> list[Text]:
    """What is to be said about single hosts; how much more there is."""
    more = len(facts) - _MOST_ABOUT_HOSTS
    return [*facts[:_MOST_ABOUT_HOSTS], Text(f"{more} more of such", "yellow")] if more > 0 else facts


def _few_hosts(hosts: tuple[HostView, ...]) -> Iterator[Text]:
    yield Text(f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}" if hosts else "no agent has connected yet")
    for host in sorted(hosts, key=lambda host: host.host):
        yield from _about(host)
    if hosts:
        busiest = max(host.cost.cpu_fraction for host in hosts)
        largest = max(host.cost.rss_bytes for host in hosts)
        each = "each ≤ " if len(hosts) > 1 else ""
        if largest:  # else it is the past, in which nobody knows
            yield Text(f"agents: {each}{busiest:.1%} of a core, {format_bytes(largest)}".replace("%", " %"))
        yield from _clocks(hosts)


def _clocks(hosts: tuple[HostView, ...]) -> Iterator[Text]:
    """How well the hosts are aligned, by what; then the hosts whose own clocks would have misled."""
    worst = max(host.clock_error_ns for host in hosts)
    sources = sorted({host.clock_source for host in hosts if host.clock_source})
    yield Text(f"clocks ± {format_duration(worst)}" + (f" by {', '.join(sources)}" if sources else ""))
    for host in sorted(hosts, key=lambda host: host.host):
        off = [f"{'+' if host.clock_offset_ns > 0 else ''}{format_duration(host.clock_offset_ns)}"]
        off += [f"{host.clock_skew_ppm:+.0f} ppm"] if abs(host.clock_skew_ppm) >= _LARGE_SKEW_PPM else []
        if abs(host.clock_offset_ns) >= _LARGE_OFFSET_NS or len(off) > 1:
            yield Text(f"{host.host}'s clock {', '.join(off)}", "yellow")


def _about(host: HostView) -> Iterator[Text]:
    """What is out of the ordinary."""
    if not host.connected:
        yield Text(f"{host.host} gone for {format_duration(host.age_ns)}", "bold red")
    elif silent(host):
        yield Text(f"{host.host} lags {format_duration(host.age_ns)}", "yellow")
    if host.cost.spool_bytes > _LARGE_SPOOL:
        yield Text(f"{host.host} holds {format_bytes(host.cost.spool_bytes)} unacknowledged", "yellow")
    if host.bucket_ns > host.stream_ns:
        yield Text(f"{host.host} streams {format_duration(host.bucket_ns)} buckets until it catches up", "yellow")
    if host.cost.warnings:
        yield Text(f"{host.host}: {host.cost.warnings} unusable marks or messages", "yellow")
