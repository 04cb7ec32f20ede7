# SPDX-License-Identifier: Apache-2.0
"""What slowed whom, since when, by how much and what to do: the first thing on the screen, compared with screens/.

NETMON_WRITE_FRAMES=1 writes them anew; look at the difference before you commit it.
"""

import time
from dataclasses import replace

import numpy as np
import pytest
from incident_scenes import NOW_NS, VERDICTS, scene
from snapshot_example import example
from synthetic_past import SLOW, SyntheticPast
from test_top_frame import PLAIN, drawn
from test_top_program import Seen, Source, compare, patient, run  # noqa: F401

from netmon.dl.verdict.baseline import baseline_of_job
from netmon.dl.verdict.incidents import incidents
from netmon.top.document import document
from netmon.top.incidents import calm, lines_of, of_past, with_older
from netmon.top.layout import Level, Scene, incidents_of, shown_incidents, tables
from netmon.top.moments import Rewinding
from netmon.top.options import arrange
from netmon.top.rows import StableOrder
from netmon.top.steps import VERDICTS as VERDICTS_KIND
from netmon.top.widgets import RowTable
from netmon.views import STEP_TIMES, Hang, Hung, Incident, PastSteps

SIZES = [(80, 24), (120, 40), (200, 60)]
ANSWERS = {
    "cross": (
        "resnet 1.5 × slower since 10:11:43: iperf3 (root, h2) → h0; 60 steps, 10.2 s lost",
        "limit iperf3 on h2",
    ),
    "late": ("resnet 1.5 × slower since 10:11:48: rank 1 (h1) was late", "look at what rank 1 does"),
    "quota": ("resnet 1.7 × slower since 10:11:53: h3 (rank 2) itself was slow", "the CPU quota of rank 2"),
    "loss": ("resnet 3.9 × slower since 10:11:58: packets lost out of h0 (rank 0)", "look at eth0 of h0"),
    "two": ("resnet 1.5 × slower since 10:12:01: iperf3 (root, h2) → h0", "bert 2.3 × slower since 10:12:04: rsync"),
    "nothing": ("no job is slower than usual",),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", list(VERDICTS))
def test_the_first_lines_answer(name: str, size: tuple[int, int]) -> None:
    async def look(seen: Seen) -> None:
        text = await seen.until("JOBS", "resnet")
        top = " ".join(" ".join(text.splitlines()[:9]).split())
        assert all(answer in top for answer in ANSWERS[name])
        compare(text, f"{name}-{size[0]}x{size[1]}")

    run(look, Source(scene(name)), size=size)


@pytest.mark.parametrize("name", list(VERDICTS))
def test_a_single_frame_and_json_have_them_too(name: str) -> None:
    top = " ".join(drawn(arrange(scene(name)), PLAIN, 80, 100).split())[:500]
    assert all(answer in top for answer in ANSWERS[name])
    found = [one for job in scene(name).jobs for one in job.incidents]
    assert document(scene(name)).count('"culprit_user": ') >= len(found)
    if name == "cross":
        [incident] = found
        assert '"cause": "cross"' in document(scene(name))
        assert '"direction": "rx"' in document(scene(name))
        assert incident.ongoing


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (30, 9), (40, 12), (79, 23), (300, 90)])
def test_every_size_can_be_drawn(size: tuple[int, int]) -> None:
    async def look(seen: Seen) -> None:
        await seen.pilot.pause(0.1)
        lines = seen.text().splitlines()
        assert len(lines) <= size[1]
        assert max(map(len, lines), default=0) <= size[0]
        assert size[1] < 9 or "bert 2.3 ×" in seen.text()

    run(look, Source(scene("two")), size=size)


def test_enter_goes_to_the_worst_step_and_back() -> None:
    slow = replace(SyntheticPast().steps().verdicts[0], relative=False)
    job = replace(example().jobs[0], incidents=tuple(incidents([slow], {"resnet": (slow.end_ns, SLOW)})))

    async def look(seen: Seen) -> None:
        await seen.until("INCIDENTS", "resnet 1.9 × slower", "→ limit backup")
        await seen.press("enter")
        await seen.until(f"all › iteration {SLOW}", "PAST", "RANKS", "→ limit backup")
        await seen.press("escape", "l")
        await seen.until("all\n", "2026-11-21 10:12:13 UTC")

    run(look, Source(replace(example(), jobs=(job,))), SyntheticPast())


