# SPDX-License-Identifier: Apache-2.0
"""What has come on all streams, into the registry: in one tick, where each batch has its turn in its session."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from collector.agent_checks import FailedBatchError, RefusedBatchError
from collector.entry import Came, Entry
from collector.receiving.frames import Received
from collector.receiving.sessions import RemoteStream
from collector.registry import Registry
from netmon.dl.grouped import starts
from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import filter_batches


def take(registry: Registry, received: Received, streams: Mapping[int, RemoteStream]) -> None:
    """Take it in; what is not fresh, or of a stream that is over, is left out."""
    many, careful = received.many, registry.careful
    number = np.array(received.streams, np.int64)
    first = starts(number)
    rows = np.append(0, np.cumsum(np.bincount(many.rows["batch"], minlength=len(number))))
    good, came = np.zeros(len(number), np.bool_), list[Came]()
    utc_ns = many.heads["utc_ns"]
    for begin, end in pairwise([*first.tolist(), len(number)]):
        stream = streams.get(received.streams[begin])
        if stream is None or not stream.takes:
            continue
        sequences = received.sequences[begin:end]
        if careful or not stream.connection.order.accept_run(sequences):
            for index in range(begin, end):  # one by one
                if stream.takes and _accept(registry, received, stream, index):
                    good[index] = True
                    came.append(_came(received, stream.entry, index, index + 1, rows))
        else:
            good[begin:end] = True
            came.append(_came(received, stream.entry, begin, end, rows))
        registry.check_host_clock(stream.entry, int(utc_ns[end - 1]))
    _fail(registry, received, streams)
    many = many if good.all() else filter_batches(many, good)
    if not careful:
        registry.receive(came, many)
        return
    for session_index, one in enumerate(came):
        if not one.entry.broken:  # by a batch before it
            registry.receive([one], filter_batches(many, np.arange(len(came)) == session_index))


def _came(received: Received, entry: Entry, begin: int, end: int, rows: npt.NDArray[np.int64]) -> Came:
    horizon_ns = int(received.many.heads["horizon_ns"][end - 1])
    raw, count = received.raw[begin:end], int(rows[end] - rows[begin])
    return Came(entry, received.sequences[begin:end], count, horizon_ns, raw)


def _accept(registry: Registry, received: Received, stream: RemoteStream, index: int) -> bool:
    """Whether a batch is fresh; refused, or the session broken, where it is not what it should be."""
    entry, many, sequence = stream.entry, received.many, received.sequences[index]
    try:
        if stream.connection.order.accept_number(sequence):
            return True
        if index in many.refused:
            raise RefusedBatchError(sequence, entry.session.hello.host, many.refused[index])
        _describe(stream, received, index)
    except RefusedBatchError as error:
        entry.refused = error
        entry.news.set()
    except Exception as error:
        _failed(registry, entry, received.raw[index], error)
    return False


def _describe(stream: RemoteStream, received: Received, index: int) -> None:
    flows = [flow for batch, flow in received.many.flows if batch == index]
    try:
        stream.connection.order.describe(flows)
    except WireError as error:
        host = stream.entry.session.hello.host
        raise RefusedBatchError(received.sequences[index], host, error) from None


def _fail(registry: Registry, received: Received, streams: Mapping[int, RemoteStream]) -> None:
    """Messages at which reading them failed."""
    for number, raw, trouble in received.failed:
        stream = streams.get(number)
        if stream and stream.takes:
            _failed(registry, stream.entry, raw, RuntimeError(trouble))


def _failed(registry: Registry, entry: Entry, raw: bytes, error: Exception) -> None:
    """The session is not what it should be any more."""
    hello, sequence = entry.session.hello, netmon_pb2.AgentMessage.FromString(raw).batch.sequence
    message = registry.failures.set_aside(hello, f"batch {sequence}", [raw], error)
    entry.broken, entry.refused = True, FailedBatchError(sequence, hello.host, message)
    entry.news.set()
