# SPDX-License-Identifier: Apache-2.0
"""Who slowed whom, since when and by how much: what was done to a run stands on the first screen of every view of it.

NETMON_ANSWERS=DIR keeps the datasets there, and takes those that are there.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from browser import looking, settled, started
from synthetic_source import serving
from test_top_program import Seen
from test_top_program import run as in_terminal

from netmon.cli import main
from netmon.dl.verdict import NOTABLE
from netmon.dl.verdict.incidents import line, who
from netmon.history.judging import stored_incidents, stored_verdicts
from netmon.history.past import DatasetPast, StoredRows
from netmon.lab.injections.spec import Injection
from netmon.lab.record import Truth, read_truth
from netmon.lab.run import run
from netmon.lab.spec import RunSpec
from netmon.top.glyphs import clock
from netmon.units import format_moment, format_utc
from netmon.views import NETWORK, Cause, Incident
from netmon.web.stored import Stored

pytestmark = [pytest.mark.kernel, pytest.mark.long]

S, MS = 1_000_000_000, 1_000_000
CROSS = Injection("cross", at=25, duration_ns=6 * S, strength=0.9, source=2, target=0)
LATE = tuple(Injection("stop", at=at + 0.2, duration_ns=300 * MS, rank=1) for at in range(26, 42, 3))
DONE: dict[str, tuple[Injection, ...]] = {
    "cross": (CROSS,),
    "late": LATE,
    "quota": (Injection("quota", at=25, duration_ns=8 * S, strength=0.01, rank=2),),
    "loss": (Injection("loss", at=25, duration_ns=6 * S, strength=0.05, host=1),),
    "two": (CROSS, *LATE),
    "nothing": (Injection("nothing", at=25),),
}
WHO = {
    "cross": {"iperf3 (root, h2) → h0"},
    "late": {"rank 1 (h1) was late"},
    "quota": {"h3 (rank 2) itself was slow"},
    "loss": {"packets lost out of h1 (rank 1)"},
    "two": {"iperf3 (root, h2) → h0", "rank 1 (h1) was late"},
    "nothing": set(),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.fixture(scope="module", params=DONE)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Its name, and the dataset."""
    kept = os.environ.get("NETMON_ANSWERS")
    data = Path(kept or tmp_path_factory.mktemp("answers")) / request.param
    if not data.exists():
        quiet: dict[str, Any] = {"cross": (), "cross_load": 0.0, "iterations": 60, "rate_bps": 500_000_000}
        spec = {"parameters": 2_000_000, "compute_ns": 100 * MS, "injections": DONE[request.param]}
        run(RunSpec(data, **quiet, **spec))
    return request.param, data


@pytest.fixture(scope="module")
def told(recorded: tuple[str, Path]) -> list[Incident]:
    """Those that were brought about."""
    name, data = recorded
    return [one for one in stored_incidents(data) if who(one) in WHO[name]]


def slow(truth: Truth, since_ns: int, until_ns: int) -> Any:
    """By how much the steps of a time took longer than usual that stood out."""
    within = (truth.end_ns > since_ns + MS) & (truth.start_ns < until_ns - MS)
    lost = truth.lasted_ns[within] - truth.median_ns
    return lost[lost >= (NOTABLE - 1.05) * truth.median_ns]


def test_what_was_done_is_what_is_told(recorded: tuple[str, Path], told: list[Incident]) -> None:
    name, data = recorded
    truth = read_truth(data)
    assert {who(one) for one in told} == WHO[name]
    for one in told:
        done = [each for each in truth.injections if each["cause"] == one.cause.name.lower()]
        begun, ended = min(each["start_ns"] for each in done), max(each["end_ns"] for each in done)
        step_ns = one.baseline_ns + one.lost_per_step_ns
        for true, at in ((begun, one.since_ns), (ended, one.until_ns)):
            if abs(at - true) > step_ns:  # the machine did as much itself, before or after
                assert len(slow(truth, min(true, at), max(true, at)))
    if told:
        verdicts = [one for one in stored_verdicts(data) if one.cause in {one.cause for one in told}]
        lost = truth.lasted_ns[[one.iteration for one in verdicts]] - truth.median_ns
        assert sum(one.lost_ns for one in told) == pytest.approx(lost.sum(), rel=0.15)
        since, until = min(one.since_ns for one in told), max(one.until_ns for one in told)
        assert sum(one.lost_ns for one in told) > 0.6 * slow(truth, since, until).sum()  # on a machine that is busy
    others = [one for one in stored_incidents(data) if one not in told]
    assert [who(one) for one in others if one.cause in NETWORK] == []
    for one in others:  # the machine did it: these steps were slow
        assert one.cause in (Cause.HOST, Cause.STRAGGLER, Cause.PAUSE, Cause.UNKNOWN)
        assert len(slow(truth, one.since_ns, one.until_ns))


def stands_in(text: str, one: Incident, moment: Callable[[int], str]) -> None:
    """All of the line, however it is broken."""
    plain = " ".join(text.split())
    for part in line(one, moment).replace(";", ":").split(":"):
        assert " ".join(part.split()) in plain.replace(";", ":"), text


def test_why(recorded: tuple[str, Path], told: list[Incident], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--data", str(recorded[1])]) == 0
    first = capsys.readouterr().out.split("\n\n")[0]
    for one in told:
        stands_in(first, one, format_moment)
    if recorded[0] == "nothing":
        assert "iperf3" not in first


def test_top(recorded: tuple[str, Path], told: list[Incident]) -> None:
    texts: list[str] = []

    async def look(seen: Seen) -> None:
        texts.append(await seen.until("JOBS", "INCIDENTS" if told else "slower"))

    with ThreadPoolExecutor(1) as thread:  # which has no event loop; the browser's is in this one
        thread.submit(in_terminal, look, None, DatasetPast(StoredRows(recorded[1])), size=(80, 24)).result()
    for one in told:
        stands_in(texts[0], one, lambda ns: clock(ns)[:8])


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_the_page(recorded: tuple[str, Path], told: list[Incident], browser: Any, size: tuple[int, int]) -> None:
    source = Stored(recorded[1])
    try:
        with serving(source) as address, looking(browser, address, size=size, timezone_id="UTC") as page:
            page.wait_for_selector("#answers .answer, #answers .well")
            settled(page)
            page.wait_for_selector(".incident" if told else "#answers")
            text = visible(page)
            for one in told:
                stands_in(text, one, format_moment)
            assert page.wrong == []
    finally:
        source.close()


def test_the_report(recorded: tuple[str, Path], told: list[Incident], browser: Any, tmp_path: Path) -> None:
    assert main(["report", str(recorded[1]), "--out", str(tmp_path / "report")]) == 0
    address = (tmp_path / "report/report.html").as_uri()
    with looking(browser, address, size=(1440, 900)) as page:
        text = visible(page)
        for one in told:
            stands_in(text, one, format_utc)


def visible(page: Any) -> str:
    """The text that stands on the screen."""
    found: str = page.evaluate(
        """() => {
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          const texts = [];
          for (let node = walker.nextNode(); node; node = walker.nextNode()) {
            const range = document.createRange();
            range.selectNodeContents(node);
            const box = range.getBoundingClientRect();
            const shown = node.parentElement.checkVisibility() && box.width && box.height;
            if (shown && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth) texts.push(node.data);
          }
          return texts.join(" ");
        }"""
    )
    return found
