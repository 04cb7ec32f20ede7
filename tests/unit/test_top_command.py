# SPDX-License-Identifier: Apache-2.0
"""`netmon top` as a command, where nothing needs a collector."""

import argparse
from pathlib import Path

import pytest

from netmon.commands import top
from netmon.errors import NetmonError, UsageError


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
