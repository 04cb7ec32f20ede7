# SPDX-License-Identifier: Apache-2.0
"""Configuration files set defaults, the command line wins, and mistakes are named."""

import argparse
import logging
import signal
from pathlib import Path

import pytest

from netmon import cli
from netmon.cli import main, make_parser
from netmon.commands.service_options import heed_hangup
from netmon.errors import UsageError
from netmon.options import defaults_from
from netmon.units import parse_duration


def small_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--interface", nargs="+", required=True)
    parser.add_argument("--cross", nargs="+", default=[])
    parser.add_argument("--bucket", type=parse_duration, default=10_000)
    parser.add_argument("--share-threshold", type=float, default=0.01)
    parser.add_argument("--hook", choices=["auto", "tc", "xdp"], default="auto")
    parser.add_argument("--quiet", action="store_true")
    return parser


def parse(tmp_path: Path, text: str, *arguments: str) -> argparse.Namespace:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    parser = small_parser()
    defaults_from(file, parser)
    return parser.parse_args(arguments)


def test_file_sets_converted_defaults_and_satisfies_required(tmp_path):
    text = 'interface = ["eth0", "eth1"]\nbucket = "1ms"\nshare-threshold = 0.05\nquiet = true\n'
    options = parse(tmp_path, text)
    assert options.interface == ["eth0", "eth1"]
    assert options.bucket == 1_000_000
    assert options.share_threshold == 0.05
    assert options.quiet is True


def test_command_line_wins(tmp_path):
    text = 'interface = ["eth0"]\ncross = ["2:0", "1:0"]\nbucket = "1ms"\n'
    options = parse(tmp_path, text, "--interface", "eth9", "--cross", "3:0", "--bucket", "20us")
    assert options.interface == ["eth9"]
    assert options.cross == ["3:0"]
    assert options.bucket == 20_000


def test_lists_come_from_the_file_when_not_given(tmp_path):
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
        defaults_from(tmp_path / "none.toml", small_parser())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# first\nbucket = '1ms'\n\n  'zzz' = 1", ["agent.toml:4: unknown key 'zzz'"]),
        ("bucket = '1ms'\nhook = 'netfilter'", ["agent.toml:2: cannot set 'hook'"]),
        (
            "bucket = '1ms'\n[agent]\nhook = 'tc'",
            ["agent.toml:2: [agent] is a table: 'hook' and all other keys stand above"],
        ),
        ("[[links]]\nname = 'eth0'", ["agent.toml:1: [links] is a table", "in no table"]),
        ("bucket.width = 3", ["agent.toml:1: [bucket] is a table"]),
    ],
)
def test_mistakes_name_their_line(tmp_path, text, words):
    test_mistakes_are_one_line_that_names_the_file(tmp_path, text, words)


def test_a_key_of_the_other_service_is_told(tmp_path, capsys):
    (tmp_path / "agent.toml").write_text('interface = ["lo"]\nshare-window = "1s"\n')
    assert main(["agent", "--config", str(tmp_path / "agent.toml")]) == 2
    line = capsys.readouterr().err
    assert "agent.toml:2: unknown key 'share-window'; it is an option of `netmon collector`" in line


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("agent", ["--interface", "eth0", "eth1", "--bucket", "20us", "--insecure", "--collector", 'unix:/run/"a"']),
        ("agent", []),
        ("collector", ["--data", "out", "--keep", "buckets=7d", "full=10GB", "--share-threshold", "0.05"]),
        ("collector", ["--full-on", "nothing", "--full-rows", "2e6", "--bus-replicas", "3"]),
    ],
)
def test_the_configuration_that_is_printed_is_one_that_means_the_same(tmp_path, capsys, command, options):
    assert main([command, *options, "--print-config"]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "printed.toml"
    file.write_text(printed)
    assert main([command, "--config", str(file), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    _, commands = make_parser([command])
    told, read = commands[command], make_parser([command])[1][command]
    for action in told._actions:
        action.required = False
    defaults_from(file, read)
    for action in read._actions:
        action.required = False
    assert vars(read.parse_args([])) == vars(told.parse_args(options))
    for line in printed.splitlines():
        assert len(line) <= 120


def test_a_hangup_reads_the_level_and_names_what_waits(tmp_path, caplog, monkeypatch):
    file = tmp_path / "agent.toml"
    file.write_text('interface = ["lo"]\n')
    arguments = ["agent", "--config", str(file)]
    args = cli._parse(arguments)
    args.parse_again = lambda: cli._parse(arguments)
    handlers = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    root = logging.getLogger()
    monkeypatch.setattr(root, "setLevel", lambda level: levels.append(level))
    levels: list[str] = []
    heed_hangup(args)
    file.write_text('interface = ["lo"]\nlog-level = "error"\nbucket = "1ms"\n')
    handlers[signal.SIGHUP]()
    assert levels == ["INFO", "ERROR"]
    assert "read the configuration again; in force now: log-level; changed, and in force after a restart: bucket" in (
        caplog.messages
    )
    caplog.clear()
    file.write_text("buckets = 3\n")
    handlers[signal.SIGHUP]()
    assert "the configuration was not read again" in caplog.text
    assert "did you mean 'bucket'" in caplog.text
    assert levels == ["INFO", "ERROR"]


def test_a_hangup_adjusts_what_is_safe_of_a_collector(tmp_path, caplog, monkeypatch):
    from collector.backpressure import HostLimiter
    from collector.settings import DEFAULT_RATES, Rates
    from netmon.commands import collector

    file = tmp_path / "collector.toml"
    file.write_text(f'data = "{tmp_path}/data"\n')
    arguments = ["collector", "--config", str(file)]
    args = cli._parse(arguments)
    args.parse_again = lambda: cli._parse(arguments)
    handlers, served = {}, []
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr("collector.server.serve", lambda settings, **more: served.append(settings))
    monkeypatch.setattr("asyncio.run", lambda serving: None)
    monkeypatch.setattr("collector.allocator.give_back", lambda: None)
    assert collector.run(args) == 0
    (settings,) = served
    host_rates = HostLimiter(lambda: settings.rates)
    assert host_rates.rates() == DEFAULT_RATES
    more = ["host-rates = ['rows=8e6', 'flows=1e4']", "keep = ['buckets=7d']", "flush = '5s'", "settle = '3s'"]
    file.write_text("\n".join([f'data = "{tmp_path}/data"', *more]))
    handlers[signal.SIGHUP]()
    assert host_rates.rates() == Rates(rows=8e6, flows=1e4)
    assert (settings.flush_ns, settings.keep[0].table, settings.settle_ns) == (5 * 10**9, "buckets", 10**9)
    line = "in force now: flush, host-rates, keep; changed, and in force after a restart: settle"
    assert caplog.messages[-1] == f"read the configuration again; {line}"
    file.write_text("\n".join([f'data = "{tmp_path}/data"', "host-rates = ['row=8e6']", "flush = '1s'"]))
    handlers[signal.SIGHUP]()
    assert "cannot read 'row=8e6' as a rate limit: write rows=8e6, or one of batches, flows" in caplog.messages[-1]
    assert settings.flush_ns == 5 * 10**9


def test_a_hangup_adjusts_what_an_agent_records():
    from netmon.agent.recorder import Recorder, in_memory

    recorder = Recorder(in_memory(1 << 16), 10_000, 10**9, 1 << 20, 0)
    assert recorder.adjust({"record_time_ns": 5 * 10**9, "bucket_ns": 1}) == ["record_time_ns"]
    assert (recorder._time_ns, recorder._limit) == (5 * 10**9, 1 << 20)