def test_a_worst_step_that_is_not_known_any_more_says_so() -> None:
    async def look(seen: Seen) -> None:
        await seen.until("INCIDENTS")
        await seen.press("enter")
        await seen.until("all  there is no such iteration within the last hour")

    run(look, Source(scene("cross")), SyntheticPast())


def test_names_with_markup_and_control_characters_are_text() -> None:
    hostile = "[bold]\x1b[2J\x07" + "x" * 900
    verdicts = [replace(one, culprit=hostile, sender=hostile) for one in VERDICTS["cross"]]
    job = replace(scene("cross").jobs[0], incidents=tuple(incidents(verdicts, {"resnet": (NOW_NS, 410)})))

    async def look(seen: Seen) -> None:
        text = await seen.until("JOBS", "[bold]", "resnet 1.5 × slower since 10:11:43")
        assert "\x1b" not in text

    run(look, Source(replace(scene("cross"), jobs=(job,))), size=(80, 24))


def many(count: int) -> PastSteps:
    first = VERDICTS["cross"][0]
    verdicts = [
        replace(first, iteration=number * 30, start_ns=number * 10**10, end_ns=number * 10**10 + 10**9)
        for number in range(count)
    ]
    steps = np.zeros(count, STEP_TIMES)
    steps["end_ns"], steps["number"] = [one.end_ns for one in verdicts], [one.iteration for one in verdicts]
    return PastSteps({"resnet": steps}, verdicts)


def test_a_hundred_thousand_incidents_are_bounded_work() -> None:
    past = many(100_000)
    found = of_past(past)
    assert len(found) == 100_000
    scene_of = Scene(example(), past, past_incidents=found)
    for level in (Level(), Level("verdicts")):
        begin = time.process_time()
        shown = shown_incidents(incidents_of(level, scene_of) or (), scene_of, {}, 80)
        rest = tables(level, scene_of)
        assert time.process_time() - begin < 1.0
        assert len(shown.views) <= 1_000
        assert all(len(one.views) <= 1_000 for one in rest)
    assert rest[0].cut


