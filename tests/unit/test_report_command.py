# SPDX-License-Identifier: Apache-2.0
"""`netmon report` on a sweep whose results are known."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest
import synthetic_dataset

from netmon.cli import main
from netmon.records import CLASS_COLOURS, CLASS_NAMES
from netmon.report.chapters.slowdown import _slowest_frames
from netmon.report.report import chapters
from netmon.report.study import read_study
from netmon.report.style import COLOUR_OF_CLASS
from netmon.units import format_duration

# No counters; every run sends the same; nothing stands out; nobody tells what ranks call.
NOT_THERE = {"nic-counters", "rdma-ports", "regression", "incidents", "groups"}
NOT_THERE |= {
    "shared-links",
    "shared-circles",
    "shared-drift",
    "shift-scores",
    "rank-pairs",
    "links-to-be-had",
}  # one job after the other


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    synthetic_dataset.write_dataset(folder, iterations=12, thin=5)
    return folder


@pytest.fixture(scope="module")
def out(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert main(["report", str(data), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def page(out) -> str:
    return (out / "report.html").read_text(encoding="utf-8")


class Page(HTMLParser):
    """Ids, links and images of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.ids += [known["id"]] if "id" in known else []
        self.links += [known["href"]] if tag == "a" else []
        self.sources += [known["src"]] if "src" in known else []


def test_every_exhibit_has_its_tables_and_its_figure(out):
    for exhibit in (exhibit for chapter in chapters() for exhibit in chapter.exhibits):
        expected = exhibit.name not in NOT_THERE
        assert (out / "tables" / f"{exhibit.name}.csv").exists() == expected, exhibit.name
        if exhibit.draw is not None:
            assert (out / "figures" / f"{exhibit.name}.png").exists() == expected, exhibit.name


def test_tables_are_tidy(out):
    for path in (out / "tables").glob("*.csv"):
        table = pd.read_csv(path)
        assert len(table), path.name
        assert table.columns.is_unique
        assert not table.columns.str.contains("Unnamed|level_").any(), path.name


def test_figures_are_drawn(out):
    for path in (out / "figures").glob("*.png"):
        image = matplotlib.image.imread(path)
        assert 900 < image.shape[1] < 1300, path.name
        assert image[..., :3].std() > 0.03, path.name


def test_the_page_stands_alone(page, out):
    parser = Page()
    parser.feed(page)
    assert len(parser.sources) == len(list((out / "figures").glob("*.png")))
    assert all(source.startswith("data:image/png;base64,") for source in parser.sources)
    inner = [link[1:] for link in parser.links if link.startswith("#")]
    assert set(inner) <= set(parser.ids)
    files = [link for link in parser.links if not link.startswith("#")]
    assert all((out / link).exists() for link in files)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)


def test_every_figure_says_what_it_rests_on(page):
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page, re.DOTALL)
    assert len(captions) > 20
    for caption in captions:
        for word in ("run", "model:", "link rate: 1 Gbit/s", "bucket: 10 µs", "bytes:", "iterations:", "netmon report"):
            assert word in caption


def test_the_findings_are_those_of_the_papers(page, out):
    congestion = pd.read_csv(out / "tables" / "iteration-time-congestion.csv")
    assert set(congestion["profile"]) == {"burst", "websearch"}
    assert congestion["found"].to_numpy() == pytest.approx(synthetic_dataset.THEORY, abs=0.05)
    assert congestion["theory"].to_numpy() == pytest.approx(synthetic_dataset.THEORY, abs=0.01)
    fits = pd.read_csv(out / "tables" / "fits.csv")
    assert (fits.groupby(["model", "profile"])["r_squared"].max() > 0.95).all()
    measured = pd.read_csv(out / "tables" / "bytes-per-iteration.csv")
    assert measured["ratio"].to_numpy() == pytest.approx(1, abs=0.01)
    rings = pd.read_csv(out / "tables" / "ring.csv")
    assert set(rings["order"]) == {"h0 → h1 → h2"}
    periods = pd.read_csv(out / "tables" / "periodicity.csv")
    assert periods["period_s"].dropna().to_numpy() == pytest.approx(
        periods["iteration_s"][periods["period_s"].notna()].to_numpy(), rel=0.1
    )
    assert "at 80% cross traffic burst is worse than consistent" in page
    assert "within 0.15" in page


def test_only_one_job(data):
    study = read_study(data, job="synthetic-burst-0.8")
    assert set(study.ranks["job"]) == {"synthetic-burst-0.8"}
    assert study.traffic is not None
    assert set(study.traffic.series["job"]) <= {"synthetic-burst-0.8", ""}


def test_classes_have_the_colours_that_top_uses():
    assert {name: COLOUR_OF_CLASS[name] for name in CLASS_NAMES} == dict(zip(CLASS_NAMES, CLASS_COLOURS, strict=True))


RECORDED = Path(__file__).parents[1] / "data/verdict"


def test_the_report_opens_with_who_slowed_whom(tmp_path, capsys):
    assert main(["report", str(RECORDED), "--out", str(tmp_path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    page = (tmp_path / "report.html").read_text()
    lines = re.findall(r"<li>(.*?)</li>", page)
    assert first == f"- {lines[0]}"
    assert "ring-3 2.1 × slower " in first
    assert page.index(lines[0]) < page.index("<nav>") < page.index("Who slowed whom</h2>")
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert titles[:3] == ["Who slowed whom", "The jobs", "Iteration time against cross traffic"]  # no links: no ledger
    table = pd.read_csv(tmp_path / "tables/incidents.csv")
    assert table["lost_ns"].is_monotonic_decreasing
    assert f"<td>{format_duration(table['lost_ns'][0])}</td>".replace(" ", "\u00a0") in page
    assert "`" not in re.sub(r"<[^>]*>", "", page)
    jobs = pd.read_csv(tmp_path / "tables/jobs.csv")
    assert jobs["lost_ns"].sum() == table["lost_ns"].sum()


def test_the_papers_chapters_alone(tmp_path):
    assert main(["report", str(RECORDED), "--out", str(tmp_path), "--study", "--job", "ring-3"]) == 0
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", (tmp_path / "report.html").read_text())
    assert "Who slowed whom" not in titles
    assert "Iteration time against cross traffic" in titles
    assert not (tmp_path / "tables/incidents.csv").exists()


def test_a_verdict_belongs_to_its_iteration_whichever_clock_told_its_end():
    study = read_study(RECORDED)
    exact = _slowest_frames(study)["slowest"]
    study.__dict__["verdicts"] = [replace(one, end_ns=one.end_ns + 522) for one in study.verdicts]
    assert _slowest_frames(study)["slowest"].equals(exact)
    assert (exact["cause"] != "").sum() == len(study.verdicts)
    study.__dict__["verdicts"] = [replace(one, end_ns=one.end_ns + 10**12) for one in study.verdicts]
    assert not _slowest_frames(study)["slowest"]["cause"].any()  # of another time
