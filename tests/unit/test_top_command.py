# SPDX-License-Identifier: Apache-2.0
"""`netmon top` as a command, where nothing needs a collector."""

import argparse
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from netmon.commands import top
from netmon.errors import NetmonError, UsageError
from netmon.top.moments import Reader
from netmon.wire.watch import Outage


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    top.arguments(parser)
    return top.run(parser.parse_args(words))


def test_json_is_for_once_only() -> None:
    with pytest.raises(UsageError, match="add --once"):
        run("--json")


def test_a_live_view_needs_a_terminal() -> None:
    with pytest.raises(UsageError, match="not a terminal"):
        run()


def test_a_collector_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NetmonError, match="cannot reach the collector"):
        run("--once", "--collector", f"unix:{tmp_path}/nobody.sock")


def test_who_has_read_snapshots_lets_go_of_the_connection() -> None:
    closed = threading.Event()

    def updates() -> Iterator[Outage]:
        try:
            while True:
                yield Outage(0, "gone")
        finally:
            closed.set()

    reader = Reader(updates(), SimpleNamespace(post_message=lambda _: None))
    reader.stop()
    assert closed.wait(60)


@pytest.mark.parametrize("words", [("--page", "2"), ("--once", "--page", "0"), ("--once", "--all", "--page", "2")])
def test_pages_are_turned_where_there_are_pages(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="cannot turn the page"):
        run(*words)


def test_a_page_leaves_out_those_before_it() -> None:
    parser = argparse.ArgumentParser()
    top.arguments(parser)
    asked = top._selection(parser.parse_args(["--once", "--page", "3"]), flows=20)
    assert (asked.links_from, asked.most_links, asked.jobs_from, asked.most_jobs) == (128, 64, 64, 32)