def test_older_incidents_come_from_the_past_and_none_twice() -> None:
    old, *rest = [
        replace(one, since_ns=at * 10**9, until_ns=(at + 1) * 10**9)
        for at, one in zip((10, 20, 30), incidents(VERDICTS["cross"]) * 3, strict=True)
    ]
    live = [replace(one, ongoing=one is rest[-1]) for one in rest]
    found = with_older(live, [replace(one, ongoing=True) for one in (*rest, old)])
    assert [(one.since_ns // 10**9, one.ongoing) for one in found] == [(30, True), (20, False), (10, False)]


def test_one_usual_time_is_on_a_screen() -> None:
    job = replace(example().jobs[0], baseline_ns=333_000_000)
    assert baseline_of_job(job) == 333_000_000
    assert baseline_of_job(replace(job, baseline_ns=0)) == 310_000_000  # of a collector that does not say
    past = SyntheticPast()

    async def look(seen: Seen) -> None:
        await seen.until("455 / 333 ms")
        await seen.press("enter")
        text = await seen.until("ITERATIONS", "usual 333 ms")
        assert {line.split()[3] for line in text.splitlines() if line.split()[1:3] == ["455", "ms"]} == {"1.37"}
        await seen.press("escape", "left")
        await seen.until("iteration 39: took 300 ms, usually 300 ms", "/ 300 ms")
        await seen.press("slash")
        await seen.until("1.9 × its usual 312 ms", "/ 312 ms")

    run(look, Source(replace(example(), jobs=(job,))), past)


def said(*found: Incident, **of_job: object) -> str:
    job = replace(scene("nothing").jobs[0], **of_job)  # type: ignore[arg-type]
    return " ".join(line.plain for line in calm([job], found, {"resnet": "mine"}, 80))


def test_what_is_said_where_nothing_goes_on() -> None:
    over = replace(incidents(VERDICTS["cross"])[0], ongoing=False)
    assert said() == "no job is slower than usual"
    assert said(over) == "no job is slower than usual now"
    assert said(replace(over, ongoing=True)) == ""
    assert said(last_ns=600_000_000) == "mine's last step took 600 ms, usually 312 ms; not judged yet"
    ended = said(replace(over, first=30, last=40), iteration=40, last_ns=600_000_000)
    assert ended == "mine's last step took 600 ms, usually 312 ms", "its incident says the rest"
    assert "enough steps" in said(durations_ns=np.array([312]), baseline_ns=0)


HANG = Hang(
    *("resnet", NOW_NS - 60_000_000_000, 0, NOW_NS, Hung.NOT_ENTERED, "all-gather", 4812, "group 2", 3, "h7"),
    *("it is in disk I/O", (3,), tuple(range(3)) + tuple(range(4, 8))),
)


@pytest.mark.parametrize("size", SIZES)
def test_a_job_that_stands_still_is_the_first_line(size: tuple[int, int]) -> None:
    snapshot = scene("late")
    job = snapshot.jobs[0]
    hung = replace(snapshot, jobs=(replace(job, hangs=(replace(HANG, job=job.job),)), *snapshot.jobs[1:]))
    words = "stands still: rank 3 on h7 has not entered all-gather 4,812 of group 2; 7 ranks wait since 10:1"

    async def look(seen: Seen) -> None:
        text = await seen.until("JOBS", "stands still")
        assert words in " ".join(" ".join(text.splitlines()[:5]).split())

    run(look, Source(hung), size=size)
    top = " ".join(drawn(arrange(hung), PLAIN, 100, 100).split())
    assert words in top
    assert top.index(words) < top.index("slower since")
    waits = replace(hung, jobs=(replace(job, hangs=(replace(HANG, reported_ns=0),)),))
    assert "resnet waits: rank 3 on h7 has not" in drawn(arrange(waits), PLAIN, 100, 100)
    over = replace(hung, jobs=(replace(job, hangs=(replace(HANG, until_ns=NOW_NS),)),))
    assert "still" not in drawn(arrange(over), PLAIN, 100, 100)


def test_an_incident_of_another_day_has_its_date() -> None:
    [over] = incidents(VERDICTS["cross"])
    day_ns = 86_400_000_000_000
    [line] = lines_of(over, {}, NOW_NS + day_ns, 200)
    assert "2026-11-21 10:11:43 to 2026-11-21 10:12:12" in line.plain


def test_rows_of_incidents_do_not_move_while_they_go_on() -> None:
    source = Source(scene("two"))

    async def look(seen: Seen) -> None:
        await seen.until("INCIDENTS", "bert 2.3 ×")
        table = seen.program.query_one("#incidents", RowTable)
        before = [row.text.plain for row in table.views]
        assert [row.incident.job for row in table.views if row.number == 0] == ["bert", "resnet", "resnet"]
        later = scene("two")
        jobs = tuple(
            replace(job, incidents=tuple(replace(one, until_ns=one.until_ns + 10**9) for one in job.incidents))
            for job in later.jobs
        )
        source.put(replace(later, jobs=jobs, time_ns=NOW_NS + 10**9))
        await seen.until("10:12:14 UTC")
        after = [row.text.plain for row in table.views]
        assert [line for line in before if "since" in line] == [line for line in after if "since" in line]

    run(look, source)


def test_a_job_that_began_anew_has_two_steps_of_a_number() -> None:
    first = VERDICTS["cross"][0]
    hour_ns = 3_600_000_000_000
    earlier = replace(first, start_ns=first.start_ns - hour_ns, end_ns=first.end_ns - hour_ns)
    rewinding = Rewinding()
    past = PastSteps({}, (earlier, first))
    rewinding.take(past, of_past(past))
    steps = [rewinding.to_incident(one) for one in rewinding.incidents]
    assert [step and step.start_ns for step in steps] == [first.start_ns, earlier.start_ns]
    assert rewinding.to_incident(replace(rewinding.incidents[0], worst=1)) is None


def test_verdicts_stand_newest_first_however_they_come() -> None:
    verdicts = {one.iteration: one for one in VERDICTS["cross"]}
    order, now_ns = StableOrder(VERDICTS_KIND), NOW_NS
    for numbers in ([378, 377, 376], [378, 377, 376, 380, 379], [373, 380, 379, 378, 377, 376]):
        now_ns += 100_000_000
        rows = order.place([verdicts[number] for number in numbers], "ended", True, now_ns)
        assert [row.iteration for row in rows] == sorted(numbers, reverse=True)


def test_times_are_those_of_whoever_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    [over] = incidents(VERDICTS["cross"])
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        [line] = lines_of(over, {}, NOW_NS, 200)
        assert "15:41:43 to 15:42:12" in line.plain
        assert drawn(arrange(scene("cross")), PLAIN, 80, 24).startswith("netmon  2026-11-21 15:42:13 IST")
    finally:
        monkeypatch.undo()
        time.tzset()
