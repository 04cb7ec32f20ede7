# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser.

NETMON_PICTURES=DIR keeps pictures of it, as the documentation has them; NETMON_PICTURES_OF=DATA: of that dataset, which
may be one of `make demo`.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import collector_stream
import pytest
from browser import looking, settled, shown, started
from collector_stream import hello
from collector_thread import collecting
from sent_agent import Sent, introduction
from synthetic_dataset import write_dataset
from synthetic_source import MS, Synthetic, serving
from test_full_resolution import FINE, fine, streamed
from waiting import free_port, wait_for

from netmon.agent.recorder import Pulls, Recorder, in_memory
from netmon.history.stored_rows import StoredRows
from netmon.records import Batch
from netmon.web.live import Live
from netmon.web.stored import Stored
from netmon.wire.security import PLAIN

TILES = "[...netmonPage.timeline.tiles.known.values()]"
STATE = "document.getElementById('state').textContent"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with serving(Synthetic(24, 300)) as address:
        yield address


def picture(page: Any, name: str) -> None:
    if folder := os.environ.get("NETMON_PICTURES"):
        page.screenshot(path=f"{folder}/{name}.png")


def test_it_zooms_from_an_hour_to_buckets_and_a_link_names_the_moment(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        settled(page)
        assert page.is_visible("#synthetic")
        _, all_of_it = shown(page)
        page.focus("#canvas")
        page.keyboard.press("w")
        _, closer = shown(page)
        assert closer < all_of_it
        page.mouse.move(700, 300)
        for _ in range(60):
            page.mouse.wheel(0, -300)
        page.wait_for_function("() => netmonPage.view.span === 200000")  # twenty buckets of 10 µs
        settled(page)
        page.wait_for_function("() => location.hash.includes('span=200000ns')")
        begin, link = shown(page)[0], page.url
        page.keyboard.press("d")
        assert shown(page)[0] > begin
        assert page.wrong == []
    with looking(browser, link) as page:
        settled(page)
        assert shown(page) == (pytest.approx(begin, abs=1), 200_000)


def test_names_from_the_wire_are_text(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        page.on("dialog", lambda dialog: page.wrong.append(dialog.message))
        page.wait_for_selector(".verdict")
        assert "<script>alert(1)</script>" in page.inner_text(".verdict")
        settled(page)
        page.mouse.click(400, 165)  # a host's bytes
        page.wait_for_selector("#selection td")
        assert "<b>backup</b>" in page.inner_text("#selection")
        assert page.query_selector("#selection b") is None
        assert page.wrong == []


def test_everything_can_be_done_by_keyboard(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        settled(page)
        page.focus("#canvas")
        page.keyboard.press("[")  # the verdict before
        page.wait_for_function("() => document.getElementById('said').textContent.includes('because')")
        settled(page)
        page.keyboard.press("ArrowDown")
        assert page.inner_text("#said") == "rank 0 of job-002, gpu-0016"
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => netmonPage.timeline.selected?.known")
        page.keyboard.press("Enter")
        page.wait_for_selector("#selection h2")
        assert page.inner_text("#selection h2").startswith("Iteration")
        page.focus("#tab-selection")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#figures canvas")
        page.focus("#canvas")
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="hidden")
        assert [line for line in page.wrong if "404" not in line] == []  # nobody measured what would explain it


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, cluster: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    with looking(browser, cluster, color_scheme=scheme, bypass_csp=True) as page:
        settled(page)
        page.wait_for_selector(".verdict")
        found = axe.Axe().run(page).response["violations"]
        page.click("#tab-figures")
        page.wait_for_selector("#figures canvas")
        found += axe.Axe().run(page).response["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == []


def test_a_browser_that_sleeps_comes_back(browser: Any) -> None:
    source = Synthetic(8, 60)
    source.live = True
    with serving(source) as address, looking(browser, address) as page:
        page.wait_for_function(f"() => {STATE} === 'live'")
        page.context.set_offline(True)
        page.wait_for_function(f"() => {STATE}.includes('does not answer')")
        source.end_ns += 1_000 * MS  # meanwhile
        source.known = replace(source.known, end_ns=source.end_ns, generation=1)
        page.context.set_offline(False)
        page.wait_for_function(f"() => {STATE} === 'live' && netmonPage.catalogue.generation === 1")
        page.wait_for_function("() => netmonPage.timeline.now === 61e9 + netmonPage.catalogue.begin")
        settled(page)


def test_a_dataset_is_explained(browser: Any, tmp_path: Path) -> None:
    data = Path(os.environ.get("NETMON_PICTURES_OF", tmp_path))
    if data == tmp_path:
        write_dataset(data, 6, lab=False, thin=10)
    source = Stored(data)
    try:
        with serving(source) as address, looking(browser, address, size=(1440, 700)) as page:
            settled(page)
            page.focus("#canvas")
            if data != tmp_path:
                page.wait_for_selector(".verdict")
                page.keyboard.press("/")
                page.wait_for_function("() => netmonPage.view.span === netmonPage.view.toSpan")
                settled(page)
            picture(page, "web")
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")
            page.wait_for_function("() => netmonPage.timeline.selected?.known")
            page.keyboard.press("Enter")
            page.wait_for_selector("#selection h2")
            page.wait_for_function("() => !document.getElementById('selection').innerText.includes('looking at')")
            assert "transfer" in page.inner_text("#selection")
            picture(page, "web-iteration")
            page.keyboard.press("f")
            page.click("#tab-figures")
            page.wait_for_selector("#figures canvas")
            page.click("#theme")
            settled(page)
            picture(page, "web-figures")
            assert page.wrong == []
    finally:
        source.close()


def test_a_moment_is_shown_as_the_hosts_recorder_has_it(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_stream, "UTC", time.time_ns())
    at = f"127.0.0.1:{free_port()}"
    recorder = Recorder(in_memory(1 << 22), FINE, 600 * 1_000 * MS, 1 << 22, 0)

    def recorded(batch: Batch) -> Batch:
        recorder.add(fine(batch), int(batch.buckets["bucket_start_ns"].max()) + MS)
        return streamed(batch, MS)

    source = Live(at, PLAIN)
    with collecting(at, tmp_path / "data"), serving(source) as address, looking(browser, address) as page:
        sent = Sent(tmp_path / "spool", at, pulls=Pulls(recorder))
        sent.spool.hello = introduction(hello(bucket_ns=FINE, stream_ns=MS))
        sent.start()
        sent.append(30, recorded)
        page.wait_for_function(f"() => netmonPage.view.follow && {TILES}.some((tile) => tile.rate_lane?.length)")
        moment = "netmonPage.timeline.now - 902e6, netmonPage.timeline.now - 900e6, 1"
        finest = f"{TILES}.some((tile) => tile.level === 0 && tile.resolution_ns === {FINE})"
        page.wait_for_function(
            f"() => (netmonPage.view.show({moment}), netmonPage.timeline.redraw(), {finest})", polling=500
        )
        page.wait_for_function("() => document.getElementById('resolution').textContent === 'rates known to 100 µs'")
        sent.finish(0.1)
    source.close()


def test_an_hour_before_the_page_began_comes_from_the_collectors_dataset(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_stream, "UTC", time.time_ns() - 100_000 * MS)
    at, data = f"127.0.0.1:{free_port()}", tmp_path / "data"
    with collecting(at, data, stored=StoredRows(data)):
        sent = Sent(tmp_path / "spool", at)
        sent.start()
        sent.append(600)
        wait_for(lambda: sent.spool.acknowledged == 600)
        source = Live(at, PLAIN)
        with serving(source) as address, looking(browser, address) as page:
            begin = "netmonPage.catalogue.begin"
            page.wait_for_function(f"() => netmonPage.view.follow && {begin} < netmonPage.timeline.now - 30e9")
            page.focus("#canvas")
            page.keyboard.press("f")
            slices = f"netmonPage.timeline.tiles.slices(netmonPage.timeline.level, 0, {begin}, {begin} + 20e9)"
            page.wait_for_function(f"() => {slices}.length > 10")
            assert page.evaluate(f"() => netmonPage.catalogue.unheard[0][1] > {begin} + 30e9")  # shaded before
            page.evaluate(f"() => netmonPage.view.show({begin} + 2e9, {begin} + 2.02e9, 1)")
            stored = f"{TILES}.some((tile) => tile.level < 3 && tile.resolution_ns === {MS} && tile.rate_lane.length)"
            page.wait_for_function(f"() => (netmonPage.timeline.redraw(), {stored})")
        source.close()
        sent.finish(0.1)


def test_it_survives_a_collector_that_restarts(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector_stream, "UTC", time.time_ns())
    at = f"127.0.0.1:{free_port()}"
    source = Live(at, PLAIN)
    with serving(source) as address, looking(browser, address) as page:
        page.wait_for_function(f"() => {STATE}.includes('cannot reach the collector')")
        sent = Sent(tmp_path / "spool", at)
        with collecting(at, tmp_path / "data"):
            sent.start()
            sent.append(30)
            page.wait_for_function(f"() => {STATE} === 'live' && netmonPage.catalogue.lanes.length === 3")
            for column in ("rate_lane", "phase_lane"):
                page.wait_for_function(f"() => {TILES}.some((tile) => tile.{column}?.length)")
            picture(page, "web-live")
            before = page.evaluate("() => netmonPage.timeline.now")
        page.wait_for_function(f"() => {STATE} !== 'live'")
        with collecting(at, tmp_path / "data"):
            sent.append(30)
            page.wait_for_function(f"() => {STATE} === 'live' && netmonPage.timeline.now > {before}")
        sent.finish(0.1)
    source.close()
