# SPDX-License-Identifier: Apache-2.0
"""Quantities as people write them: `10us`, `1gbit`, `4e6`; and back, for display."""

import re
from datetime import datetime, timezone

from netmon.errors import UsageError

_DURATIONS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "min": 60 * 1_000_000_000,
    "h": 3_600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
}
_RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_QUANTITY = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def _parse(text: str, units: dict[str, int], what: str, example: str) -> int:
    match = _QUANTITY.fullmatch(text.replace("µ", "u"))
    unit = match[2].lower() if match else ""
    try:
        return round(float(match[1]) * units[unit])  # type: ignore[index]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UsageError(f"cannot read {text!r} as {what}: write a number and a unit, such as {example}") from None


def parse_duration(text: str) -> int:
    """`10us`, `1.5s`, … → nanoseconds. Raises UsageError."""
    return _parse(text, _DURATIONS, "a duration", "10us or 100ms")


def parse_rate(text: str) -> int:
    """`1gbit`, `250mbit`, … → bits per second. Raises UsageError."""
    return _parse(text, _RATES, "a rate", "1gbit or 250mbit")


def parse_size(text: str) -> int:
    """`1GB`, `500MB`, … → bytes. Raises UsageError."""
    return _parse(text, {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}, "a size", "1GB")


def parse_count(text: str) -> int:
    """`4e6`, `1000` → a whole number. Raises UsageError."""
    return _parse(text, {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}, "a count", "4e6")


def parse_time(text: str) -> int:
    """ISO 8601, UTC unless it says else → ns of the UTC epoch. Raises UsageError."""
    try:
        time = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
    except ValueError:
        raise UsageError(f"cannot read {text!r} as a time: write it like 2026-01-31T09:30:00") from None
    since_epoch = (time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - datetime(
        1970, 1, 1, tzinfo=timezone.utc
    )
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000_000 + since_epoch.microseconds * 1_000


def format_moment(utc_ns: int) -> str:
    """A UTC time → `18:23:36`, as clocks here show it; of another day with its date before it."""
    moment = datetime.fromtimestamp(utc_ns // 1_000_000_000)
    return moment.strftime("%H:%M:%S" if moment.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S")


def format_utc(utc_ns: int) -> str:
    """A UTC time → `2026-01-31 18:23:36 UTC`, the same for all readers."""
    return datetime.fromtimestamp(utc_ns // 1_000_000_000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _scaled(value: float, units: list[tuple[float, str]]) -> str:
    size = abs(value)
    scale, unit = next(((s, u) for s, u in units if size >= s), units[-1])
    scaled = value / scale
    digits = 0 if scaled == int(scaled) and abs(scaled) < 1000 else max(0, 3 - len(str(int(abs(scaled)))))
    return f"{scaled:.{digits}f} {unit}"


def format_duration(ns: float) -> str:
    """Nanoseconds → `1.23 ms`, `24 min`, three significant digits."""
    return _scaled(ns, [(3.6e12, "h"), (60e9, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")])


def format_rate(bits_per_second: float) -> str:
    """Bits per second → `941 Mbit/s`, SI prefixes, three significant digits."""
    return _scaled(bits_per_second, [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s")])


def format_count(count: float) -> str:
    """A number of things → `25.6 M`, SI prefixes, three significant digits."""
    return _scaled(count, [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")]).rstrip()


def format_endpoint(address: str, port: int) -> str:
    """`198.18.0.1:5201`, `[fe80::1]:5201`; without a port (0) the address alone."""
    if not port:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def format_bytes(count: float) -> str:
    """Bytes → `21.3 MB`, SI prefixes, three significant digits."""
    return _scaled(count, [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")])
