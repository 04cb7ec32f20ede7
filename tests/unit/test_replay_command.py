# SPDX-License-Identifier: Apache-2.0
"""`netmon replay` as its user sees it: what it writes, and how it refuses."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from captures import EPOCH_NS, HOST, PEER, pcap, refused, replay, segment, table


@functools.cache
def frames_of_two_seconds() -> list[tuple[int, bytes]]:
    return [(i * 1_000_000, segment(100 + i, i % 4 > 0)) for i in range(2000)]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return pcap(tmp_path / "c.pcap", frames_of_two_seconds())


def test_the_four_tables(capture: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = replay(capture, "--data", data, "--host", "node1", "--address", HOST, "--bucket", "1ms")
    assert done.returncode == 0, done.stderr
    buckets, flows, ledger = (table(data, name) for name in ("buckets", "flows", "ledger"))
    assert buckets["bucket_start_ns"].tolist() == [EPOCH_NS + time_ns for time_ns, _ in frames_of_two_seconds()]
    assert buckets["wire_bytes"].sum() == sum(len(frame) for _, frame in frames_of_two_seconds())
    assert buckets["payload_bytes"].sum() == sum(100 + i for i in range(2000))
    assert set(buckets["host"]) == {"node1"}
    assert flows[["src", "dst", "direction", "class"]].astype(str).to_numpy().tolist() == [
        [PEER, HOST, "rx", "unclassified"],
        [HOST, PEER, "tx", "unclassified"],
    ]
    assert ledger["attributed_bytes"].sum() == ledger["nic_bytes"].sum() == buckets["wire_bytes"].sum()
    assert (ledger["invisible_bytes"] == 0).all()
    assert {path.name for path in data.iterdir()} == {"buckets", "flows", "ledger", "sessions"}


def test_the_user_says_which_flows_are_the_trainings(tmp_path: Path) -> None:
    frames = [(i * 20_000, segment(1000, sport=4000 + i % 2)) for i in range(1000)]
    data = tmp_path / "data"
    options = ("--address", HOST, "--dl-port", 4000, "--capacity", "1gbit")
    done = replay(pcap(tmp_path / "c", frames), "--data", data, *options)
    assert done.returncode == 0, done.stderr
    buckets, flows = table(data, "buckets"), table(data, "flows")
    assert set(flows["class_source"]) == {"rule"}
    assert buckets.groupby(buckets["class"].astype(str))["packets"].sum().to_dict() == {"DL-shared": 500, "cross": 500}


def test_the_host_is_guessed_and_the_guess_is_said(tmp_path: Path) -> None:
    frames = [
        *frames_of_two_seconds(),
        (2_000_000_000, segment().replace(bytes([198, 18, 1, 2]), bytes([198, 18, 1, 3]))),
    ]
    done = replay(pcap(tmp_path / "c", frames), "--data", tmp_path / "data")
    assert f"taking {HOST} to be the host: in 100% of the first 2001 frames; if that is wrong" in done.stderr
    assert done.returncode == 0


def test_the_same_capture_is_not_taken_twice(capture: Path, tmp_path: Path) -> None:
    options = (capture, "--data", tmp_path / "data", "--host", "h", "--address", HOST)
    assert replay(*options).returncode == 0
    assert "it has these captures already" in refused(*options)
    assert table(tmp_path / "data", "buckets")["packets"].sum() == 2000


@pytest.mark.parametrize("missing", [1, 30, 60])
def test_of_a_truncated_capture_what_is_whole_is_used(missing: int, capture: Path, tmp_path: Path) -> None:
    os.truncate(capture, capture.stat().st_size - missing)
    data = tmp_path / "data"
    done = replay(capture, "--data", data, "--address", HOST)
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert f"{capture} is whole only up to its frame 1999: truncated dump file" in line
    assert line.endswith(f"what is whole is in {data}")
    assert table(data, "buckets")["packets"].sum() == 1999


def spoilt(folder: Path, what: str) -> Path:
    path = folder / "spoilt.pcap"
    if what == "empty":
        path.write_bytes(b"")
    elif what == "text":
        path.write_text("not a capture\n" * 100)
    elif what == "folder":
        path.mkdir()
    elif what == "header only":
        path.write_bytes(pcap(path, frames_of_two_seconds()).read_bytes()[:20])
    elif what == "first packet torn":
        path.write_bytes(pcap(path, frames_of_two_seconds()).read_bytes()[:60])
    elif what == "wireless":
        pcap(path, frames_of_two_seconds(), link=127)
    return path


BAD = {
    "missing": "No such file",
    "empty": "truncated dump file",
    "text": "unknown file format",
    "folder": "not a regular file",
    "header only": "truncated dump file",
    "first packet torn": "no packet in it: truncated dump file",
    "wireless": "its link type is IEEE802_11_RADIO, not one of Ethernet",
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_read_is_refused_in_a_line_and_nothing_is_written(
    what: str, capture: Path, tmp_path: Path
) -> None:
    path, data = spoilt(tmp_path, what), tmp_path / "data"
    line = refused(path, "--data", data)
    assert str(path) in line
    assert BAD[what] in line
    assert not data.exists()


@pytest.mark.parametrize("what", sorted(BAD.keys() - {"first packet torn"}))
def test_one_bad_capture_of_several_spoils_all(what: str, capture: Path, tmp_path: Path) -> None:
    assert BAD[what] in refused(capture, spoilt(tmp_path, what), "--data", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_an_unreadable_capture_is_refused(capture: Path, tmp_path: Path) -> None:
    capture.chmod(0)
    command = [sys.executable, "-m", "netmon", "replay", str(capture), "--data", "/nonexistent/data"]
    if os.geteuid() == 0:  # the owner of the file, who may not read it
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert f"cannot read {capture}: Permission denied" in line


def test_a_dataset_that_cannot_be_written_is_refused(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"cannot write to {tmp_path}/file" in refused(
        capture, "--data", tmp_path / "file", "--host", "h", "--address", HOST
    )


@pytest.mark.parametrize(
    ("option", "value"), [("--bucket", "1ns"), ("--bucket", "2s"), ("--address", "here"), ("--capacity", "fast")]
)
def test_a_wrong_option_is_refused(option: str, value: str, capture: Path, tmp_path: Path) -> None:
    done = replay(capture, "--data", tmp_path / "data", option, value)
    assert done.returncode == 2
    assert not (tmp_path / "data").exists()
