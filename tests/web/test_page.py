# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser.

NETMON_PICTURES=DIR keeps pictures of it, as the documentation has them; NETMON_PICTURES_OF=DATA: of that dataset, which
may be one of `make demo`.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import collector_stream
import pytest
from browser import looking, settled, shown, started
from collector_stream import hello
from collector_thread import collecting
from sent_agent import Sent, introduction
from synthetic_dataset import write_dataset
from synthetic_source import HOUR_NS, MS, Synthetic, serving
from test_full_resolution import FINE, fine, streamed
from waiting import free_port, wait_for

from netmon.agent.recorder import Pulls, Recorder, in_memory
from netmon.history.past import StoredRows
from netmon.records import Batch
from netmon.views import Hang, Hung, RankPair
from netmon.web import answers
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


def lane(page: Any, kind: str, at: int = 0) -> tuple[float, float]:
    """Where the at-th lane of a kind that is shown is on the screen: its middle, to the right of its name."""
    box = page.locator("#canvas").bounding_box()
    return box["x"] + 300, box["y"] + page.evaluate(
        """([kind, at]) => {
          const { timeline } = netmonPage;
          const lane = timeline.rows.filter((one) => timeline.lanes[one].kind === kind)[at];
          return timeline.y(lane) + timeline.boxes[lane].height / 2;
        }""",
        [kind, at],
    )


def seconds(page: Any, since: float, until: float) -> None:
    """Of what is known they are shown."""
    page.evaluate(
        """([since, until]) => {
          const { begin } = netmonPage.catalogue;
          netmonPage.view.show(begin + since * 1e9, begin + until * 1e9, 1);
          netmonPage.timeline.redraw();
        }""",
        [since, until],
    )


def unfolded(page: Any) -> None:
    """The first job shows its ranks, and these their hosts."""
    page.evaluate("() => [0, 1].forEach((lane) => netmonPage.timeline.toggle(lane))")


def still(page: Any) -> None:
    """Where it is now is a place that Back comes back to."""
    settled(page)
    page.wait_for_timeout(500)
    page.wait_for_function("() => !netmonPage.settling")


