# SPDX-License-Identifier: Apache-2.0
"""Objects between two processes of the collector."""

import asyncio
import socket

import numpy as np
import pytest

from collector.receiving.frames import Pipe


def pair_of(work):
    async def opened():
        first, second = socket.socketpair()
        ours, theirs = await Pipe.open(first), await Pipe.open(second)
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
