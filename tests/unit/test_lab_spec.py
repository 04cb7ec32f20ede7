# SPDX-License-Identifier: Apache-2.0
"""What the lab accepts and what it refuses, and where it writes."""

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
        ({"hosts": 3}, "there are hosts 0 to 2"),
        ({"ring": (0,)}, "two hosts or more"),
        ({"ring": (0, 0)}, "in the ring twice"),
        ({"cross": ((1, 1),)}, "from a host to itself"),
        ({"cross_profile": "burst"}, "not there yet; choose iperf or websearch"),
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
        lab._hosts(text)


def test_cross_traffic_is_from_and_to():
    assert lab._pair("2:0") == (2, 0)
    with pytest.raises(UsageError, match="FROM:TO"):
        lab._pair("2")


def test_a_run_is_not_written_over_another(tmp_path):
    folder = prepare(tmp_path, overwrite=False)
    assert (folder / "log").is_dir()
    with pytest.raises(DataError, match="--overwrite"):
        prepare(tmp_path, overwrite=False)


def test_overwriting_removes_nothing_but_netmons_own_folders(tmp_path):
    prepare(tmp_path, overwrite=False)
    (tmp_path / "lab" / "rank-0.csv").touch()
    (tmp_path / "buckets").mkdir()
    (tmp_path / "thesis.tex").touch()
    prepare(tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lab", "thesis.tex"]
    assert not (tmp_path / "lab" / "rank-0.csv").exists()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Not a directory"):
        prepare(tmp_path / "file", overwrite=False)
