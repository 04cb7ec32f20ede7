# SPDX-License-Identifier: Apache-2.0
"""Objects between two processes of the collector."""

import asyncio
import os
import socket

import numpy as np
import pytest

from collector.receiving import frames
from collector.receiving.frames import Pipe


def pair_of(work, shared=False):
    async def opened():
        first, second = socket.socketpair()
        memory = os.memfd_create("test") if shared else -1
        ours, theirs = await Pipe.open(first, memory), await Pipe.open(second, os.dup(memory) if shared else -1)
        try:
            return await asyncio.wait_for(work(ours, theirs), 20)
        finally:
            ours.close()
            theirs.close()

    return asyncio.run(opened())


def test_frames_come_whole_and_in_order():
    sent = [
        {"a": np.arange(1_000_000), "b": np.arange(3, dtype=np.uint8), "none": np.zeros(0)},
        "small",
        (b"raw" * 100_000, np.zeros(20_000, [("x", "<i8"), ("y", "<f4")]), np.arange(100_000)[::2]),
        None,
    ]

    async def work(ours, theirs):
        for frame in sent:
            ours.send(frame)
        return [await theirs.receive() for _ in sent]

    table, small, several, none = pair_of(work)
    assert {name: column.tolist() for name, column in table.items()} == {n: c.tolist() for n, c in sent[0].items()}
    assert (small, none) == ("small", None)
    assert several[0] == sent[2][0]
    assert all((one == two).all() for one, two in zip(several[1:], sent[2][1:], strict=True))
    table["a"][0] = 7  # whoever has it may write into it


@pytest.mark.parametrize("shared", [True, False])
def test_large_frames_come_whole_one_after_the_other(shared, monkeypatch):
    monkeypatch.setattr(frames, "_AT_ONCE", 3)
    monkeypatch.setattr(frames, "_KEPT", 1 << 20)
    arrays = [np.arange(size) for size in (300_000, 0, 1, 7, 100_000, 2)]

    async def work(ours, theirs):
        came = []
        for array in arrays:
            ours.send_large({"a": array, "b": [array[::2], np.zeros((3, 0)), "text"], "c": array.astype("u1")})
            ours.send("small")
            came += [await theirs.receive(), await theirs.receive()]
        return came

    came = pair_of(work, shared)
    assert came[1::2] == ["small"] * len(arrays)
    for array, one in zip(arrays, came[::2], strict=True):
        assert one["a"].tolist() == array.tolist()
        assert [part.tolist() for part in one["b"][:2]] == [array[::2].tolist(), [[], [], []]]
        assert one["c"].tolist() == array.astype("u1").tolist()
        one["a"][:1] = 7  # whoever has it may write into it


def test_what_nobody_asks_for_stays_with_who_sends_it():
    async def work(ours, theirs):
        for _ in range(8):
            ours.send(np.zeros(4 << 20, np.uint8))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ours.drained(), 0.5)
        came = [len(await theirs.receive()) for _ in range(8)]
        await ours.drained()
        return came

    assert pair_of(work) == [4 << 20] * 8


def test_an_end_that_is_gone_is_said_after_what_it_had_sent():
    async def work(ours, theirs):
        ours.send("last word")
        ours.close()
        assert await theirs.receive() == "last word"
        with pytest.raises(EOFError):
            await theirs.receive()
        with pytest.raises(ConnectionResetError):
            await theirs.drained()
        theirs.send("to nobody")

    pair_of(work)
