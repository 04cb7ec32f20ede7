# SPDX-License-Identifier: Apache-2.0
"""What a frame says of the hosts' clocks."""

from dataclasses import replace

import pytest
from snapshot_example import example

from netmon.top.frame import draw_header
from netmon.top.options import Options


def header(**of_first: object) -> str:
    snapshot = example()
    first, *others = snapshot.hosts
    hosts = (replace(first, **of_first), *(replace(host, clock_source="exchange") for host in others))
    return "\n".join(line.plain for line in draw_header(replace(snapshot, hosts=hosts), Options(), 400, 100))


def test_the_bound_and_who_gives_it() -> None:
    assert "clocks ± 91 µs by exchange, traffic" in header(clock_source="traffic", clock_error_ns=91_000)


@pytest.mark.parametrize(
    ("offset_ns", "skew_ppm", "words"),
    [
        (5_003_000_000, 200.1, "h0's clock +5.00 s, +200 ppm"),
        (-20_000_000, 1.0, "h0's clock -20 ms"),
        (3_000, -80.0, "h0's clock +3 µs, -80 ppm"),
        (400_000, 3.0, ""),
    ],
)
def test_a_clock_that_would_have_misled_is_named(offset_ns: int, skew_ppm: float, words: str) -> None:
    text = header(clock_source="exchange", clock_offset_ns=offset_ns, clock_skew_ppm=skew_ppm)
    assert (words in text) if words else ("'s clock" not in text)