def picture(page: Any, name: str) -> None:
    if folder := os.environ.get("NETMON_PICTURES"):
        page.wait_for_selector("#loading", state="hidden")
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
        page.mouse.move(700, 450)
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
        page.wait_for_selector(".incident")
        assert "<script>alert(1)</script>" in page.inner_text(".incident")
        assert "<script>alert(1)</script>" in page.inner_text("#answers")
        settled(page)
        unfolded(page)
        seconds(page, 60, 70)
        settled(page)
        page.mouse.click(*lane(page, "host"))
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
        page.keyboard.press(" ")
        page.keyboard.press("ArrowDown")
        job = int(page.evaluate("() => netmonPage.opened.step.job").removeprefix("job-"))
        assert page.inner_text("#said") == f"rank 0 of job-{job:03}, gpu-{job * 8:04}"
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


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 1440), ("light", 390)])
def test_axe_finds_nothing(browser: Any, cluster: str, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    with looking(browser, cluster, size=(width, 900), color_scheme=scheme, bypass_csp=True) as page:
        settled(page)
        page.wait_for_selector(".incident")
        found = axe.Axe().run(page).response["violations"]
        page.click(".incident")
        page.wait_for_selector(".step")
        found += axe.Axe().run(page).response["violations"]
        page.click(".step")
        page.wait_for_selector(".fall")
        page.fill("#find", "gpu")
        page.wait_for_selector("#found button")
        found += axe.Axe().run(page).response["violations"]
        page.keyboard.press("Escape")
        page.click("#tab-figures")
        page.wait_for_selector("#figures canvas")
        found += axe.Axe().run(page).response["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == []


def test_a_job_that_stands_still_is_on_top(browser: Any) -> None:
    source = Synthetic(24, 300)
    words = "all-reduce", 41, "", 3, "h7", "it is in disk I/O"
    source.hangs = (Hang("job-000", source.end_ns, 0, source.end_ns, Hung.NOT_ENTERED, *words, (3,), (0, 1, 2)),)
    with serving(source) as address, looking(browser, address) as page:
        page.wait_for_selector("#answers .answer.now")
        first = page.inner_text("#answers > :first-child")
        assert first.startswith("job-000 stands still: rank 3 on h7 has not entered all-reduce 41; 3 ranks wait since ")
        assert first.endswith("; it is in disk I/O")
        assert "well" not in page.inner_text("#answers")
        source.hangs = (replace(source.hangs[0], reported_ns=0),)
        page.wait_for_selector("#answers .answer.now", state="detached")
        assert page.inner_text("#answers > :first-child").startswith("job-000 waits: rank 3 on h7 has not entered")
        source.hangs = ()
        page.wait_for_function("() => !document.getElementById('answers').textContent.includes('has not entered')")
        assert page.wrong == []


def test_what_pairs_of_ranks_carry_is_a_table(browser: Any) -> None:
    source = Synthetic(24, 300)
    with serving(source) as address, looking(browser, address) as page:
        page.wait_for_selector("#answers .busy", state="detached")
        assert page.is_hidden("#pairs")
        source.pairs = {"job-000": (RankPair(0, 1, 10**9, 94e9, 0, 1.0, "RDMA", "mlx5_0"),)}
        page.click("#pairs summary")
        row = "#pairs tr >> nth=-1"
        assert page.inner_text(row).split("\t") == ["0 → 1", "RDMA", "mlx5_0", "1 GB", "94 Gbit/s", "100 %"]
        source.pairs = {"job-000": (RankPair(0, -1, 10**9, float("nan"), 3, float("nan"), "", ""),)}
        page.wait_for_function("() => document.getElementById('pairs').textContent.includes('or more')")
        assert page.is_visible(row)  # it is open still
        assert page.inner_text(row).split("\t") == ["0 → ?", "not seen", "", "1 GB or more", "?", "?"]
        assert page.wrong == []


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_who_slows_whom_since_when_and_by_how_much_stands_on_top(browser: Any, size: tuple[int, int]) -> None:
    source = Synthetic(24, 300)
    one = source.found[0]
    source.found = []
    with serving(source) as address, looking(browser, address, size=size, timezone_id="Asia/Kolkata") as page:
        page.wait_for_selector("#answers .well")
        assert page.inner_text("#answers") == "✓ all 3 jobs are well"  # green and quiet
        settled(page)
        assert page.evaluate("() => performance.getEntriesByName('netmon-first-picture').length") == 1
        source.found = [one]
        page.wait_for_selector("#answers .answer")
        text = page.inner_text("#answers")
        local = datetime.fromtimestamp(one.start_ns // 10**9, timezone(timedelta(hours=5, minutes=30)))
        for word in ("job-000", f"{local:%H:%M:%S}", "1.8 × slower", "(ann, gpu-0023) → gpu-0000", "1 step", "lost"):
            assert word in text, text
        assert "What to do: limit" in text
        assert "last " in text
        assert "/ usual" in text
        assert "2 other jobs are well" in text
        box = page.locator("#answers").bounding_box()
        assert box["y"] + box["height"] < size[1]  # without scrolling
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        assert "here)" in page.inner_text("#range")  # local time beside UTC
        assert page.wrong == []


def test_steps_have_a_chart_to_choose_a_time_in(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        settled(page)
        page.wait_for_function("() => netmonPage.chart.bars?.took_ns.length > 100")
        bars = "netmonPage.chart.bars"
        slow = page.evaluate(f"() => {bars}.cause.findIndex((cause) => cause !== 255)")
        job = page.evaluate("() => netmonPage.chart.job")
        own = f"netmonPage.verdicts.find((one) => one.job === '{job}').iteration"
        assert page.evaluate(f"() => {bars}.number[{slow}] === {own}")
        box = page.locator("#steps-plot").bounding_box()
        x = box["x"] + page.evaluate(f"() => netmonPage.chart.x(netmonPage.chart.begin + {bars}.start_ns[{slow}]) + 1")
        page.mouse.move(x - 100, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(x, box["y"] + 40, steps=3)
        page.mouse.move(x + 100, box["y"] + 40)
        page.mouse.up()
        settled(page)
        begin, span = shown(page)
        chosen = page.evaluate(f"() => [netmonPage.chart.time({x} - {box['x']} - 100), 200 / netmonPage.chart.width]")
        assert begin == pytest.approx(chosen[0], rel=1e-3)
        assert span < 0.25 * 300e9
        page.mouse.click(x, box["y"] + 60)
        page.wait_for_selector("#selection .fall")
        assert page.inner_text("#selection h2") == f"Iteration {page.evaluate(own)} of {job}"


def test_the_chart_of_steps_is_as_wide_as_the_page_and_shows_causes_usual_and_incidents(
    browser: Any, cluster: str
) -> None:
    with looking(browser, cluster, size=(1440, 900)) as page:
        settled(page)
        page.wait_for_function("() => netmonPage.chart.bars?.took_ns.length > 100 && netmonPage.chart.incidents.length")
        seconds(page, 100, 200)
        settled(page)
        drawn = page.evaluate(
            """() => {
              const { chart } = netmonPage;
              const { context } = chart;
              const found = { rects: [], dashed: [] };
              context.fillRect = function (...box) {
                found.rects.push({ style: this.fillStyle, alpha: this.globalAlpha, box });
                CanvasRenderingContext2D.prototype.fillRect.apply(this, box);
              };
              context.stroke = function () {
                found.dashed.push(this.getLineDash().length > 0);
                CanvasRenderingContext2D.prototype.stroke.apply(this);
              };
              chart.draw();
              delete context.fillRect;
              delete context.stroke;
              const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
              const slow = chart.bars.cause.findIndex((cause) => cause !== 255);
              const at = chart.x(chart.begin + chart.bars.start_ns[slow]);
              return { ...found, at, bars: chart.bars.took_ns.length, alarm: style("--alarm"), step: style("--step"),
                begin: chart.time(parseFloat(chart.brush.style.left) + 66), view: netmonPage.view.begin };
            }"""
        )
        assert page.locator("#steps-plot").bounding_box()["width"] > 1440 - 40
        bars = [one for one in drawn["rects"] if one["alpha"] == 1][: drawn["bars"]]
        assert {round(one["box"][1] + one["box"][3], 3) for one in bars} == {87}  # all stand on the axis
        [slow] = [one for one in bars if one["style"] == drawn["alarm"]]
        assert slow["box"][0] == pytest.approx(drawn["at"], abs=1)
        assert slow["box"][3] == max(one["box"][3] for one in bars)
        [band] = [one for one in drawn["rects"] if one["alpha"] < 1]
        assert band["style"] == drawn["alarm"]
        assert band["box"][0] == pytest.approx(drawn["at"], abs=1)
        assert drawn["dashed"] == [True]  # the usual time
        assert drawn["begin"] == pytest.approx(drawn["view"], abs=1e9)  # what the timeline shows is marked


def test_what_is_free_of_the_height_is_used(browser: Any, cluster: str) -> None:
    free = "1 - netmonPage.timeline.height / document.getElementById('timeline').clientHeight"
    with looking(browser, cluster, size=(1440, 900)) as page:
        settled(page)
        unfolded(page)
        settled(page)
        few = page.evaluate(f"() => {free}")
        page.set_viewport_size({"width": 1440, "height": 1_200})
        page.wait_for_function("() => netmonPage.timeline.tall === document.getElementById('timeline').clientHeight")
        assert page.evaluate("() => netmonPage.timeline.grow") > 1
        assert few < 0.25


def test_one_colour_is_the_alarm(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        settled(page)
        page.wait_for_selector(".incident.network")
        page.keyboard.press("/")
        page.wait_for_selector("#selection .fall .more")
        colours = page.evaluate(
            """() => {
              const of = (selector, property) => getComputedStyle(document.querySelector(selector))[property];
              const alarm = document.createElement("i");
              alarm.style.color = "var(--alarm)";
              document.body.append(alarm);
              const found = [getComputedStyle(alarm).color, of(".incident.network", "borderLeftColor"),
                of("#selection .fall .more", "backgroundColor")];
              return [...found, netmonPage.timeline.colours.alarm];
            }"""
        )
        assert colours == ["rgb(213, 94, 0)"] * 3 + ["#d55e00"]


def test_a_flag_a_card_and_the_key_open_the_step_with_its_parts(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        page.wait_for_selector(".incident")
        settled(page)
        own = "netmonPage.verdicts.find((one) => one.job === 'job-000')"
        page.evaluate(f"() => (netmonPage.view.show({own}.from, {own}.at, 0.2), netmonPage.timeline.redraw())")
        settled(page)
        box = page.locator("#canvas").bounding_box()
        flag = page.evaluate("() => netmonPage.timeline.flags.find((one) => one.verdict.job === 'job-000')")
        assert flag["x"] == pytest.approx(page.evaluate(f"() => netmonPage.timeline.x({own}.from)"))  # on its own step
        page.mouse.click(box["x"] + flag["x"] + 6, box["y"] + flag["y"] + 6)
        number = page.evaluate(f"() => {own}.iteration")
        for again in range(3):
            page.wait_for_selector("#selection .fall")
            text = page.inner_text("#selection")
            assert "usual" in text
            assert "+ cross traffic" in text
            assert "not known" not in text
            if again == 0:
                assert text.startswith(f"Iteration {number} of job-000")
                page.keyboard.press("/")
            elif again == 1:
                page.click("#tab-incidents")
                page.click(".incident >> nth=0")
                page.click(".step")
        sums = page.inner_text("#selection .sum")
        assert "usual" in sums
        assert " = " in sums


def test_keys_work_wherever_the_focus_is(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        page.wait_for_selector(".incident")
        settled(page)
        page.click("#tab-figures")
        _, before = shown(page)
        page.keyboard.press("w")
        assert shown(page)[1] < before
        dark = "document.documentElement.dataset.theme"
        theme = page.evaluate(dark)
        page.keyboard.press("t")
        assert page.evaluate(dark) != theme
        page.click("#tab-advice")
        page.keyboard.press("[")
        page.wait_for_selector("#selection .fall")
        page.click("#tab-incidents")
        page.keyboard.press("Enter")  # explains what is selected
        page.wait_for_selector("#selection .fall")


def test_back_undoes_and_a_link_keeps_what_is_open(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        page.wait_for_selector(".incident")
        still(page)
        first = shown(page)
        page.keyboard.press("/")
        still(page)
        assert page.is_visible("#selection .fall")
        second, link = shown(page), page.url
        page.keyboard.press("d")
        still(page)
        page.go_back()
        still(page)
        assert shown(page) == (pytest.approx(second[0], abs=2), pytest.approx(second[1], abs=2))
        assert page.is_visible("#selection .fall")
        page.go_back()
        still(page)
        assert shown(page) == (pytest.approx(first[0], abs=2), pytest.approx(first[1], abs=2))
        assert page.is_visible("#incidents")
        assert page.evaluate("() => netmonPage.timeline.selected") is None
    with looking(browser, link) as page:
        page.wait_for_selector("#selection .fall")
        settled(page)
        assert shown(page) == (pytest.approx(second[0], abs=2), pytest.approx(second[1], abs=2))
        assert page.evaluate("() => netmonPage.timeline.selected.number") == page.evaluate(
            "() => netmonPage.verdicts.reduce((a, b) => (a.excess_ns > b.excess_ns ? a : b)).iteration"
        )


def test_a_link_to_what_is_not_there_says_so(browser: Any, cluster: str) -> None:
    gone = (
        f"{cluster}#at=2020-01-01T00:00:00Z&span=1000000000ns&tab=selection&job=job-000&step=7&end=2020-01-01T00:00:01Z"
    )
    with looking(browser, gone) as page:
        page.wait_for_selector("#empty button")
        assert "Nothing is known of 2020-01-01" in page.inner_text("#empty")
        page.click("#empty button")
        settled(page)
        page.wait_for_selector("#empty", state="hidden")
        assert [line for line in page.wrong if "404" not in line] == []


def added_up(page: Any, pixels: int) -> str:
    """What is said of a span of the host's lane, so wide, that is selected."""
    x, y = lane(page, "host")
    page.keyboard.down("Shift")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + pixels, y, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    page.wait_for_selector("#selection td")
    return str(page.inner_text("#selection"))


def test_a_span_is_added_up_beside_the_one_before(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        settled(page)
        unfolded(page)
        seconds(page, 60, 70)
        settled(page)
        text = added_up(page, 60)
        for word in ("By class", "By process", "Largest flows", "1 GB", "new", "cross"):
            assert word in text
        with page.expect_download() as saved:
            page.click("text=Save as CSV")
        lines = Path(saved.value.path()).read_text().splitlines()
        assert lines[0].startswith("host,direction,class,process,user")
        assert lines[1].startswith("gpu-0000,tx,cross,<b>backup</b>,\"'=HYPERLINK")
        assert shown(page)[1] == pytest.approx(10e9)  # the view has not moved
        still(page)
        link = page.url
        page.evaluate("() => (netmonPage.timeline.toggle(2), netmonPage.timeline.redraw())")
        page.wait_for_function("() => netmonPage.timeline.lanes.some((one) => one.process === '<b>backup</b>')")
    with looking(browser, link) as page:
        page.wait_for_selector("#selection td")
        assert page.inner_text("#selection") == text


@pytest.mark.parametrize("most", [answers.MOST_ROWS, 0])
def test_a_long_span_has_its_processes(browser: Any, cluster: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the run; of too many rows it is an estimate, and says so."""
    monkeypatch.setattr(answers, "MOST_ROWS", most)
    with looking(browser, cluster) as page:
        settled(page)
        unfolded(page)
        seconds(page, 0, 300)
        settled(page)
        text = added_up(page, 400)
        assert " min" in text.split("By class")[0]
        assert ("By process" in text, "estimated: of this time " in text) == (True, most == 0)
        page.evaluate("() => (netmonPage.timeline.toggle(2), netmonPage.timeline.redraw())")
        name = "<b>backup</b>" if most else "≈ <b>backup</b>"
        page.wait_for_function("(name) => netmonPage.timeline.lanes.some((one) => one.process === name)", arg=name)
        picture(page, f"long-{bool(most)}")


@pytest.mark.parametrize(
    ("text", "found"), [("job-001", "job"), ("gpu-0009", "host"), ("backup", "process"), ("70", "iteration")]
)
def test_a_search_finds(browser: Any, cluster: str, text: str, found: str) -> None:
    with looking(browser, cluster) as page:
        settled(page)
        page.keyboard.press("g")
        page.keyboard.type(text)
        page.wait_for_selector(f"#found button:has-text('{found} ')")
        page.wait_for_selector("#found .busy", state="detached")
        page.keyboard.press("Enter")
        page.wait_for_selector("#found", state="hidden")
        if found == "iteration":
            page.wait_for_function(
                "() => document.querySelector('#selection h2')?.textContent.startsWith('Iteration 70')"
            )
        else:
            kinds = {"job": "job-001", "host": "gpu-0009", "process": "gpu-0000"}
            chosen = page.evaluate("() => netmonPage.timeline.lanes[netmonPage.timeline.lane]")
            assert kinds[found] in (chosen["host"], (chosen["job"] or {}).get("name"))


def test_culprit_and_victim_are_pinned_with_an_arrow(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        page.wait_for_selector(".incident")
        settled(page)
        rows = "netmonPage.timeline.rows.map((at) => netmonPage.timeline.lanes[at])"
        assert page.evaluate(f"() => {rows}.map((one) => one.kind)") == ["job"] * 3  # a row for each job
        page.click(".answer >> nth=0")
        one = page.evaluate("() => netmonPage.incidents.get(netmonPage.opened.incident)")
        assert one["sender"] == "gpu-0023"
        assert page.evaluate(f"() => {rows}.slice(0, 4).map((one) => one.host || one.job.name)") == [
            *(one["job"], one["receiver"], one["receiver"], "gpu-0023")
        ]
        assert page.evaluate("() => netmonPage.timeline.ends !== null")
        page.keyboard.press("Escape")
        assert page.evaluate("() => [netmonPage.timeline.pinned.length, netmonPage.timeline.ends]") == [0, None]


def test_two_fingers_zoom(browser: Any, cluster: str) -> None:
    with looking(browser, cluster, has_touch=True) as page:
        settled(page)
        _, before = shown(page)
        touch = page.context.new_cdp_session(page)

        def fingers(kind: str, *places: int) -> None:
            points = [{"x": x, "y": 420, "id": at} for at, x in enumerate(places)]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        fingers("touchStart", 500, 600)
        fingers("touchMove", 400, 700)
        page.wait_for_function("([before]) => netmonPage.view.span < before * 0.5", arg=[before])
        fingers("touchEnd")
        assert page.wrong == []


def test_what_happens_now_moves_with_every_frame(browser: Any) -> None:
    source = Synthetic(8, 60)
    source.live = True
    with serving(source) as address, looking(browser, address) as page:
        page.wait_for_function("() => netmonPage.timeline?.scrolls")
        source.end_ns += 500 * MS
        begins = page.evaluate(
            """async () => {
              const begins = [];
              for (let frame = 0; frame < 20; frame++) {
                await new Promise(requestAnimationFrame);
                begins.push(netmonPage.view.begin);
              }
              return begins;
            }"""
        )
        assert begins == sorted(begins)
        assert len(set(begins)) > 10  # a look once a second would be one or two


def test_what_is_under_the_mouse_is_told_anew_after_a_zoom(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        settled(page)
        seconds(page, 100, 104)
        settled(page)
        page.mouse.move(*lane(page, "job"))
        page.wait_for_selector("#tip", state="visible")
        before = page.inner_text("#tip")
        page.keyboard.press("d")
        settled(page)
        page.wait_for_function("(before) => document.getElementById('tip').innerText !== before", arg=before)


def test_a_bucket_of_ten_microseconds_is_sharp(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        settled(page)
        unfolded(page)
        seconds(page, 100, 100.0002)
        settled(page)
        drawn = page.evaluate(
            """() => {
              const { context } = netmonPage.timeline;
              const { drawImage } = context;
              const smooth = [];
              context.drawImage = function (...all) {
                smooth.push(this.imageSmoothingEnabled);
                drawImage.apply(this, all);
              };
              netmonPage.timeline.draw();
              delete context.drawImage;
              return smooth;
            }"""
        )
        assert drawn
        assert not any(drawn)


def test_nothing_stays_blank_without_a_word(browser: Any, cluster: str) -> None:
    with looking(browser, cluster) as page:
        settled(page)
        page.route("**/api/advice", lambda route: None)  # it takes for ever
        page.click("#tab-advice")
        assert page.is_visible("#advice .busy")
        page.route("**/api/tile*", lambda route: None)
        seconds(page, 200, 200.001)
        page.wait_for_selector("#loading", state="visible")


def test_a_page_left_open_for_a_day_shows_the_last_hour(browser: Any) -> None:
    source = Synthetic(8, 60)
    source.live = True
    with serving(source) as address, looking(browser, address) as page:
        page.wait_for_function("() => netmonPage.view?.follow")
        for hour in range(1, 25):
            end = source.end_ns + HOUR_NS
            begin = end - HOUR_NS
            source.end_ns = end
            source.known = replace(source.known, begin_ns=begin, end_ns=end, generation=hour)
            page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
            page.wait_for_function(f"() => netmonPage.catalogue.generation === {hour}")
        settled(page)
        assert page.evaluate("() => netmonPage.view.follow && netmonPage.timeline.tiles.known.size < 300")
        assert page.evaluate(
            "() => Math.abs(netmonPage.view.toBegin + netmonPage.view.toSpan - netmonPage.timeline.now) < 5e9"
        )
        assert [line for line in page.wrong if "409" not in line] == []  # lanes that are there no more


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
        page.wait_for_function("() => netmonPage.timeline.end === 61e9 + netmonPage.catalogue.begin")
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
                page.wait_for_selector(".incident")
                page.keyboard.press("/")
                page.wait_for_function("() => netmonPage.view.span === netmonPage.view.toSpan")
                settled(page)
            picture(page, "web")
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")
            page.wait_for_function("() => netmonPage.timeline.selected?.known")
            page.keyboard.press("Enter")
            page.wait_for_selector("#selection h2")
            page.wait_for_function("() => !document.getElementById('selection').querySelector('.busy')")
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
