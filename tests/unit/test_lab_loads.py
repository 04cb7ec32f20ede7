# SPDX-License-Identifier: Apache-2.0
"""Loads: the two algorithms, their files, and what is said of them."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmon.cli import main
from netmon.errors import DataError
from netmon.lab.traffic.loads import (
    ALGORITHMS,
    BURST_NS,
    INTERVAL_NS,
    LOAD,
    Recipe,
    load,
    offered_bps,
    read_load,
    write_load,
)

RECIPES = st.builds(
    Recipe, st.just("burst"), st.floats(1e7, 9e9), st.sampled_from([1e8, 1e9, 1e10]), st.integers(0, 10**6)
)


@settings(max_examples=20, deadline=None)
@given(RECIPES)
def test_a_burst_has_three_tenths_of_its_intervals_bytes_in_two_flows(recipe):
    rows = load(recipe, seconds=1)
    within = rows["start_ns"] % INTERVAL_NS < BURST_NS
    interval = rows["start_ns"] // INTERVAL_NS
    volume = recipe.load_bps / 8 / 100
    np.testing.assert_array_equal(np.bincount(interval[within], minlength=100), 2)
    assert np.bincount(interval[~within], minlength=100).min() >= 8
    bytes_in_burst = np.bincount(interval[within], weights=rows["size_bytes"][within])
    all_bytes = np.bincount(interval, weights=rows["size_bytes"])
    flows = np.bincount(interval)  # each may be rounded by half a byte, or up to one
    assert (np.abs(bytes_in_burst - 0.3 * volume) <= 2).all()
    assert (np.abs(all_bytes - volume) <= flows).all()


@pytest.mark.parametrize("profile", ALGORITHMS)
def test_a_load_is_in_order_of_time_and_the_same_for_the_same_seed(profile):
    first, second, other = (load(Recipe(profile, 8e8, 1e9, seed), seconds=2) for seed in (1, 1, 2))
    assert (np.diff(first["start_ns"]) >= 0).all()
    assert first["start_ns"][-1] < 2_000_000_000
    assert first["size_bytes"].min() >= 1
    np.testing.assert_array_equal(first, second)
    assert len(first) != len(other) or (first != other).any()


@pytest.mark.parametrize("profile", ["websearch", "poisson"])
def test_the_load_is_offered_on_average(profile):
    rows = load(Recipe(profile, 8e8, 1e9, 3), seconds=60)
    assert rows["size_bytes"].sum() * 8 / 60 == pytest.approx(8e8, rel=0.05)
    assert rows["size_bytes"].mean() == pytest.approx(171_125, rel=0.05)


def test_the_consistent_load_is_the_same_in_every_part_of_a_second():
    rows = load(Recipe("websearch", 8e8, 1e9, 3), seconds=20)
    largest = 3_000_000 * 8 / 0.2  # a flow's bytes count when it begins
    assert np.abs(offered_bps(rows, 200_000_000) - 8e8).max() <= largest
    assert offered_bps(rows, 1_000_000_000).std() < 0.05 * 8e8


@pytest.mark.parametrize("name", ["load.csv", "load.parquet"])
def test_a_load_comes_back_from_its_file(tmp_path, name):
    rows = load(Recipe("burst", 1e8, 1e9, 1), seconds=1)
    write_load(tmp_path / name, rows, "made by a test")
    np.testing.assert_array_equal(read_load(tmp_path / name), rows)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "No columns"),
        ("start_ns,size_bytes\n", "no flow"),
        ("time,bytes\n1,2\n", "its columns are time, bytes; it takes start_ns and size_bytes"),
        ("start_ns,size_bytes\n1,x\n", "size_bytes must be whole numbers"),
        ("start_ns,size_bytes\n1,\n", "size_bytes must be whole numbers"),
        ("start_ns,size_bytes\n1.5,2\n", "start_ns must be whole numbers"),
        ("start_ns,size_bytes\n5,1\n6,1\n4,1\n", "flow 3 begins before the one above it"),
        ("start_ns,size_bytes\n-5,1\n", "flow 1 begins before the load does"),
        ("start_ns,size_bytes\n5,1\n6,0\n", "flow 2 has no bytes"),
        ("start_ns,size_bytes\n1,2,3,4\n1\n1,2,3,4,5,6\n", "cannot read"),
    ],
)
def test_what_is_no_load_is_refused_with_its_reason(tmp_path, text, reason):
    (tmp_path / "load.csv").write_text(text)
    with pytest.raises(DataError, match=reason) as caught:
        read_load(tmp_path / "load.csv")
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_not_what_they_are_called(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_load(tmp_path / "load.csv")
    (tmp_path / "load.parquet").write_bytes(b"PNG")
    with pytest.raises(DataError, match="cannot read"):
        read_load(tmp_path / "load.parquet")
    with pytest.raises(DataError, match="No such file"):
        write_load(tmp_path / "there is no" / "load.csv", np.zeros(1, LOAD))


def test_a_rate_counts_a_flows_bytes_when_it_begins():
    rows = np.array([(0, 125), (999_999, 125), (2_000_000, 250)], LOAD)
    np.testing.assert_allclose(offered_bps(rows, 1_000_000), [2e6, 0, 2e6])


def test_the_commands_write_and_show(tmp_path, capsys):
    file, picture = str(tmp_path / "burst.csv"), tmp_path / "burst.png"
    assert main(["lab", "load", "write", file, "--profile", "burst", "--load", "0.5", "--seconds", "1"]) == 0
    capsys.readouterr()
    assert main(["lab", "load", "show", file, "--json", "--plot", str(picture)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["mean_bps"] == pytest.approx(5e8, rel=0.001)
    assert shown["flows_per_10ms"]["fewest"] >= 10
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["lab", "load", "show", file]) == 0
    assert "mean 500 Mbit/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--profile", "voip"], "no profile 'voip'"),
        (["--profile", "iperf"], "no profile 'iperf'"),
        (["--load", "0"], "a share of the rate above 0"),
        (["--seconds", "0"], "at least one second"),
    ],
)
def test_what_cannot_be_written(tmp_path, capsys, options, reason):
    assert main(["lab", "load", "write", str(tmp_path / "load.csv"), *options]) == 2
    assert reason in capsys.readouterr().err


def test_an_address_that_is_none(tmp_path, capsys):
    assert main(["lab", "load", "replay", str(tmp_path / "load.csv"), "somewhere"]) == 2
    assert "write ADDRESS:PORT" in capsys.readouterr().err
