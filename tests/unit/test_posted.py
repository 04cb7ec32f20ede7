# SPDX-License-Identifier: Apache-2.0
"""What was posted to RDMA devices, from the privileged part's answers to a batch's rows; and the kernel's list."""

import struct

import numpy as np

from netmon.agent.evidence import PostedRows
from netmon.evidence import POSTED
from netmon.kernel.verbs import PROVIDER_FILE, Posted, QueuePair, read_queues
from netmon.marks import RankIdentity
from netmon.wire.limits import MAX_BYTES, MAX_EVIDENCE

ROW = Posted(1, 2, 10, 17, "mlx5_0", "10.0.0.2", 99, 1, 4096, 2, 0, True)
OWNER = {"pid": 10, "uid": 0, "process": "train", "container": "", "job": "job", "rank": 3, "size": 4}


def reply(rows: list[Posted], more: bool = False) -> dict:
    return {"posted": [list(row) for row in rows], "owners": {"10": OWNER}, "more": more}


def words_in(table: np.ndarray, words: dict[str, int], row: int = 0) -> dict[str, str]:
    names = {place: word for word, place in words.items()} | {-1: ""}
    columns = ("job", "process", "container", "user", "rdma_device", "remote", "verb")
    return {column: names[int(table[column][row])] for column in columns}


def test_a_row_has_its_owner_and_a_rank_that_its_hook_tells_is_that_rank() -> None:
    ranks: dict[int, RankIdentity] = {}
    posted = PostedRows(able=True, ranks=ranks)
    posted.answer(reply([ROW]))
    words = {"other": 0}
    (row,) = table = posted.due(words)
    assert table.dtype == POSTED
    named = {"process": "train", "container": "", "user": "root", "rdma_device": "mlx5_0", "remote": "10.0.0.2"}
    assert words_in(table, words) == named | {"job": "job", "verb": "write"}
    numbers = ("start_ns", "end_ns", "rank", "pid", "queue", "remote_queue", "bytes", "requests", "unread", "whole")
    assert [int(row[name]) for name in numbers] == [1, 2, 3, 10, 17, 99, 4096, 2, 0, 1]
    ranks[10] = RankIdentity("hooked", 1, 4)
    posted.answer(reply([ROW]))
    table = posted.due(words)
    assert (words_in(table, words)["job"], int(table["rank"][0])) == ("hooked", 1)


def test_of_a_process_that_nobody_knows_the_bytes_are_told_and_a_sum_beyond_all_measure_is_the_most_that_travels() -> (
    None
):
    posted = PostedRows(able=True, ranks={})
    posted.answer(reply([ROW._replace(pid=11, bytes=2**70, peer="")]))
    words: dict[str, int] = {}
    table = posted.due(words)
    assert words_in(table, words) == dict.fromkeys(("job", "process", "container", "user", "remote"), "") | {
        "rdma_device": "mlx5_0",
        "verb": "write",
    }
    assert int(table["bytes"][0]) == MAX_BYTES


def test_what_a_batch_has_no_room_for_is_in_the_next_and_nothing_is_asked_for_meanwhile() -> None:
    posted = PostedRows(able=True, ranks={})
    assert posted.is_due(1)
    posted.requested(1)
    assert not posted.is_due(2)
    posted.answer(reply([ROW] * 1000, more=True))
    assert posted.is_due(2)  # at once
    posted.requested(2)
    posted.answer(reply([ROW] * 1000))
    assert not posted.is_due(10**18)
    words: dict[str, int] = {}
    assert [len(posted.due(words)) for _ in range(3)] == [MAX_EVIDENCE, 2000 - MAX_EVIDENCE, 0]
    assert posted.is_due(10**18)
    assert not PostedRows(able=False, ranks={}).is_due(10**18)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value.ljust(len(value) + 3 & ~3, b"\0")


def test_queue_pairs_are_those_of_processes_whatever_the_message_is() -> None:
    number = struct.Struct("=I").pack
    whose = attribute(21, number(17)) + attribute(22, number(99)) + attribute(28, number(4711))
    kernels = attribute(21, number(1)) + attribute(29, b"ib_core\0")
    body = attribute(1, number(0)) + attribute(2, b"mlx5_0\0")
    body += attribute(19 | 0x8000, attribute(20 | 0x8000, whose) + attribute(20 | 0x8000, kernels))
    assert read_queues(body) == [QueuePair("mlx5_0", 17, 99, 4711)]
    for cut in range(len(body)):
        assert len(read_queues(body[:cut])) <= 1
    assert read_queues(b"\0" * 64) == []
    assert read_queues(b"\xff" * 64) == []


def test_providers_are_called_as_rdma_core_calls_them() -> None:
    for name in ("librxe-rdmav34.so", "libmlx5.so.1.24.44.0", "libefa.so.1", "libbnxt_re-rdmav34.so", "libmlx4.so"):
        assert PROVIDER_FILE.search(f"/usr/lib/x86_64-linux-gnu/libibverbs/{name}")
    for name in ("libc.so.6", "libibverbs.so.1", "libmlx5.so.1/libc.so.6", "libnccl.so.2", "libmlx5.so.1 (deleted)"):
        assert not PROVIDER_FILE.search(f"/usr/lib/{name}")
