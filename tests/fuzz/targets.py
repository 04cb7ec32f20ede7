# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed: a function of bytes each. Whatever comes, it returns, or raises what its callers expect.

`fuzz.py` runs one under atheris; the corpus is also read by the tests, without it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from collector.agent_checks import read_hello
from netmon.agent.timeline import TimelineFile
from netmon.errors import DataError, WireError
from netmon.kernel.training.symbols import function_offsets
from netmon.marks import MOST_NAME, decode, head, is_rank
from netmon.replay.frames import Capture, frames_of
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import decode_many
from netmon.wire.batches import decode_batch, encode_batch, encode_hello
from netmon.wire.grpc_client import BrokenError, Protocol
from netmon.wire.mapping import decode_selection, decode_snapshot
from netmon.wire.tables import TABLES

CORPUS = Path(__file__).with_name("corpus")
_PREFIXES = ("horovod_torch_", "_ZN7horovod", "ncclAllReduce")


def batch(data: bytes) -> None:
    """A batch by itself and among others is taken in, or refused, alike; what is taken in can be sent again."""
    try:
        message = netmon_pb2.Batch.FromString(data)
    except DecodeError:
        return
    many = decode_many([message])
    try:
        one = decode_batch(message)
    except WireError:
        assert 0 in many.refused
        return
    assert not many.refused, many.refused
    assert len(one.buckets) == len(many.rows)
    with suppress(WireError):  # a number that fits the record and not the message
        again = decode_batch(encode_batch(one))
        assert again.flows == one.flows


def tables(data: bytes) -> None:
    """Rows of each table, their columns and words, as they lie in a batch before they are deflated."""
    rows, columns = [count % 4 for count in data[: len(TABLES)]], data[len(TABLES) :]
    size = 8 * sum(len(format_.columns) * count for format_, count in zip(TABLES, rows, strict=False))
    message = netmon_pb2.Batch(sequence=1, horizon_ns=10**9, clock=netmon_pb2.ClockSample(mono_ns=1))
    message.tables.rows.extend(rows)
    message.tables.words.extend(["10.0.0.1", "::1", "train", ""])
    message.tables.columns = columns[:size].ljust(size, b"\0")
    batch(message.SerializeToString())


def hello(data: bytes) -> None:
    """An introduction, as a stream's first message; what is taken in has a host that can name a directory."""
    try:
        message = netmon_pb2.AgentMessage.FromString(data)
    except DecodeError:
        return
    try:
        told = read_hello(message)
    except WireError as error:
        assert "\n" not in str(error)
        assert str(error).isprintable() or not error.args
        return
    assert told.host not in ("", ".", "..")
    assert "/" not in told.host
    assert told.host.isprintable()
    encode_hello(told)


def marks(data: bytes) -> None:
    """A packet on the marks socket."""
    try:
        told = decode(data)
    except ValueError:
        return
    assert told
    for one in told:
        assert is_rank(one.rank, one.size)
        assert one.job.isprintable()
        assert len(one.job.encode()) <= MOST_NAME
        head(one.job, one.rank, one.size, one.parameters)


def timeline(data: bytes) -> None:
    """A Timeline that grows by halves."""
    with _file(data[: len(data) // 2]) as descriptor, suppress(ValueError):
        file = TimelineFile(descriptor)
        file.read()
        os.pwrite(descriptor, data, 0)
        for _ in range(4):
            steps = file.read()
            if steps is None or not file.advanced:
                return


def pcap(data: bytes) -> None:
    """A capture, down to its frames' flows."""
    with _file(data) as descriptor:
        try:
            capture = Capture(Path(f"/proc/self/fd/{descriptor}"))
        except DataError as error:
            assert "\n" not in str(error)
            return
        try:
            for _ in range(4):
                chunk = capture.read()
                if chunk is None:
                    return
                frames_of(chunk)
        finally:
            capture.close()


def elf(data: bytes) -> None:
    """A library of anybody's."""
    with _file(data) as descriptor, suppress(ValueError):
        for found in function_offsets(descriptor, _PREFIXES).values():
            assert all(offset >= 0 for offset in found)


def viewer(data: bytes) -> None:
    """What a viewer sends, and what it is sent."""
    for message, read in ((netmon_pb2.WatchRequest(), decode_selection), (netmon_pb2.Snapshot(), decode_snapshot)):
        with suppress(DecodeError, WireError):
            message.ParseFromString(data)
            read(message)


def channel(data: bytes) -> None:
    """What a collector says to an agent, in HTTP/2, in two pieces."""
    protocol = Protocol("collector")
    call = protocol.open("/netmon.Collector/Stream")
    call.send(b"hello")
    with suppress(BrokenError):
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            protocol.receive(piece, 0.0)
            protocol.fill()
    assert len(protocol.out) < (2 << 20) + len(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (batch, tables, hello, marks, timeline, pcap, elf, viewer, channel)
}


@contextmanager
def _file(data: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        yield descriptor
    finally:
        os.close(descriptor)
