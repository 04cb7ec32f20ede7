# SPDX-License-Identifier: Apache-2.0
"""What `netmon bench overhead` prints, on terminals of two widths."""

import io

import pytest
from rich.console import Console

from netmon.bench.idle import Idle
from netmon.bench.observers import OBSERVERS, Account
from netmon.bench.overhead import OverheadResult, Run
from netmon.bench.tables import LABELS, overhead_table

HEADINGS = (
    "Gbit/s",
    "(quartiles)",
    "machine",
    "observer",
    "CPU s/GB",
    "cores",
    "up, B/s",
    "records",
    "lost",
    "coverage",
)


def result() -> OverheadResult:
    def run(kind: str) -> Run:
        account = None
        if kind not in ("nothing", "programs"):
            unit = "packets" if kind == "tcpdump" else "bytes"
            account = Account(123_456_789, 1_234_567, 99_999, 100_000, unit, 1_234_567 if kind == "agent" else None)
        return Run(30_000_000_000 if kind == "nothing" else 27_000_000_000, 10.0, 20.0, 1.5, account)

    idle = Idle(30.0, 0.004, 40.0, 120 << 20, 90 << 20, 300.0)
    return OverheadResult(3, 2.0, "cubic", idle, {kind: (run(kind),) * 3 for kind in OBSERVERS})


@pytest.mark.parametrize("width", [80, 120])
def test_no_heading_and_no_figure_is_cut(width: int) -> None:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(overhead_table(result()))
    drawn = text.getvalue()
    assert "…" not in drawn
    assert all(len(line) <= width for line in drawn.splitlines())
    for heading in HEADINGS:
        assert heading in drawn
    for figure in ("0.90 (0.90–0.90)", "123,456,789", "3,703,701 packets", "99.999%"):
        assert figure in drawn
    assert set(OBSERVERS) == set(LABELS)
    words = " ".join(drawn.replace("│", " ").replace("┃", " ").split())
    assert "0.40 % of a core" in words
    assert "123,457 " in drawn  # what the agent alone sends in a second
