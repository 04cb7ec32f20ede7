# SPDX-License-Identifier: Apache-2.0
"""What the lab accepts and what it refuses, and where it writes."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from netmon.commands import lab
from netmon.errors import DataError, UsageError
from netmon.lab.record import prepare
from netmon.lab.spec import RunSpec

SPEC = RunSpec(data=Path("out"))


def test_the_defaults_can_be_run():
    SPEC.check()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"trainer": "mpi"}, "no trainer 'mpi'"),
        ({"trainer": "hybrid"}, "3 ranks of --trainer hybrid, which has 4, or 8"),
        ({"hosts": 3}, "there are hosts 0 to 2"),
        ({"ring": (0,)}, "two hosts or more"),
        ({"ring": (0, 0)}, "in the ring twice"),
        ({"cross": ((1, 1),)}, "from a host to itself"),
        ({"pattern": "torus"}, "no pattern 'torus'; choose ring, star"),
        ({"pattern": "tree", "trainer": "horovod"}, "only --trainer ring has patterns"),
        ({"cross_profile": "file"}, "goes with --cross-file"),
        ({"cross_file": Path("load.csv")}, "goes with --cross-file"),
        ({"backward_share": 1.5}, "backward share"),
        ({"cross_profile": "voip"}, "no cross profile 'voip'"),
        ({"cross_load": 80.0}, "a share of the rate"),
        ({"cross_after": -1.0}, "0 to 1"),
        ({"rate_bps": 1000}, "at least 1mbit"),
        ({"parameters": 0}, "without parameters"),
        ({"iterations": 0}, "no iterations"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_reason(change, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        replace(SPEC, **change).check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["0,x", "", "1:2"])
def test_hosts_that_are_not_numbers(text):
    with pytest.raises(UsageError, match="write numbers"):
        lab.hosts(text)


def test_cross_traffic_is_from_and_to():
    assert lab.pair("2:0") == (2, 0)
    with pytest.raises(UsageError, match="FROM:TO"):
        lab.pair("2")


def test_a_run_is_not_written_over_another(tmp_path):
    folder = prepare(tmp_path, overwrite=False)
    assert (folder / "log").is_dir()
    with pytest.raises(DataError, match="--overwrite"):
        prepare(tmp_path, overwrite=False)


def test_overwriting_removes_nothing_but_netmons_own_folders(tmp_path):
    prepare(tmp_path, overwrite=False)
    (tmp_path / "lab" / "rank-0.csv").touch()
    for table in ("buckets", "verdicts", ".netmon/recent/iterations"):
        (tmp_path / table / "date=2026-11-26").mkdir(parents=True)
    (tmp_path / "chapters").mkdir()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DataError, match="--overwrite"):
        prepare(tmp_path, overwrite=False)
    prepare(tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chapters", "lab", "thesis.tex"]
    assert not (tmp_path / "lab" / "rank-0.csv").exists()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Not a directory"):
        prepare(tmp_path / "file", overwrite=False)


def parsed(*options):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("out"))
    lab.add_run_options(parser, iterations=50)
    return lab.run_spec(parser.parse_args(options), overwrite=False)


def test_no_options_are_the_defaults():
    assert parsed() == replace(SPEC, data=SPEC.data.resolve())


def test_a_configuration_says_who_trains_and_who_disturbs():
    assert parsed("--configuration", "A").cross == ((0, 2),)
    assert parsed("--configuration", "B").cross == ((2, 0),)
    assert parsed("--configuration", "A", "--cross", "1:2", "--ring", "0,1").cross == ((1, 2),)


def test_a_model_brings_its_layers_and_its_computing():
    spec = parsed("--model", "resnet50", "--rate", "1gbit")
    spec.check()
    assert (spec.size_scale, len(spec.layers), spec.batch) == (0.1, 161, 128)
    assert spec.parameters == sum(spec.layer_sizes) == pytest.approx(2_555_703, rel=1e-3)
    assert parsed("--model", "resnet50", "--compute", "1ms").compute_ns == 1_000_000
    with pytest.raises(UsageError, match="leave --params out"):
        parsed("--model", "resnet50", "--params", "1e6")
    with pytest.raises(UsageError, match="no model 'alexnet'; choose resnet50"):
        parsed("--model", "alexnet")


def test_a_parameter_server_is_a_star():
    assert parsed("--pattern", "ps").pattern == "star"


def test_a_load_file_is_a_profile():
    spec = parsed("--cross-file", "load.csv")
    spec.check()
    assert spec.cross_profile == "file"
