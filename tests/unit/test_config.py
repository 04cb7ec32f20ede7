# SPDX-License-Identifier: Apache-2.0
"""Configuration files set defaults, the command line wins, and mistakes are named."""

import argparse
from pathlib import Path

import pytest

from netmon.config import defaults_from
from netmon.errors import UsageError
from netmon.units import parse_duration


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--interface", nargs="+", required=True)
    parser.add_argument("--cross", action="append", default=[])
    parser.add_argument("--bucket", type=parse_duration, default=10_000)
    parser.add_argument("--share-threshold", type=float, default=0.01)
    parser.add_argument("--hook", choices=["auto", "tc", "xdp"], default="auto")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--no-colour", dest="colour", action="store_false")
    return parser


def parse(tmp_path: Path, text: str, *arguments: str) -> argparse.Namespace:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    parser = make_parser()
    defaults_from(file, parser)
    return parser.parse_args(arguments)


def test_file_sets_converted_defaults_and_satisfies_required(tmp_path):
    text = 'interface = ["eth0", "eth1"]\nbucket = "1ms"\nshare-threshold = 0.05\nquiet = true\nno-colour = false\n'
    options = parse(tmp_path, text)
    assert options.interface == ["eth0", "eth1"]
    assert options.bucket == 1_000_000
    assert options.share_threshold == 0.05
    assert options.quiet is True
    assert options.colour is True


def test_command_line_wins(tmp_path):
    text = 'interface = ["eth0"]\ncross = ["2:0", "1:0"]\nbucket = "1ms"\n'
    options = parse(tmp_path, text, "--interface", "eth9", "--cross", "3:0", "--bucket", "20us")
    assert options.interface == ["eth9"]
    assert options.cross == ["3:0"]
    assert options.bucket == 20_000


def test_appended_options_come_from_the_file_when_not_given(tmp_path):
    assert parse(tmp_path, 'interface = ["eth0"]\ncross = ["2:0", "1:0"]').cross == ["2:0", "1:0"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("buckett = '1ms'", ["unknown key 'buckett'", "did you mean 'bucket'"]),
        ("share_threshold = 0.5", ["did you mean 'share-threshold'"]),
        ("zzz = 1", ["unknown key 'zzz'", "it takes bucket, cross"]),
        ("config = 'other.toml'", ["unknown key 'config'"]),
        ("bucket = '10 apples'", ["cannot set 'bucket'", "such as 10us"]),
        ("share-threshold = 'much'", ["cannot set 'share-threshold'"]),
        ("hook = 'netfilter'", ["choose from auto, tc, xdp"]),
        ("interface = 'eth0'", ["write a list"]),
        ("bucket = ['1ms']", ["write one text or number"]),
        ("hook = true", ["write one text or number"]),
        ("quiet = 'yes'", ["write true or false"]),
        ("interface = [", ["cannot read the configuration"]),
    ],
)
def test_mistakes_are_one_line_that_names_the_file(tmp_path, text, words):
    with pytest.raises(UsageError) as caught:
        parse(tmp_path, text)
    line = str(caught.value)
    assert "agent.toml" in line
    assert "\n" not in line
    for word in words:
        assert word in line


def test_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the configuration .*none\.toml: No such file"):
        defaults_from(tmp_path / "none.toml", make_parser())
